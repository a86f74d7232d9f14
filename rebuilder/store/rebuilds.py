"""Tickets of rebuilds: requested, started, moved on, completed, failed or cancelled, each step by compare-and-swap."""

from __future__ import annotations

import os
from typing import Any
from uuid import UUID

from psycopg.types.json import Jsonb

from rebuilder import errors
from rebuilder.domain.invalid import InvalidCheckpoint, InvalidSource, InvalidTransition
from rebuilder.domain.lifecycle import (
    EDGES,
    Cancel,
    Checkpoint,
    Complete,
    Fail,
    LogFingerprint,
    Progressed,
    RebuildTicket,
    Start,
    Transition,
    check_id,
    check_name,
)
from rebuilder.domain.ticket import Stage
from rebuilder.errors import RecordConflict, RecordCorrupt, RecordNotFound, RecordTerminal, SourceMoved, SourceRotated
from rebuilder.store import requests
from rebuilder.store.ledger import host
from rebuilder.store.sessions import Connection
from rebuilder.store.statuses import Statuses, place_of


class Rebuilds(Statuses):
    """Rebuilds that somebody else than the engine carries out, in steps that survive a crash.

    The engine's own runs are in the same table: one open ticket for a projection, whoever carries it out. A ticket
    that is only requested is taken up by the next ``Rebuilder.rebuild``.
    """

    def request_rebuild(self, projection: str, ticket: UUID, *, version: int, invalidation: UUID | None = None,
                        source: LogFingerprint | None = None) -> RebuildTicket:
        """Ask for a rebuild under a ticket of the caller's; a known one is given back as it is now.

        ``invalidation`` is a pending request, by default the newest. Raises ``RecordConflict`` where nothing is
        pending and live is built, where another ticket is open, and where the ticket is known with other content.
        """
        check_name(projection)
        check_id(ticket, InvalidTransition, "A ticket")
        with self._writing("requesting a rebuild") as connection:
            self._run(connection, "insert_state", projection=projection)
            known = self._ticket(connection, ticket, "read_ticket")
            if known is not None:
                return _same(known, projection, version, invalidation, source)
            self._run(connection, "lock_state", projection=projection)
            pending = requests.pending_requests(connection, self._books, projection)
            status = self._status(connection, projection)
            assert status is not None
            if status.active_rebuild is not None:
                raise RecordConflict(f"{projection!r} is being rebuilt by ticket {status.active_rebuild}.",
                                     hint="wait for it, or cancel it", ticket=str(status.active_rebuild))
            if invalidation is None and pending:
                invalidation = pending[-1].id
            elif invalidation is None and status.generation:
                raise RecordConflict(f"Nothing is asked for {projection!r}, and live is built.",
                                     hint="invalidate it first, with a reason")
            elif invalidation is not None and invalidation not in {each.id for each in pending}:
                raise RecordConflict(f"Request {invalidation} is not pending for {projection!r}.",
                                     hint="read the pending requests")
            reason = next((each.reason for each in pending if each.id == invalidation), "operator_requested")
            source = self._seen(connection, source)
            self._run(connection, "request_ticket", projection=projection, ticket=ticket, version=version,
                      reason=str(reason), host=host(), pid=os.getpid(), invalidation=invalidation, **_facts(source))
            return self._known(connection, ticket)

    def rebuild(self, ticket: UUID) -> RebuildTicket | None:
        """A ticket, the engine's too; None if there is none."""
        with self._using("reading a ticket") as connection:
            return self._ticket(connection, ticket, "read_ticket")

    def source(self) -> UUID:
        """The log's incarnation now."""
        with self._writing("asking for the log's incarnation") as connection:
            active = self._active_source(connection)
        if active is None:
            raise errors.DefinitionError("A store without an event log knows no incarnation of it.",
                                         hint="take the store from Rebuilder.store()")
        return active

    def fence_log(self) -> None:
        """Inside :meth:`transaction`: keep appenders out until its end, so that what is read then is all there is."""
        with self._writing("fencing the log") as connection:
            if self.log is None:
                raise errors.DefinitionError("A store without an event log can't fence it.",
                                             hint="take the store from Rebuilder.store()")
            self.log.fence(connection)

    def open_rebuilds(self, *, silent: float = 0.0) -> list[RebuildTicket]:
        """Tickets that are not finished and have not moved for so many seconds, the longest silent first."""
        with self._using("reading tickets") as connection:
            return [ticket_of(row) for row in self._run(connection, "open_tickets", silent=silent).fetchall()]

    def transition_rebuild(self, transition: Transition) -> RebuildTicket:
        """Make a step; the ticket as it is then. A repeat of the last step gives the ticket back.

        Raises ``RecordNotFound``, ``RecordTerminal``, ``RecordConflict`` (another revision), ``InvalidTransition`` (no
        such edge), ``InvalidCheckpoint`` (backwards); for complete also ``SourceMoved`` and ``SourceRotated``.
        """
        with self._writing("making a step of a rebuild") as connection:
            ticket = self._ticket(connection, transition.ticket, "lock_ticket")
            if ticket is None:
                raise RecordNotFound(f"There is no ticket {transition.ticket}.", ticket=str(transition.ticket))
            if _is_repeat(ticket, transition):
                return ticket
            stage = _next_stage(ticket, transition)
            step = transition.step
            if isinstance(step, Progressed | Complete):
                _check_checkpoint(ticket, step.checkpoint)
            if isinstance(step, Complete):
                self._prove(connection, ticket, step)
            self._make(connection, ticket, transition, stage)
            return self._known(connection, ticket.id)

    def _make(self, connection: Connection, ticket: RebuildTicket, transition: Transition, stage: Stage) -> None:
        step = transition.step
        at = step.checkpoint if isinstance(step, Progressed | Complete) else None
        failure = {Fail: str(step.failure) if isinstance(step, Fail) else None, Cancel: "cancelled"}.get(type(step))
        report = None
        if isinstance(step, Complete):
            report = Jsonb({"projection": ticket.projection, "ticket": str(ticket.id), "generation": ticket.generation,
                            "version": ticket.version, "mode": "store", "events_applied": step.checkpoint.events,
                            "rows": step.checkpoint.rows, "position": step.source.position})
        done = self._run(
            connection, "step_ticket", ticket=ticket.id, revision=transition.revision, stage=str(stage),
            failure=failure, details=Jsonb({"error": failure, "message": failure}) if failure else None, report=report,
            position=None if at is None else at.source.position if at.source else 0,
            events=None if at is None else at.events, rows=None if at is None else at.rows).fetchone()
        if done is None:
            raise RecordConflict(f"Ticket {ticket.id} has moved on.", hint="read it again")
        if failure is not None:
            self._run(connection, "fail_state", projection=ticket.projection, failure=failure,
                      cancelled=isinstance(step, Cancel))

    def _prove(self, connection: Connection, ticket: RebuildTicket, step: Complete) -> None:
        """The fenced log is the one that was read, to its end; then live is the ticket's generation."""
        if self.log is None:
            raise errors.DefinitionError("A rebuild can't be completed without the event log that proves it whole.",
                                         hint="take the store from Rebuilder.store()")
        # The checkpoint's row first, as followers take it; then the state; the log last.
        self._run(connection, "insert_checkpoint", projection=ticket.projection)
        self._run(connection, "lock_checkpoint", projection=ticket.projection)
        self._run(connection, "lock_state", projection=ticket.projection)
        active = self._active_source(connection)
        if step.source.generation != active or (ticket.source and ticket.source.generation != active):
            raise SourceRotated(f"Ticket {ticket.id} read another incarnation of {self.log.label}.",
                                hint="fail it with source_changed, and rebuild from the log as it is now")
        self.log.fence(connection)
        there = self.log.fingerprint(connection, step.source.generation, step.source.tier)
        at = step.checkpoint
        if there != step.source or at.events != there.events or at.source != there.high_water:
            raise SourceMoved(
                f"{self.log.label} has {there.events} events up to position {there.position}; the rebuild of "
                f"{ticket.projection!r} read {at.events} up to {at.source.position if at.source else 0}.",
                hint="read on from the checkpoint and complete again", events=there.events, position=there.position)
        self._run(connection, "prove_ticket", ticket=ticket.id, **_facts(there))
        self._run(connection, "promote_state", projection=ticket.projection, generation=ticket.generation,
                  version=ticket.version, position=there.position, source=there.generation)
        self._run(connection, "write_checkpoint", projection=ticket.projection, generation=ticket.generation,
                  position=there.position, source=there.generation, events=at.events, rows=at.rows)
        if ticket.invalidation is not None:
            self._run(connection, "answer_older", ticket=ticket.id, invalidation=ticket.invalidation)

    def _seen(self, connection: Connection, source: LogFingerprint | None) -> LogFingerprint:
        """What the caller saw of the log; without it, what there is now."""
        if source is None:
            active = self._active_source(connection)
            if self.log is None or active is None:
                raise InvalidSource("A ticket needs a fingerprint of the log that its rebuild will read.",
                                    hint="pass source=, or take the store from Rebuilder.store()")
            return self.log.fingerprint(connection, active, "count")
        if self.log is None:
            return source
        if source.generation != self._active_source(connection):
            raise SourceRotated(f"Incarnation {source.generation} of {self.log.label} is over.",
                                hint="take the fingerprint of the log as it is now")
        head = self.log.head(connection)
        if source.position > head:
            raise InvalidSource(f"The fingerprint ends at position {source.position}; the log ends at {head}.",
                                hint="take it from the log")
        return source

    def _ticket(self, connection: Connection, ticket: UUID, query: str) -> RebuildTicket | None:
        row = self._run(connection, query, ticket=ticket).fetchone()
        return None if row is None else ticket_of(row)

    def _known(self, connection: Connection, ticket: UUID) -> RebuildTicket:
        found = self._ticket(connection, ticket, "read_ticket")
        if found is None:
            raise RecordNotFound(f"There is no ticket {ticket}.", ticket=str(ticket))
        return found


