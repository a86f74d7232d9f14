"""Sets poison events aside: a batch is one savepoint; when it fails it is rolled back and the culprit isolated.

The healthy path costs nothing per event. At most 50 savepoints of a run write: 64 released ones overflow the
subtransaction cache of the whole cluster (PGPROC_MAX_CACHED_SUBXIDS), so later savepoints span more batches.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import psycopg

from rebuilder import errors
from rebuilder.domain.event import StreamId
from rebuilder.engine.apply_sql import EventFailed, describe, error_text
from rebuilder.store.sessions import is_lost, is_transient, translate

if TYPE_CHECKING:
    from rebuilder.engine.replay import Replay
    from rebuilder.engine.run import Run
    from rebuilder.engine.shadow import Shadow
    from rebuilder.eventlog import Key, RawEvent

_SINGLE = 24


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """An event that was set aside, and what of."""

    raw: RawEvent
    cause: str
    error_class: str
    message: str
    sqlstate: str | None = None
    traceback: str | None = None


@dataclass(slots=True)
class Segment:
    """The open savepoint: since which key, how many batches it spans, how many were released before it."""

    used: int = 0
    open: bool = False
    batches: int = 0
    since: Key | None = None
    applied: int = 0

    @property
    def quota(self) -> int:
        """Batches per savepoint: one for the first, then doubling, so that fewer than 50 serve any log."""
        return 1 if self.used < _SINGLE else 2 ** (self.used - _SINGLE + 1)


def apply(run: Run, shadow: Shadow, replay: Replay, page: Sequence[RawEvent]) -> int:
    """Apply a page but for its poison events; the change of the number of applied events (a redo may lower it)."""
    segment = replay.segment
    if not segment.open:
        shadow.applier.save()
        segment.open, segment.batches, segment.since, segment.applied = True, 0, replay.cursor, 0
    before = segment.applied
    try:
        segment.applied += _apply_healthy(run, shadow, replay, page)
    except EventFailed as failure:
        segment.applied = _redo(run, shadow, replay, page, failure)
    segment.batches += 1
    change = segment.applied - before
    if segment.batches >= segment.quota:
        change += close_segment(run, shadow, replay, page)
    return change


def close_segment(run: Run, shadow: Shadow, replay: Replay, page: Sequence[RawEvent] = ()) -> int:
    """Release the open savepoint, once the constraints that wait for its end hold; the change of applied events."""
    segment = replay.segment
    if not segment.open:
        return 0
    before = segment.applied
    while (error := shadow.applier.violation()) is not None:
        segment.applied = _redo(run, shadow, replay, page, _bisect(run, shadow, replay, page, error))
    shadow.applier.release()
    segment.open = False
    segment.used += shadow.applier.savepoints_write
    return segment.applied - before


def _apply_healthy(run: Run, shadow: Shadow, replay: Replay, page: Sequence[RawEvent]) -> int:
    healthy = []
    for raw in page:
        if raw.key in replay.dead:
            continue
        poisoned = replay.streams.get(stream_id(raw))
        if poisoned is not None and raw.position > poisoned:
            set_aside(run, replay, DeadLetter(raw, "stream", "StreamQuarantined",
                                              f"follows position {poisoned} of its stream, which was set aside"))
        else:
            healthy.append(raw)
    shadow.applier.apply(healthy)
    return len(healthy)


def _redo(run: Run, shadow: Shadow, replay: Replay, page: Sequence[RawEvent], failure: EventFailed) -> int:
    """Roll the savepoint back and apply it again without the culprit, until it holds; the number applied."""
    while True:
        run.check()
        _raise_transient(run, failure)
        if failure.among:
            failure = _bisect(run, shadow, replay, page, failure.error)
        shadow.applier.back()
        _quarantine(run, replay, failure)
        try:
            return sum(_apply_healthy(run, shadow, replay, events) for events in _pages(run, replay, page))
        except EventFailed as next_one:
            failure = next_one


def _pages(run: Run, replay: Replay, page: Sequence[RawEvent]) -> Iterator[Sequence[RawEvent]]:
    """What the savepoint spans: its earlier batches read again (memory stays flat), then the page in hand."""
    after, until = replay.segment.since, replay.cursor
    while replay.segment.batches and after != until:
        with run.reading() as reader:
            read = run.log.page(reader, run.selection, after=after, upto=None if until is None else until[0],
                                limit=run.settings.batch)
        kept = [raw for raw in read if until is None or raw.key <= until]
        if not kept:
            break
        after = kept[-1].key
        yield kept
    yield page


def _bisect(run: Run, shadow: Shadow, replay: Replay, page: Sequence[RawEvent], error: BaseException) -> EventFailed:
    """The event with which the savepoint begins to fail, where no statement failed of one event alone."""
    events = [raw for part in _pages(run, replay, page) for raw in part if raw.key not in replay.dead]
    holds, fails = 0, len(events)
    while fails - holds > 1:
        middle = (holds + fails) // 2
        run.check()
        found = _trial(run, shadow, replay, events[:middle])
        if found is None:
            holds = middle
        else:
            fails, error = middle, found
    return EventFailed(events[fails - 1], "handler", error)


def _trial(run: Run, shadow: Shadow, replay: Replay, events: Sequence[RawEvent]) -> BaseException | None:
    """What is wrong with these events, applied from where the savepoint began."""
    shadow.applier.back()
    try:
        _apply_healthy(run, shadow, replay, events)
    except EventFailed as failure:
        _raise_transient(run, failure)
        return failure.error
    return shadow.applier.violation()


def _raise_transient(run: Run, failure: EventFailed) -> None:
    if is_lost(failure.error, run.main) or is_transient(failure.error):
        raise translate(failure.error, f"applying {describe(failure.raw)}") from failure.error


def _quarantine(run: Run, replay: Replay, failure: EventFailed) -> None:
    error = failure.error
    state = error.sqlstate if isinstance(error, psycopg.Error) else None
    options = run.options.quarantine
    assert options is not None
    set_aside(run, replay, DeadLetter(failure.raw, failure.cause, type(error).__name__, error_text(error), state,
                                       _traceback(error)))
    if options.policy == "stream":
        replay.streams.setdefault(stream_id(failure.raw), failure.raw.position)


def _traceback(error: BaseException) -> str:
    """Where it was raised. Not as Python prints it: the server's DETAIL quotes the row."""
    where = "".join(traceback.format_tb(error.__traceback__, limit=-5))
    return f"{where}{type(error).__name__}: {error_text(error)}"[-8000:]


