"""Catching up by ranges of the log: each is applied by the server alone, and as large as it can do fast."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rebuilder.store.sessions import translated

if TYPE_CHECKING:
    from rebuilder.engine.apply_batch import BatchApplier
    from rebuilder.engine.replay import Replay
    from rebuilder.engine.run import Run

FIRST = 10_000
_GROWTH = 64


@dataclass(slots=True)
class Width:
    """How many positions the next range spans: as many as take so many seconds at the pace seen so far.

    A range pays once for all rows that it touches, so a larger one is cheaper, until it no longer fits in memory.
    """

    seconds: float
    positions: int = field(default_factory=lambda: FIRST)
    best: float = 0.0

    def saw(self, positions: int, seconds: float) -> None:
        """A range of so many positions took so long."""
        pace = positions / max(seconds, 1e-6)
        if pace < self.best / 2:
            self.positions = max(FIRST, self.positions // 4)  # it has become slower by growing
            return
        self.best = max(self.best, pace)
        self.positions = max(FIRST, min(int(pace * self.seconds), self.positions * _GROWTH))


def windows(run: Run, applier: BatchApplier, replay: Replay, horizon: int) -> Iterator[int]:
    """Apply everything up to the horizon; yields the number of events of each range.

    They are counted by the reader while the server applies them.
    """
    width = Width(run.settings.batch_seconds)

    def count(above: int, upto: int) -> tuple[int, int]:
        with run.reading() as reader:
            return run.log.extent(reader, run.selection, above=above, upto=upto)

    with ThreadPoolExecutor(1, thread_name_prefix="rebuilder reader") as pool:
        above = replay.cursor[0] if replay.cursor else 0
        while above < horizon:
            run.check()
            upto, began = min(horizon, above + width.positions), time.monotonic()
            counted = pool.submit(count, above, upto)
            applier.apply_range(replay.cursor, upto)
            with translated("counting the events"):
                events, last = counted.result()
            width.saw(upto - above, time.monotonic() - began)
            above = upto
            replay.cursor = (upto,)
            replay.read += events
            replay.applied += events
            replay.position = max(replay.position, last)
            run.events_done, run.position = replay.read, replay.position
            run.observe("progress")
            yield events
