"""How long to wait before the next attempt: told the time, never sleeping, never reading a clock."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(slots=True)
class Backoff:
    """Attempts within a budget of seconds; ``random`` gives numbers from 0 up to 1."""

    budget: float
    started: float
    random: Callable[[], float]
    base: float = 0.05
    most: float = 5.0
    failures: int = 0

    def expired(self, now: float) -> bool:
        """Whether the budget is used up."""
        return now - self.started >= self.budget

    def left(self, now: float) -> float:
        """Seconds of the budget that are left."""
        return max(0.0, self.budget - (now - self.started))

    def pause(self, now: float) -> float:
        """Count a failure; how long to wait before the next attempt: doubling, capped, half of it jitter."""
        self.failures += 1
        longest = min(self.most, self.base * 2 ** min(self.failures - 1, 16))
        return float(min(longest * (0.5 + 0.5 * self.random()), self.left(now)))
