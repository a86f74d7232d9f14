"""Applies events through BatchSql: each statement once for a whole range of the log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import psycopg
from psycopg import sql

from rebuilder import errors
from rebuilder.domain.batch_sql import BatchSql, split
from rebuilder.domain.event import Event
from rebuilder.engine.applier import InShadow
from rebuilder.engine.apply_sql import EventFailed
from rebuilder.eventlog import Key, TableLog, batch_of
from rebuilder.store.sessions import is_transient, translate

if TYPE_CHECKING:
    from rebuilder.engine.run import Run
    from rebuilder.eventlog import RawEvent
    from rebuilder.store.sessions import Connection


class BatchApplier(InShadow):
    """Applies events through BatchSql, on the main connection: its lock on the log stays to the end of the run."""

    def __init__(self, handlers: BatchSql, run: Run, connection: Connection) -> None:
        super().__init__(connection, run.settings.batch_page)
        self._run = run
        self._handlers = handlers
        connection.execute("SELECT set_config('work_mem', %s, true)", (f"{run.settings.batch_work_mem // 1024}kB",))

    def apply(self, events: Sequence[RawEvent]) -> None:
        """Apply these events, whose data is read from the log again. Raises ``EventFailed``, for one or for all."""
        if not events:
            return
        batch = self._run.log.statements.batch(self._run.selection, keys=[raw.key for raw in events])
        try:
            execute(self.connection, self._handlers, batch)
        except psycopg.Error as error:
            raise EventFailed(events[0], "handler", error, among=events) from error

    def apply_range(self, after: Key | None, upto: int) -> None:
        """Apply everything behind a key up to a position. Raises :class:`~rebuilder.errors.HandlerFailed`."""
        run = self._run
        try:
            execute(self.connection, self._handlers, run.log.statements.batch(run.selection, after=after, upto=upto))
        except psycopg.Error as error:
            run.check()
            low = 1 if after is None else after[0] + 1
            if is_transient(error):
                raise translate(error, f"applying positions {low} to {upto}") from error
            raise errors.HandlerFailed(
                f"A statement of projection {run.projection.name!r} failed on the events from position {low} to "
                f"{upto}: {type(error).__name__}: {error.diag.message_primary or error}. Live is as it was.",
                hint="mend the statement and repeat; --quarantine finds the event", projection=run.projection.name,
                position=upto, cause="handler", error_class=type(error).__name__,
                **({"sqlstate": error.sqlstate} if error.sqlstate else {})) from error


def execute(connection: Connection, handlers: BatchSql, batch: sql.Composable) -> None:
    """Run the statements over a relation."""
    # Binary, so that it goes by the extended protocol, which takes one statement only: no COMMIT hides behind it.
    with connection.cursor(binary=True) as cursor:
        for statement in handlers.statements:
            head, rest = split(statement)
            cursor.execute(sql.SQL("{}batch AS ({}){}").format(sql.SQL(head), batch, sql.SQL(rest)), prepare=False)


def execute_live(connection: Connection, handlers: BatchSql, log: TableLog, events: Sequence[Event]) -> None:
    """Apply events that the caller's transaction has appended, as the log has them."""
    batch = batch_of(log, [(event.position, event.tenant) for event in events])
    with connection.cursor(row_factory=psycopg.rows.tuple_row) as cursor:
        found = cursor.execute(sql.SQL("SELECT count(*) FROM ({}) AS batch").format(batch)).fetchone()
    if found != (len(events),):
        raise errors.DefinitionError(
            f"BatchSql reads events from {log.relation}, which has {found[0] if found else 0} of these {len(events)}.",
            hint="append first, then project, in one transaction", positions=[event.position for event in events])
    execute(connection, handlers, batch)
