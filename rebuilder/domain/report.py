"""What a rebuild or a verification found, as values."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class DriftSample:
    """One row that differs: ``kind`` is missing (in live, not in the replay), extra, or changed (in ``columns``)."""

    table: str
    kind: str
    key: dict[str, str | None]
    columns: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Drift:
    """Rows that differ between live and shadow, by primary key: counted exactly, a few shown."""

    missing: int = 0
    extra: int = 0
    changed: int = 0
    sample: tuple[DriftSample, ...] = ()

    @property
    def total(self) -> int:
        """All rows that differ."""
        return self.missing + self.extra + self.changed

    def __add__(self, other: Drift) -> Drift:
        return Drift(self.missing + other.missing, self.extra + other.extra, self.changed + other.changed,
                     self.sample + other.sample)


@dataclass(frozen=True, slots=True)
class Owed:
    """Something left to do after the commit, and the command that settles it."""

    kind: str
    label: str
    command: str = "rebuilder cleanup"


@dataclass(frozen=True, slots=True, kw_only=True)
class RebuildReport:
    """What a completed rebuild did. ``seconds`` maps phases, ``fence_wait_seconds`` and ``fence_held_seconds``."""

    projection: str
    ticket: str
    generation: int
    version: int
    mode: str = "atomic"
    events_applied: int
    dead_letters: int
    position: int
    rows: dict[str, int]
    drift: Drift
    attempts: int
    late_events: int
    owed: tuple[Owed, ...] = ()
    seconds: dict[str, float] = field(default_factory=dict)
    freeze_age_seconds: float = 0.0
    longest_wait_seconds: float = 0.0
    warnings: tuple[str, ...] = ()
    retired: tuple[str, ...] = ()
    read_seconds: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """The report as strings, numbers, lists and objects."""
        return asdict(self)

    @property
    def fence_held_seconds(self) -> float:
        """How long the fence was held, from the last lock to the end of COMMIT."""
        return self.seconds.get("fence_held_seconds", 0.0)

    @property
    def fence_wait_seconds(self) -> float:
        """How long the run tried for the fence."""
        return self.seconds.get("fence_wait_seconds", 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyReport:
    """What a verification found: log, live and checkpoint as of one instant."""

    projection: str
    version: int
    position: int
    events: int
    rows: dict[str, int]
    drift: Drift
    seconds: float

    def to_json(self) -> dict[str, Any]:
        """The report as strings, numbers, lists and objects."""
        return asdict(self)
