"""How long the fence is held does not grow with the log, nor with the table."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

from benchmarks.measure import Database, Result, bounded
from rebuilder import Rebuilder
from tests.bank import append_many, make_rebuilder

NAME = "account_balance"
EVENTS = 20_000
ROUNDS = 9


def run(database: Database, scale: float) -> Iterator[Result]:
    """Rebuilds of both logs in turn, so that whatever else the machine does meets both alike."""
    events = max(1000, int(EVENTS * scale))
    sizes = {"a log": (events, events // 10), "ten times the log": (10 * events, events // 10),
             "ten times log and table": (10 * events, events)}
    banks: dict[str, Rebuilder] = {}
    for name, (number, accounts) in sizes.items():
        banks[name] = make_rebuilder(database.bank(
            lambda db, number=number, accounts=accounts: append_many(db, number, accounts=accounts)))
    held: dict[str, list[float]] = {name: [] for name in banks}
    for _ in range(ROUNDS):
        for name, bank in banks.items():
            held[name].append(bank.rebuild(NAME, retire="drop").fence_held_seconds)
    medians = {name: statistics.median(each) for name, each in held.items()}
    for name, median in medians.items():
        number, accounts = sizes[name]
        yield Result(f"{name}: {number:,} events, {accounts:,} rows: fence held {median * 1000:.1f} ms at the median "
                     f"of {ROUNDS}")
    yield bounded("fence held, ten times the log", medians["ten times the log"] / medians["a log"], most=1.5)
    ratio = medians["ten times log and table"] / medians["a log"]
    yield bounded("fence held, ten times log and table", ratio, most=1.5)
