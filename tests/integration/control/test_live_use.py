"""`project` and `guard` in an application's own transaction: one outcome for the event and its effect, or an error."""

import psycopg
import pytest
import sqlalchemy
from psycopg.rows import dict_row
from sqlalchemy.orm import Session

from rebuilder import DefinitionError, Event, Projection, SqlHandlers
from rebuilder.errors import CutOverDuringTransaction, RecipeOutdated
from tests import bank
from tests.fix_db import url
from tests.fix_threads import wait_for_lock, wait_until
from tests.integration.control.test_limits import Pause

DEPOSIT = "INSERT INTO events (stream, type, data) VALUES ('account-1', 'Deposited', '{\"amount\": 5}') RETURNING *"


@pytest.fixture
def built(db, dsn):
    """The application, with live rebuilt."""
    rebuilder = bank.make_rebuilder(dsn)
    rebuilder.rebuild("account_balance")
    return rebuilder


@pytest.fixture
def engine(dsn):
    made = sqlalchemy.create_engine(url(dsn).replace("postgresql:", "postgresql+psycopg:", 1))
    yield made
    made.dispose()


def deposit(connection):
    """Append an event by a psycopg connection; the event as a rebuild would see it."""
    return bank.make_log().event(connection.cursor(row_factory=dict_row).execute(DEPOSIT).fetchone())


def locks(db, connection, table):
    """The modes in which a connection has locked a table."""
    return [row[0] for row in db.execute("SELECT mode FROM pg_locks WHERE pid = %s AND relation = %s::regclass",
                                         [connection.info.backend_pid, table])]


# --- which connections -----------------------------------------------------------------------------------------------


def test_event_and_effect_are_committed_or_rolled_back_together(db, built, connect):
    """In the caller's transaction, whatever row factory its connection has."""
    writer, before = connect(row_factory=dict_row), bank.rows_of(db)
    built.project(writer, deposit(writer))
    assert bank.rows_of(db) == before
    writer.rollback()
    assert bank.rows_of(db) == before
    built.project(writer, deposit(writer), deposit(writer))
    writer.commit()
    assert bank.rows_of(db) != before
    assert bank.assert_equal_to_replay(db) == 5


def test_an_autocommit_connection_must_begin_a_transaction(db, built, connect):
    """Else event and effect could be committed apart; inside `connection.transaction()` it is as any other."""
    writer, before = connect(autocommit=True), bank.rows_of(db)
    event = deposit(writer)
    for call in (lambda: built.project(writer, event), lambda: built.guard(writer, "account_balance")):
        with pytest.raises(DefinitionError, match="in no transaction") as caught:
            call()
        assert "with connection.transaction()" in caught.value.hint
    assert bank.rows_of(db) == before
    with writer.transaction():
        built.project(writer, event)
    assert bank.assert_equal_to_replay(db) == 5


@pytest.mark.parametrize("kind", ["connection", "session"])
def test_sqlalchemy_connections_and_sessions_are_taken(db, built, engine, kind):
    """Their own transaction is used; a rollback takes the effect back."""
    made = engine.connect() if kind == "connection" else Session(engine)
    with made as connection:
        for outcome in (connection.rollback, connection.commit):
            row = connection.execute(sqlalchemy.text(DEPOSIT.replace('"amount": 5', '"amount" : 5'))).mappings().one()
            built.project(connection, built.log.event(row))
            outcome()
    assert bank.assert_equal_to_replay(db) == 5


def test_a_sqlalchemy_connection_in_no_transaction_is_told_so(db, built, engine):
    """Before it has begun, and when its driver commits each statement."""
    event = Event(position=1, stream="account-1", type="Deposited", data={"amount": 1}, category="account")
    with engine.connect() as connection, pytest.raises(DefinitionError, match="in no transaction"):
        built.project(connection, event)
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(sqlalchemy.text("SELECT 1"))
        with pytest.raises(DefinitionError, match="in no transaction"):
            built.project(connection, event)
    assert bank.assert_equal_to_replay(db) == 5


def test_connections_of_other_drivers_are_refused_with_the_way_out(built):
    """Handlers write psycopg's SQL; a driver that rebuilder can't reach through is named."""
    event = Event(position=1, stream="account-1", type="Deposited", data={"amount": 1}, category="account")
    with sqlalchemy.create_engine("sqlite://").connect() as connection:
        connection.begin()
        with pytest.raises(DefinitionError, match="sqlite3") as caught:
            built.project(connection, event)
    assert "postgresql+psycopg" in caught.value.hint
    for nothing in (None, "a DSN", object()):
        with pytest.raises(DefinitionError, match="psycopg connection"):
            built.project(nothing, event)