def set_aside(run: Run, replay: Replay, letter: DeadLetter) -> None:
    """Record a dead letter at once, by the second connection: a later failure of the run must not lose it."""
    options, raw = run.options.quarantine, letter.raw
    assert options is not None
    if len(replay.dead) >= options.max_dead_letters:
        raise errors.TooManyDeadLetters(
            f"More than {options.max_dead_letters} events of {run.projection.name!r} would be set aside; the last is "
            f"{describe(raw)}: {letter.error_class}: {letter.message}. Live is as it was.",
            hint="mend the handler, or raise max_dead_letters", position=raw.position, type=raw.type,
            stream=raw.stream, max_dead_letters=options.max_dead_letters)
    replay.dead[raw.key] = letter
    data = None
    if options.keep_data and raw.data is not None:
        data = {"text": bytes(raw.data).decode("utf-8", "backslashreplace")}
    tenant, category, stream = stream_id(raw)
    run.ledger.record_dead_letter(
        position=raw.position, tenant=tenant, category=category, stream=stream, stream_version=raw.stream_version,
        type=raw.type, cause=letter.cause, policy=options.policy, error_class=letter.error_class,
        sqlstate=letter.sqlstate, message=letter.message[:4000], traceback=letter.traceback, data=data,
        ticket=run.ticket)
    run.observe("quarantined", f"{describe(raw)}: {letter.error_class}", position=raw.position, cause=letter.cause)


def stream_id(raw: RawEvent) -> StreamId:
    """The stream of a raw event."""
    return StreamId(raw.tenant or "", raw.category or "", raw.stream or "")
