"""What an observer is told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from rebuilder.domain.ticket import Phase


@dataclass(frozen=True, slots=True)
class Observation:
    """One thing that happened in a run.

    ``kind`` is one of ``phase`` (a step began), ``progress`` (a batch was applied), ``attempt`` (a try for the fence
    ended; ``detail["failed_on"]`` and ``detail["blockers"]``), ``warning`` (``message`` says what), ``quarantined``,
    ``completed``, ``failed``. Observations made under the fence are delivered after it.
    """

    kind: str
    projection: str
    ticket: str
    phase: Phase
    message: str = ""
    events_done: int = 0
    events_total: int | None = None
    rate: float | None = None
    eta: float | None = None
    detail: dict[str, Any] = field(default_factory=dict)


Observer = Callable[[Observation], None]
