"""What the traffic counts, and how its waits are summed up."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields

Wait = tuple[float, float]
"""When it began (``time.monotonic``, which all processes of a machine share), and seconds."""

_KEPT = 5


@dataclass(slots=True)
class Tally:
    """What writers or readers did. A write that is rolled back on purpose, or repeated, has not failed."""

    waits: list[Wait] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    failed: int = 0
    # readers
    empty: int = 0
    short: int = 0
    unsteady: int = 0
    # writers
    committed: int = 0
    events: int = 0
    slow: int = 0
    rolled_back: int = 0
    repeated: int = 0

    def fail(self, error: BaseException) -> None:
        """Count a failure; the first few are kept for the proof."""
        self.failed += 1
        if len(self.failures) < _KEPT:
            self.failures.append(f"{type(error).__name__}: {error}")

    def __add__(self, other: Tally) -> Tally:
        # Lists and numbers alike.
        return Tally(**{f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(Tally)})


@dataclass(frozen=True, slots=True)
class Summary:
    """Waits in milliseconds."""

    count: int
    p50: float
    p99: float
    longest: float

    @classmethod
    def of(cls, waits: Iterable[Wait]) -> Summary:
        """Sum up; zeros where nothing was waited for."""
        ordered = sorted(1000 * seconds for _, seconds in waits)
        if not ordered:
            return cls(0, 0.0, 0.0, 0.0)
        return cls(len(ordered), _rank(ordered, 0.50), _rank(ordered, 0.99), round(ordered[-1], 3))


def _rank(ordered: Sequence[float], share: float) -> float:
    return round(ordered[max(0, math.ceil(share * len(ordered)) - 1)], 3)


@dataclass(frozen=True, slots=True)
class Moments:
    """When the rebuild began, first tried for the fence, and returned."""

    began: float
    fence: float
    ended: float

    def split(self, waits: Iterable[Wait]) -> dict[str, list[Wait]]:
        """Waits by when they were; one that touches the cut-over is the cut-over's."""
        periods: dict[str, list[Wait]] = {"before": [], "replay": [], "cut-over": [], "after": []}
        for wait in waits:
            began, ended = wait[0], wait[0] + wait[1]
            if ended < self.began:
                periods["before"].append(wait)
            elif ended < self.fence:
                periods["replay"].append(wait)
            elif began <= self.ended:
                periods["cut-over"].append(wait)
            else:
                periods["after"].append(wait)
        return periods
