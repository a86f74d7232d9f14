"""Sequences behind columns: what the shadow draws from, and handing positions over.

Live's own sequences are never drawn from by the replay: a run that rolls back would have moved them for good, since
nextval and setval are not undone. A serial column of the shadow draws from a stand-in in the work schema; an identity
column brings a sequence of its own, under the name of live's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import psycopg
from psycopg import sql

from rebuilder.catalog.blueprint import Blueprint, LiveTable, OwnedSequence, Schemas
from rebuilder.catalog.reader import QUERIES, rows
from rebuilder.sql import ddl

Position = tuple[int, bool]
"""last_value and is_called of a sequence."""
Positions = Mapping[str, Position]
"""Positions of a table's identity sequences by column."""


def stand_in(table: LiveTable, sequence: OwnedSequence, work: Schemas) -> sql.Identifier:
    """The sequence that the shadow draws from.

    It has live's name, so that ``nextval('name')`` in a handler finds it, unless live's sequence lies in a schema that
    has no work schema; there the name might be a table's.
    """
    if sequence.schema in work:
        return sql.Identifier(work[sequence.schema], sequence.name)
    return sql.Identifier(work[table.schema], f"rebuilder_serial_{sequence.oid}")


def shadow_positions(connection: psycopg.Connection[Any], table: LiveTable, work: Schemas) -> Positions:
    """Where the identity sequences of the shadow stand; asked before its old copy is dropped."""
    return {
        sequence.column: _position(connection, stand_in(table, sequence, work))
        for sequence in table.sequences
        if sequence.identity
    }


def restore_positions(
    connection: psycopg.Connection[Any], table: LiveTable, work: Schemas, positions: Positions
) -> None:
    """Set the identity sequences of the fresh copy, after ``keys`` has made them."""
    for sequence in table.sequences:
        if sequence.column in positions:
            _set(connection, stand_in(table, sequence, work), positions[sequence.column])


def hand_over_sequences(connection: psycopg.Connection[Any], blueprint: Blueprint, work: Schemas) -> None:
    """Under the fence, before the swap: what will be live's sequence gets the further of both positions.

    Further is meant in the direction of the increment. RESTART gives a sequence new storage, so that the setval after
    it is undone with the transaction or savepoint; a sequence that stands right already is not touched.
    """
    done: set[int] = set()
    for table in blueprint.tables:
        for sequence in table.sequences:
            if sequence.oid in done:  # a serial sequence may feed several columns
                continue
            done.add(sequence.oid)
            live, shadow = sql.Identifier(sequence.schema, sequence.name), stand_in(table, sequence, work)
            before, drawn = _position(connection, live), _position(connection, shadow)
            # One that the replay never drew from says nothing: its start may lie beyond a live one that was restarted.
            wanted = _further(before, drawn, sequence.increment) if drawn[1] else before
            kept, current = (shadow, drawn) if sequence.identity else (live, before)
            if wanted != current:
                connection.execute(sql.SQL("ALTER SEQUENCE {} RESTART WITH {}").format(kept, sql.Literal(wanted[0])))
                _set(connection, kept, wanted)


def generated_in_replay(
    connection: psycopg.Connection[Any], blueprint: Blueprint, work: Schemas
) -> tuple[tuple[LiveTable, str], ...]:
    """Columns whose values the replay drew itself: another run would give other rows those values."""
    return tuple(
        (table, sequence.column)
        for table in blueprint.tables
        for sequence in table.sequences
        if _position(connection, stand_in(table, sequence, work))[1]
    )


def _further(one: Position, other: Position, increment: int) -> Position:
    sign = 1 if increment > 0 else -1
    return max(one, other, key=lambda position: (sign * position[0], position[1]))


def _position(connection: psycopg.Connection[Any], sequence: sql.Identifier) -> Position:
    with connection.cursor(row_factory=psycopg.rows.tuple_row) as cursor:
        row = cursor.execute(sql.SQL("SELECT last_value, is_called FROM {}").format(sequence)).fetchone()
    if row is None:
        raise ValueError(f"Sequence {sequence.as_string(None)} has no row.")
    return int(row[0]), bool(row[1])


def _set(connection: psycopg.Connection[Any], sequence: sql.Identifier, position: Position) -> None:
    rows(connection, QUERIES["set_position"], sequence=sequence.as_string(None), value=position[0], called=position[1])


def create_stand_in(table: LiveTable, sequence: OwnedSequence, work: Schemas, options: ddl.Statement) -> ddl.Statement:
    """The stand-in of a serial sequence; several copies of the shadow, and several columns, share one."""
    return ddl.create_sequence(stand_in(table, sequence, work), sequence.type, options)
