"""What a rebuild leaves behind when it fails: live as it was, and a record that says why."""

import threading

import pytest

from rebuilder import Health, RebuildCancelled, SqlHandlers, Stage, StopToken
from rebuilder.engine import run as run_module
from rebuilder.errors import GuardTripped, HandlerFailed, UnknownProjection
from tests.bank import (
    append,
    append_many,
    assert_equal_to_replay,
    make_handlers,
    make_projection,
    make_rebuilder,
    make_schema,
    rows_of,
)


@pytest.fixture
def db(connect):
    connection = connect(autocommit=True)
    make_schema(connection)
    append_many(connection, 100)
    return connection


def broken():
    """Handlers that raise on the first deposit."""
    handlers = SqlHandlers()

    @handlers.on("Deposited")
    def refuse(event, target):
        raise ValueError("the recipe is broken")

    return handlers


def status(rebuilder, name):
    (found,) = rebuilder.status(name)
    return found


def test_a_projection_that_fails_touches_no_other(dsn, db):
    """When one projection's handler raises, its failure is recorded and another's rows stay (scenario 8)."""
    db.execute("CREATE TABLE deposits (id text PRIMARY KEY)")
    rebuilder = make_rebuilder(dsn, make_projection(), make_projection("deposits", tables=["deposits"],
                                                                       handlers=broken()))
    rebuilder.rebuild("account_balance")
    with pytest.raises(HandlerFailed, match="the recipe is broken"):
        rebuilder.rebuild("deposits")
    assert_equal_to_replay(db)
    assert status(rebuilder, "account_balance").health is Health.READY
    failed = status(rebuilder, "deposits")
    assert failed.health is Health.FAILED
    assert "the recipe is broken" in failed.last_failure


def test_a_broken_recipe_leaves_what_the_good_one_built(dsn, db):
    """After a good rebuild a failing one leaves the old rows, which go on being served (scenario 9)."""
    make_rebuilder(dsn).rebuild("account_balance")
    before = rows_of(db), db.execute("SELECT 'account_balance'::regclass::oid").fetchone()
    rebuilder = make_rebuilder(dsn, make_projection(handlers=broken()))
    with pytest.raises(HandlerFailed):
        rebuilder.rebuild("account_balance")
    assert (rows_of(db), db.execute("SELECT 'account_balance'::regclass::oid").fetchone()) == before
    after = status(rebuilder, "account_balance")
    assert (after.health, after.generation) == (Health.READY, 1)
    assert "the recipe is broken" in after.last_failure
    ticket = rebuilder.tickets("account_balance")[0]
    assert (ticket.stage, ticket.failure_code, ticket.generation) == (Stage.FAILED, "handler", 2)
    # Event id, type and stream: what the reference keeps only as the handler's words.
    assert (ticket.failure["position"], ticket.failure["type"]) == (11, "Deposited")
    assert ticket.failure["stream"] == "account-0"


def test_the_next_good_rebuild_forgets_the_failure(dsn, db):
    """A failure is no longer told of once a later rebuild has succeeded (scenarios 6 and 9)."""
    with pytest.raises(HandlerFailed):
        make_rebuilder(dsn, make_projection(handlers=broken())).rebuild("account_balance")
    rebuilder = make_rebuilder(dsn)
    rebuilder.rebuild("account_balance")
    after = status(rebuilder, "account_balance")
    assert (after.health, after.last_failure, after.generation) == (Health.READY, None, 2)
    assert_equal_to_replay(db)


def test_an_unknown_projection_is_named_with_those_there_are(dsn, db):
    """A name that is not registered starts nothing and names the closest (scenario 10)."""
    rebuilder = make_rebuilder(dsn)
    with pytest.raises(UnknownProjection, match="'acount_balance'") as caught:
        rebuilder.rebuild("acount_balance")
    assert caught.value.exit_code == 2
    assert caught.value.known == ["account_balance"]
    assert "'account_balance'" in caught.value.hint
    assert rebuilder.tickets() == []


