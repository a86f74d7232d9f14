"""One measured rebuild in a process of its own: `python -m benchmarks.one KIND DSN [options]` prints JSON."""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import threading
import time
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import ExitStack
from typing import Any

import psycopg

from benchmarks.workload import NAME, projection
from rebuilder import Rebuilder
from tests.bank import append, make_log, make_rebuilder


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("kind")
    parser.add_argument("dsn")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--quarantine", action="store_true")
    parser.add_argument("--writers", type=int, default=0)
    parser.add_argument("--work-mem", type=int, default=256)
    given = parser.parse_args()
    # The columns that the handlers use, as docs/performance.md advises.
    log = make_log(columns={"recorded_at": None, "schema_version": None})
    rebuilder = make_rebuilder(given.dsn, projection(given.kind), log=log,
                               settings={"batch_work_mem": given.work_mem * 2**20})
    with ExitStack() as stack:
        print(json.dumps(measured(rebuilder, given, workers_of(given.workers, stack), stack)))


def workers_of(number: int, stack: ExitStack) -> int | Executor:
    """A pool that is up: how long Python takes to start is not what is measured."""
    if number == 1:
        return 1
    pool = stack.enter_context(ProcessPoolExecutor(number, mp_context=multiprocessing.get_context("spawn")))
    for warm in [pool.submit(time.sleep, 0.5) for _ in range(number)]:
        warm.result()
    for warm in [pool.submit(projection, "fold") for _ in range(number)]:
        warm.result()
    return pool


def measured(rebuilder: Rebuilder, given: argparse.Namespace, workers: int | Executor,
             stack: ExitStack) -> dict[str, Any]:
    first: list[float] = []
    began = time.monotonic()

    def observe(seen: Any) -> None:
        if seen.kind == "progress" and not first:
            first.append(time.monotonic() - began)

    admin = stack.enter_context(psycopg.connect(given.dsn, autocommit=True))
    lsn = admin.execute("SELECT pg_current_wal_lsn()").fetchone()
    written = writers(rebuilder, given, stack)
    began = time.monotonic()
    report = rebuilder.rebuild(NAME, quarantine=given.quarantine, workers=workers, retire="drop", observer=observe)
    seconds = report.seconds
    wal = admin.execute("SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), %s)::int8", lsn).fetchone()
    assert wal is not None
    replay = seconds["catch up"] + (seconds["freeze"] if given.kind == "fold" else 0)
    children = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss if given.workers > 1 else 0
    return {"events": report.events_applied, "replay": replay, "total": seconds["total"], "rate":
            report.events_applied / replay, "first": first[0] if first else None, "written": len(written),
            "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, "worker_peak_mib": children / 1024,
            "fence_wait_ms": seconds["fence_wait_seconds"] * 1000,
            "fence_held_ms": seconds["fence_held_seconds"] * 1000, "wal_mib": wal[0] / 2**20}


def writers(rebuilder: Rebuilder, given: argparse.Namespace, stack: ExitStack) -> list[int]:
    """Applications that go on appending, with their effect on live."""
    stop, positions = threading.Event(), []

    def write(number: int) -> None:
        with psycopg.connect(given.dsn, autocommit=True) as connection:
            while not stop.is_set():
                positions.append(append(connection, f"account-{number}", "Deposited", {"amount": 1}, live=rebuilder))

    threads = [threading.Thread(target=write, args=(number,)) for number in range(given.writers)]
    for thread in threads:
        thread.start()
        stack.callback(thread.join)
    stack.callback(stop.set)
    return positions


if __name__ == "__main__":
    main()
