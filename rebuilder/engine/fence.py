"""Step 5: the fence, which takes every lock that the swap will need, in the order in which an INSERT takes them.

An attempt never waits as long as deadlock_timeout, or writers would be killed. Attempts take turns: NOWAIT, which
queues behind nobody and so stops nobody, and one that queues, which gets past readers that overlap.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

import psycopg
from psycopg import sql

from rebuilder import errors
from rebuilder.catalog.blueprint import FenceLock
from rebuilder.domain.backoff import Backoff
from rebuilder.domain.projection import ExternalCheckpoint
from rebuilder.domain.ticket import Phase
from rebuilder.engine.catch_up import catch_up, fence_budget, one_round, rest_that_fits
from rebuilder.engine.freeze import freeze, stale
from rebuilder.engine.in_the_way import (
    REFERRED,
    InWay,
    act_on_blockers,
    evict_autovacuum,
    fail_on_circle,
    holders,
    worth_queueing,
)
from rebuilder.engine.replay import Replay
from rebuilder.engine.run import Run
from rebuilder.engine.shadow import Shadow
from rebuilder.sql import load
from rebuilder.store.sessions import RETRY_IN_FENCE, roll_back_to, translated

_QUERIES = load("queries")
_SHARE_OF_DEADLOCK_TIMEOUT = 0.8


class GiveBack(Exception):
    """The fence is given back: everything since its savepoint is undone, and the run tries again. Internal."""


@dataclass(frozen=True, slots=True)
class Fenced:
    """The fence is held. Only :meth:`Attempt.acquire` makes one; steps that need the fence take it."""

    attempt: Attempt
    since: float
    checkpoint: int | None = None

    def held(self) -> float:
        """Seconds since the last lock was got."""
        return time.monotonic() - self.since


@dataclass(slots=True)
class Attempt:
    """One try: a savepoint, the locks, and what follows up to the commit; undone when it gives the fence back."""

    run: Run
    shadow: Shadow
    replay: Replay
    order: list[FenceLock]
    queue_ms: int | None
    mark: Replay = field(init=False)
    failed_on: FenceLock | None = None
    got: bool = False
    why: str = ""
    began: float = 0.0

    def __enter__(self) -> Self:
        self.shadow.applier.settle()
        self.mark = self.replay.mark()
        self.began = time.monotonic()
        self.run.attempts += 1
        self.run.main.execute("SAVEPOINT rebuilder_fence")
        return self

    def acquire(self) -> Fenced:
        """Take all locks; whoever is in the way makes the attempt give up."""
        run = self.run
        before = time.monotonic()
        checkpoint = self._lock_checkpoint()
        left = float(self.queue_ms or 1) - (time.monotonic() - before) * 1000
        self._limit(left)
        for lock in self.order:
            self.failed_on = lock
            if self.queue_ms is None and lock.nowait is not None:
                run.main.execute(lock.nowait)
                continue
            before = time.monotonic()
            run.main.execute(lock.take)
            if self.queue_ms is not None:
                # lock_timeout counts per lock; the sum is what must stay below deadlock_timeout.
                left -= (time.monotonic() - before) * 1000
                self._limit(left)
        self.failed_on = None
        self.got = True
        run.held_back = []
        hold = int(run.settings.fence_hold * 1000)
        run.main.execute("SELECT set_config('lock_timeout', '50ms', true), set_config('statement_timeout', %s, true)",
                         (f"{hold}ms",))
        return Fenced(self, time.monotonic(), checkpoint)

    def _limit(self, milliseconds: float) -> None:
        whole = max(1, int(milliseconds))
        self.run.main.execute("SELECT set_config('lock_timeout', %s, true), set_config('statement_timeout', %s, true)",
                              (f"{whole}ms", f"{whole + 50}ms"))

    def _lock_checkpoint(self) -> int | None:
        """The follower's row first, as the follower itself takes it: the other order would kill it."""
        run, feeding = self.run, self.run.projection.feeding
        if run.projection.followed:
            self._limit(self.queue_ms or 1)
        if isinstance(feeding, ExternalCheckpoint):
            run.main.execute(sql.SQL(feeding.lock))
            held = run.main.execute(_QUERIES["outside_locks"], {"inside": [run.settings.schema]}).fetchall()
            run.checkpoint_tables = frozenset(oid for oid, *_ in held)
            return None
        if feeding == "async":
            row = run.main.execute(run.books.query("lock_checkpoint"), {
                "scope": run.settings.scope, "projection": run.projection.name}).fetchone()
            return int(row[0]) if row else None
        return None

    def __exit__(self, _kind: type[BaseException] | None, error: BaseException | None,
                 _trace: TracebackType | None) -> bool:
        run = self.run
        if error is None:
            return False
        gives_back = isinstance(error, GiveBack) or _retryable(error)
        if not gives_back or run.main.closed or run.stop.requested or run.committing:
            with suppress(psycopg.Error):
                run.main.rollback()
            run.deliver()
            return False
        # RELEASE as well: else what is caught up next would be undone by the next ROLLBACK TO, and FREEZE refused.
        roll_back_to(run.main, "rebuilder_fence")
        run.main.execute("RELEASE SAVEPOINT rebuilder_fence")
        self.replay.restore(self.mark)
        self.shadow.applier.forget()
        run.deliver()
        self.why = str(error) if isinstance(error, GiveBack) else _why(error, self)
        run.observe("attempt", self.why, failed_on=self.failed_on.label if self.failed_on else None,
                    seconds=time.monotonic() - self.began, blockers=list(run.blockers))
        return True