def test_a_stop_that_was_asked_for_before_the_start_stops_it(dsn, db):
    """With its stop token already set a rebuild ends as cancelled and changes no row (scenario 16)."""
    rebuilder = make_rebuilder(dsn)
    rebuilder.rebuild("account_balance")
    append(db, "account-1", "Deposited", {"amount": 5})  # would be seen, if it were replayed
    before = rows_of(db)
    stop = StopToken()
    stop.request("not today")
    with pytest.raises(RebuildCancelled, match="not today") as caught:
        rebuilder.rebuild("account_balance", stop=stop)
    assert caught.value.exit_code == 7
    assert rows_of(db) == before
    assert rebuilder.tickets()[0].stage is Stage.CANCELLED
    assert status(rebuilder, "account_balance").health is Health.READY


def test_a_column_that_no_event_fills_is_not_swapped_away(dsn, db):
    """A column added to live and filled by hand stops the rebuild by its name, with its values; without it the
    rebuild works again (scenario 26).
    """
    rebuilder = make_rebuilder(dsn)
    rebuilder.rebuild("account_balance")
    db.execute("ALTER TABLE account_balance ADD COLUMN note text;"
               "UPDATE account_balance SET note = 'by hand' WHERE id = 'account-3'")
    with pytest.raises(GuardTripped, match=r"public\.account_balance\.note") as caught:
        rebuilder.rebuild("account_balance")
    assert (caught.value.guard, caught.value.column, caught.value.exit_code) == ("null-column", "note", 3)
    assert db.execute("SELECT id FROM account_balance WHERE note = 'by hand'").fetchall() == [("account-3",)]
    assert "account_balance.note" in status(rebuilder, "account_balance").last_failure
    db.execute("ALTER TABLE account_balance DROP COLUMN note")
    rebuilder.rebuild("account_balance")
    assert_equal_to_replay(db)


def test_a_column_with_a_default_is_carried(dsn, db):
    """A column that live got meanwhile is in the rebuilt table too, with its default, although the code knows nothing
    of it (scenario 26, for what an older deploy does not know).
    """
    rebuilder = make_rebuilder(dsn)
    rebuilder.rebuild("account_balance")
    db.execute("ALTER TABLE account_balance ADD COLUMN currency text NOT NULL DEFAULT 'EUR'")
    rebuilder.rebuild("account_balance")
    assert_equal_to_replay(db)
    assert db.execute("SELECT DISTINCT currency FROM account_balance").fetchall() == [("EUR",)]


def test_handlers_may_be_mended_and_run_again(dsn, db):
    """After a failure the same projection with mended handlers rebuilds as if nothing had been (scenario 9)."""
    handlers = make_handlers()
    handlers.on("Seen")(lambda event, target: target.execute("INSERT INTO no_such_table VALUES (1)"))
    append(db, "account-1", "Seen")
    rebuilder = make_rebuilder(dsn, make_projection(handlers=handlers))
    with pytest.raises(HandlerFailed) as caught:
        rebuilder.rebuild("account_balance")
    assert (caught.value.sqlstate, caught.value.position) == ("42P01", 101)
    assert rows_of(db) == []
    make_rebuilder(dsn).rebuild("account_balance")
    assert_equal_to_replay(db)


def test_a_failing_run_does_not_wait_for_the_count_of_the_log(dsn, db, monkeypatch):
    """The events are counted in the background; a run that ends first ends the count, wherever that is, without an
    error of the thread.
    """
    prove, counting = run_module.prove_same_server, []

    def slowly(connection, main):
        prove(connection, main)
        if threading.current_thread().name == "rebuilder count":
            counting.append(connection)
            connection.execute("SELECT pg_sleep(600)")

    monkeypatch.setattr(run_module, "prove_same_server", slowly)
    rebuilder = make_rebuilder(dsn, make_projection(handlers=broken()))
    with pytest.raises(HandlerFailed):
        rebuilder.rebuild("account_balance")
    assert all(connection.closed for connection in counting)
