"""Watches the rebuild: shows it as the command line does, and notes when the cut-over began."""

from __future__ import annotations

import time

from rebuilder.demo.measure import Moments
from rebuilder.domain.observation import Observation, Observer
from rebuilder.domain.ticket import Phase


class Watch:
    """An observer that passes on what it is told. Made when the rebuild begins."""

    def __init__(self, shown: Observer) -> None:
        self._shown = shown
        self.began = time.monotonic()
        self.fence: float | None = None

    def __call__(self, seen: Observation) -> None:
        if self.fence is None and seen.phase is Phase.FENCE:
            self.fence = time.monotonic()
        self._shown(seen)

    def moments(self) -> Moments:
        """The periods of a rebuild that has just returned."""
        ended = time.monotonic()
        return Moments(self.began, self.fence if self.fence is not None else ended, ended)
