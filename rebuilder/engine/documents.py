"""Refreshes documents: incrementally while live's recipe is this one, else by a rebuild beside it, in steps.

Each batch is one transaction of the store: documents and checkpoint, under the ticket's revision. So a crash at any
point is resumed by the next refresh, and of two workers one goes on. The last batch fences the log, drains what is left
and completes, all in one transaction: a busy log is caught up with, and nothing is missed.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any
from uuid import uuid4

from rebuilder.domain.document_projection import DocumentProjection, Refreshed, key_of
from rebuilder.domain.documents import Document
from rebuilder.domain.lifecycle import (
    Checkpoint,
    Complete,
    Fail,
    Progressed,
    RebuildTicket,
    SourcePosition,
    Start,
    StoredStatus,
    Transition,
)
from rebuilder.domain.ticket import Failure, Reason, Stage
from rebuilder.engine.source import Source
from rebuilder.engine.stop import StopToken
from rebuilder.errors import (
    DefinitionError,
    HandlerFailed,
    RebuildInProgress,
    RecipeOutdated,
    RecordConflict,
    SourceRotated,
)
from rebuilder.eventlog import RawEvent
from rebuilder.eventlog.shards import everything
from rebuilder.store.documents import Building, Live
from rebuilder.store.projection_store import ProjectionStore
from rebuilder.store.sessions import Connection, translated


class _TooMuch(Exception):
    """More is left than fits under the fence: back to batches outside it."""


@dataclass(slots=True)
class Refresh:
    """One refresh: what it works on, and how far it is."""

    store: ProjectionStore
    projection: DocumentProjection
    source: Source
    reader: Connection
    batch: int
    stop: StopToken
    ticket: RebuildTicket | None = None
    at: Checkpoint | None = None
    batches: int = 0
    events: int = 0

    def run(self, max_batches: int | None) -> Refreshed:
        """Refresh until all is applied that is settled, or so many batches are."""
        self._begin()
        rebuilding = self.ticket is not None
        while not self.stop.requested and (max_batches is None or self.batches < max_batches):
            more = self._guarded(self._batch)
            if more:
                continue
            if self.ticket is None or self._guarded(self._finish):
                return self._told("complete", rebuilt=rebuilding)
        return self._told("partial", rebuilt=rebuilding)

    def _told(self, state: Any, *, rebuilt: bool) -> Refreshed:
        assert self.at is not None
        return Refreshed(self.projection.name, state, self.at.generation, self.batches, self.events,
                         self.at.source.position if self.at.source else 0, rebuilt)

    def _begin(self) -> None:
        name, version = self.projection.name, self.projection.version
        status = self.store.status(name)
        if status is not None and status.version is not None and status.version > version:
            raise RecipeOutdated(f"Documents {name!r} were built with version {status.version}; this code has "
                                 f"{version}. Nothing was written.", hint="deploy the later code", projection=name)
        if status is not None and status.active_rebuild is not None:
            self._resume(self.store.rebuild(status.active_rebuild))
        elif status is None or not status.generation or status.version != version or status.pending_requests:
            if status is not None and status.generation and not status.pending_requests:
                self.store.invalidate(name, Reason.RECIPE_CHANGED)
            self._resume(self.store.request_rebuild(name, uuid4(), version=version))
        else:
            self._incremental(status)

    def _resume(self, ticket: RebuildTicket | None) -> None:
        assert ticket is not None
        if ticket.driver != "store" or ticket.version != self.projection.version:
            raise RebuildInProgress(f"Documents {ticket.projection!r} are being rebuilt with version {ticket.version} "
                                    f"by ticket {ticket.id}.", hint="wait for it, or cancel it", ticket=str(ticket.id))
        if ticket.stage is Stage.REQUESTED:
            ticket = self.store.transition_rebuild(Transition(ticket.id, ticket.revision, Start()))
        self.ticket = ticket
        self.at = ticket.checkpoint or Checkpoint(ticket.projection, ticket.generation, None, 0, version=ticket.version)

    def _incremental(self, status: StoredStatus) -> None:
        self.at = status.checkpoint
        if self.at is None:
            raise RecordConflict(f"Documents {status.projection!r} are live and have no checkpoint.",
                                 hint="invalidate them, and refresh")

    def _batch(self) -> bool:
        """Apply the next events up to a settled horizon; whether there may be more."""
        page = self._read(self._horizon())
        if page:
            with self.store.transaction():
                self._apply(page)
            self.batches += 1
        return len(page) == self.batch

    def _finish(self) -> bool:
        """Under the log's fence: drain and complete. False if too much is left for it."""
        ticket = self.ticket
        assert ticket is not None
        before = (self.ticket, self.at, self.events)
        try:
            with self.store.transaction():
                self.store.fence_log()
                self._drain()
                assert self.ticket is not None
                assert self.at is not None
                seen = self.source.fingerprint(self.reader, self._generation(), "count")
                self.ticket = self.store.transition_rebuild(Transition(
                    ticket.id, self.ticket.revision, Complete(self.at, seen)))
        except BaseException as error:
            self.ticket, self.at, self.events = before
            if isinstance(error, _TooMuch):
                return False
            raise
        return True

    def _drain(self) -> None:
        page = self._read(None)
        if len(page) == self.batch:
            raise _TooMuch
        if page:
            self._apply(page)

    def _generation(self) -> Any:
        assert self.ticket is not None
        assert self.ticket.source is not None
        return self.ticket.source.generation

    def _read(self, upto: int | None) -> list[RawEvent]:
        assert self.at is not None
        above = self.at.source.position if self.at.source else 0
        with translated("reading the event log"):
            return everything(self.source.log, self.reader, above=above, upto=2**63 - 1 if upto is None else upto,
                              limit=self.batch)

    def _horizon(self) -> int:
        with translated("taking the horizon of the log"):
            horizon = self.source.log.horizon(self.reader, own_pids=())
            while not horizon.settled(self.reader):
                if self.stop.wait(0.01):
                    return 0
        return horizon.position

    def _apply(self, page: Sequence[RawEvent]) -> None:
        """Fold a page into documents, and write them with the checkpoint. Called in a transaction of the store."""
        at, changed = self.at, self._fold(page)
        assert at is not None
        here = [Document(key, value) for key, value in changed.items() if value is not None]
        gone = [key for key, value in changed.items() if value is None]
        generation = self.ticket.source.generation if self.ticket and self.ticket.source else (
            at.source.generation if at.source else self.store.source())
        moved = replace(at, source=SourcePosition(generation, page[-1].position), events=at.events + len(page),
                        updated_at=None)
        into = Building(self.ticket.id, self.ticket.revision) if self.ticket else Live(at.projection, at.generation)
        self.store.put_documents(here, into, removed=gone)
        if self.ticket is not None:
            self.ticket = self.store.transition_rebuild(Transition(
                self.ticket.id, self.ticket.revision, Progressed(moved)))
            self.at = moved
        else:
            self.at = self.store.checkpoint(moved)
        self.events += len(page)

    def _fold(self, page: Sequence[RawEvent]) -> dict[str, Any]:
        assert self.at is not None
        rows: dict[str, Any] = {}
        for raw in page:
            if not self.projection.reads(raw.type, raw.category):
                continue
            try:
                event = self.source.log.decode(raw, replaying=self.ticket is not None)
                for registration in self.projection.fold.registrations(raw.type):
                    key = key_of(registration.key, event)
                    if key not in rows:
                        found = self.store.document(self.at.projection, key, generation=self.at.generation)
                        rows[key] = None if found is None else found.value
                    rows[key] = registration.function(copy.deepcopy(rows[key]), event)
            except Exception as error:
                raise HandlerFailed(
                    f"The fold of documents {self.projection.name!r} failed on event {raw.position} ({raw.type}, "
                    f"stream {raw.stream}): {type(error).__name__}. Live is as it was.",
                    hint="mend the fold and refresh again", projection=self.projection.name, position=raw.position,
                    type=raw.type, stream=raw.stream) from error
        return rows

    def _guarded(self, work: Any) -> bool:
        """Work whose failure ends the ticket, so that nothing is wedged: the next refresh begins a fresh one."""
        before = (self.ticket, self.at, self.events)
        try:
            return bool(work())
        except (HandlerFailed, SourceRotated) as error:
            self.ticket, self.at, self.events = before
            if self.ticket is not None:
                failure = Failure.HANDLER_REJECTED if isinstance(error, HandlerFailed) else Failure.SOURCE_CHANGED
                self.store.transition_rebuild(Transition(self.ticket.id, self.ticket.revision, Fail(failure)))
            raise


def check_limits(batch: int, max_batches: int | None) -> None:
    """Raise :class:`~rebuilder.errors.DefinitionError` for limits that are none."""
    for name, value in (("batch", batch), ("max_batches", max_batches)):
        if value is not None and (isinstance(value, bool) or value < 1):
            raise DefinitionError(f"{name} is {value!r}; it must be a whole number from 1.")
