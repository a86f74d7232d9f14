"""Whoever asks for the end of a run gets it, in every phase: live to the byte as it was, nothing left behind."""

import os
import signal

import pytest

from rebuilder import RebuildCancelled, SqlHandlers, Stage, StopToken
from tests import bank
from tests.fix_threads import wait_until
from tests.integration.control.watch import POINTS, last_ticket, nothing_left, photo


def cancelled(rebuilder, db, before, phase=None):
    """The run was cancelled, and it is as if it had not been."""
    nothing_left(db)
    assert photo(db) == before
    ticket = last_ticket(rebuilder)
    assert (ticket.stage, ticket.failure_code) == (Stage.CANCELLED, "cancelled")
    assert ticket.finished_at is not None
    if phase is not None:
        assert ticket.failure["phase"] == phase
    state = rebuilder.status("account_balance")[0]
    assert (state.health, state.generation, state.ticket) == ("never_built", 0, None)


@pytest.mark.parametrize("point", POINTS)
def test_a_stop_token_ends_the_run_in_every_phase(db, dsn, point):
    """A stop token that is set at the beginning of a phase ends the run before the commit."""
    rebuilder, stop, before = bank.make_rebuilder(dsn), StopToken(), photo(db)
    rebuilder._seam.points[point] = lambda run: stop.request("enough")
    with pytest.raises(RebuildCancelled, match="enough") as caught:
        rebuilder.rebuild("account_balance", stop=stop)
    assert caught.value.exit_code == 7
    assert "live is as it was" in str(caught.value)
    cancelled(rebuilder, db, before)


@pytest.mark.parametrize("point", POINTS[1:])
def test_a_cancel_from_elsewhere_ends_the_run_in_every_phase(db, dsn, point):
    """`cancel` that has answered True ends the run, however few statements were left of it: the heartbeat is slow."""
    rebuilder, before, answers = bank.make_rebuilder(dsn), photo(db), []
    rebuilder._seam.points[point] = lambda run: answers.append(bank.make_rebuilder(dsn).cancel(run.ticket))
    with pytest.raises(RebuildCancelled, match="rebuilder cancel"):
        rebuilder.rebuild("account_balance")
    assert set(answers) == {True}
    cancelled(rebuilder, db, before)


def test_a_cancel_of_what_does_not_run_answers_no(db, dsn):
    """A ticket that has ended, or never was, can't be cancelled, and stays what it is."""
    rebuilder = bank.make_rebuilder(dsn)
    report = rebuilder.rebuild("account_balance")
    assert rebuilder.cancel(report.ticket) is False
    assert rebuilder.cancel("00000000-0000-0000-0000-000000000001") is False
    assert last_ticket(rebuilder).stage == Stage.COMPLETED


def sleeping(event, target):
    target.execute("SELECT pg_sleep(60)")


@pytest.mark.parametrize("by", ["cancel", "token"])
def test_a_statement_that_takes_long_is_cancelled(db, dsn, spawn, by):
    """A statement of a minute does not hold a cancel up; the run ends as cancelled, not as failed on that event."""
    handlers = SqlHandlers()
    handlers.on("AccountOpened")(sleeping)
    rebuilder, before, stop = bank.make_rebuilder(dsn, bank.make_projection(handlers=handlers)), photo(db), StopToken()
    running = spawn(rebuilder.rebuild, "account_balance", stop=stop)
    wait_until(lambda: db.execute("SELECT FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND datname ="
                                  " current_database()").fetchone() is not None)
    if by == "cancel":
        assert bank.make_rebuilder(dsn).cancel(last_ticket(rebuilder).id)
    else:
        stop.request()
    assert isinstance(running.exception(10), RebuildCancelled)
    cancelled(rebuilder, db, before, "catch up")