def _facts(source: LogFingerprint | None) -> dict[str, Any]:
    if source is None:
        return dict.fromkeys(("source", "position", "events", "tier", "digest"))
    return {"source": source.generation, "position": source.position, "events": source.events, "tier": source.tier,
            "digest": source.digest}


def _same(known: RebuildTicket, projection: str, version: int, invalidation: UUID | None,
          source: LogFingerprint | None) -> RebuildTicket:
    # Completing writes what the fenced log said; what was asked for is compared while it is open.
    other_source = source is not None and known.open and known.source != source
    other_request = invalidation is not None and known.invalidation != invalidation
    if (known.projection, known.version) != (projection, version) or other_request or other_source:
        raise RecordConflict(f"Ticket {known.id} is known with other content.", hint="take a fresh one")
    return known


def _is_repeat(ticket: RebuildTicket, transition: Transition) -> bool:
    """Whether the transition is the one that made the ticket what it is: its reply was lost."""
    if ticket.revision != transition.revision + 1:
        return False
    match transition.step:
        case Start():
            return ticket.stage is Stage.RUNNING and ticket.checkpoint is None
        case Progressed(checkpoint):
            return ticket.stage is Stage.RUNNING and _equal(ticket.checkpoint, checkpoint)
        case Complete(checkpoint, source):
            return (ticket.stage is Stage.COMPLETED and _equal(ticket.checkpoint, checkpoint)
                    and ticket.source == source)
        case Fail(failure):
            return ticket.stage is Stage.FAILED and ticket.failure == failure
        case Cancel():
            return ticket.stage is Stage.CANCELLED


