"""Every kind of handlers, against a loop that waits for each statement and against a hand-written GROUP BY.

A rate is events over the time of catch up, for a fold with the freeze, which is when its rows are written. Compared
are rates that were measured one after the other; each is the best of as many tries as `TRIES` says, since what else the
machine does only makes one slower.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

from benchmarks.measure import Database, Result, bounded
from benchmarks.workload import HAND_WRITTEN, TYPES, UPSERT, fill

ROOT = Path(__file__).resolve().parents[1]
TRIES = int(os.environ.get("REBUILDER_BENCH_TRIES", "2"))
ACCOUNTS = 100_000
SAVEPOINTS = 5_000
"""More of them than this in one transaction is what makes the reference engine run out of shared memory."""


def run(database: Database, scale: float) -> Iterator[Result]:
    events, accounts = int(1_000_000 * scale), int(ACCOUNTS * scale)
    dsn = database.bank(lambda db: fill(db, events, accounts))
    loop, savepoints = _loop(dsn, min(events, 50_000)), _loop(dsn, SAVEPOINTS, savepoints=True)
    yield _rate("loop, one statement per event", loop)
    yield _rate("loop with a savepoint per event", savepoints)
    hand = {megabytes: _best(lambda mb=megabytes: _hand_written(dsn, events, mb)) for megabytes in (4, 256)}
    for megabytes, rate in hand.items():
        yield _rate(f"hand-written GROUP BY, work_mem {megabytes} MB", rate)

    found: dict[str, dict[str, Any]] = {}
    for name, arguments in (("SqlHandlers", ["sql"]), ("SqlHandlers, quarantine", ["sql", "--quarantine"]),
                            ("SqlHandlers, 2 writers", ["sql", "--writers", "2"]),
                            ("Fold, one process", ["fold"]), ("Fold, quarantine", ["fold", "--quarantine"]),
                            ("Fold, two workers", ["fold", "--workers", "2"]),
                            ("Fold, 2 writers", ["fold", "--writers", "2"]),
                            ("BatchSql, work_mem 4 MB", ["batch", "--work-mem", "4"]),
                            ("BatchSql, work_mem 256 MB", ["batch"])):
        found[name] = best(dsn, *arguments)
        yield _of_rebuild(name, found[name])
    rate = {name: one["rate"] for name, one in found.items()}
    yield bounded("SqlHandlers over the loop", rate["SqlHandlers"] / loop, least=4)
    yield bounded("SqlHandlers, quarantine on over off", rate["SqlHandlers, quarantine"] / rate["SqlHandlers"],
                  least=0.9)
    yield bounded("quarantine over a savepoint per event", rate["SqlHandlers, quarantine"] / savepoints, least=8)
    yield bounded("fold, one process, over the loop", rate["Fold, one process"] / loop, least=30)
    yield bounded("fold, one process, over the GROUP BY at 4 MB", rate["Fold, one process"] / hand[4], least=0.6)
    yield bounded("fold, two workers, over the GROUP BY at 4 MB", rate["Fold, two workers"] / hand[4], least=0.9)
    yield bounded("fold, two workers over one process", rate["Fold, two workers"] / rate["Fold, one process"],
                  least=1.3)
    for megabytes in (4, 256):
        yield bounded(f"BatchSql over the GROUP BY, both at {megabytes} MB",
                      rate[f"BatchSql, work_mem {megabytes} MB"] / hand[megabytes], least=0.85)
    yield from _hot_row(database, events, found["SqlHandlers"])
    yield from _longer(database, scale, accounts, found)


def _hot_row(database: Database, events: int, spread: dict[str, Any]) -> Iterator[Result]:
    dsn = database.bank(lambda db: fill(db, events, 1))
    hot = best(dsn, "sql")
    yield _of_rebuild("SqlHandlers, one row", hot)
    yield bounded("one row over rows spread, time per event", spread["rate"] / hot["rate"], most=1.5)


def _longer(database: Database, scale: float, accounts: int, short: dict[str, dict[str, Any]]) -> Iterator[Result]:
    """Five times the log, as many rows."""
    dsn = database.bank(lambda db: fill(db, int(5_000_000 * scale), accounts))
    for name, arguments in (("SqlHandlers", ["sql"]), ("Fold, one process", ["fold"])):
        long = best(dsn, *arguments, tries=1)
        yield _of_rebuild(f"{name}, 5 times the log", long)
        yield bounded(f"{name}: peak memory, 5 times the log", long["peak_mib"] / short[name]["peak_mib"], most=1.1)
        yield bounded(f"{name}: time per event, 5 times the log", short[name]["rate"] / long["rate"], most=1.15)


def best(dsn: str, *arguments: str, tries: int = TRIES) -> dict[str, Any]:
    """The fastest of a few rebuilds, each in a process of its own."""
    return max((_rebuild(dsn, *arguments) for _ in range(tries)), key=lambda one: float(one["rate"]))


def _rebuild(dsn: str, kind: str, *arguments: str) -> dict[str, Any]:
    done = subprocess.run([sys.executable, "-m", "benchmarks.one", kind, dsn, *arguments], cwd=ROOT, check=True,
                          stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(ROOT)})
    return dict(json.loads(done.stdout))


def _best(measure: Any) -> float:
    return float(max(measure() for _ in range(TRIES)))


def _loop(dsn: str, events: int, *, savepoints: bool = False) -> float:
    """What everybody writes first: each event's statement is sent and waited for; events a second."""
    with psycopg.connect(dsn) as connection:
        cursor = connection.execute("SELECT stream, type, data FROM events WHERE type = ANY (%s) ORDER BY id LIMIT %s",
                                    (TYPES, events))
        connection.execute("CREATE TEMP TABLE account_balance (LIKE account_balance INCLUDING ALL)")
        writer = connection.cursor()
        began = time.monotonic()
        for stream, type_, data in cursor:
            if savepoints:
                writer.execute("SAVEPOINT event")
            amount = data["amount"]
            writer.execute(UPSERT, (stream, amount if type_ == "Deposited" else -amount))
            if savepoints:
                writer.execute("RELEASE SAVEPOINT event")
        seconds = time.monotonic() - began
        connection.rollback()
    return events / seconds


def _hand_written(dsn: str, events: int, megabytes: int) -> float:
    """Events a second of one statement over the whole log, into a table with the same key."""
    with psycopg.connect(dsn) as connection:
        connection.execute("SELECT set_config('work_mem', %s, true)", (f"{megabytes}MB",))
        connection.execute("CREATE TABLE by_hand (LIKE account_balance INCLUDING ALL)")
        began = time.monotonic()
        connection.execute(sql.SQL(HAND_WRITTEN).format(sql.Identifier("by_hand")))
        seconds = time.monotonic() - began
        connection.rollback()
    return events / seconds


def _rate(name: str, rate: float) -> Result:
    return Result(f"{name}: {rate:,.0f} events a second", row={"name": name, "rate": rate})


def _of_rebuild(name: str, one: dict[str, Any]) -> Result:
    return Result(f"{name}: {one['rate']:,.0f} events a second, {one['total']:.1f} s in all, peak "
                  f"{one['peak_mib']:.0f} MiB, fence waited for {one['fence_wait_ms']:.0f} ms and held "
                  f"{one['fence_held_ms']:.0f} ms, WAL {one['wal_mib']:.0f} MiB", row={"name": name, **one})


