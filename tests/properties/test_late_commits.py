"""Rebuild after rebuild beside writers that commit late, in another order than their positions, or not at all."""

import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests import bank

ROOT = Path(__file__).resolve().parents[2]
REBUILDS, RATE, WRITERS = 20, 200, 8
GRANT = 300
"""Transactions that the writers may make up to a rebuild's fence, and again from there: more than they need."""


@pytest.fixture
def writers(dsn, seed):
    """Start the writers: `grant(number)` lets them go on, `stop()` says what they did."""
    started = []

    def start():
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.properties.bank_writers", dsn, seed, str(RATE), str(WRITERS)],
            cwd=ROOT, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        started.append(process)
        assert process.stdout.readline() == "started\n"

        def grant(number):
            process.stdin.write(f"{number}\n")
            process.stdin.flush()

        def stop():
            outcome, _ = process.communicate(timeout=30)
            return json.loads(outcome)

        return grant, stop

    yield start
    for process in started:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            pipe.close()


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_twenty_rebuilds_beside_late_commits_lose_and_double_nothing(connect, dsn, writers, seed, capsys):
    """Each event is counted by its row: after each cut-over, while the writers go on, live is the replay of the log;
    and what was applied under the fence is a handful, whatever the log's length (spirit#156).
    """
    db = connect(autocommit=True)
    bank.make_schema(db)
    bank.append_many(db, 2000, accounts=40)
    # Some slow writer always holds live: an attempt that queues is what gets past, so don't try the other for long.
    rebuilder = bank.make_rebuilder(dsn, settings={"fence_nowait": 0.1})
    rebuilder.rebuild("account_balance", retire="drop")
    (grant, stop), began = writers(), time.monotonic()
    seen, reports, under = {}, [], []
    rebuilder._seam.points["fence"] = lambda run: None if run.attempts else grant(GRANT)
    rebuilder._seam.points["drain"] = lambda run: seen.update(before=run.events_done)
    rebuilder._seam.points["finalize"] = lambda run: seen.update(after=run.events_done)
    for _ in range(REBUILDS):
        grant(GRANT)
        reports.append(rebuilder.rebuild("account_balance", retire="drop"))
        under.append(seen["after"] - seen["before"])
        bank.assert_equal_to_replay(db)
    seconds = time.monotonic() - began
    did = stop()
    assert did["errors"] == []
    assert bank.assert_equal_to_replay(db) == 40
    assert db.execute("SELECT count(*) FROM events").fetchone() == (2000 + did["committed"],)
    held = [1000 * report.fence_held_seconds for report in reports]
    with capsys.disabled():
        print(f"\n  seed {seed}: {REBUILDS} rebuilds in {seconds:.1f} s beside {did['committed'] / seconds:.0f} commits"
              f" a second ({did['slow']} slow, {did['rolled_back']} rolled back, the longest"
              f" {1000 * did['longest']:.0f} ms)")
        print(f"  fence held {statistics.median(held):.1f} ms at the median, {max(held):.1f} at most; under it"
              f" {max(under)} events at most; {sum(report.late_events for report in reports)} late ones;"
              f" {sum(report.attempts for report in reports)} attempts")
    assert all(few <= report.events_applied / 10 for few, report in zip(under, reports, strict=True))
    assert [report.generation for report in reports] == list(range(2, REBUILDS + 2))
    # The writers were what this is about.
    assert did["committed"] > 20 * REBUILDS
    assert min(did["slow"], did["rolled_back"]) > REBUILDS