def attempts(run: Run, shadow: Shadow, replay: Replay, refresh: Callable[[], None]) -> Iterator[Attempt]:
    """Attempts until one succeeds or the budget ends; before each turn the run catches up, and freezes and compares
    (``refresh``) if it is time.

    Raises :class:`~rebuilder.errors.FenceNotAcquired` naming who is in the way.
    """
    backoff = Backoff(budget=fence_budget(run), started=time.monotonic(), random=run.random.random)
    order = list(run.blueprint.locks)
    in_way = InWay(backoff.started)
    last, patience = "", 0.0
    while True:
        refresh()
        _come_close(run, shadow, replay)
        got = False
        for attempt in _turn(run, shadow, replay, order, backoff, in_way, patience):
            yield attempt
            last = attempt.why or last
            in_way.saw([attempt.failed_on.role] if attempt.failed_on else [])
            if attempt.failed_on is not None and attempt.failed_on in order:
                order.remove(attempt.failed_on)
                order.insert(0, attempt.failed_on)
            if attempt.got:
                got = True
                break  # the locks were got, what came after gave them back: catch up first
        if not run.keys_owed and in_way.only_referred_for(backoff.budget / 3):
            run.keys_owed = True
            order = [lock for lock in order if lock.role != REFERRED]
            run.warn("Only tables that live refers to are in the way: live's own foreign keys are added after the "
                     "commit. Until then a delete in such a table may be refused by the retired table's key.")
        if backoff.expired(time.monotonic()):
            raise _not_acquired(run, backoff, last)
        # What backs off is what stops others: a fence that was held, or an attempt that queues.
        patience = backoff.pause(time.monotonic())
        if got:
            run.pause(patience)
            patience = 0.0


def _come_close(run: Run, shadow: Shadow, replay: Replay) -> None:
    with run.step(Phase.CATCH_UP):
        catch_up(run, shadow, replay)
    if stale(run, shadow):
        with run.step(Phase.FREEZE):
            freeze(run, shadow)
        with run.step(Phase.CATCH_UP):
            one_round(run, shadow, replay)
    if not run.projection.followed:
        _wait_for_small_tail(run, shadow, replay)
    # An ordinary commit flushes the WAL written so far, so that the COMMIT under the fence has little left to flush.
    run.ledger.progress(run.ticket, run.progress_now())


