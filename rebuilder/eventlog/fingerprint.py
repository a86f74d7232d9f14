"""Digests of a log's events: a sum of hashes for all, SHA-256 by segments of positions.

Positions, streams, types, versions and payloads are in it, framed with their lengths, so that no two logs look alike
because a text moved from one column to the next. Every event counts, whatever a projection reads.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

import psycopg
from psycopg import sql

from rebuilder.eventlog.columns import ALIAS
from rebuilder.eventlog.looking import reading

if TYPE_CHECKING:
    from rebuilder.eventlog.open_log import OpenLog

SEGMENT = 1000
"""Positions in a segment: small enough that an edit is found to within that many, large enough that few are kept."""

_TEXTS = ("stream", "type", "category", "tenant", "stream_version", "schema_version")
_BYTES = ("data", "metadata")


class Segment(NamedTuple):
    """A range of positions, how many events are in it, and their digest."""

    first: int
    last: int
    events: int
    digest: bytes


class Sum(NamedTuple):
    """Events, the highest position (0 if there is none), and the sum of 64-bit hashes."""

    events: int
    position: int
    digest: str


def count(log: OpenLog, connection: psycopg.Connection[Any]) -> tuple[int, int]:
    """How many events there are, and the highest position."""
    events, position = _ask(log, connection, sql.SQL("count(*), coalesce(max(e.position), 0)"), sql.SQL(""))[0]
    return int(events), int(position)


def sum64(log: OpenLog, connection: psycopg.Connection[Any]) -> Sum:
    """The order-free sum of the hashes of all events."""
    what = sql.SQL("count(*), coalesce(max(e.position), 0), "
                   "coalesce(sum(hashtextextended(encode({}, 'hex'), 0)::numeric), 0)::text").format(_frame(log))
    events, position, digest = _ask(log, connection, what, sql.SQL(""))[0]
    return Sum(int(events), int(position), str(digest))


def segments(log: OpenLog, connection: psycopg.Connection[Any], *, above: int = 0,
             upto: int | None = None) -> list[Segment]:
    """The segments with events between two positions, which are ends of segments."""
    what = sql.SQL(
        "(e.position - 1) / {size}, count(*),"
        " sha256(string_agg(sha256({frame}), ''::bytea ORDER BY e.position, convert_to(e.tenant::text, 'UTF8')))",
    ).format(size=sql.Literal(SEGMENT), frame=_frame(log))
    bounds = [sql.SQL("e.position > {}").format(sql.Literal(above))]
    if upto is not None:
        bounds.append(sql.SQL("e.position <= {}").format(sql.Literal(upto)))
    rest = sql.SQL(" WHERE {} GROUP BY 1 ORDER BY 1").format(sql.SQL(" AND ").join(bounds))
    return [Segment(int(number) * SEGMENT + 1, (int(number) + 1) * SEGMENT, int(events), bytes(digest))
            for number, events, digest in _ask(log, connection, what, rest)]


def closed_upto(horizon: int) -> int:
    """The end of the last segment that a settled horizon closes."""
    return horizon // SEGMENT * SEGMENT


def digest_of(found: Iterable[Segment]) -> str:
    """One digest of segments in their order."""
    total = hashlib.sha256()
    for segment in found:
        total.update(segment.first.to_bytes(8, "big") + segment.events.to_bytes(8, "big") + segment.digest)
    return total.hexdigest()


def _frame(log: OpenLog) -> sql.Composed:
    """An event as bytes: each field with its length before it, NULL as a length that none has."""
    there = {role for role, _ in log.definition.columns.items()}
    parts: list[sql.Composable] = [sql.SQL("int8send(e.position)")]
    absent = sql.SQL("NULL::bytea")
    texts = [sql.SQL("convert_to(e.{}::text, 'UTF8')").format(sql.Identifier(role)) if role in there else absent
             for role in _TEXTS]
    payloads = [sql.SQL("e.{}").format(sql.Identifier(role)) if role in there else absent for role in _BYTES]
    framed = sql.SQL("coalesce(int4send(octet_length({field})) || {field}, '\\xffffffff'::bytea)")
    parts.extend(framed.format(field=field) for field in (*texts, *payloads))
    return sql.SQL("({})").format(sql.SQL(" || ").join(parts))


def _ask(log: OpenLog, connection: psycopg.Connection[Any], what: sql.Composable,
         rest: sql.Composable) -> list[tuple[Any, ...]]:
    statements = log.statements
    where = sql.SQL(" AND ").join(statements.filters) if statements.filters else sql.SQL("true")
    statement = sql.SQL("SELECT {} FROM (SELECT {} FROM {} AS {} WHERE {}) AS e{}").format(
        what, statements.output, statements.relation, sql.Identifier(ALIAS), where, rest)
    with reading(connection), connection.cursor() as cursor:
        return cursor.execute(statement, prepare=False).fetchall()
