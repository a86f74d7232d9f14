"""How a run sets poison events aside."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rebuilder.errors import DefinitionError


@dataclass(frozen=True, slots=True, kw_only=True)
class Quarantine:
    """Set poison events aside instead of failing the run.

    ``policy="stream"`` sets the later events of a poison event's stream aside too, since they would be applied to a
    state with a hole; ``"event"`` only the one. A run with more than ``max_dead_letters`` fails. ``keep_data`` keeps a
    copy of the event's data in the dead letter (the log has it anyway; a copy escapes the log's retention).
    """

    policy: Literal["stream", "event"] = "stream"
    max_dead_letters: int = 100
    keep_data: bool = False

    def __post_init__(self) -> None:
        if self.policy not in {"stream", "event"}:
            raise DefinitionError(f'Quarantine(policy={self.policy!r}): it is "stream" or "event".')
        if self.max_dead_letters < 1:
            raise DefinitionError(f"Quarantine(max_dead_letters={self.max_dead_letters}): it must be at least 1.")
