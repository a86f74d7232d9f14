"""Events a second, compared with the replay that everybody writes first: TRUNCATE, then a round trip for each event.

10,000 events of 2,000 accounts, four fifths of which a handler ignores, the median of three (scenario 31); and a bank
in which every event writes.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
from psycopg import sql

from benchmarks.measure import Database, Result, bounded
from rebuilder import Event, Projection, SqlHandlers
from tests.bank import Connection, append_many, make_handlers, make_log, make_projection, make_rebuilder


def run(database: Database, scale: float) -> Iterator[Result]:
    ignoring = make_handlers()
    ignoring.on("Seen")(lambda _event, _target: None)
    sparse = make_projection(handlers=ignoring)
    # Not shorter, or what a rebuild costs beside its events would be all that is measured.
    few, many = max(10_000, int(10_000 * scale)), max(10_000, int(100_000 * scale))
    yield from _compare("one event in five writes", database.bank(lambda db: _mostly_seen(db, few)), sparse, few)
    dsn = database.bank(lambda db: append_many(db, many, accounts=many // 5))
    yield from _compare("every event writes", dsn, make_projection(), many)


def _mostly_seen(db: Connection, events: int) -> None:
    fifth = events // 5
    db.execute("INSERT INTO events (stream, type, data)"
               " SELECT 'a' || n %% %(fifth)s, CASE WHEN n < %(fifth)s THEN 'AccountOpened' ELSE 'Seen' END,"
               " jsonb_build_object('owner', n) FROM generate_series(0, %(last)s) AS n",
               {"fifth": fifth, "last": events - 1})


def _compare(what: str, dsn: str, projection: Projection, events: int) -> Iterator[Result]:
    rebuilder = make_rebuilder(dsn, projection)
    rebuild = _median(lambda: rebuilder.rebuild("account_balance", retire="drop"))
    naive = _median(lambda: _naive(dsn, projection))
    yield Result(f"{what}: {events} events, {events / rebuild:,.0f} a second (naive: {events / naive:,.0f})")
    yield bounded(f"{what}: the rebuild's rate over the naive replay's", naive / rebuild, least=0.5)


def _median(action: Callable[[], Any]) -> float:
    took = []
    for _ in range(3):
        began = time.monotonic()
        action()
        took.append(time.monotonic() - began)
    return statistics.median(took)


class _Direct:
    """A target that waits for each statement, as a first version of a replay does."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def execute(self, statement: Any, params: Any = None) -> None:
        self._connection.execute(statement, params)

    def fetch_one(self, statement: Any, params: Any = None) -> Any:
        return self._connection.execute(statement, params).fetchone()

    def fetch_all(self, statement: Any, params: Any = None) -> list[Any]:
        return self._connection.execute(statement, params).fetchall()

    def table(self, name: str) -> sql.Identifier:
        return sql.Identifier(name)


def _naive(dsn: str, projection: Projection) -> None:
    """One transaction that locks readers out from its first statement to its last."""
    handlers, log = projection.handlers, make_log()
    assert isinstance(handlers, SqlHandlers)
    with psycopg.connect(dsn) as connection:
        target = _Direct(connection)
        connection.execute("TRUNCATE account_balance")
        reader = connection.cursor(row_factory=psycopg.rows.dict_row)
        for row in reader.execute("SELECT * FROM events ORDER BY id").fetchall():
            event: Event = log.event(row)
            handlers.handler(event.type)(event, target)
