"""The words a rebuild's durable record is written in. Every code of the bookkeeping stands in this one place."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any
from uuid import UUID


class Stage(StrEnum):
    """Where a ticket is in its life."""

    REQUESTED = "requested"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


OPEN_STAGES = (Stage.REQUESTED, Stage.RUNNING)


class Phase(StrEnum):
    """The step a running rebuild is in."""

    LOCK_STATE = "lock state"
    BUILD_SHADOW = "build shadow"
    CATCH_UP = "catch up"
    FREEZE = "freeze"
    FENCE = "fence"
    DRAIN = "drain"
    RECHECK = "recheck"
    SWAP = "swap"
    FINALIZE = "finalize"


class Health(StrEnum):
    """What a projection's read model is worth now."""

    NEVER_BUILT = "never_built"
    READY = "ready"
    INVALIDATED = "invalidated"
    REBUILDING = "rebuilding"
    FAILED = "failed"


class Reason(StrEnum):
    """Why a rebuild was asked for."""

    OPERATOR_REQUESTED = "operator_requested"
    RECIPE_CHANGED = "recipe_changed"
    SHAPE_CHANGED = "shape_changed"
    SOURCE_CHANGED = "source_changed"
    INTEGRITY_FAILURE = "integrity_failure"


class Failure(StrEnum):
    """Why a rebuild that the store keeps account of failed. (The engine's runs fail with the codes of their errors.)"""

    HANDLER_REJECTED = "handler_rejected"
    SOURCE_CHANGED = "source_changed"
    INTEGRITY_FAILURE = "integrity_failure"
    PROMOTION_REJECTED = "promotion_rejected"
    WORKER_LOST = "worker_lost"


@dataclass(frozen=True, slots=True)
class Ticket:
    """The durable record of one rebuild. Times are the server's."""

    id: UUID
    projection: str
    generation: int
    version: int
    stage: Stage
    host: str
    pid: int
    requested_at: datetime
    updated_at: datetime
    started_at: datetime | None = None
    finished_at: datetime | None = None
    failure_code: str | None = None
    failure: dict[str, Any] | None = None
    report: dict[str, Any] | None = None
    reason: str = Reason.OPERATOR_REQUESTED
    note: str | None = None
    actor: str | None = None

    def to_json(self) -> dict[str, Any]:
        """The ticket as strings, numbers and objects."""
        return {
            "ticket": str(self.id), "projection": self.projection, "generation": self.generation,
            "version": self.version, "stage": str(self.stage), "reason": self.reason, "note": self.note,
            "actor": self.actor, "host": self.host, "pid": self.pid,
            "requested_at": self.requested_at.isoformat(), "updated_at": self.updated_at.isoformat(),
            "started_at": self.started_at.isoformat() if self.started_at else None,
            "finished_at": self.finished_at.isoformat() if self.finished_at else None,
            "failure_code": self.failure_code, "failure": self.failure, "report": self.report,
        }


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a running rebuild is. ``rate`` is events a second, ``eta`` seconds, ``age`` of the heartbeat seconds."""

    phase: Phase
    events_done: int
    events_total: int | None
    rate: float | None
    eta: float | None
    attempts: int
    age: float
    blockers: tuple[dict[str, Any], ...] = ()
    cancel_requested: bool = False
    position: int | None = None

    def to_json(self) -> dict[str, Any]:
        """The progress as strings, numbers and objects."""
        return {
            "phase": str(self.phase), "events_done": self.events_done, "events_total": self.events_total,
            "rate": self.rate, "eta": self.eta, "attempts": self.attempts, "heartbeat_age": self.age,
            "blockers": list(self.blockers), "cancel_requested": self.cancel_requested, "position": self.position,
        }