def _equal(stored: Checkpoint | None, given: Checkpoint) -> bool:
    return stored is not None and (stored.source, stored.events, stored.rows) == (
        given.source, given.events, given.rows)


def _next_stage(ticket: RebuildTicket, transition: Transition) -> Stage:
    if not ticket.open:
        raise RecordTerminal(f"Ticket {ticket.id} is {ticket.stage}.", hint="request a rebuild under a fresh one",
                             stage=str(ticket.stage))
    if ticket.driver == "engine":
        raise RecordConflict(f"Ticket {ticket.id} is carried out by the engine.",
                             hint=f"rebuilder cancel {ticket.id}")
    if ticket.revision != transition.revision:
        raise RecordConflict(f"Ticket {ticket.id} is at revision {ticket.revision}, not {transition.revision}.",
                             hint="read it again", revision=ticket.revision)
    stage = EDGES.get((ticket.stage, type(transition.step)))
    if stage is None:
        raise InvalidTransition(f"Ticket {ticket.id} is {ticket.stage}: it can't "
                                f"{type(transition.step).__name__.lower()}.", stage=str(ticket.stage))
    return stage


def _check_checkpoint(ticket: RebuildTicket, at: Checkpoint) -> None:
    if (at.projection, at.generation) != (ticket.projection, ticket.generation):
        raise RecordConflict(f"Ticket {ticket.id} builds generation {ticket.generation} of {ticket.projection!r}; the "
                             f"checkpoint is of {at.generation} of {at.projection!r}.")
    if ticket.source is not None and at.source is not None and at.source.generation != ticket.source.generation:
        raise RecordConflict(f"Ticket {ticket.id} reads incarnation {ticket.source.generation} of the log; the "
                             f"checkpoint is in {at.source.generation}.")
    if ticket.checkpoint is not None and not at.advances(ticket.checkpoint):
        raise InvalidCheckpoint(f"The checkpoint of ticket {ticket.id} runs backwards.", hint="read the ticket again")


def ticket_of(row: tuple[Any, ...]) -> RebuildTicket:
    """A row as a value; :class:`~rebuilder.errors.RecordCorrupt` if it can't be one."""
    (id_, projection, generation, version, revision, stage, requested, updated, invalidation, source, tier, events,
     position, digest, at_position, at_events, at_rows, at, failure, driver) = row
    try:
        seen = None if source is None else LogFingerprint(source, tier, events, position, digest)
        checkpoint = None
        if at is not None:
            checkpoint = Checkpoint(projection, generation, place_of(source, at_position), at_events, at_rows,
                                    version=version, updated_at=at)
        return RebuildTicket(id=id_, projection=projection, generation=generation, version=version, revision=revision,
                             stage=Stage(stage), requested_at=requested, updated_at=updated, invalidation=invalidation,
                             source=seen, checkpoint=checkpoint, failure=failure, driver=driver)
    except (errors.InvalidValue, ValueError, TypeError) as error:
        raise RecordCorrupt(f"Ticket {id_} can't be what it says.", hint="restore the bookkeeping") from error
