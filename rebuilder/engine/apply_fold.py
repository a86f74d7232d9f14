"""Folds rows in memory; they reach the shadow by COPY after the bulk, and set-based afterwards.

As long as no row of a table stands in the shadow (``fresh``), a key that is not in memory has no row. Afterwards, or
when the rows outgrow their memory, the touched rows are loaded, folded, and written back when they are asked for.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import psycopg

from rebuilder import errors
from rebuilder.domain.fold import Fold, FoldFunction, KeyFunction, Row
from rebuilder.engine.applier import Bulk
from rebuilder.engine.apply_sql import EventFailed, cause_of
from rebuilder.engine.fold_table import FoldTable
from rebuilder.store.sessions import translate

if TYPE_CHECKING:
    from rebuilder.catalog.blueprint import LiveTable
    from rebuilder.domain.event import Event
    from rebuilder.engine.apply_sql import Lift
    from rebuilder.eventlog import RawEvent
    from rebuilder.store.sessions import Connection

_ABSENT: Any = object()
_PER_STATEMENT = 5000
_OVERHEAD = 200
"""Bytes of a row beside its values: the dictionaries' entries, an entry in the log of a failed batch."""


class Rows:
    """The rows of one table that are in memory."""

    def __init__(self, table: FoldTable, *, oid: int = 0, sequences: Iterable[str] = ()) -> None:
        self.table = table
        self.oid = oid
        self._sequences = frozenset(sequences)
        self.fresh = True
        self.rows: dict[Any, Row | None] = {}
        self.stored: set[Any] = set()
        self.dirty: set[Any] = set()
        self.undo: dict[Any, Any] | None = None
        self.encoded: list[bytes] = []
        self._bytes_each = 0
        self._measured_at = 0

    def fold(self, key: Any, function: FoldFunction, event: Event) -> None:
        """Apply a function to a key's row, which is in memory if there is one."""
        rows = self.rows
        before = rows.get(key)
        if before is None:
            after = function(None, event)
            if after is not None:
                after = self.table.admit(_row(after, function), key)
        else:
            after = function(copy.deepcopy(before) if self.table.nested else before.copy(), event)
            if after is not None:
                after = _row(after, function)
                if len(after) != len(self.table.columns):
                    after = self.table.complete(after, key)
        if self.undo is not None and key not in self.undo:
            self.undo[key] = rows.get(key, _ABSENT)
        if not self.fresh:
            self.dirty.add(key)
            rows[key] = after
        elif after is not None:
            rows[key] = after
        elif before is not None:
            del rows[key]

    def load(self, connection: Connection, keys: Sequence[Any]) -> None:
        """Bring rows into memory."""
        missing = list({key for key in keys if key not in self.rows})
        for start in range(0, len(missing), _PER_STATEMENT):
            part = missing[start:start + _PER_STATEMENT]
            found = self.table.load(connection, part)
            self.stored.update(found)
            for key in part:
                self.rows[key] = found.get(key)

    def back(self) -> None:
        """Put the rows back that were touched since ``undo`` began."""
        for key, before in (self.undo or {}).items():
            if before is _ABSENT:
                self.rows.pop(key, None)
                self.dirty.discard(key)
            else:
                self.rows[key] = before
        self.undo = {}

    def size(self) -> int:
        """Bytes in memory, estimated by a row now and then."""
        if self.rows and len(self.rows) >= 2 * self._measured_at:
            self._measured_at = len(self.rows)
            some = [row for _, row in zip(range(100), self.rows.values(), strict=False) if row is not None]
            self._bytes_each = _OVERHEAD + max((_bytes(row) for row in some), default=0)
        return len(self.rows) * self._bytes_each + sum(map(len, self.encoded))

    def write(self, connection: Connection) -> None:
        """Write what differs into the table."""
        table = self.table
        if self.fresh:
            if self.rows or self.encoded:
                with connection.cursor().copy(table.copy_statement()) as into:
                    for chunk in self.take(connection):
                        into.write(chunk)
            return
        gone = [key for key in self.dirty if self.rows[key] is None and key in self.stored]
        there: list[tuple[Any, ...]] = []
        new: list[tuple[Any, ...]] = []
        for key in self.dirty:
            row = self.rows[key]
            if row is not None:
                (there if key in self.stored else new).append(table.values(key, row))
        for many, statement in ((gone, table.delete), (there, table.update), (new, table.insert)):
            for start in range(0, len(many), _PER_STATEMENT):
                statement(connection, many[start:start + _PER_STATEMENT])
        self.stored.difference_update(gone)
        self.stored.update(key for key in self.dirty if self.rows[key] is not None)
        self.dirty.clear()

    def take(self, connection: Connection) -> Iterator[bytes]:
        """All rows for a COPY, sorted by key where that can be; then none is in memory any more."""
        yield from self.encoded
        keys: list[Any] = list(self.rows)
        try:
            keys.sort()
        except TypeError:
            keys.sort(key=str)
        values, rows = self.table.values, self.rows
        if keys:
            yield from self.table.encoded(connection, (values(key, rows[key]) for key in keys))  # type: ignore[arg-type]
        self.fresh = False
        self.drop()

    def give(self, connection: Connection, columns: Iterable[str], chunks: Iterable[bytes], budget: int) -> None:
        """Rows that somebody else has folded and encoded; kept while they fit the budget."""
        self.table.shape(columns)
        self.encoded.extend(chunks)
        if not self.fresh or self.size() > budget:
            with connection.cursor().copy(self.table.copy_statement()) as into:
                for chunk in self.encoded:
                    into.write(chunk)
            self.encoded.clear()
            self.fresh = False

    @property
    def straight(self) -> bool:
        """Whether its rows can go straight into the copy that the freeze makes: into a table without rows so far, and
        with nothing left to its sequences, which the copy has not got yet.
        """
        return self.fresh and bool(self.rows or self.encoded) and self._sequences <= set(self.table.columns)

    def drop(self) -> None:
        """Forget what is in memory."""
        self.rows.clear()
        self.stored.clear()
        self.dirty.clear()
        self.encoded.clear()
        self._measured_at = 0
        if self.undo is not None:
            self.undo = {}


