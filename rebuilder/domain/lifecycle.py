"""The values of the lifecycle store: positions, checkpoints, requests, tickets and their steps, a projection's status.

Each checks itself when it is made. Times are the server's: a value that has not been stored has none.
"""

from __future__ import annotations

import unicodedata
from dataclasses import KW_ONLY, dataclass
from datetime import datetime
from typing import Any, Literal
from uuid import UUID

from rebuilder.domain.invalid import InvalidCheckpoint, InvalidName, InvalidRequest, InvalidSource, InvalidTransition
from rebuilder.domain.ticket import OPEN_STAGES, Failure, Health, Reason, Stage
from rebuilder.errors import InvalidValue, RecordCorrupt

NAME_BYTES = 128
NOTE_BYTES = 2000
LARGEST = 2**63 - 1
_ALPHABET = frozenset("abcdefghijklmnopqrstuvwxyz0123456789_-.")
Tier = Literal["count", "sum64", "sha256"]
TIERS: tuple[Tier, ...] = ("count", "sum64", "sha256")


def check_name(name: Any, what: str = "A projection's name") -> str:
    """A name of up to 128 of ``a-z 0-9 _ - .``, as the store's keys, files and command lines can all carry it."""
    if not isinstance(name, str) or not 1 <= len(name) <= NAME_BYTES or set(name) - _ALPHABET:
        raise InvalidName(f"{what} is {name!r}; it must be 1 to {NAME_BYTES} of a-z, 0-9, _, - and '.'.")
    return str(name)


def is_count(value: object, least: int = 0) -> bool:
    """Whether a value is a whole number that a bigint holds."""
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= LARGEST


def is_trimmed(text: str) -> bool:
    """Whether a text has no control character, and no space at its ends."""
    return text == text.strip() and not any(unicodedata.category(each) == "Cc" for each in text)


def check_id(value: Any, error: type[InvalidValue], what: str) -> None:
    """A UUID that is not all zeros."""
    if not isinstance(value, UUID) or not value.int:
        raise error(f"{what} is {value!r}; it must be a UUID that is not all zeros.")


@dataclass(frozen=True, slots=True)
class SourcePosition:
    """A position in one incarnation of the log. Positions of two incarnations have no order."""

    generation: UUID
    position: int

    def __post_init__(self) -> None:
        check_id(self.generation, InvalidSource, "A log's incarnation")
        if not is_count(self.position, 1):
            raise InvalidSource(f"A position is {self.position!r}; positions begin at 1.")


@dataclass(frozen=True, slots=True)
class LogFingerprint:
    """Which log somebody saw: its incarnation, how many events, the highest position; deeper tiers have a digest."""

    generation: UUID
    tier: Tier
    events: int
    position: int
    digest: str | None = None

    def __post_init__(self) -> None:
        check_id(self.generation, InvalidSource, "A log's incarnation")
        if self.tier not in TIERS or (self.digest is None) != (self.tier == "count"):
            raise InvalidSource(f"A fingerprint of tier {self.tier!r} has the digest {self.digest!r}; the tiers are "
                                f"{', '.join(TIERS)}, and all but the first have one.")
        if not is_count(self.events) or not is_count(self.position) or (self.events == 0) != (self.position == 0):
            raise InvalidSource(f"A fingerprint has {self.events!r} events up to position {self.position!r}.")

    @property
    def high_water(self) -> SourcePosition | None:
        """The highest position; None in an empty log."""
        return SourcePosition(self.generation, self.position) if self.position else None


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """How far a generation of a projection is. ``events`` only grows; ``rows`` is free to fall."""

    projection: str
    generation: int
    source: SourcePosition | None
    events: int
    rows: int | None = None
    _: KW_ONLY
    version: int = 1
    updated_at: datetime | None = None

    def __post_init__(self) -> None:
        check_name(self.projection)
        if not is_count(self.generation, 1) or not is_count(self.version, 1):
            raise InvalidCheckpoint(f"A checkpoint is of generation {self.generation!r}, version {self.version!r}; "
                                    "both are whole numbers from 1.")
        if not is_count(self.events) or not (self.rows is None or is_count(self.rows)):
            raise InvalidCheckpoint(f"A checkpoint has {self.events!r} events and {self.rows!r} rows; they are "
                                    "whole numbers from 0.")

    def advances(self, old: Checkpoint) -> bool:
        """Whether this may follow ``old``; an equal one may, so that a repeat is fine."""
        if (self.projection, self.generation) != (old.projection, old.generation):
            return False
        if self.events < old.events:
            return False
        if old.source is None:
            return True
        return (self.source is not None and self.source.generation == old.source.generation
                and self.source.position >= old.source.position)


@dataclass(frozen=True, slots=True)
class Invalidation:
    """A request: the live generation (0: none was built) is declared stale. Never changed once it is stored."""

    id: UUID
    projection: str
    generation: int
    reason: Reason
    note: str | None
    actor: str
    requested_at: datetime
    answered_by: UUID | None = None
    answered_at: datetime | None = None

    def __post_init__(self) -> None:
        check_id(self.id, InvalidRequest, "A request")
        check_request(self.projection, self.reason, self.note)
        if not is_count(self.generation):
            raise InvalidRequest(f"A request names generation {self.generation!r}.")
        if (self.answered_by is None) != (self.answered_at is None):
            raise RecordCorrupt(f"Request {self.id} is answered by half.")

    @property
    def pending(self) -> bool:
        """Whether no rebuild has answered it yet."""
        return self.answered_by is None


