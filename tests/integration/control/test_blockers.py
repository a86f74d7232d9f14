"""Who or what keeps a run from its end is named; nobody is harmed unless that was asked for."""

import psycopg
import pytest

from rebuilder.errors import CannotCatchUp, FenceNotAcquired, HorizonBlocked
from tests import bank
from tests.fix_threads import wait_until
from tests.integration.control.watch import last_ticket, nothing_left, photo

SHORT = {"fence_budget": 1.0, "fence_nowait": 0.1, "heartbeat": 0.1}


def gave_up(db, rebuilder, before, error, code):
    """Not now: repeatable, with a hint; live as it was, and the ticket says why."""
    assert (error.exit_code, error.code, bool(error.hint)) == (4, code, True)
    assert "Live is as it was" in str(error)
    nothing_left(db)
    assert photo(db) == before
    assert last_ticket(rebuilder).failure_code == code


# --- catching up -----------------------------------------------------------------------------------------------------


def test_a_log_that_grows_faster_than_its_replay_ends_the_run(db, dsn):
    """Each batch applied meets twice as many events appended: the rest never shrinks, and the numbers are said."""

    def outrun(seen):
        if seen.kind == "progress":
            bank.append_many(db, 20, accounts=5)

    settings = {"batch": 10, "fence_rest": 5, "catch_up_rounds": 2}
    rebuilder, before = bank.make_rebuilder(dsn, settings=settings, observer=outrun), photo(db)
    with pytest.raises(CannotCatchUp) as caught:
        rebuilder.rebuild("account_balance")
    gave_up(db, rebuilder, before, caught.value, "cannot-catch-up")
    assert caught.value.rounds == 2
    assert caught.value.rest > 60
    assert str(caught.value.rest) in str(caught.value)


def test_appends_beside_a_slow_replay_are_caught_up_with(db, dsn):
    """A rest that shrinks is no reason to give up, however many rounds it takes."""
    left = iter([5, 4, 3, 2, 1])

    def slower(seen):
        if seen.kind == "progress":
            bank.append_many(db, 10 * next(left, 0), accounts=5)

    settings = {"batch": 1000, "fence_rest": 5, "catch_up_rounds": 1}
    report = bank.make_rebuilder(dsn, settings=settings, observer=slower).rebuild("account_balance")
    assert report.events_applied == 60 + 150
    bank.assert_equal_to_replay(db)


# --- the horizon -----------------------------------------------------------------------------------------------------


def test_a_transaction_that_holds_the_horizon_is_named(db, dsn, connect):
    """An event below the horizon may still become visible, so the run waits for its transaction, and then names it
    (pg_repack#125).
    """
    writer = connect(application_name="an import")
    writer.execute("INSERT INTO events (stream, type, data) VALUES ('account-1', 'Deposited', '{\"amount\": 1}')")
    rebuilder, before = bank.make_rebuilder(dsn, settings=SHORT), photo(db)
    with pytest.raises(HorizonBlocked) as caught:
        rebuilder.rebuild("account_balance")
    gave_up(db, rebuilder, before, caught.value, "horizon")
    [blocker] = caught.value.blockers
    assert (blocker["pid"], blocker["application"], blocker["user"], blocker["state"]) == (
        writer.info.backend_pid, "an import", db.info.user, "idle in transaction")
    assert blocker["age_seconds"] >= 1
    assert blocker["query"].startswith("INSERT INTO events")
    for part in (str(writer.info.backend_pid), "an import", "INSERT INTO events"):
        assert part in str(caught.value)
    writer.commit()
    assert rebuilder.rebuild("account_balance").events_applied == 61
    assert bank.assert_equal_to_replay(db) == 5


# --- the fence -------------------------------------------------------------------------------------------------------