def test_the_pause_of_max_rate_is_cancelled(db, dsn, spawn):
    """A run that pauses to hold its rate (here for a minute) hears a cancel at the next heartbeat."""
    rebuilder, before = bank.make_rebuilder(dsn, settings={"heartbeat": 0.1, "batch": 10}), photo(db)
    running = spawn(rebuilder.rebuild, "account_balance", max_rate=0.1)
    progress = wait_until(lambda: [s.progress for s in rebuilder.status() if s.progress and s.progress.events_done])
    assert progress[0].events_done == 10
    assert rebuilder.cancel(last_ticket(rebuilder).id)
    assert isinstance(running.exception(10), RebuildCancelled)
    cancelled(rebuilder, db, before, "catch up")


def test_the_wait_for_the_horizon_is_cancelled(db, dsn, connect, spawn):
    """A run that waits for an open writer hears a cancel."""
    writer = connect()
    bank.append(writer, "account-1", "Deposited", {"amount": 1})
    writer.execute("INSERT INTO events (stream, type) VALUES ('account-1', 'Other')")  # stays open
    waiting = []
    rebuilder = bank.make_rebuilder(dsn, settings={"heartbeat": 0.1},
                                    observer=lambda seen: waiting.append(seen) if seen.kind == "waiting" else None)
    before = photo(db)
    running = spawn(rebuilder.rebuild, "account_balance")
    wait_until(lambda: waiting)
    assert rebuilder.cancel(last_ticket(rebuilder).id)
    assert isinstance(running.exception(10), RebuildCancelled)
    cancelled(rebuilder, db, before, "catch up")


def test_a_run_between_two_attempts_at_the_fence_is_cancelled(db, dsn, connect, spawn):
    """A run that does not get its fence hears a cancel before the budget ends."""
    reader, attempts = connect(), []
    reader.execute("SELECT FROM account_balance")
    rebuilder = bank.make_rebuilder(dsn, settings={"heartbeat": 0.1, "fence_nowait": 0.05},
                                    observer=lambda seen: attempts.append(seen) if seen.kind == "attempt" else None)
    before = photo(db)
    running = spawn(rebuilder.rebuild, "account_balance")
    wait_until(lambda: attempts)
    assert rebuilder.cancel(last_ticket(rebuilder).id)
    assert isinstance(running.exception(10), RebuildCancelled)
    reader.rollback()
    cancelled(rebuilder, db, before)


@pytest.mark.parametrize("point", ["build shadow", "catch up", "catch up, in a statement", "fence", "before commit"])
def test_an_interrupt_of_the_process_ends_the_run(db, dsn, program, point):
    """Ctrl-C (SIGINT) raises KeyboardInterrupt to the caller, and the ticket says cancelled."""
    rebuilder, before = bank.make_rebuilder(dsn), photo(db)
    os.kill(program.start(dsn, point), signal.SIGINT)
    assert program.ended() == (0, "KeyboardInterrupt")
    cancelled(rebuilder, db, before, {"before commit": "finalize"}.get(point, point.split(",")[0]))


@pytest.mark.parametrize("point", POINTS)
def test_a_process_that_was_killed_leaves_live_alone_and_the_next_run_goes_through(db, dsn, program, point):
    """SIGKILL in any phase: live as it was, the ticket open; the next run calls it abandoned, closes it, succeeds."""
    rebuilder, before = bank.make_rebuilder(dsn), photo(db)
    os.kill(program.start(dsn, point), signal.SIGKILL)
    assert program.ended()[0] == -signal.SIGKILL
    nothing_left(db)
    assert photo(db) == before
    had_ticket = [ticket.id for ticket in rebuilder.tickets()]
    if point == POINTS[0]:
        assert had_ticket == []
    else:
        [status] = rebuilder.status()
        assert (status.health, status.alive) == ("rebuilding", False)
    report = rebuilder.rebuild("account_balance", wait=5)
    assert bank.assert_equal_to_replay(db) == 5
    for ticket in had_ticket:
        [closed] = [found for found in rebuilder.tickets() if found.id == ticket]
        assert (closed.stage, closed.failure_code) == (Stage.FAILED, "abandoned")
        assert any(str(ticket) in warning and "abandoned" in warning for warning in report.warnings)