# --- which events ----------------------------------------------------------------------------------------------------


def test_events_that_a_projection_does_not_subscribe_to_touch_nothing(db, built, connect):
    """Of another category or type: no row is written and no lock on live taken."""
    writer, before = connect(), bank.rows_of(db)
    for event in (Event(position=1, stream="account-1", type="Deposited", data={"amount": 1}, category="savings"),
                  Event(position=2, stream="account-1", type="Unheard", data={}, category="account"),
                  Event(position=3, stream="account-1", type="Deposited", data={"amount": 1}, category=None)):
        built.project(writer, event)
    assert locks(db, writer, "account_balance") == []
    writer.commit()
    assert bank.rows_of(db) == before
    # A rebuild sees it the same way.
    bank.append(db, "account-1", "Deposited", {"amount": 10**6}, category="savings")
    built.rebuild("account_balance")
    assert bank.rows_of(db) == before


def test_tables_are_locked_in_the_order_of_their_names(db, dsn, connect, spawn):
    """Whatever order they are declared in, so that two writers and a fence never meet crosswise."""
    db.execute("CREATE TABLE b_table (id text PRIMARY KEY); CREATE TABLE a_table (id text PRIMARY KEY)")
    handlers = SqlHandlers()
    handlers.on("Both")(lambda event, target: [target.execute(f"INSERT INTO {name}_table VALUES (%s)", (event.stream,))
                                               for name in "ba"])
    projection = Projection("both", version=1, tables=["b_table", "a_table"], handlers=handlers)
    rebuilder, holder, writer = bank.make_rebuilder(dsn, projection), connect(), connect()
    holder.execute("LOCK TABLE a_table")
    writing = spawn(rebuilder.project, writer, Event(position=1, stream="s", type="Both"))
    wait_for_lock(db, writer.info.backend_pid)
    assert locks(db, writer, "b_table") == []
    holder.commit()
    writing.result(10)
    writer.commit()
    assert db.execute("SELECT (SELECT count(*) FROM a_table), (SELECT count(*) FROM b_table)").fetchone() == (1, 1)


# --- old code --------------------------------------------------------------------------------------------------------


def test_a_writer_with_an_older_recipe_changes_nothing(db, dsn, built, connect):
    """Live was built with version 2: the process that still has version 1 is told, and its transaction is usable."""
    bank.make_rebuilder(dsn, bank.make_projection(version=2)).rebuild("account_balance")
    writer, before = connect(), bank.rows_of(db)
    event = deposit(writer)
    with pytest.raises(RecipeOutdated) as caught:
        built.project(writer, event)
    assert (caught.value.built_with, caught.value.version, caught.value.exit_code) == (2, 1, 3)
    assert caught.value.hint
    with pytest.raises(RecipeOutdated):
        built.guard(writer, "account_balance")
    assert writer.execute("SELECT 1").fetchone() is not None
    writer.commit()
    assert bank.rows_of(db) == before


@pytest.mark.parametrize("version", [1, 2])
def test_a_writer_that_waited_through_the_cut_over_reads_the_version_after_it(db, dsn, built, connect, spawn, version):
    """It began when live was of version 1. The old recipe is refused, though it was right when it asked; the new one
    writes the new table.
    """
    pause, later = Pause(), bank.make_rebuilder(dsn, bank.make_projection(version=2))
    later._seam.points["before commit"] = pause
    rebuilding = spawn(later.rebuild, "account_balance")
    assert pause.reached.wait(10)
    writer, mine = connect(), built if version == 1 else bank.make_rebuilder(dsn, bank.make_projection(version=2))
    # What a version read before the lock would have said.
    assert db.execute("SELECT version FROM rebuilder.projection_state").fetchone() == (1,)
    writing = spawn(lambda: mine.project(writer, deposit(writer)))
    wait_for_lock(db, writer.info.backend_pid)
    pause.go.set()
    rebuilding.result(20)
    if version == 1:
        assert type(writing.exception(10)) is RecipeOutdated
        writer.rollback()
    else:
        writing.result(10)
        writer.commit()
    assert bank.assert_equal_to_replay(db) == 5