def check_request(projection: str, reason: Reason | str, note: str | None) -> Reason:
    """What a caller says of a request; the reason."""
    check_name(projection)
    if reason not in set(Reason):
        raise InvalidRequest(f"A request's reason is {reason!r}; it must be one of {', '.join(Reason)}.")
    if note is not None and (not 1 <= len(note.encode()) <= NOTE_BYTES or "\0" in note):
        raise InvalidRequest(f"A request's note has {len(note.encode())} bytes; it may have 1 to {NOTE_BYTES}, none of "
                             "them NUL.")
    return Reason(reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class RebuildTicket:
    """A rebuild, as the store keeps it: which request, of which log, at which stage and revision."""

    id: UUID
    projection: str
    generation: int
    version: int
    revision: int
    stage: Stage
    requested_at: datetime
    updated_at: datetime
    invalidation: UUID | None = None
    source: LogFingerprint | None = None
    checkpoint: Checkpoint | None = None
    failure: str | None = None
    driver: Literal["engine", "store"] = "store"

    def __post_init__(self) -> None:
        for wrong, what in self._faults():
            if wrong:
                raise RecordCorrupt(f"Ticket {self.id} of {self.projection!r} {what}.", ticket=str(self.id))

    def _faults(self) -> tuple[tuple[bool, str], ...]:
        at = self.checkpoint
        return (
            (not self.id.int, "has no number"),
            (not is_count(self.generation, 1), "has no generation"),
            (not is_count(self.revision, 1), "has no revision"),
            (self.updated_at < self.requested_at, "was updated before it was requested"),
            (self.stage is Stage.REQUESTED and self.revision != 1, "is only requested and was changed"),
            (self.driver == "store" and self.stage is Stage.RUNNING and self.revision == 1, "runs and was not started"),
            (self.stage is Stage.REQUESTED and at is not None, "has a checkpoint before its start"),
            (self.driver == "store" and self.stage is Stage.COMPLETED and at is None,
             "is complete without a checkpoint"),
            ((self.failure is not None) != (self.stage in {Stage.FAILED, Stage.CANCELLED}),
             "has a failure without having failed, or the reverse"),
            (at is not None and (at.projection, at.generation) != (self.projection, self.generation),
             "has a checkpoint of another generation"),
            (at is not None and at.source is not None and self.source is not None
             and at.source.generation != self.source.generation, "has a checkpoint of another log"),
            (at is not None and at.updated_at is not None and at.updated_at > self.updated_at,
             "has a checkpoint later than itself"),
        )

    @property
    def open(self) -> bool:
        """Whether it is neither finished nor failed."""
        return self.stage in OPEN_STAGES


@dataclass(frozen=True, slots=True)
class Start:
    """requested to running."""


@dataclass(frozen=True, slots=True)
class Progressed:
    """running stays running, further on."""

    checkpoint: Checkpoint


@dataclass(frozen=True, slots=True)
class Complete:
    """running to completed: live is this generation. ``source`` is the log that the rebuild saw."""

    checkpoint: Checkpoint
    source: LogFingerprint


@dataclass(frozen=True, slots=True)
class Fail:
    """requested or running to failed."""

    failure: Failure

    def __post_init__(self) -> None:
        if self.failure not in set(Failure):
            raise InvalidTransition(f"A failure is {self.failure!r}; it must be one of {', '.join(Failure)}.")


@dataclass(frozen=True, slots=True)
class Cancel:
    """requested or running to cancelled."""


Step = Start | Progressed | Complete | Fail | Cancel

EDGES: dict[tuple[Stage, type[Step]], Stage] = {
    (Stage.REQUESTED, Start): Stage.RUNNING,
    (Stage.REQUESTED, Fail): Stage.FAILED,
    (Stage.REQUESTED, Cancel): Stage.CANCELLED,
    (Stage.RUNNING, Progressed): Stage.RUNNING,
    (Stage.RUNNING, Complete): Stage.COMPLETED,
    (Stage.RUNNING, Fail): Stage.FAILED,
    (Stage.RUNNING, Cancel): Stage.CANCELLED,
}
"""The ticket's state machine: what is not here is refused. ``docs/lifecycle.md`` draws it."""


@dataclass(frozen=True, slots=True)
class Transition:
    """A step of a ticket, by whoever has seen this revision of it."""

    ticket: UUID
    revision: int
    step: Step

    def __post_init__(self) -> None:
        check_id(self.ticket, InvalidTransition, "A ticket")
        if not is_count(self.revision, 1):
            raise InvalidTransition(f"A revision is {self.revision!r}; revisions begin at 1.")


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredStatus:
    """A projection as the store knows it, in one statement's view."""

    projection: str
    generation: int
    version: int | None
    health: Health
    checkpoint: Checkpoint | None
    active_rebuild: UUID | None
    pending_requests: int
    source_generation: UUID | None = None

    def __post_init__(self) -> None:
        at = self.checkpoint
        if (self.health is Health.REBUILDING) != (self.active_rebuild is not None):
            raise RecordCorrupt(f"{self.projection!r} is {self.health} with the ticket {self.active_rebuild}.")
        if at is not None and (at.projection, at.generation) != (self.projection, self.generation):
            raise RecordCorrupt(f"{self.projection!r} has a checkpoint of {at.projection!r}, generation "
                                f"{at.generation}, beside generation {self.generation}.")
        if not is_count(self.generation) or not is_count(self.pending_requests):
            raise RecordCorrupt(f"{self.projection!r} has generation {self.generation!r}.")
