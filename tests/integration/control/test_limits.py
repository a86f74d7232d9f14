"""What bounds a run: its rate, its deadline, another run of its projection or table, the token that stops it."""

import os
import socket
import threading
import time

import pytest

from rebuilder import RebuildCancelled, SqlHandlers, Stage, StopToken
from rebuilder.errors import DeadlineExceeded, RebuildInProgress
from tests import bank
from tests.fix_threads import wait_for_lock, wait_until
from tests.integration.control.watch import last_ticket, nothing_left, photo


class Pause:
    """A seam point at which a run stays until it is let go."""

    def __init__(self):
        self.reached, self.go = threading.Event(), threading.Event()

    def __call__(self, run):
        self.reached.set()
        assert self.go.wait(30)


@pytest.fixture
def paused(dsn, spawn):
    """Start a rebuild that stays in a phase: `paused("catch up") -> (pause, future, rebuilder)`."""
    pauses = []

    def start(point, *projections):
        pause, rebuilder = Pause(), bank.make_rebuilder(dsn, *projections)
        pauses.append(pause)
        rebuilder._seam.points[point] = pause
        future = spawn(rebuilder.rebuild, next(iter(rebuilder.registry)).name)
        assert pause.reached.wait(10)
        return pause, future, rebuilder

    yield start
    for pause in pauses:
        pause.go.set()


# --- rate and deadline -----------------------------------------------------------------------------------------------


def test_max_rate_is_held(db, dsn):
    """60 events at 100 a second take six tenths of a second, and are all applied."""
    report = bank.make_rebuilder(dsn, settings={"batch": 10}).rebuild("account_balance", max_rate=100)
    assert report.seconds["catch up"] >= 0.59
    assert report.events_applied == 60
    assert bank.assert_equal_to_replay(db) == 5


def late(rebuilder, db, before, error):
    """The run passed its deadline, says so and in which phase, and live is as it was."""
    assert isinstance(error, DeadlineExceeded)
    assert error.exit_code == 4
    assert error.hint
    nothing_left(db)
    assert photo(db) == before
    ticket = last_ticket(rebuilder)
    assert (ticket.stage, ticket.failure_code) == (Stage.FAILED, "deadline")
    assert ticket.failure["phase"] in str(error)


def test_a_deadline_that_has_passed_ends_the_run_before_the_first_batch(db, dsn):
    """A deadline counts from the start, connecting included."""
    rebuilder, before = bank.make_rebuilder(dsn), photo(db)
    with pytest.raises(DeadlineExceeded) as caught:
        rebuilder.rebuild("account_balance", deadline=0.0001)
    late(rebuilder, db, before, caught.value)


def test_a_deadline_ends_a_statement_that_takes_long(db, dsn, spawn):
    """A statement of a minute is cancelled when the deadline passes; the event in it is not blamed."""
    handlers = SqlHandlers()
    handlers.on("AccountOpened")(lambda event, target: target.execute("SELECT pg_sleep(60)"))
    rebuilder = bank.make_rebuilder(dsn, bank.make_projection(handlers=handlers), settings={"heartbeat": 0.1})
    before = photo(db)
    late(rebuilder, db, before, spawn(rebuilder.rebuild, "account_balance", deadline=0.5).exception(10))


def test_a_deadline_ends_the_wait_for_the_fence(db, dsn, connect, spawn):
    """A reader that never ends makes the run give up at its deadline, not at the end of the fence budget."""
    reader = connect()
    reader.execute("SELECT FROM account_balance")
    rebuilder, before = bank.make_rebuilder(dsn, settings={"fence_nowait": 0.1}), photo(db)
    error = spawn(rebuilder.rebuild, "account_balance", deadline=1.0).exception(20)
    reader.rollback()
    late(rebuilder, db, before, error)


@pytest.mark.parametrize("point", ["fence", "drain", "swap", "before commit"])
def test_a_deadline_that_passes_under_the_fence_still_holds(db, dsn, point):
    """What is past its deadline is not committed, however near the end it is."""
    rebuilder, before = bank.make_rebuilder(dsn), photo(db)
    rebuilder._seam.points[point] = lambda run: setattr(run, "started", run.started - 3600)
    with pytest.raises(DeadlineExceeded) as caught:
        rebuilder.rebuild("account_balance", deadline=1800)
    late(rebuilder, db, before, caught.value)


# --- another run -----------------------------------------------------------------------------------------------------


