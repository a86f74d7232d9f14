"""One event folded into live rows, in the caller's transaction."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import sql

from rebuilder.domain.event import Event
from rebuilder.domain.fold import Fold
from rebuilder.engine.fold_table import FoldTable, read_columns

if TYPE_CHECKING:
    from rebuilder.domain.projection import Projection
    from rebuilder.store.sessions import Connection

_SHAPE = (
    "SELECT a.attname, a.attnum = ANY (i.indkey) FROM pg_attribute a"
    " LEFT JOIN pg_index i ON i.indrelid = a.attrelid AND i.indisprimary"
    " WHERE a.attrelid = %s::regclass AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = ''"
    " ORDER BY array_position(i.indkey::int2[], a.attnum), a.attnum")


def fold_tables(connection: Connection, projection: Projection,
                tables: Mapping[str, sql.Identifier]) -> list[tuple[Fold, FoldTable]]:
    """The folds of a projection with the live tables that they fill."""
    found = []
    cursor = connection.cursor(row_factory=psycopg.rows.tuple_row)
    for fold in projection.folds:
        name = tables[projection.fold_table(fold)]
        columns = cursor.execute(_SHAPE, (name.as_string(connection),)).fetchall()
        found.append((fold, FoldTable(connection, name, ".".join(name._obj), fold,  # noqa: SLF001
                                      columns=read_columns(connection, name, [column for column, _ in columns]),
                                      primary_key=[column for column, key in columns if key])))
    return found


def fold_live(connection: Connection, event: Event, folds: list[tuple[Fold, FoldTable]]) -> None:
    """Fold one event. Each row is locked before it is read, so that two streams that share it do not overwrite each
    other; a row that is not there is inserted, and read again if somebody else was first.
    """
    for fold, table in folds:
        for one in fold.registrations(event.type):
            _fold(connection, table, event.stream if one.key is None else one.key(event), one.function, event)


def _fold(connection: Connection, table: FoldTable, key: Any, function: Any, event: Event) -> None:
    while True:
        before = table.load(connection, [key], lock=True).get(key)
        after = function(None if before is None else copy.deepcopy(before), event)
        if before is None:
            if after is None:
                return
            table.columns = ()
            row = table.admit(after, key)
            if table.insert(connection, [table.values(key, row)], quietly=True):
                return
        elif after is None:
            table.delete(connection, [key])
            return
        else:
            after = {**{name: before[name] for name in table.key_columns}, **after}
            table.shape(after)
            table.update(connection, [table.values(key, after)])
            return
