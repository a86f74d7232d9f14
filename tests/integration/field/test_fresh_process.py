"""Field cases that need a process of their own: what the first action of one finds, and how much memory it takes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.bank import append_many, assert_equal_to_replay, make_schema

ROOT = Path(__file__).resolve().parents[3]

# A process's peak: ru_maxrss would begin with its parent's, which the kernel passes on.
PROGRAM = """
import json, resource, sys
from pathlib import Path
from tests.bank import make_rebuilder

report = make_rebuilder(sys.argv[1], settings={"batch": 250, "freeze_chunk": 1 << 20}).rebuild("account_balance")
status = Path("/proc/self/status")
if status.exists():
    peak = next(int(line.split()[1]) for line in status.read_text().splitlines() if line.startswith("VmHWM"))
else:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(json.dumps({"applied": report.events_applied, "peak": peak}))
"""


@pytest.fixture
def rebuilt(make_database, template, connect):
    """Rebuild a log of so many events as the first thing that a new process does."""

    def run(events):
        dsn = make_database(template)
        db = connect(dsn, autocommit=True)
        make_schema(db)
        append_many(db, events, accounts=1000)
        done = subprocess.run([sys.executable, "-c", PROGRAM, dsn], cwd=ROOT, capture_output=True, text=True,
                              check=False, env={**os.environ, "PYTHONPATH": str(ROOT)})
        assert done.returncode == 0, done.stderr
        assert_equal_to_replay(db)
        return json.loads(done.stdout)

    return run


def test_the_first_action_of_a_process_finds_the_whole_log_and_does_not_hold_it(rebuilt):
    """A new process that does nothing but rebuild applies every event (field case B04), and a log five times as long
    takes at most a tenth more memory (field case B66; a million against five million are in the benchmarks).
    """
    short, long = rebuilt(8_000), rebuilt(40_000)
    assert (short["applied"], long["applied"]) == (8_000, 40_000)
    assert long["peak"] <= 1.10 * short["peak"]
