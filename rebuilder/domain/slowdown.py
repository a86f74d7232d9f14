"""What row versions that nobody can see any more have cost, against what a copy without them would: no clock, no SQL.

A row's old versions can't be pruned inside the transaction that made them, so each further update of it is slower.
"""

from __future__ import annotations

from dataclasses import dataclass

_SAMPLE = 3000
"""Events after a copy whose pace counts as the usual one."""
_LEAST = 0.1
"""Seconds lost below which no copy pays: each makes and drops a table."""
_MANY = 64
"""Copies after which each further one must be worth twice as much: the locks on dropped tables stay to the commit."""


@dataclass(slots=True)
class Slowdown:
    """Seconds that batches took above the pace of the first ones since the last copy."""

    lost: float = 0.0
    copies: int = 0
    seconds_per_row: float = 1e-5
    """What a copy costs: a guess, until the first has been made."""
    _events: int = 0
    _seconds: float = 0.0

    def add(self, events: int, seconds: float) -> None:
        """A batch was applied. A quicker one makes up for a slower one, so that chance sums up to nothing."""
        if self._events < _SAMPLE:
            self._events += events
            self._seconds += seconds
        else:
            self.lost = max(0.0, self.lost + seconds - events * self._seconds / self._events)

    def pays(self, rows: int) -> bool:
        """Whether a copy of so many rows would have paid: what was lost is twice its cost."""
        return self.lost > max(_LEAST, 2 * rows * self.seconds_per_row) * 2.0 ** min(max(0, self.copies - _MANY), 99)

    def restart(self) -> None:
        """Measure the usual pace anew."""
        self.lost, self._events, self._seconds = 0.0, 0, 0.0

    def copied(self, rows: int, seconds: float) -> None:
        """A copy was made."""
        self.copies += 1
        self.seconds_per_row = seconds / max(1, rows)
        self.restart()
