"""The rows of a fold on their way between memory and their table: types, COPY text, and set-based reads and writes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import psycopg
from psycopg import pq, sql
from psycopg.copy import Writer

from rebuilder import errors
from rebuilder.domain.fold import Fold, Row
from rebuilder.errors import DefinitionError

if TYPE_CHECKING:
    from rebuilder.store.sessions import Connection

NUMERIC = 1700
_ATOMS = frozenset({16, 17, 19, 20, 21, 23, 25, 26, 650, 700, 701, 869, 1042, 1043, 1082, 1083, 1114, 1184, 1186, 1266,
                    NUMERIC, 2950})
"""OIDs of types whose values can't be changed in place: truth, numbers, text, bytes, times, addresses, UUIDs."""
TEXT = 25
"""OID of text: what a value of a type without an adapter is given as."""


@dataclass(slots=True)
class ColumnType:
    """A column as psycopg adapts it. ``kind`` is the class of its values, once one was seen."""

    name: str
    oid: int
    sql_type: str
    dump: Callable[[Any], Any]
    load: Callable[[Any], Any]
    copied: bool
    """Whether psycopg has an adapter of its type; else its values are text."""
    scale: int | None = None
    """Digits behind the point that a numeric(p, s) keeps."""
    encoding: str = "utf-8"
    kind: type | None = None

    def text(self, value: Any) -> str | None:
        """A value as the server reads it."""
        if value is None:
            return None
        if isinstance(value, str) and not self.copied:
            return value
        dumped = self.dump(value)
        return None if dumped is None else bytes(dumped).decode(self.encoding)

    def learn(self, label: str, value: Any) -> None:
        """See the first value: it must be what psycopg loads from the column, so that a row is the same wherever it
        comes from.
        """
        found: Any = None
        try:
            text = self.text(value)
            found = None if text is None else self.load(text.encode(self.encoding))
        except Exception as error:
            raise self._unfit(label, value, f"can't be written there ({type(error).__name__})") from error
        # NaN is the one value that is not itself.
        if type(found) is not type(value) or (found != value and value == value):  # noqa: PLR0124
            raise self._unfit(label, value, f"comes back as {type(found).__name__}")
        self.kind = type(value)

    def check(self, label: str, value: Any) -> None:
        """Not the first value: of the same class, and not one that the column would round."""
        if value.__class__ is not self.kind:
            self.learn(label, value)
        if self.scale is not None and (exponent := value.as_tuple().exponent) in range(-10_000_000, -self.scale):
            raise self._unfit(label, value, f"has {-exponent} digits behind the point")

    def _unfit(self, label: str, value: Any, why: str) -> DefinitionError:
        return DefinitionError(
            f"A fold of {label} gave column {self.name} ({self.sql_type}) a {type(value).__name__}, which {why}: the "
            "row would be another one once it is loaded. Live is as it was.",
            hint="give values of the types that psycopg loads from the table's columns", table=label, column=self.name)


