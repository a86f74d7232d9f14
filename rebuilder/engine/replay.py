"""How far the replay is, and how a page of events is applied."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING

from rebuilder.domain.event import StreamId
from rebuilder.engine import quarantine
from rebuilder.engine.apply_sql import EventFailed, describe, handler_failed
from rebuilder.engine.run import Run
from rebuilder.engine.shadow import Shadow, check_writes
from rebuilder.store.sessions import is_lost, is_transient, translate

if TYPE_CHECKING:
    from rebuilder.eventlog import Key, RawEvent

WRITE_CHECK_EVERY = 1.0


@dataclass(slots=True)
class Replay:
    """Where the replay stands. ``horizon`` is the settled position up to which every event was read."""

    cursor: Key | None = None
    horizon: int = 0
    read: int = 0
    applied: int = 0
    late: int = 0
    position: int = 0
    above: set[Key] = field(default_factory=set)
    versions: dict[StreamId, int] = field(default_factory=dict)
    dead: dict[Key, quarantine.DeadLetter] = field(default_factory=dict)
    streams: dict[StreamId, int] = field(default_factory=dict)
    segment: quarantine.Segment = field(default_factory=quarantine.Segment)

    def mark(self) -> Replay:
        """A copy to come back to when the fence is given back."""
        return Replay(self.cursor, self.horizon, self.read, self.applied, self.late, self.position, set(self.above),
                      dict(self.versions), dict(self.dead), dict(self.streams), replace(self.segment))

    def restore(self, mark: Replay) -> None:
        """Forget everything since ``mark``."""
        for item in fields(self):
            setattr(self, item.name, getattr(mark, item.name))


def apply_page(run: Run, shadow: Shadow, replay: Replay, page: Sequence[RawEvent]) -> None:
    """Apply a page in order; poison events fail the run, or are set aside if it has a quarantine."""
    if not page:
        return
    run.check()
    if run.options.quarantine is None:
        apply_batch(run, shadow, page)
        replay.applied += len(page)
    else:
        replay.applied += quarantine.apply(run, shadow, replay, page)
    replay.read += len(page)
    replay.cursor = page[-1].key
    replay.position = max(replay.position, page[-1].position)
    run.events_done, run.position = replay.read, replay.position
    now = time.monotonic()
    # Under the fence drain and recheck look themselves, since they know which locks are the fence's own.
    if run.held_back is None and now - shadow.checked_at > WRITE_CHECK_EVERY:
        check_writes(run, shadow)
        shadow.checked_at = now
    run.observe("progress")


def apply_batch(run: Run, shadow: Shadow, events: Sequence[RawEvent]) -> None:
    """Apply events without a way back. Raises :class:`~rebuilder.errors.HandlerFailed`, or what the server said."""
    try:
        shadow.applier.apply(events)
    except EventFailed as failure:
        run.check()  # a cancelled statement looks like a failed handler
        if is_lost(failure.error, run.main) or is_transient(failure.error):
            raise translate(failure.error, f"applying {describe(failure.raw)}") from failure.error
        raise handler_failed(failure, run.projection) from failure.error
