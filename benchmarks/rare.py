"""Ten events of interest in a log of ten million: the first of them is applied within a second, by an index."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.kinds import best
from benchmarks.measure import Database, Result, bounded
from tests.bank import Connection


def run(database: Database, scale: float) -> Iterator[Result]:
    events = int(10_000_000 * scale)
    dsn = database.bank(lambda db: _fill(db, events))
    for kind in ("sql", "fold", "batch"):
        one = best(dsn, kind)
        assert one["events"] == 10
        yield bounded(f"{kind}: seconds to the first batch, 10 events of {events:,}", one["first"], most=1.0)


def _fill(db: Connection, events: int) -> None:
    db.execute("INSERT INTO events (stream, type, data)"
               " SELECT 'account-' || n %% 1000,"
               "        CASE WHEN n %% %(each)s = %(each)s / 2 THEN 'Deposited' ELSE 'Seen' END,"
               " jsonb_build_object('amount', 1) FROM generate_series(0, %(events)s - 1) AS n",
               {"events": events, "each": events // 10})
    db.execute("CREATE INDEX ON events (type, id)")
