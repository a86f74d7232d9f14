"""How the server reads a page of a log, and what would make it faster."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import sql

from rebuilder.eventlog.columns import is_plain
from rebuilder.eventlog.looking import reading
from rebuilder.eventlog.selection import Selection

if TYPE_CHECKING:
    from rebuilder.eventlog.open_log import OpenLog

_RARE = 0.1
"""A selection of less than this share of the log is worth an index of its own."""


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """The planner's answer for one page in the middle of the log."""

    index_scan: bool
    """Whether the log is walked by an index in reading order: nothing is read in full and nothing sorted per page."""
    nodes: tuple[str, ...]
    indexes: tuple[str, ...]
    statement: str
    share: float | None
    """Estimated part of the log that the selection reads."""
    advice: tuple[str, ...]
    """CREATE INDEX statements that would spare reading what is not selected."""


def explain(log: OpenLog, connection: psycopg.Connection[Any], selection: Selection, limit: int) -> ReadPlan:
    """Ask the planner."""
    with reading(connection):
        middle = max(log.max_position(connection) // 2, 1)
        statement = log.statements.page(selection, above=middle, limit=limit)
        nodes = list(_nodes(_plan(connection, statement)))
        share = _share(log, connection, selection)
    scans = [node for node in nodes if "Relation Name" in node]
    return ReadPlan(
        index_scan=(all("Index" in node["Node Type"] for node in scans)
                    and all(node["Node Type"] != "Sort" for node in nodes)),
        nodes=tuple(node["Node Type"] for node in nodes),
        indexes=tuple(dict.fromkeys(node["Index Name"] for node in nodes if "Index Name" in node)),
        statement=statement.as_string(connection),
        share=share,
        advice=_advice(log, connection, selection, share),
    )


def _plan(connection: psycopg.Connection[Any], statement: sql.Composed) -> dict[str, Any]:
    row = connection.execute(sql.SQL("EXPLAIN (FORMAT JSON) {}").format(statement), prepare=False).fetchone()
    return dict(row[0][0]["Plan"]) if row else {}


def _nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for child in plan.get("Plans", []):
        yield from _nodes(child)


def _share(log: OpenLog, connection: psycopg.Connection[Any], selection: Selection) -> float | None:
    if not selection.types:
        return 0.0
    selected = _plan(connection, log.statements.page(selection)).get("Plan Rows", 0)
    everything = _plan(connection, log.statements.everything()).get("Plan Rows", 0)
    return min(1.0, selected / everything) if everything else None


def _advice(log: OpenLog, connection: psycopg.Connection[Any], selection: Selection,
            share: float | None) -> tuple[str, ...]:
    if share is None or share >= _RARE or not selection.types:
        return ()
    roles = ["type", *(["category"] if selection.categories else [])]
    values = dict(log.definition.columns.items())
    if any(role in log.statements.indexed for role in roles) or log.relation.kind == "v":
        return ()
    # A partitioned table has no CONCURRENTLY: build it on each partition first, then ON ONLY and attach.
    how = sql.SQL("") if log.relation.kind == "p" else sql.SQL(" CONCURRENTLY")
    return tuple(
        sql.SQL("CREATE INDEX{} ON {} ({}, {})").format(
            how, log.relation.identifier, sql.Identifier(values[role]), sql.Identifier(log.source.column),
        ).as_string(connection)
        for role in roles if role in log.statements.comparable and is_plain(values[role]))
