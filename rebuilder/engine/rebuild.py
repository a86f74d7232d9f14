"""The rebuild: one function that reads like the algorithm, one file per step.

Steps 1 to 8 are one READ COMMITTED transaction on the main connection. Until its COMMIT live is untouched; a failure
rolls back and is recorded by the second connection.
"""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Any

import psycopg

from rebuilder import errors
from rebuilder.domain.report import RebuildReport
from rebuilder.domain.ticket import Phase
from rebuilder.engine.catch_up import catch_up, count_ahead
from rebuilder.engine.drain import drain
from rebuilder.engine.fence import attempts
from rebuilder.engine.finalize import finalize
from rebuilder.engine.freeze import freeze, stale
from rebuilder.engine.heartbeat import Heartbeat
from rebuilder.engine.recheck import Findings, check_before_fence, recheck
from rebuilder.engine.replay import Replay
from rebuilder.engine.run import Run
from rebuilder.engine.shadow import build_shadow
from rebuilder.engine.source import note_source, prove_source
from rebuilder.engine.state_lock import lock_state
from rebuilder.engine.swap import swap
from rebuilder.store.ledger import Ledger
from rebuilder.store.sessions import translate, translated


def rebuild(run: Run) -> RebuildReport:
    """Rebuild a projection and cut over, or leave live as it was and raise."""
    try:
        report = _rebuild(run)
    except BaseException as error:
        failure = _failure(run, error)
        _record(run, failure)
        if failure is error:
            raise
        raise failure from error
    finally:
        run.close()
    run.observe("completed")
    return report


def _rebuild(run: Run) -> RebuildReport:
    with run.step(Phase.LOCK_STATE):
        lock_state(run)
    heartbeat = Heartbeat(run)
    heartbeat.start()
    run.defer(heartbeat.stop)
    with run.step(Phase.BUILD_SHADOW), translated("building the shadow"):
        shadow = build_shadow(run)
        with run.reading() as reader:
            findings = Findings(run.log.state(reader))
        note_source(run)
    replay = Replay()
    with run.step(Phase.CATCH_UP):
        count_ahead(run)
        catch_up(run, shadow, replay)
    with run.step(Phase.FREEZE):
        if stale(run, shadow):
            freeze(run, shadow)
    with run.step(Phase.RECHECK):
        check_before_fence(run, shadow, replay, findings)
        prove_source(run, replay)
    run.fence_began = time.monotonic()
    run.hook("before_fence")

    def refresh() -> None:
        if findings.stale(run.settings.freeze_age):
            with run.step(Phase.RECHECK):
                check_before_fence(run, shadow, replay, findings)

    for attempt in attempts(run, shadow, replay, refresh):
        with attempt:
            fenced = attempt.acquire()
            with run.step(Phase.DRAIN):
                drain(run, fenced, shadow, replay)
            with run.step(Phase.RECHECK):
                recheck(run, fenced, shadow, replay, findings)
            with run.step(Phase.SWAP):
                swap(run, fenced, shadow, replay)
            with run.step(Phase.FINALIZE):
                return finalize(run, fenced, shadow, replay, findings)
    raise AssertionError("attempts end by success or by an error")


def _failure(run: Run, error: BaseException) -> BaseException:
    """What the caller is to see: a stop that was asked for wins over the error that the cancelled statement raised."""
    if run.committing and isinstance(error, errors.OutcomeUnknown | errors.ConnectionLost):
        return error
    if isinstance(error, KeyboardInterrupt):
        run.stop.request("interrupted")
        return error
    if run.lost is not None:
        return run.lost
    if isinstance(error, psycopg.Error | errors.RebuilderError):
        # `cancel` ends the running statement at once; why, the next heartbeat would have said.
        with suppress(errors.RebuilderError, psycopg.Error):
            run.hear()
        try:
            run.check()
        except errors.RebuilderError as asked:
            return asked
    if isinstance(error, psycopg.Error):
        return translate(error, f"in phase {run.phase}")
    return error


def _record(run: Run, error: BaseException) -> None:
    """Roll back first, then record: a ticket that says failed must not leave a lock behind."""
    if hasattr(run, "main") and not run.main.closed:
        with suppress(psycopg.Error):
            run.main.rollback()
    # With an unknown outcome the ticket stands as the main transaction left it; the next run tells which.
    if not run.generation or isinstance(error, errors.OutcomeUnknown):
        return
    recorded = errors.RebuildCancelled("Interrupted.") if isinstance(error, KeyboardInterrupt) else error
    details: dict[str, Any] = {"error": "unexpected", "class": type(recorded).__name__, "message": str(recorded)}
    if isinstance(recorded, errors.RebuilderError):
        details = recorded.to_json()
    details["phase"] = str(run.phase)
    try:
        _ledger(run).close(run.ticket, recorded, details)
    except (errors.RebuilderError, psycopg.Error) as second:
        # Must not mask the first: the next run closes the ticket as abandoned.
        error.add_note(f"The failure could not be recorded in ticket {run.ticket}: {second}")
    run.observe("failed", str(recorded))


def _ledger(run: Run) -> Ledger:
    """The ledger, over another connection if its own was lost."""
    if not run.ledger.connection.closed and not run.ledger.connection.broken:
        return run.ledger
    return Ledger(run.open("ledger", autocommit=True), run.books, run.projection.name)