def test_a_rebuild_with_an_older_recipe_is_refused_unless_that_is_allowed(db, dsn, built, spawn):
    """Going back is done on purpose or not at all; also by a run that waited while the later one was built."""
    pause, later = Pause(), bank.make_rebuilder(dsn, bank.make_projection(version=2))
    later._seam.points["freeze"] = pause
    rebuilding = spawn(later.rebuild, "account_balance")
    assert pause.reached.wait(10)
    waiting = spawn(built.rebuild, "account_balance", wait=30)
    wait_until(lambda: db.execute("SELECT FROM pg_stat_activity WHERE application_name LIKE 'rebuilder:%:main'"
                                  " AND wait_event_type = 'Lock' AND datname = current_database()").fetchall())
    pause.go.set()
    rebuilding.result(20)
    error = waiting.exception(20)
    assert (type(error), error.built_with, error.version) == (RecipeOutdated, 2, 1)
    assert "downgrade" in error.hint
    assert [ticket.version for ticket in built.tickets()] == [2, 1]
    report = built.rebuild("account_balance", allow=["downgrade"])
    assert (report.version, built.status()[0].version) == (1, 1)
    assert bank.assert_equal_to_replay(db) == 5


# --- old snapshots ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", [psycopg.IsolationLevel.REPEATABLE_READ, psycopg.IsolationLevel.SERIALIZABLE])
def test_a_snapshot_from_before_the_cut_over_can_not_write_live(db, built, connect, level):
    """Its update would find nothing of what came after the freeze, without an error: it is told to repeat."""
    writer = connect()
    writer.isolation_level = level
    writer.execute("SELECT count(*) FROM events")
    built.rebuild("account_balance")
    before, event = bank.rows_of(db), deposit(writer)
    for call in (lambda: built.project(writer, event), lambda: built.guard(writer, "account_balance")):
        with pytest.raises(CutOverDuringTransaction) as caught:
            call()
        assert (caught.value.sqlstate, caught.value.exit_code) == ("40001", 4)
    writer.rollback()
    assert bank.rows_of(db) == before
    built.project(writer, deposit(writer))
    writer.commit()
    assert bank.assert_equal_to_replay(db) == 5


# --- rows that the application writes itself -------------------------------------------------------------------------


def own(dsn, version=1):
    return bank.make_rebuilder(dsn, bank.make_projection(version=version, feeding="own"))


def write_own(rebuilder, connection):
    """What an application with feeding "own" does: guard, append, write."""
    rebuilder.guard(connection)
    event = deposit(connection)
    rebuilder.project(connection, event)  # skips it
    connection.execute("UPDATE account_balance SET balance = balance + 5, changes = changes + 1 WHERE id = %s",
                       [event.stream])


def test_an_application_that_writes_its_rows_itself_is_guarded_and_not_projected(db, dsn, connect):
    """`project` leaves such a projection alone, `guard` holds live and checks the version."""
    rebuilder, writer = own(dsn), connect()
    rebuilder.rebuild("account_balance")
    write_own(rebuilder, writer)
    assert locks(db, writer, "account_balance") == ["RowExclusiveLock"]
    writer.commit()
    assert bank.assert_equal_to_replay(db) == 5
    own(dsn, version=2).rebuild("account_balance")
    with pytest.raises(RecipeOutdated):
        write_own(rebuilder, writer)


def test_own_writers_on_both_sides_of_a_cut_over_lose_nothing(db, dsn, connect, spawn):
    """One is open when the run comes to its fence, and is waited for; one waits for the cut-over and writes then."""
    rebuilder, first, second = own(dsn), connect(), connect()
    rebuilder.rebuild("account_balance")
    write_own(rebuilder, first)
    pause = Pause()
    rebuilder._seam.points["before commit"] = pause
    rebuilding = spawn(rebuilder.rebuild, "account_balance")
    wait_until(lambda: db.execute("SELECT FROM rebuilder.ticket_progress WHERE phase = 'catch up'").fetchall())
    first.commit()
    assert pause.reached.wait(20)
    writing = spawn(write_own, rebuilder, second)
    wait_for_lock(db, second.info.backend_pid)
    pause.go.set()
    rebuilding.result(20)
    writing.result(10)
    second.commit()
    assert bank.assert_equal_to_replay(db) == 5
