"""The rebuilding process's peak memory with a million events and with five million: at most a tenth more."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from benchmarks.measure import Database, Result, bounded
from tests.bank import append_many
from tests.integration.field.test_fresh_process import PROGRAM

ROOT = Path(__file__).resolve().parents[1]
ACCOUNTS = 50_000
"""The same for both, so that the read model is of one size and only the log grows."""


def run(database: Database, scale: float) -> Iterator[Result]:
    peaks, accounts = [], max(1000, int(ACCOUNTS * scale))
    for millions in (1, 5):
        events = int(millions * 1_000_000 * scale)
        dsn = database.bank(lambda db, events=events: append_many(db, events, accounts=accounts))
        done = subprocess.run([sys.executable, "-c", PROGRAM, dsn], cwd=ROOT, stdout=subprocess.PIPE, check=True,
                              env={**os.environ, "PYTHONPATH": str(ROOT)})
        found = json.loads(done.stdout)
        assert found["applied"] == events
        peaks.append(found["peak"])
        yield Result(f"{events:,} events: {found['peak'] / 1024:,.0f} MiB at the peak")
    yield bounded("five times as many events, memory", peaks[1] / peaks[0], most=1.10)