def test_a_run_waits_for_another_and_goes_on_when_that_is_done(db, dsn, connect, paused, spawn):
    """With `wait`, the second run begins when the first one's state lock is free, as the next generation."""
    pause, first, _ = paused("catch up")
    second = spawn(bank.make_rebuilder(dsn).rebuild, "account_balance", wait=60)

    def waiting():
        return db.execute("SELECT pid FROM pg_stat_activity WHERE application_name LIKE 'rebuilder:%:main'"
                          " AND datname = current_database() AND wait_event_type = 'Lock'").fetchone()

    wait_for_lock(db, wait_until(waiting)[0])
    pause.go.set()
    assert [first.result(20).generation, second.result(20).generation] == [1, 2]
    assert bank.assert_equal_to_replay(db) == 5


@pytest.mark.parametrize("wait", [0, 0.3])
def test_a_run_that_finds_another_names_it(db, dsn, paused, wait):
    """Ticket, host, process and since when: whoever must decide whether to cancel it is told."""
    pause, first, running = paused("catch up")
    before, began = photo(db), time.monotonic()
    with pytest.raises(RebuildInProgress) as caught:
        bank.make_rebuilder(dsn).rebuild("account_balance", wait=wait)
    assert wait <= time.monotonic() - began < wait + 5
    error, ticket = caught.value, last_ticket(running)
    assert (error.ticket, error.host, error.pid) == (str(ticket.id), socket.gethostname(), os.getpid())
    assert error.since == ticket.started_at.isoformat()
    assert error.exit_code == 4
    for part in (str(ticket.id), socket.gethostname(), str(os.getpid()), f"{ticket.started_at:%Y-%m-%d %H:%M:%S}"):
        assert part in str(error)
    assert f"rebuilder cancel {ticket.id}" in error.hint
    assert photo(db) == before
    pause.go.set()
    assert first.result(20).generation == 1
    assert [ticket.stage for ticket in running.tickets()] == [Stage.COMPLETED]


def test_a_run_whose_state_row_is_held_by_nobody_it_knows_says_so(db, dsn, connect):
    """A lock without a ticket (a run that has just begun, or somebody's transaction) is no error of the database."""
    rebuilder, other = bank.make_rebuilder(dsn), connect()
    rebuilder.rebuild("account_balance")
    other.execute("SELECT FROM rebuilder.projection_state FOR UPDATE")
    with pytest.raises(RebuildInProgress, match="has not written its ticket") as caught:
        rebuilder.rebuild("account_balance")
    assert caught.value.projection == "account_balance"
    assert len(rebuilder.tickets()) == 1


def test_rebuilds_that_start_at_once_do_not_disturb_each_other(db, dsn, spawn):
    """Of four that start together each completes or is told who runs; the generations are consecutive."""
    barrier = threading.Barrier(4, timeout=10)

    def rebuild():
        rebuilder = bank.make_rebuilder(dsn)
        barrier.wait()
        return rebuilder.rebuild("account_balance").generation

    outcomes = [spawn(rebuild) for _ in range(4)]
    errors = [outcome.exception(30) for outcome in outcomes]
    assert {type(error) for error in errors if error} <= {RebuildInProgress}
    done = sorted(outcome.result() for outcome, error in zip(outcomes, errors, strict=True) if error is None)
    assert done == list(range(1, len(done) + 1)) != []
    assert bank.assert_equal_to_replay(db) == 5
    nothing_left(db)


def test_two_projections_of_two_applications_do_not_fill_one_table_at_once(db, dsn, paused):
    """No registry sees both, so the table's advisory lock does: the second is told that the table is being rebuilt."""
    pause, first, _ = paused("catch up", bank.make_projection("ours"))
    theirs = bank.make_rebuilder(dsn, bank.make_projection("theirs", tables=["public.account_balance"]))
    with pytest.raises(RebuildInProgress, match="another projection") as caught:
        theirs.rebuild("theirs")
    assert caught.value.table == "public.account_balance"
    pause.go.set()
    first.result(20)
    assert theirs.rebuild("theirs").generation == 1
    assert bank.assert_equal_to_replay(db) == 5


# --- the token -------------------------------------------------------------------------------------------------------


def test_a_stop_token_serves_several_runs_and_stops_only_what_runs(db, dsn):
    """A token outlives a run without touching it any more; once set it stays set, so that no later run begins."""
    rebuilder, stop = bank.make_rebuilder(dsn), StopToken()
    assert rebuilder.rebuild("account_balance", stop=stop).generation == 1
    assert stop._callbacks == []
    before = photo(db)
    rebuilder._seam.points["freeze"] = lambda run: stop.request("now")
    with pytest.raises(RebuildCancelled, match="now"):
        rebuilder.rebuild("account_balance", stop=stop)
    rebuilder._seam.points.clear()
    with pytest.raises(RebuildCancelled, match="now"):
        rebuilder.rebuild("account_balance", stop=stop)
    assert photo(db) == before
    assert stop._callbacks == []
    assert rebuilder.rebuild("account_balance", stop=StopToken()).generation == 4
