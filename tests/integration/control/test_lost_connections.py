"""A lost connection, whichever and whenever: live is as it was or rebuilt, and the outcome that is reported is true."""

import threading

import psycopg
import pytest

from rebuilder import OutcomeUnknown, Stage
from rebuilder.errors import ConnectionLost
from tests import bank
from tests.fix_threads import wait_until
from tests.integration.control.watch import POINTS, last_ticket, nothing_left, photo

PHASES = POINTS[1:]


def end(db, run, role):
    """Terminate one of a run's backends, and wait until it has gone."""
    pid = {"main": lambda: run.main, "reader": lambda: run.reader, "ledger": lambda: run.ledger.connection}[
        role]().info.backend_pid
    assert db.execute("SELECT pg_terminate_backend(%s, 5000)", [pid]).fetchone() == (True,)


def lost(db, rebuilder, before, error):
    """The error says so and what to do; live is as it was; the ticket is closed, by this run or by the next."""
    assert type(error) is ConnectionLost
    assert (error.exit_code, bool(error.hint)) == (1, True)
    nothing_left(db)
    assert photo(db) == before
    ticket = last_ticket(rebuilder)
    rebuilder._seam.points.clear()
    report = rebuilder.rebuild("account_balance")
    assert bank.assert_equal_to_replay(db) == 5
    [closed] = [found for found in rebuilder.tickets() if found.id == ticket.id]
    assert closed.stage == Stage.FAILED
    if ticket.stage == Stage.RUNNING:
        assert closed.failure_code == "abandoned"
        assert any(str(ticket.id) in warning for warning in report.warnings)
    else:
        assert (closed.failure_code, closed.failure["error"]) == ("connection-lost", "connection-lost")
        assert str(closed.failure["phase"])


@pytest.mark.parametrize("point", PHASES)
def test_a_run_that_loses_its_main_connection_fails_and_says_so(db, dsn, point):
    """All is rolled back by the server; the second connection closes the ticket."""
    rebuilder, before = bank.make_rebuilder(dsn), photo(db)
    rebuilder._seam.points[point] = lambda run: end(db, run, "main")
    with pytest.raises(ConnectionLost) as caught:
        rebuilder.rebuild("account_balance")
    assert last_ticket(rebuilder).stage == Stage.FAILED
    lost(db, rebuilder, before, caught.value)


@pytest.mark.parametrize("role", ["reader", "ledger"])
@pytest.mark.parametrize("point", PHASES)
def test_a_run_that_loses_another_connection_fails_or_goes_on_and_is_right(db, dsn, point, role):
    """The reader holds no state; without the ledger nothing is recorded. Never a wrong table, never a wrong word."""
    rebuilder, before, struck = bank.make_rebuilder(dsn), photo(db), []

    def strike(run):
        if not struck:
            struck.append(end(db, run, role))

    rebuilder._seam.points[point] = strike
    try:
        report = rebuilder.rebuild("account_balance")
    except ConnectionLost as error:
        lost(db, rebuilder, before, error)
    else:
        assert bank.assert_equal_to_replay(db) == 5
        ticket = last_ticket(rebuilder)
        assert (ticket.stage, str(ticket.id)) == (Stage.COMPLETED, report.ticket)
        nothing_left(db)
    assert struck


@pytest.mark.parametrize("answers", [True, False])
@pytest.mark.parametrize("point", PHASES)
def test_a_run_whose_network_is_cut_fails_and_says_so(db, dsn, proxy, point, answers):
    """All connections at once; where the server can't be reached again, the next run closes the ticket."""
    between = proxy(dsn)
    rebuilder, before = bank.make_rebuilder(between.dsn), photo(db)

    def cut(run):
        if not answers:
            between.refuse()
        assert between.cut() >= 3

    rebuilder._seam.points[point] = cut
    with pytest.raises(ConnectionLost) as caught:
        rebuilder.rebuild("account_balance")
    between.accept()
    assert last_ticket(rebuilder).stage == (Stage.FAILED if answers else Stage.RUNNING)
    if not answers:
        assert any("could not be recorded" in note for note in caught.value.__notes__)
    lost(db, rebuilder, before, caught.value)


