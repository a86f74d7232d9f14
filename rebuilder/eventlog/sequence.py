"""The sequence that positions are drawn from: what the horizon rests on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import psycopg
from psycopg import sql
from psycopg.pq import TransactionStatus

from rebuilder.errors import LogDefinitionError, MissingPrivilege, RefusedError
from rebuilder.eventlog.relation import Source
from rebuilder.sql import load

_SQL = load("eventlog")
COUNT = 'TableLog(completeness="count") accepts a full comparison under the fence, which then grows with the log'


class _Reading(NamedTuple):
    schema: str
    name: str
    increment: int
    cache: int
    cycle: bool
    readable: bool
    last_value: int | None


@dataclass(frozen=True, slots=True)
class PositionSequence:
    """A sequence that gives positions in ascending order, one at a time."""

    oid: int
    schema: str
    name: str

    @property
    def label(self) -> str:
        """``schema.name`` for people."""
        return f"{self.schema}.{self.name}"

    @property
    def identifier(self) -> sql.Identifier:
        """The qualified name in SQL."""
        return sql.Identifier(self.schema, self.name)

    def last_value(self, connection: psycopg.Connection[Any]) -> int:
        """The last position given, 0 before the first. A sequence that has changed its ways since is refused."""
        reading = _read(connection, self.oid)
        _check_privilege(connection, reading)
        _check_ways(reading)
        return reading.last_value or 0


def find(connection: psycopg.Connection[Any], source: Source, named: int | None) -> PositionSequence:
    """The sequence behind a position, or a refusal that says why there is none to rely on."""
    oid = named if named is not None else _drawn_from(connection, source)
    reading = _read(connection, oid)
    _check_ways(reading)
    _check_privilege(connection, reading)
    return PositionSequence(oid, reading.schema, reading.name)


def named(connection: psycopg.Connection[Any], name: str) -> int:
    """The sequence of ``TableLog(sequence=…)``."""
    row = connection.execute(_SQL["sequence_named"], {"name": name}).fetchone()
    if row is None:
        raise LogDefinitionError(f"The sequence {name!r} of TableLog(sequence=…) does not exist.",
                                 hint="name it as in SQL, with its schema where the search path does not find it",
                                 sequence=name)
    return int(row[0])


def check_ahead(connection: psycopg.Connection[Any], sequence: PositionSequence, max_position: int) -> None:
    """Refuse a sequence behind the log. ``max_position`` must have been read before this call."""
    last = sequence.last_value(connection)
    if last < max_position:
        raise RefusedError(
            f"The log holds position {max_position}, but its sequence {sequence.label} has given {last} only: "
            "positions come from elsewhere (a replica, an import, ids made by the application), so what is still to "
            "come can't be known.",
            hint=sql.SQL("SELECT setval({}, {}), if the sequence gives positions from now on; else ").format(
                sql.Literal(sequence.identifier.as_string(connection)), sql.Literal(max_position),
            ).as_string(connection) + COUNT,
            sequence=sequence.label, last_value=last, max_position=max_position)


def _drawn_from(connection: psycopg.Connection[Any], source: Source) -> int:
    rows = connection.execute(_SQL["column_sequences"],
                              {"oid": source.table.oid, "column": source.column}).fetchall()
    # What the default or the identity draws from counts; ownership alone is a second-best answer.
    best = [oid for oid, rank in rows if rank == rows[0][1]]
    where = f"{source.table.label}.{source.column}"
    if not best:
        raise RefusedError(
            f"No sequence gives the positions of {where}: who holds a position that is not yet visible can't be known.",
            hint=f"name the sequence with TableLog(sequence=…) if there is one; else {COUNT}", column=where)
    if len(best) > 1:
        raise RefusedError(
            f"More than one sequence gives the positions of {where} ({_labels(connection, best)}), so they are not one "
            "ascending series.",
            hint=f"name the one that counts with TableLog(sequence=…), if there is one; else {COUNT}", column=where)
    return int(best[0])


def _labels(connection: psycopg.Connection[Any], oids: list[int]) -> str:
    return ", ".join(f"{r.schema}.{r.name}" for r in (_read(connection, oid) for oid in oids))


def _read(connection: psycopg.Connection[Any], oid: int) -> _Reading:
    alone = connection.info.transaction_status == TransactionStatus.IDLE
    row = connection.execute(_SQL["sequence"], {"sequence": oid, "alone": alone}).fetchone()
    if row is None:
        raise RefusedError("The sequence that gives the log's positions is gone.",
                           hint="restore it, or start again with the one that replaced it")
    reading = _Reading(*row)
    if alone or not reading.readable:
        return reading
    # Inside a transaction the value is read like a row, which the savepoint around it unlocks again.
    row = connection.execute(sql.SQL("SELECT CASE WHEN is_called THEN last_value END FROM {}").format(
        sql.Identifier(reading.schema, reading.name))).fetchone()
    return reading._replace(last_value=row[0] if row else None)


def _check_ways(reading: _Reading) -> None:
    label = f"{reading.schema}.{reading.name}"
    mend = f"ALTER SEQUENCE {label}"
    if reading.cache != 1:
        raise RefusedError(
            f"The sequence {label} has CACHE {reading.cache}: each session draws positions ahead and may use them much "
            "later, below positions that were already read.",
            hint=f"{mend} CACHE 1, then reconnect every session that appends; else {COUNT}", sequence=label)
    if reading.increment != 1:
        way = "descends" if reading.increment < 0 else f"has INCREMENT {reading.increment}"
        raise RefusedError(
            f"The sequence {label} {way}: other numbers of the same range may come from elsewhere.",
            hint=f"{mend} INCREMENT 1; else {COUNT}", sequence=label)
    if reading.cycle:
        raise RefusedError(f"The sequence {label} has CYCLE: it would start again below positions already read.",
                           hint=f"{mend} NO CYCLE; else {COUNT}", sequence=label)


def _check_privilege(connection: psycopg.Connection[Any], reading: _Reading) -> None:
    if not reading.readable:
        raise MissingPrivilege(
            f"This role may not read the sequence {reading.schema}.{reading.name}, which says how far the log reaches.",
            hint=sql.SQL("GRANT SELECT ON SEQUENCE {} TO {}").format(
                sql.Identifier(reading.schema, reading.name), sql.Identifier(connection.info.user),
            ).as_string(connection),
            sequence=f"{reading.schema}.{reading.name}")
