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
UNDER_THE_FENCE = 100
"""Events that may be applied while the fence is held: half a second's worth, of a log of thousands."""


@pytest.fixture
def writers(dsn, seed):
    """Start the writers; the future outcome: `stop() -> what they did`."""
    started = []

    def start():
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.properties.bank_writers", dsn, seed, str(RATE), str(WRITERS)],
            cwd=ROOT, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        started.append(process)
        assert process.stdout.readline() == "started\n"

        def stop():
            outcome, _ = process.communicate(timeout=30)
            return json.loads(outcome)

        return stop

    yield start
    for process in started:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            pipe.close()


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_twenty_rebuilds_beside_late_commits_lose_and_double_nothing(connect, dsn, writers, seed, capsys):
    """Each event is counted by its row: after each cut-over, while the writers go on, live is the replay of the log;
    and what was applied under the fence is a handful, whatever the log's length.
    """
    db = connect(autocommit=True)
    bank.make_schema(db)
    bank.append_many(db, 3000, accounts=40)
    rebuilder = bank.make_rebuilder(dsn)
    rebuilder.rebuild("account_balance", retire="drop")
    seen = {}
    rebuilder._seam.points["drain"] = lambda run: seen.update(before=run.events_done)
    rebuilder._seam.points["finalize"] = lambda run: seen.update(after=run.events_done)
    reports, under = [], []
    stop, began = writers(), time.monotonic()
    for _ in range(REBUILDS):
        reports.append(rebuilder.rebuild("account_balance", retire="drop"))
        under.append(seen["after"] - seen["before"])
        bank.assert_equal_to_replay(db)
    seconds = time.monotonic() - began
    did = stop()
    assert did["errors"] == []
    assert bank.assert_equal_to_replay(db) == 40
    assert db.execute("SELECT count(*) FROM events").fetchone() == (3000 + did["committed"],)
    held = [1000 * report.fence_held_seconds for report in reports]
    with capsys.disabled():
        print(f"\n  seed {seed}: {REBUILDS} rebuilds in {seconds:.1f} s beside {did['committed'] / seconds:.0f} commits"
              f" a second ({did['slow']} slow, {did['rolled_back']} rolled back, the longest"
              f" {1000 * did['longest']:.0f} ms)")
        print(f"  fence held {statistics.median(held):.1f} ms at the median, {max(held):.1f} at most; under it"
              f" {max(under)} events at most; {sum(report.late_events for report in reports)} late ones;"
              f" {sum(report.attempts for report in reports)} attempts")
    assert max(under) <= UNDER_THE_FENCE
    assert [report.generation for report in reports] == list(range(2, REBUILDS + 2))
    # The writers were what this is about.
    assert did["committed"] > 10 * seconds
    assert min(did["slow"], did["rolled_back"]) > REBUILDS