# --- the COMMIT ------------------------------------------------------------------------------------------------------


class Commit:
    """Loses the network at a COMMIT: before it is sent, or when the server has done it and its answer is under way."""

    def __init__(self, db, spawn, between, *, done, reachable):
        self.db, self.spawn, self.between, self.done, self.reachable = db, spawn, between, done, reachable

    def __call__(self, run):
        xid = run.main.execute("SELECT pg_current_xact_id()::text").fetchone()[0]
        if not self.done:
            self.lose()
            return
        self.between.mute()
        ready = threading.Event()
        self.spawn(self.when_committed, xid, ready)
        assert ready.wait(10)

    def when_committed(self, xid, ready):
        ready.set()
        wait_until(lambda: self.db.execute("SELECT pg_xact_status(%s::xid8)", [xid]).fetchone() == ("committed",))
        self.lose()
        self.between.release()

    def lose(self):
        if not self.reachable:
            self.between.refuse()
        self.between.cut()


def test_a_commit_whose_answer_is_lost_is_looked_up_and_reported_as_done(db, dsn, proxy, spawn):
    """The server committed; nobody heard it. The run asks, and reports success: live is rebuilt."""
    between = proxy(dsn)
    rebuilder = bank.make_rebuilder(between.dsn)
    rebuilder._seam.points["commit"] = Commit(db, spawn, between, done=True, reachable=True)
    report = rebuilder.rebuild("account_balance")
    assert bank.assert_equal_to_replay(db) == 5
    assert any("says that it committed" in warning for warning in report.warnings)
    assert [ticket.stage for ticket in rebuilder.tickets()] == [Stage.COMPLETED]
    [status] = rebuilder.status()
    assert (status.health, status.generation, status.last_failure) == ("ready", 1, None)
    nothing_left(db)


def test_a_commit_that_never_arrived_is_looked_up_and_reported_as_failed(db, dsn, proxy, spawn):
    """The server rolled back. The run asks, and reports a lost connection: live is as it was."""
    between = proxy(dsn)
    rebuilder, before = bank.make_rebuilder(between.dsn), photo(db)
    rebuilder._seam.points["commit"] = Commit(db, spawn, between, done=False, reachable=True)
    with pytest.raises(ConnectionLost, match="rolled back") as caught:
        rebuilder.rebuild("account_balance")
    lost(db, rebuilder, before, caught.value)


@pytest.mark.parametrize("done", [True, False])
def test_a_commit_whose_outcome_can_not_be_asked_for_is_reported_as_unknown(db, dsn, proxy, spawn, done):
    """Neither success nor failure is claimed; the error says how to look, and what is found there is the truth."""
    between = proxy(dsn)
    rebuilder, before = bank.make_rebuilder(between.dsn, settings={"outcome_wait": 0.3}), photo(db)
    rebuilder._seam.points["commit"] = Commit(db, spawn, between, done=done, reachable=False)
    with pytest.raises(OutcomeUnknown) as caught:
        rebuilder.rebuild("account_balance")
    error = caught.value
    assert (error.exit_code, error.ticket in str(last_ticket(bank.make_rebuilder(dsn)).id)) == (8, True)
    assert f"pg_xact_status('{error.xid}')" in error.hint
    assert isinstance(error.__cause__, psycopg.Error)
    between.accept()
    nothing_left(db)
    [status] = db.execute("SELECT pg_xact_status(%s::xid8)", [error.xid]).fetchone()
    assert status == ("committed" if done else "aborted")
    ticket = last_ticket(rebuilder)
    if done:
        assert bank.assert_equal_to_replay(db) == 5
        assert ticket.stage == Stage.COMPLETED
    else:
        assert photo(db) == before
        assert ticket.stage == Stage.RUNNING
    rebuilder._seam.points.clear()
    assert rebuilder.rebuild("account_balance").generation == 2
    assert rebuilder.tickets()[-1].stage == (Stage.COMPLETED if done else Stage.FAILED)
