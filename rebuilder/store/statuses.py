"""Status and checkpoint of a projection."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from rebuilder import errors
from rebuilder.domain.invalid import InvalidCheckpoint
from rebuilder.domain.lifecycle import Checkpoint, Invalidation, SourcePosition, StoredStatus, check_name
from rebuilder.domain.ticket import Health, Reason
from rebuilder.errors import InvalidValue, RecordConflict, RecordCorrupt, SourceRotated
from rebuilder.store import requests
from rebuilder.store.access import Access
from rebuilder.store.sessions import Connection


class Statuses(Access):
    """What is known of a projection, how far live is, and what is asked for it."""

    def status(self, projection: str) -> StoredStatus | None:
        """A projection's status, by one statement; None for one that nobody has written of.

        Raises :class:`~rebuilder.errors.RecordCorrupt` for what can't be.
        """
        check_name(projection)
        with self._using("reading a status") as connection:
            return self._status(connection, projection)

    def _status(self, connection: Connection, projection: str) -> StoredStatus | None:
        row = self._run(connection, "read_status", projection=projection).fetchone()
        return None if row is None else status_of(row)

    def checkpoint(self, checkpoint: Checkpoint) -> Checkpoint:
        """Record how far live is; as it is stored. The first one of a projection says that live is there.

        Raises :class:`~rebuilder.errors.RecordConflict` for another generation than the live one and while a request
        is pending (it is never cleared by the way), ``InvalidCheckpoint`` for one that runs backwards. Beside a
        rebuild it goes on: the new generation has a checkpoint of its own, in its ticket.
        """
        name = checkpoint.projection
        with self._writing("writing a checkpoint") as connection:
            self._run(connection, "insert_state", projection=name)
            self._run(connection, "insert_checkpoint", projection=name)
            self._run(connection, "lock_checkpoint", projection=name)
            self._check_source(connection, checkpoint)
            status = self._status(connection, name)
            assert status is not None
            if status.generation == 0:
                self._adopt(connection, checkpoint, status)
            else:
                _check_follows(checkpoint, status)
            source = checkpoint.source
            row = self._run(connection, "write_checkpoint", projection=name, generation=checkpoint.generation,
                            position=source.position if source else 0, source=source.generation if source else None,
                            events=checkpoint.events, rows=checkpoint.rows).fetchone()
            assert row is not None
            stored = self._status(connection, name)
            assert stored is not None
            assert stored.checkpoint is not None
            return stored.checkpoint

    def invalidate(self, projection: str, reason: Reason | str, *, note: str | None = None, actor: str | None = None,
                   generation: int | None = None) -> Invalidation:
        """Declare live stale: append a request. With ``generation``, only if live is that one."""
        check_name(projection)
        with self._writing("writing a request") as connection:
            if generation is not None:
                status = self._status(connection, projection)
                live = status.generation if status else 0
                if live != generation:
                    raise RecordConflict(f"Live of {projection!r} is generation {live}, not {generation}.",
                                         hint="look at what it is now, and ask again", generation=live)
            return requests.invalidate(connection, self._books, projection, reason, note=note, actor=actor)

    def invalidation(self, projection: str, generation: int) -> Invalidation | None:
        """The newest request that a generation answers, or is being built for."""
        with self._using("reading a request") as connection:
            row = self._run(connection, "request_of_generation", projection=projection,
                            generation=generation).fetchone()
            return None if row is None else requests.request_of(row)

    def invalidations(self, projection: str, *, limit: int = 100) -> list[Invalidation]:
        """The last requests, the newest first."""
        with self._using("reading requests") as connection:
            rows = self._run(connection, "requests", projection=projection, limit=limit).fetchall()
        return [requests.request_of(row) for row in rows]

    def _check_source(self, connection: Connection, checkpoint: Checkpoint) -> None:
        source = checkpoint.source
        if self.log is None or source is None:
            return
        if source.generation != self._active_source(connection):
            raise SourceRotated(f"The checkpoint of {checkpoint.projection!r} is in incarnation {source.generation} of "
                                "the log, which is over.", hint="rebuild from the log as it is now")
        head = self.log.head(connection)
        if source.position > head:
            raise InvalidCheckpoint(f"The checkpoint of {checkpoint.projection!r} is at position {source.position}; "
                                    f"the log ends at {head}.", hint="record what was read, not what was allowed")

    def _adopt(self, connection: Connection, checkpoint: Checkpoint, status: StoredStatus) -> None:
        if status.health is Health.REBUILDING:
            raise RecordConflict(f"{status.projection!r} is being built for the first time by ticket "
                                 f"{status.active_rebuild}.", hint="wait for it")
        source = checkpoint.source
        self._run(connection, "adopt_state", projection=checkpoint.projection, generation=checkpoint.generation,
                  version=checkpoint.version, position=source.position if source else 0,
                  source=source.generation if source else None)


def _check_follows(checkpoint: Checkpoint, status: StoredStatus) -> None:
    if checkpoint.generation != status.generation:
        raise RecordConflict(
            f"Live of {status.projection!r} is generation {status.generation}; the checkpoint is of "
            f"{checkpoint.generation}.", hint="read the status again", generation=status.generation)
    if status.health is Health.INVALIDATED:
        raise RecordConflict(f"{status.projection!r} is invalidated: a checkpoint does not make it good again.",
                             hint=f"rebuilder rebuild {status.projection}")
    if status.checkpoint is not None and not checkpoint.advances(status.checkpoint):
        raise InvalidCheckpoint(f"The checkpoint of {status.projection!r} runs backwards: {_place(checkpoint)} after "
                                f"{_place(status.checkpoint)}.", hint="read the status again")


def _place(checkpoint: Checkpoint) -> str:
    at = f"position {checkpoint.source.position}" if checkpoint.source else "no position"
    return f"{at}, {checkpoint.events} events"


def status_of(row: tuple[Any, ...]) -> StoredStatus:
    """A row of the status view as a value."""
    (projection, generation, version, source, health, ticket, position, at_source, events, rows, at, pending) = row
    try:
        checkpoint = None
        if generation and at is not None:
            place = SourcePosition(at_source, position) if position and at_source else None
            checkpoint = Checkpoint(projection, generation, place, events or 0, rows, version=version, updated_at=at)
        return StoredStatus(projection=projection, generation=generation, version=version, health=Health(health),
                            checkpoint=checkpoint, active_rebuild=ticket, pending_requests=pending,
                            source_generation=source)
    except (InvalidValue, ValueError, TypeError) as error:
        message = error.message if isinstance(error, errors.RebuilderError) else "a word that is not known"
        raise RecordCorrupt(f"The status of {projection!r} can't be: {message}",
                            hint="restore the bookkeeping, or mend the row by hand") from error


def place_of(source: UUID | None, position: int | None) -> SourcePosition | None:
    """Two columns as a position."""
    return SourcePosition(source, position) if source is not None and position else None
