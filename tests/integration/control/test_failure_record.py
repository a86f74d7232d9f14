"""What others can see of a run while its transaction is open, and what of a failure survives the rollback."""

import threading

import pytest

from rebuilder import Stage
from rebuilder.errors import HandlerFailed, HookVetoed
from tests import bank
from tests.fix_threads import wait_until
from tests.integration.control.watch import last_ticket, nothing_left, photo

BEAT = {"heartbeat": 0.1, "batch": 20}


def test_a_failure_is_recorded_with_all_that_says_where(db, dsn):
    """Position, type, stream, class, SQLSTATE and phase, after the rollback; status tells it until a success."""
    position = bank.append(db, "account-3", "Deposited", {"amount": "much"})
    rebuilder = bank.make_rebuilder(dsn)
    with pytest.raises(HandlerFailed):
        rebuilder.rebuild("account_balance", note="nightly")
    ticket = last_ticket(rebuilder)
    assert (ticket.stage, ticket.failure_code, ticket.note, ticket.report) == (Stage.FAILED, "handler", "nightly", None)
    assert ticket.finished_at >= ticket.started_at
    expected = {"error": "handler", "projection": "account_balance", "phase": "catch up", "position": position,
                "type": "Deposited", "stream": "account-3", "error_class": "InvalidTextRepresentation",
                "sqlstate": "22P02"}
    assert expected.items() <= ticket.failure.items()
    [status] = rebuilder.status()
    assert (status.health, status.generation, status.ticket) == ("failed", 0, None)
    assert f"event {position}" in status.last_failure
    db.execute("DELETE FROM events WHERE id = %s", [position])
    assert rebuilder.rebuild("account_balance").generation == 2
    [status] = rebuilder.status()
    assert (status.health, status.generation, status.last_failure) == ("ready", 2, None)
    # A built projection stays what it is when a later rebuild fails: live still serves it.
    bank.append(db, "account-3", "Deposited", {"amount": "much"})
    with pytest.raises(HandlerFailed):
        rebuilder.rebuild("account_balance")
    [status] = rebuilder.status()
    assert (status.health, status.generation) == ("ready", 2)
    assert "account-3" in status.last_failure


@pytest.mark.parametrize("point", ["build shadow", "catch up", "freeze", "fence", "swap", "before commit"])
def test_an_error_that_nobody_thought_of_is_recorded_too(db, dsn, point):
    """What is no error of rebuilder's reaches the caller as it is, with live as it was and the ticket closed."""
    rebuilder, before = bank.make_rebuilder(dsn), photo(db)

    def burst(run):
        raise ZeroDivisionError("nobody thought of this")

    rebuilder._seam.points[point] = burst
    with pytest.raises(ZeroDivisionError, match="nobody thought"):
        rebuilder.rebuild("account_balance")
    nothing_left(db)
    assert photo(db) == before
    ticket = last_ticket(rebuilder)
    assert (ticket.stage, ticket.failure_code) == (Stage.FAILED, "unexpected")
    assert (ticket.failure["class"], ticket.failure["message"]) == ("ZeroDivisionError", "nobody thought of this")


def test_a_hook_may_stop_a_run_and_an_observer_may_not(db, dsn):
    """A hook before the fence vetoes; an observer that raises is dropped and reported."""

    def veto(ticket):
        raise RuntimeError("not on Fridays")

    def broken(seen):
        raise RuntimeError("no terminal")

    rebuilder, before = bank.make_rebuilder(dsn, hooks={"before_fence": veto}), photo(db)
    with pytest.raises(HookVetoed, match="not on Fridays"):
        rebuilder.rebuild("account_balance")
    nothing_left(db)
    assert photo(db) == before
    assert last_ticket(rebuilder).failure_code == "hook"
    report = bank.make_rebuilder(dsn, observer=broken).rebuild("account_balance")
    assert [warning for warning in report.warnings if "observer raised RuntimeError" in warning] != []
    assert bank.assert_equal_to_replay(db) == 5


def test_progress_is_seen_from_elsewhere_while_the_transaction_is_open(db, dsn, spawn):
    """Phase, events done of how many, position and a heartbeat that goes on, though nothing is committed yet."""
    go, reached = threading.Event(), threading.Event()
    rebuilder = bank.make_rebuilder(dsn, settings=BEAT)

    def stay(run):
        reached.set()
        assert go.wait(30)

    rebuilder._seam.points["freeze"] = stay
    running = spawn(rebuilder.rebuild, "account_balance")
    assert reached.wait(10)
    status = wait_until(lambda: [s for s in rebuilder.status() if s.progress and s.progress.phase == "freeze"])[0]
    assert (status.health, status.alive, status.ticket.stage) == ("rebuilding", True, Stage.RUNNING)
    progress = wait_until(lambda: [s.progress for s in rebuilder.status() if s.progress.events_total is not None])[0]
    assert (progress.events_done, progress.events_total, progress.position) == (60, 60, 60)
    assert db.execute("SELECT state FROM pg_stat_activity WHERE application_name LIKE 'rebuilder:%:main'"
                      " AND datname = current_database()").fetchone() == ("idle in transaction",)

    def beat():
        return db.execute("SELECT heartbeat_at FROM rebuilder.ticket_progress").fetchone()

    first = beat()
    wait_until(lambda: beat() > first)
    go.set()
    running.result(20)
    assert rebuilder.status()[0].progress is None


def test_who_is_in_front_of_the_fence_is_seen_from_elsewhere(db, dsn, connect, spawn):
    """While the run still tries: attempts and the sessions in its way stand in its progress."""
    reader = connect(application_name="a long report")
    reader.execute("SELECT FROM account_balance")
    rebuilder = bank.make_rebuilder(dsn, settings={**BEAT, "fence_nowait": 0.1})
    running = spawn(rebuilder.rebuild, "account_balance")
    # Between attempts it catches up, so the phase goes back and forth.
    [progress] = wait_until(lambda: [s.progress for s in rebuilder.status()
                                     if s.progress and s.progress.blockers and s.progress.phase == "fence"])
    [blocker] = progress.blockers
    assert (blocker["pid"], blocker["application"]) == (reader.info.backend_pid, "a long report")
    wait_until(lambda: [s for s in rebuilder.status() if s.progress and s.progress.attempts >= 2])
    reader.commit()
    assert running.result(30).attempts >= 2
    assert bank.assert_equal_to_replay(db) == 5