def _wait_for_small_tail(run: Run, shadow: Shadow, replay: Replay) -> None:
    """What lies above the horizon must fit the fence; while an open import holds the horizon, wait for it."""
    waited_since = time.monotonic()
    while (tail := _tail(run, replay)) > rest_that_fits(run):
        if time.monotonic() - waited_since > fence_budget(run):
            raise errors.CannotCatchUp(
                f"{tail} events lie above the horizon, more than fit under the fence, and stayed there for "
                f"{time.monotonic() - waited_since:.0f} s. Live is as it was.",
                hint="repeat at a quieter time", rest=tail)
        run.pause(0.01)
        one_round(run, shadow, replay)


def _tail(run: Run, replay: Replay) -> int:
    """How many events lie above the horizon."""
    if not run.selection.types:
        return 0
    with translated("counting what is left for the fence"), run.reading() as reader:
        return run.log.count(reader, run.selection, above=replay.horizon)


def _turn(run: Run, shadow: Shadow, replay: Replay, order: list[FenceLock], backoff: Backoff,
          in_way: InWay, patience: float) -> Iterator[Attempt]:
    """Attempts that do not queue, for ``fence_nowait`` and ``patience`` more seconds, then one that does."""
    run.enter(Phase.FENCE)
    began = time.monotonic()
    end = began + run.settings.fence_nowait + patience
    looked = holders(run)
    while True:
        late = time.monotonic() - began > run.settings.fence_nowait
        if not looked:
            if late and not run.projection.followed and _tail(run, replay) > rest_that_fits(run):
                return  # the log has grown meanwhile: catch up first
            yield Attempt(run, shadow, replay, list(order), None)
        if time.monotonic() >= end:
            break
        # Nobody is stopped by looking; behind somebody who stays it need not be done so often.
        run.pause(run.settings.fence_poll * (10 if late and not worth_queueing(looked, backoff) else 1))
        looked = holders(run)
    run.blockers = tuple(blocker.to_json() for blocker in looked)
    in_way.saw(run.roles_in_way)
    fail_on_circle(looked)
    act_on_blockers(run, looked, backoff)
    if worth_queueing(looked, backoff) and evict_autovacuum(run):
        shortest, longest = run.settings.fence_queue_ms
        most = run.server.deadlock_timeout.total_seconds() * 1000 * _SHARE_OF_DEADLOCK_TIMEOUT
        step = shortest + (longest - shortest) * min(1.0, backoff.failures / 5)
        yield Attempt(run, shadow, replay, list(order), int(min(step, most)))


def _not_acquired(run: Run, backoff: Backoff, last: str) -> errors.FenceNotAcquired:
    looked = holders(run)
    run.blockers = tuple(blocker.to_json() for blocker in looked)
    names = "; ".join(blocker.describe() for blocker in looked) or last or "nobody at this moment"
    tables = ", ".join(table.label for table in run.blueprint.tables)
    return errors.FenceNotAcquired(
        f"{tables} could not be fenced within {backoff.budget:.0f} s and {run.attempts} attempts. In the way: {names}. "
        "Live is as it was; the replay is lost.",
        hint="end that transaction and repeat, or let the run end it: --blockers cancel",
        attempts=run.attempts, blockers=list(run.blockers))


def _retryable(error: BaseException) -> bool:
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, psycopg.Error):
            if seen.sqlstate == "XX000":
                return "concurrently" in str(seen)
            return seen.sqlstate in RETRY_IN_FENCE
        seen = seen.__cause__
    return False


def _why(error: BaseException, attempt: Attempt) -> str:
    lock = attempt.failed_on
    if lock is not None:
        return f"{lock.label} ({lock.role}) was locked by somebody else"
    if not attempt.got:
        return "the follower's checkpoint was locked by somebody else"
    return f"given back: {type(error).__name__}"
