"""Step 3: read the log in batches up to the horizon and apply them, without any lock on the live tables."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import chain
from typing import TYPE_CHECKING

import psycopg

from rebuilder import errors
from rebuilder.domain.blocker import Blocker
from rebuilder.domain.slowdown import Slowdown
from rebuilder.engine import quarantine
from rebuilder.engine.apply_batch import BatchApplier
from rebuilder.engine.apply_fold import FoldApplier
from rebuilder.engine.freeze import freeze, thin_out
from rebuilder.engine.parallel import fold_in_parallel, wanted
from rebuilder.engine.replay import Replay, apply_page
from rebuilder.engine.run import Run
from rebuilder.engine.shadow import Shadow, check_writes
from rebuilder.engine.windows import windows
from rebuilder.store.sessions import translated

if TYPE_CHECKING:
    from rebuilder.eventlog import Horizon, Key, RawEvent


def catch_up(run: Run, shadow: Shadow, replay: Replay) -> None:
    """Apply all up to a settled horizon, round by round, until what a round finds is small enough for the fence.

    Raises :class:`~rebuilder.errors.CannotCatchUp` when the rounds do not get smaller, and
    :class:`~rebuilder.errors.HorizonBlocked` when a transaction holds the horizon for longer than the fence budget.
    """
    smallest, stuck = None, 0
    while True:
        found = one_round(run, shadow, replay)
        if found <= rest_that_fits(run):
            return
        if smallest is None or found < smallest:
            smallest, stuck = found, 0
        else:
            stuck += 1
        if stuck >= run.settings.catch_up_rounds:
            raise errors.CannotCatchUp(
                f"The log of {run.projection.name!r} grows faster than its replay: the last {stuck} rounds found no "
                f"fewer than {smallest} events (this one {found}), at {run.rate or 0:.0f} events a second. Live is as "
                "it was.", hint="repeat at a quieter time, raise max_rate, or make the handlers cheaper",
                rounds=stuck, rest=found)


def one_round(run: Run, shadow: Shadow, replay: Replay) -> int:
    """Settle a horizon, read and apply everything up to it; the number of events read."""
    horizon = settle(run)
    before, began = replay.read, time.monotonic()
    if run.selection.types:
        for _ in _applied(run, shadow, replay, horizon.position):
            _measure(run, replay.read - before, time.monotonic() - began)
            _hold_rate(run, replay.read - before, began)
    replay.applied += quarantine.close_segment(run, shadow, replay)
    replay.horizon = max(replay.horizon, horizon.position)
    check_writes(run, shadow)
    return replay.read - before


def _applied(run: Run, shadow: Shadow, replay: Replay, upto: int) -> Iterator[int]:
    """Apply everything up to a settled horizon; yields the number of events of each batch."""
    applier = shadow.applier
    if run.together is not None and (isinstance(applier, BatchApplier) or wanted(run, replay)):
        run.together.without(run)  # the server, or workers, read for it
        run.together = None
    if isinstance(applier, BatchApplier) and run.options.quarantine is None and not run.log.statements.by_tenant:
        yield from windows(run, applier, replay, upto)
        return
    if isinstance(applier, FoldApplier) and wanted(run, replay) and not run.log.statements.by_tenant:
        yield from fold_in_parallel(run, applier, replay, upto)
        # Encoded rows can't be folded further: they are copied now, and loaded from there.
        freeze(run, shadow)
        return
    slowdown = Slowdown()
    for page in chain(_shared(run, upto, applier.page), pages_ahead(run, replay, upto, applier.page)):
        applying = time.monotonic()
        apply_page(run, shadow, replay, page)
        slowdown.add(len(page), time.monotonic() - applying)
        thin_out(run, shadow, replay, slowdown)
        yield len(page)


def _shared(run: Run, upto: int, limit: int) -> Iterator[list[RawEvent]]:
    """The pages that are read once for several runs, in the first round."""
    together, run.together = run.together, None
    if together is not None:
        for page in together.pages(run, upto):
            yield from (page[start:start + limit] for start in range(0, len(page), limit))


def settle(run: Run) -> Horizon:
    """A horizon below which nothing can become visible any more; waits for exactly the transactions that could.

    A page counts as complete only if its statement was sent after this returned.
    """
    began, told = time.monotonic(), False
    budget = fence_budget(run)
    with translated("taking the horizon of the log"), run.reading() as reader:
        horizon = run.log.horizon(reader, own_pids=run.own_pids)
        while not horizon.settled(reader):
            waited = time.monotonic() - began
            if waited > 1.0 and not told:
                told = True
                blockers = horizon.blockers(reader)
                run.blockers = tuple(b.to_json() for b in blockers)
                run.observe("waiting", "The horizon stands still: " + "; ".join(b.describe() for b in blockers),
                            blockers=list(run.blockers))
                waiting = [b for b in blockers if b.waiting_on_us]
                if waiting:
                    raise _blocked(waiting, waited, "It waits for this run itself, so waiting would never end.")
            if waited > budget:
                raise _blocked(horizon.blockers(reader), waited, "")
            run.pause(run.settings.horizon_poll if waited < 1 else 0.1)
    if told:
        run.blockers = ()
    return horizon


def _blocked(blockers: list[Blocker], waited: float, why: str) -> errors.HorizonBlocked:
    names = "; ".join(b.describe() for b in blockers)
    return errors.HorizonBlocked(
        f"After {waited:.0f} s a transaction still holds the horizon of the log, so events below it may yet become "
        f"visible: {names or 'it has just ended'}. {why}".rstrip() + " Live is as it was.",
        hint="end that transaction (SELECT pg_terminate_backend(PID), or ROLLBACK PREPARED), then repeat",
        blockers=[b.to_json() for b in blockers])


def fence_budget(run: Run) -> float:
    """Seconds to try for the fence: the longer of ten minutes and the replay, unless it was set."""
    if run.settings.fence_budget is not None:
        return run.settings.fence_budget
    return max(600.0, time.monotonic() - run.started)


def rest_that_fits(run: Run) -> int:
    """Events that can be applied under the fence within half of what it may be held."""
    if run.rate is None:
        return run.settings.fence_rest
    return min(run.settings.fence_rest, max(1, int(run.rate * run.settings.fence_hold / 2)))


def pages_ahead(run: Run, replay: Replay, upto: int, limit: int) -> Iterator[list[RawEvent]]:
    """The pages up to a settled horizon, the next one being read while the caller applies this one."""
    def load(after: Key | None) -> list[RawEvent]:
        with run.reading() as reader:
            return run.log.page(reader, run.selection, after=after, upto=upto, limit=limit)

    with ThreadPoolExecutor(1, thread_name_prefix="rebuilder reader") as pool:
        coming = pool.submit(load, replay.cursor)
        while True:
            with translated("reading the event log"):
                page = coming.result()
            if not page:
                return
            if len(page) == limit:
                coming = pool.submit(load, page[-1].key)
            yield page
            if len(page) < limit:
                return


def _measure(run: Run, events: int, seconds: float) -> None:
    if seconds > 0.05 or events >= 5000:
        run.rate = events / max(seconds, 1e-6)


def _hold_rate(run: Run, events: int, began: float) -> None:
    if run.options.max_rate:
        ahead = events / run.options.max_rate - (time.monotonic() - began)
        if ahead > 0:
            run.pause(ahead)


def count_ahead(run: Run) -> None:
    """Count the events in the background, for progress and ETA, without holding up the first batch."""

    def count() -> None:
        # If the server is gone the run itself tells; when the run ends first, nobody misses the number.
        with suppress(errors.RebuilderError, psycopg.Error):
            connection = run.open("count", autocommit=True)
            with translated("counting the events"):
                run.events_total = run.log.count(connection, run.selection)

    if run.selection.types:
        thread = threading.Thread(target=count, name="rebuilder count", daemon=True)
        thread.start()
        run.defer(lambda: _end(thread, run))


def _end(thread: threading.Thread, run: Run) -> None:
    # A cancel that comes before the statement is lost: the thread may still be connecting.
    while thread.is_alive():
        for connection in run.connections("count"):
            with suppress(psycopg.Error):
                connection.cancel_safe(timeout=2)
        thread.join(0.05)