class FoldTable:
    """One table that a fold fills. ``columns`` are those that its rows have, known from the first row on."""

    def __init__(self, connection: Connection, name: sql.Identifier, label: str, fold: Fold, *,
                 columns: Sequence[ColumnSpec], primary_key: Sequence[str]) -> None:
        self.name = name
        self.label = label
        self.specs = tuple(columns)
        self.key_columns = fold.key_columns or tuple(primary_key)
        self.types = {column.name: _adapted(connection, column) for column in columns}
        unknown = [column for column in self.key_columns if column not in self.types]
        if unknown or not self.key_columns:
            raise DefinitionError(f"A fold of {label} has the key columns {', '.join(self.key_columns) or '(none)'}; "
                                  f"the table has no {', '.join(unknown) or 'primary key'}.",
                                  hint="name the columns that identify a row: Fold(key_columns=[...])", table=label)
        if len(self.key_columns) > 1 and any(one.key is None for name_ in fold.types
                                             for one in fold.registrations(name_)):
            raise DefinitionError(
                f"Table {label} is keyed by {', '.join(self.key_columns)}, so a fold's key is a tuple; the stream "
                "alone is not.", hint="give each function its key=, or name one column: Fold(key_columns=[...])",
                table=label)
        self.single = len(self.key_columns) == 1
        self.columns: tuple[str, ...] = ()
        self._values: Callable[[Row], tuple[Any, ...]] = tuple
        self._key = self.key_columns[0]
        self._unseen: set[str] = set()
        self._kinds: list[type | None] = []
        """By column, the class that needs no check."""
        self._key_places: list[int] = []
        # What may be changed in place (lists of an array, what JSON holds) must be copied in depth before a function
        # gets it; until the columns are known, that is anything.
        self.nested = True

    def shape(self, columns: Iterable[str]) -> None:
        """Settle which columns rows have."""
        given = set(columns) | set(self.key_columns)
        unknown = sorted(given - self.types.keys())
        if unknown:
            raise DefinitionError(f"A fold gave {self.label} a column {', '.join(unknown)}, which it does not have or "
                                  "which the server computes.", hint="give columns of the table", table=self.label)
        self.columns = tuple(name for name in self.types if name in given)
        getter = itemgetter(*self.columns)
        self._values = getter if len(self.columns) > 1 else lambda row: (getter(row),)
        self._unseen = set(self.columns) - set(self.key_columns)
        self.nested = any(self.types[name].copied and self.types[name].oid not in _ATOMS for name in self.columns)
        self._kinds = [str if name in self.key_columns else None for name in self.columns]
        self._key_places = [self.columns.index(name) for name in self.key_columns]

    def parts(self, key: Any) -> tuple[Any, ...]:
        """A key as values of the key columns."""
        if self.single:
            return (key,)
        if isinstance(key, tuple) and len(key) == len(self.key_columns):
            return key
        raise DefinitionError(f"A fold's key for {self.label} is {type(key).__name__}; it must be a tuple of "
                              f"{len(self.key_columns)}: ({', '.join(self.key_columns)}).",
                              hint="make key= return one", table=self.label)

    def admit(self, row: Row, key: Any) -> Row:
        """A new row, copied: its key's columns are the key, its other values of their columns' types."""
        row = {**row}
        if self.single:
            row[self._key] = key
        else:
            row.update(zip(self.key_columns, self.parts(key), strict=True))
        if not self.columns:
            self.shape(row)
        if len(row) != len(self.columns):
            raise self._other_columns(row)
        if self._unseen:
            self._see(row)
        return row

    def complete(self, row: Row, key: Any) -> Row:
        """A changed row that was made anew, without its key; raises if more is missing."""
        row = {**row, **{name: part for name, part in zip(self.key_columns, self.parts(key), strict=True)
                         if name not in row}}
        if len(row) != len(self.columns):
            raise self._other_columns(row)
        return row

    def _see(self, row: Row) -> None:
        for name in list(self._unseen):
            if name not in row:
                raise self._other_columns(row)
            if (value := row[name]) is not None:
                self._learn(name, value)
                self._unseen.discard(name)

    def _learn(self, name: str, value: Any) -> None:
        column = self.types[name]
        column.learn(self.label, value)
        self._kinds[self.columns.index(name)] = column.kind if column.scale is None else None

    def values(self, key: Any, row: Row) -> tuple[Any, ...]:
        """A row's values in the order of the columns, of the types that were seen first; the key as text."""
        try:
            values = self._values(row)
        except KeyError:
            raise self._other_columns(row) from None
        if len(row) != len(values):
            raise self._other_columns(row)
        for value, kind in zip(values, self._kinds, strict=True):
            if value.__class__ is not kind and value is not None:
                self._check(values)
                break
        if self.single and values[self._key_places[0]] is key and key.__class__ is str:
            return values
        parts = list(values)
        for name, place, part, text in zip(self.key_columns, self._key_places, self.parts(key), self.key_text(key),
                                           strict=True):
            if parts[place] != part:
                raise DefinitionError(f"A fold of {self.label} changed {name}, which is part of the row's key.",
                                      hint="delete the row and make another, by functions with keys of their own",
                                      table=self.label, column=name)
            parts[place] = text
        return tuple(parts)

    def _check(self, values: Sequence[Any]) -> None:
        for name, value in zip(self.columns, values, strict=True):
            if value is not None and name not in self.key_columns:
                self.types[name].check(self.label, value)
                self._kinds[self.columns.index(name)] = (
                    self.types[name].kind if self.types[name].scale is None else None)

    def key_text(self, key: Any) -> list[str | None]:
        """A key as the server reads it: a stream is text whatever its column is."""
        return [part if isinstance(part, str) or part is None else str(part) if isinstance(part, int)
                else self.types[name].text(part) for name, part in zip(self.key_columns, self.parts(key), strict=True)]

    def _other_columns(self, row: Row) -> DefinitionError:
        return DefinitionError(
            f"A fold of {self.label} gave a row with {', '.join(sorted(map(str, row)))}; its first had "
            f"{', '.join(self.columns)}.", hint="give all rows the same columns, None included", table=self.label)

    # In and out ---------------------------------------------------------------------------------------------------

    def encoded(self, connection: Connection, rows: Iterable[tuple[Any, ...]]) -> Iterator[bytes]:
        """Rows (by :meth:`values`) as COPY's text."""
        collected = _Collected()
        with connection.cursor() as cursor:
            copy = psycopg.Copy(cursor, binary=False, writer=collected)
            copy.set_types([self._copy_oid(name) for name in self.columns])
            with copy:
                for row in rows:
                    copy.write_row(row)
                    if collected.parts:
                        yield collected.take()
            if collected.parts:
                yield collected.take()

    def _copy_oid(self, name: str) -> int:
        column = self.types[name]
        return column.oid if column.copied and name not in self.key_columns else TEXT

    def copy_statement(self) -> sql.Composed:
        """COPY of encoded rows into the table."""
        return sql.SQL("COPY {} ({}) FROM STDIN").format(self.name, _names(self.columns))

    def load(self, connection: Connection, keys: Sequence[Any], *, lock: bool = False) -> dict[Any, Row]:
        """The rows of keys, by key."""
        columns = self.columns or tuple(self.types)
        others = [name for name in columns if name not in self.key_columns]
        statement = sql.SQL("SELECT k.n{} FROM {} JOIN {} AS t ON {}{}").format(
            sql.SQL("").join(sql.SQL(", t.{}").format(sql.Identifier(name)) for name in others),
            self._given(self.key_columns, ordinal=True), self.name, self._match(),
            sql.SQL(" FOR UPDATE OF t") if lock else sql.SQL(""))
        cursor = connection.cursor(row_factory=psycopg.rows.tuple_row)
        texts = self._arrays(self.key_columns, [self.key_text(key) for key in keys])
        found = cursor.execute(statement, texts).fetchall()
        rows = {}
        for number, *values in found:
            given = {**dict(zip(self.key_columns, self.parts(keys[number - 1]), strict=True)),
                     **dict(zip(others, values, strict=True))}
            rows[keys[number - 1]] = {name: given[name] for name in columns}
        return rows

    def insert(self, connection: Connection, rows: Sequence[tuple[Any, ...]], *, quietly: bool = False) -> int:
        """Insert rows; ``quietly`` leaves those alone that are there. How many were inserted."""
        return self._run(connection, sql.SQL("INSERT INTO {} ({}) SELECT {} FROM {}{}").format(
            self.name, _names(self.columns), self._cast(self.columns), self._given(self.columns),
            sql.SQL(" ON CONFLICT DO NOTHING") if quietly else sql.SQL("")), self.columns, rows)

    def update(self, connection: Connection, rows: Sequence[tuple[Any, ...]]) -> int:
        """Update rows by key; how many were."""
        others = [name for name in self.columns if name not in self.key_columns]
        if not others:
            return len(rows)
        changes = sql.SQL(", ").join(sql.SQL("{} = {}").format(sql.Identifier(name), self._cast([name]))
                                     for name in others)
        return self._run(connection, sql.SQL("UPDATE {} AS t SET {} FROM {} WHERE {}").format(
            self.name, changes, self._given(self.columns), self._match()), self.columns, rows)

    def delete(self, connection: Connection, keys: Sequence[Any]) -> int:
        """Delete rows by key; how many were."""
        return self._run(connection, sql.SQL("DELETE FROM {} AS t USING {} WHERE {}").format(
            self.name, self._given(self.key_columns), self._match()), self.key_columns,
            [self.key_text(key) for key in keys])

    def _run(self, connection: Connection, statement: sql.Composed, columns: Sequence[str],
             rows: Sequence[Sequence[Any]]) -> int:
        return connection.execute(statement, self._arrays(columns, rows)).rowcount if rows else 0

    def _given(self, columns: Sequence[str], *, ordinal: bool = False) -> sql.Composed:
        """The parameters as a relation ``k``: every value as text, so that no array of arrays is needed."""
        arrays = sql.SQL(", ").join(sql.SQL("%s::text[]") for _ in columns)
        return sql.SQL("unnest({}){} AS k({}{})").format(
            arrays, sql.SQL(" WITH ORDINALITY") if ordinal else sql.SQL(""), _names(columns),
            sql.SQL(", n") if ordinal else sql.SQL(""))

    def _cast(self, columns: Sequence[str]) -> sql.Composed:
        return sql.SQL(", ").join(sql.SQL("k.{}::{}").format(sql.Identifier(name), sql.SQL(self.types[name].sql_type))
                                  for name in columns)

    def _match(self) -> sql.Composed:
        return sql.SQL(" AND ").join(sql.SQL("t.{} = {}").format(sql.Identifier(name), self._cast([name]))
                                     for name in self.key_columns)

    def _arrays(self, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[list[str | None]]:
        """By column, what :meth:`values` or :meth:`key_text` gave by row; the key is text already."""
        return [[row[place] if name in self.key_columns else self.types[name].text(row[place]) for row in rows]
                for place, name in enumerate(columns)]


class _Collected(Writer):
    """What a Copy writes, kept."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []

    def write(self, data: Any) -> None:
        self.parts.append(bytes(data))

    def take(self) -> bytes:
        taken = b"".join(self.parts)
        self.parts.clear()
        return taken


def _names(columns: Iterable[str]) -> sql.Composed:
    return sql.SQL(", ").join(map(sql.Identifier, columns))


class ColumnSpec(NamedTuple):
    """What a column is on the server; a domain is its base type, as it is in a result."""

    name: str
    oid: int
    sql_type: str
    scale: int | None


def read_columns(connection: Connection, name: sql.Identifier, stored: Sequence[str]) -> tuple[ColumnSpec, ...]:
    """The columns of a table that may be written."""
    cursor = connection.cursor(row_factory=psycopg.rows.tuple_row)
    cursor.execute(sql.SQL("SELECT {} FROM {} LIMIT 0").format(_names(stored), name))
    described = cursor.description or []
    # Without its modifier: a cast to varchar(3) cuts, where an assignment is refused.
    types = {row[0]: row[1:] for row in cursor.execute(
        "SELECT attname, format_type(atttypid, -1), atttypid, atttypmod FROM pg_attribute"
        " WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped", (name.as_string(connection),)).fetchall()}
    found = []
    for column in described:
        sql_type, type_oid, modifier = types[column.name]
        scale = (((modifier - 4) & 0x7FF) ^ 1024) - 1024 if type_oid == NUMERIC and modifier >= 4 else None
        found.append(ColumnSpec(column.name, column.type_code, sql_type, scale))
    return tuple(found)


def _adapted(connection: Connection, column: ColumnSpec) -> ColumnType:
    """A column as psycopg adapts it on this connection."""
    adapters, copied = connection.adapters, True
    try:
        dumper = adapters.get_dumper_by_oid(column.oid, pq.Format.TEXT)(object, connection)
    except psycopg.ProgrammingError:
        copied, dumper = False, adapters.get_dumper_by_oid(TEXT, pq.Format.TEXT)(str, connection)
    loader = adapters.get_loader(column.oid, pq.Format.TEXT) or adapters.get_loader(0, pq.Format.TEXT)
    if loader is None:
        raise errors.RebuildError(f"psycopg has no loader for column {column.name}.")
    return ColumnType(column.name, column.oid, column.sql_type, dumper.dump, loader(column.oid, connection).load,
                      copied, column.scale, connection.info.encoding)