def test_a_session_in_front_of_the_fence_is_named_and_not_harmed(db, dsn, connect):
    """Pid, user, application, age and query of the reader; its transaction goes on undisturbed (pg_repack#76)."""
    reader = connect(application_name="a long report")
    rows = reader.execute("SELECT count(*) FROM account_balance").fetchall()
    rebuilder, before = bank.make_rebuilder(dsn, settings=SHORT), photo(db)
    with pytest.raises(FenceNotAcquired) as caught:
        rebuilder.rebuild("account_balance")
    gave_up(db, rebuilder, before, caught.value, "fence")
    [blocker] = caught.value.blockers
    assert (blocker["pid"], blocker["application"], blocker["user"]) == (
        reader.info.backend_pid, "a long report", db.info.user)
    assert blocker["age_seconds"] >= 1
    assert blocker["query"].startswith("SELECT count(*) FROM account_balance")
    for part in (str(reader.info.backend_pid), "a long report", db.info.user, "SELECT count(*)"):
        assert part in str(caught.value)
    assert caught.value.attempts >= 1
    assert "--blockers" in caught.value.hint
    assert reader.execute("SELECT count(*) FROM account_balance").fetchall() == rows


def test_a_role_that_may_not_see_a_query_says_so(db, dsn, connect, role):
    """Where the server hides the blocker's query, its number is there all the same, with the GRANT that shows more."""
    clerk = role(hint="clerk")
    db.execute(f"""GRANT CREATE ON DATABASE "{db.info.dbname}" TO {clerk.name}; GRANT USAGE ON SCHEMA rebuilder TO
        {clerk.name}; GRANT ALL ON ALL TABLES IN SCHEMA rebuilder TO {clerk.name}; GRANT CREATE ON SCHEMA public TO
        {clerk.name}; GRANT SELECT ON events, events_id_seq TO {clerk.name};
        ALTER TABLE account_balance OWNER TO {clerk.name}""")
    reader = connect(application_name="a long report")
    reader.execute("SELECT count(*) FROM account_balance")
    with pytest.raises(FenceNotAcquired) as caught:
        bank.make_rebuilder(clerk.dsn(dsn), settings=SHORT).rebuild("account_balance")
    assert str(reader.info.backend_pid) in str(caught.value)
    assert "insufficient privilege" not in str(caught.value)
    assert "GRANT pg_read_all_stats" in str(caught.value)


@pytest.mark.parametrize("how", ["cancel", "terminate"])
def test_blockers_are_ended_when_that_was_asked_for(db, dsn, connect, spawn, how):
    """After the delay the statement in the way is cancelled, or its session ended; nobody else's (pg_repack#90)."""
    reader, other = connect(application_name="a long report"), connect(autocommit=True, application_name="other")
    reading = spawn(reader.execute, "SELECT pg_sleep(60) FROM account_balance LIMIT 1")
    working = spawn(other.execute, "SELECT pg_sleep(2)")
    wait_until(lambda: db.execute("SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND datname ="
                                  " current_database()").fetchone() == (2,))
    report = bank.make_rebuilder(dsn, settings={"fence_nowait": 0.1}).rebuild(
        "account_balance", blockers=how, blockers_after=0.2)
    error = reading.exception(10)
    assert type(error) is (psycopg.errors.QueryCanceled if how == "cancel" else psycopg.errors.AdminShutdown)
    assert any(str(reader.info.backend_pid) in warning and how in warning for warning in report.warnings)
    assert working.result(10) is not None
    assert bank.assert_equal_to_replay(db) == 5


def test_a_session_that_idles_in_its_transaction_is_ended_by_terminate_alone(db, dsn, connect):
    """A cancel has nothing to cancel there: the run says who is in the way; terminate gets past it."""
    reader = connect()
    reader.execute("SELECT count(*) FROM account_balance")
    with pytest.raises(FenceNotAcquired):
        bank.make_rebuilder(dsn, settings=SHORT).rebuild("account_balance", blockers="cancel", blockers_after=0.1)
    assert reader.execute("SELECT 1").fetchone() == (1,)
    rebuilder = bank.make_rebuilder(dsn, settings=SHORT)
    report = rebuilder.rebuild("account_balance", blockers="terminate", blockers_after=0.1)
    assert report.generation == 2
    with pytest.raises(psycopg.OperationalError):
        reader.execute("SELECT 1")
    assert bank.assert_equal_to_replay(db) == 5


def test_blockers_are_left_alone_before_the_delay_is_over(db, dsn, connect):
    """A minute by default: who is asked to wait is not shot at once."""
    reader = connect()
    reader.execute("SELECT count(*) FROM account_balance")
    with pytest.raises(FenceNotAcquired):
        bank.make_rebuilder(dsn, settings=SHORT).rebuild("account_balance", blockers="terminate")
    assert reader.execute("SELECT 1").fetchone() == (1,)
