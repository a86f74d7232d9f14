"""A log whose names are resolved and whose checks are passed: what the engine reads from.

Every read leaves no lock behind, in autocommit as inside a transaction (see ``looking``).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import psycopg
from psycopg import sql

from rebuilder.domain.event import Event
from rebuilder.errors import LogChanged, LogDefinitionError, RefusedError
from rebuilder.eventlog import horizon, read_plan, state
from rebuilder.eventlog.decoding import Decoders, decode_event, lazily
from rebuilder.eventlog.horizon import Horizon
from rebuilder.eventlog.looking import reading
from rebuilder.eventlog.raw_event import Key, RawEvent, TenantEvent
from rebuilder.eventlog.relation import Source, Table
from rebuilder.eventlog.selection import Part, Selection
from rebuilder.eventlog.sequence import PositionSequence
from rebuilder.eventlog.statements import Statements

if TYPE_CHECKING:
    from rebuilder.eventlog.table_log import TableLog


class Totals(NamedTuple):
    """Matching events, the highest position among them, and the highest of the whole log; 0 where there is none."""

    events: int
    max_position: int
    log_max_position: int


@dataclass(frozen=True, kw_only=True)
class OpenLog:
    """One event log, open for reading. It holds no connection: each call is given one."""

    definition: TableLog
    relation: Table
    roots: tuple[int, ...]
    """The tables that appends go to, without their partitions."""
    source: Source
    """The table and column that positions come from: the relation's own, or what a view shows."""
    sequence: PositionSequence | None
    """What gives positions; None only where completeness is ``count``."""
    statements: Statements
    decoders: Decoders

    @property
    def label(self) -> str:
        """``schema.name`` of the relation."""
        return self.relation.label

    @property
    def oid(self) -> int:
        """OID of the relation."""
        return self.relation.oid

    @property
    def complete(self) -> bool:
        """Whether a settled horizon proves the log complete; if not, the engine compares all of it under the fence."""
        return self.definition.completeness == "auto"

    def page(self, connection: psycopg.Connection[Any], selection: Selection, *, after: Key | None,
             upto: int | None, limit: int, part: Part | None = None) -> list[RawEvent]:
        """The next matching events behind a key, in reading order; fewer than ``limit`` only at the end."""
        statement = self.statements.page(selection, after=after, upto=upto, limit=limit, part=part)
        rows = self._read(connection, statement, selection)
        self._check_keys(rows, after)
        return rows

    def tail(self, connection: psycopg.Connection[Any], selection: Selection, *, above: int,
             limit: int | None = None) -> list[RawEvent]:
        """Every matching event visible above a position, in reading order."""
        rows = self._read(connection, self.statements.page(selection, above=above, limit=limit), selection)
        self._check_keys(rows, None)
        return rows

    def count(self, connection: psycopg.Connection[Any], selection: Selection, *, upto: int | None = None,
              above: int | None = None) -> int:
        """How many matching events are visible."""
        rows = self._fetch(connection, self.statements.count(selection, upto=upto, above=above))
        return int(rows[0][0])

    def extent(self, connection: psycopg.Connection[Any], selection: Selection, *, above: int,
               upto: int) -> tuple[int, int]:
        """How many matching events lie between two positions, and the highest position among them, 0 for none."""
        events, last = self._fetch(connection, self.statements.extent(selection, above=above, upto=upto))[0]
        return events, last

    def keys(self, connection: psycopg.Connection[Any], selection: Selection, *, above: int) -> set[Key]:
        """The keys of all matching events above a position, by one statement."""
        rows = self._fetch(connection, self.statements.keys(selection, above=above))
        return {(row[0], str(row[1])) for row in rows} if self.statements.by_tenant else {(row[0],) for row in rows}

    def totals(self, connection: psycopg.Connection[Any], selection: Selection) -> Totals:
        """What a status shows, by one statement."""
        return Totals(*self._fetch(connection, self.statements.totals(selection))[0])

    def max_position(self, connection: psycopg.Connection[Any]) -> int:
        """The highest visible position of the whole log, 0 if it is empty."""
        return int(self._fetch(connection, self.statements.highest())[0][0])

    def decode(self, raw: RawEvent, *, replaying: bool) -> Event:
        """The event a row stands for; :class:`~rebuilder.eventlog.DecodeError` names the one that can't be read."""
        return decode_event(self.decoders, raw, replaying=replaying)

    def lazy_decoder(self) -> Callable[[RawEvent], Event]:
        """The function that makes events of a replay, each decoded when a handler looks at its data."""
        return lazily(self.decoders)

    def horizon(self, connection: psycopg.Connection[Any], *, own_pids: Collection[int]) -> Horizon:
        """How far the log is complete once the horizon's pending transactions have ended. Two statements."""
        return horizon.take(self, connection, own_pids)

    def state(self, connection: psycopg.Connection[Any], *, streams: bool = True) -> state.LogState:
        """What must stay the same while a run reads the log. ``streams=False`` leaves out what grows with the log."""
        return state.take(self, connection, streams=streams)

    def read_plan(self, connection: psycopg.Connection[Any], selection: Selection,
                  limit: int = 1000) -> read_plan.ReadPlan:
        """How the server reads a page, and which index is missing."""
        return read_plan.explain(self, connection, selection, limit)

    def _check_keys(self, rows: list[RawEvent], after: Key | None) -> None:
        """No index speaks for a view's rows, nor for positions across tenants: two alike stop the run."""
        if self.relation.kind != "v" and not (self.statements.by_tenant and self.complete):
            return
        last = None if after is None else after[0]
        for row in rows:
            if row.position == last:
                raise RefusedError(
                    f"The event log {self.label} has two events at position {last}.",
                    hint="a view must show each event once; tenants that count for themselves, from a sequence each, "
                         'need TableLog(completeness="count")', relation=self.label, position=last)
            last = row.position

    def _read(self, connection: psycopg.Connection[Any], statement: sql.Composed,
              selection: Selection) -> list[RawEvent]:
        if not selection.types:
            return []
        # What the driver calls for every row is C all through.
        kind = TenantEvent if self.statements.by_tenant else RawEvent
        make: Callable[[Sequence[Any]], RawEvent] = partial(tuple.__new__, kind)
        cursor = connection.cursor(binary=True, row_factory=lambda _: make)
        with reading(connection), cursor, _explained(self):
            # Not prepared: a kept plan fails after DDL on the log, and poolers lose it.
            return cursor.execute(statement, prepare=False).fetchall()

    def _fetch(self, connection: psycopg.Connection[Any], statement: sql.Composed) -> list[tuple[Any, ...]]:
        with reading(connection), connection.cursor() as cursor, _explained(self):
            return cursor.execute(statement, prepare=False).fetchall()


@contextmanager
def _explained(log: OpenLog) -> Iterator[None]:
    try:
        yield
    except psycopg.DataError as error:
        raise LogDefinitionError(
            f"A page of the event log {log.label} can't be read: {error.diag.message_primary or error}.",
            hint="a value does not fit what Columns(…) makes of it (an expression that fails on some rows, a time "
                 "beyond the year 9999): mend the expression or the row", relation=log.label) from error
    except psycopg.errors.InsufficientPrivilege as error:
        raise RefusedError(
            f"The event log {log.label} can't be read any more: {error.diag.message_primary}.",
            hint="give the role its privileges back, or BYPASSRLS where row security hides events from it",
            relation=log.label) from error
    except (psycopg.errors.UndefinedTable, psycopg.errors.UndefinedColumn, psycopg.errors.UndefinedFunction) as error:
        raise LogChanged(f"The event log {log.label} is not the one that was opened: {error.diag.message_primary}.",
                         hint="finish the change to the log, mend TableLog(…) if it needs it, and start again",
                         relation=log.label) from error