class FoldApplier:
    """Applies events through Folds."""

    savepoints_write = False

    def __init__(self, connection: Connection, filled: Sequence[tuple[Fold, Rows]], lift: Lift, *, memory: int,
                 page: int, doing: str) -> None:
        self._connection = connection
        self._lift = lift
        self._budget = memory
        self._doing = doing
        self.page = page
        self._raw: RawEvent  # the event in hand
        self.filled = tuple(filled)
        self.rows = [rows for _, rows in filled]
        self._steps: dict[str, list[tuple[Rows, KeyFunction | None, FoldFunction]]] = {}
        for fold, rows in filled:
            for name in fold.types:
                self._steps.setdefault(name, []).extend(
                    (rows, one.key, one.function) for one in fold.registrations(name))

    def apply(self, events: Sequence[RawEvent]) -> None:
        """Fold events in order. Raises :class:`EventFailed`."""
        if sum(rows.size() for rows in self.rows) > self._budget and not self._saved:
            self._spill()
        if all(rows.fresh for rows in self.rows):
            self._fold(events)
        else:
            self._load_and_fold(events)

    def _fold(self, events: Sequence[RawEvent]) -> None:
        lift, steps = self._lift, self._steps
        plain = not self._saved and not any(rows.table.nested for rows in self.rows)
        with self._traced():
            for raw in events:
                self._raw = raw
                event = lift(raw)
                for rows, key_of, function in steps[raw[2]]:
                    key = raw[1] if key_of is None else _key(key_of, event)
                    # What `fold` does most of the time: a row that is there goes on being there.
                    before = rows.rows.get(key) if plain else None
                    if before is None:
                        rows.fold(key, function, event)
                    elif (after := function(before.copy(), event)).__class__ is dict:
                        complete = len(after) == len(before)
                        rows.rows[key] = after if complete else rows.table.complete(after, key)
                    elif after is None:
                        del rows.rows[key]
                    else:
                        rows.rows[key] = rows.table.complete(_row(after, function), key)

    def _load_and_fold(self, events: Sequence[RawEvent]) -> None:
        """Twice over the events: the keys first, so that one statement loads all their rows."""
        work = []
        keys: dict[int, list[Any]] = {id(rows): [] for rows in self.rows}
        with self._traced():
            for raw in events:
                self._raw = raw
                event = self._lift(raw)
                for rows, key_of, function in self._steps[raw.type]:
                    key = raw.stream if key_of is None else _key(key_of, event)
                    keys[id(rows)].append(key)
                    work.append((raw, event, rows, key, function))
        for rows in self.rows:
            if not rows.fresh:
                rows.load(self._connection, keys[id(rows)])
        with self._traced():
            for raw, event, rows, key, function in work:
                self._raw = raw
                rows.fold(key, function, event)

    @contextmanager
    def _traced(self) -> Iterator[None]:
        """An error inside is the event's that is being folded."""
        try:
            yield
        except EventFailed:
            raise
        except errors.DefinitionError as error:
            error.fields.setdefault("position", self._raw.position)
            raise
        except Exception as error:
            raise EventFailed(self._raw, cause_of(error), error) from error

    # Coming back --------------------------------------------------------------------------------------------------

    @property
    def _saved(self) -> bool:
        return any(rows.undo is not None for rows in self.rows)

    def save(self) -> None:
        """From here on the row before its first change is kept."""
        if sum(rows.size() for rows in self.rows) > self._budget:
            self._spill()
        for rows in self.rows:
            rows.undo = {}

    def back(self) -> None:
        """Put the changed rows back."""
        for rows in self.rows:
            rows.back()

    def release(self) -> None:
        """Forget how the rows were."""
        for rows in self.rows:
            rows.undo = None

    def violation(self) -> psycopg.Error | None:
        """Rows in memory violate nothing yet."""
        return None

    # To and from the shadow ---------------------------------------------------------------------------------------

    def settle(self, *, but_bulk: bool = False) -> None:
        """Write what is only in memory into the shadow."""
        try:
            for rows in self.rows:
                if but_bulk and rows.straight:
                    continue
                rows.write(self._connection)
        except psycopg.Error as error:
            raise translate(error, self._doing) from error

    def _spill(self) -> None:
        self.settle()
        for rows in self.rows:
            rows.drop()

    def forget(self) -> None:
        """The shadow was rolled back to where it was settled: rows are loaded from it again."""
        for rows in self.rows:
            rows.drop()

    def bulk(self, table: LiveTable) -> Bulk | None:
        """The rows of a table of which none is in the shadow yet."""
        rows = next(rows for rows in self.rows if rows.oid == table.oid)
        if not rows.straight:
            return None
        return Bulk(rows.table.columns, rows.take(self._connection))


def _key(key_of: KeyFunction, event: Event) -> Any:
    key = key_of(event)
    if key is None or (key.__class__ is tuple and None in key):
        raise ValueError(f"the key of {event.type!r} is {key!r}; a row needs one")
    return key


def _row(given: Any, function: Callable[..., Any]) -> Row:
    if isinstance(given, dict):
        return given
    raise TypeError(f"{getattr(function, '__qualname__', function)} returned a {type(given).__name__}; a fold returns "
                    "a row (a dict) or None")


def _bytes(row: Row) -> int:
    return sys.getsizeof(row) + sum(sys.getsizeof(value) for value in row.values())
