"""After the commit: the retired table and how long it is kept, what is owed, and what `cleanup` may touch."""

import os
import signal

import psycopg
import pytest

from rebuilder import Stage
from rebuilder.errors import WroteOutsideShadow
from tests import bank
from tests.integration.control.watch import nothing_left, photo


def schemas(db, prefix):
    return [row[0] for row in db.execute("SELECT nspname FROM pg_namespace WHERE nspname LIKE %s ORDER BY 1",
                                         [prefix + "%"])]


def owed(db):
    return db.execute("SELECT kind, label, done_at IS NOT NULL FROM rebuilder.owed ORDER BY id").fetchall()


# --- retired tables --------------------------------------------------------------------------------------------------


def test_the_retired_table_is_kept_as_the_way_back(db, dsn):
    """It holds the rows that live had, is named in report and status, and cleanup keeps it until its time."""
    rebuilder, before = bank.make_rebuilder(dsn), bank.rows_of(db)
    report = rebuilder.rebuild("account_balance")
    [name] = report.retired
    assert name.startswith("rebuilder_retired_")
    assert bank.rows_of(db, name) == before
    [status] = rebuilder.status()
    assert (status.kept, status.owed, report.owed) == ((name,), (), ())
    [kept] = rebuilder.cleanup()
    assert (kept.kind, kept.label, kept.done, kept.error) == ("drop-retired", name, False, None)
    assert kept.due is not None
    assert bank.rows_of(db, name) == before


def test_the_next_rebuild_drops_the_retired_table_of_the_last(db, dsn):
    """Only one way back is kept, and the first one's schema goes with its table."""
    rebuilder = bank.make_rebuilder(dsn)
    first, second = (rebuilder.rebuild("account_balance") for _ in range(2))
    assert first.retired != second.retired
    assert schemas(db, "rebuilder_") == [second.retired[0].split(".")[0]]
    assert owed(db) == [("drop-retired", first.retired[0], True), ("drop-retired", second.retired[0], False)]


@pytest.mark.parametrize("how", [{"retire": "drop"}, {}])
def test_a_retired_table_that_nobody_wants_goes_at_once(db, dsn, how):
    """With retire="drop", or a retention of 0 hours, the disk is given back right after the commit."""
    rebuilder = bank.make_rebuilder(dsn, settings={} if how else {"retain_hours": 0})
    report = rebuilder.rebuild("account_balance", **how)
    assert schemas(db, "rebuilder_") == []
    assert report.owed == ()
    assert rebuilder.cleanup() == []
    assert bank.assert_equal_to_replay(db) == 5


def test_a_retired_table_goes_when_its_time_has_come(db, dsn):
    """The retention is counted by the server's clock; cleanup drops what is due."""
    rebuilder = bank.make_rebuilder(dsn, settings={"retain_hours": 2})
    rebuilder.rebuild("account_balance")
    hours = db.execute("SELECT extract(epoch FROM due_at - now()) / 3600 FROM rebuilder.owed").fetchone()[0]
    assert 1.9 < hours <= 2
    db.execute("UPDATE rebuilder.owed SET due_at = now() - interval '1 second'")
    [gone] = rebuilder.cleanup()
    assert (gone.done, gone.error) == (True, None)
    assert schemas(db, "rebuilder_") == []


def test_cleanup_of_all_drops_what_is_kept_and_nothing_that_no_ticket_registered(db, dsn):
    """Schemas and tables that only look like ours are somebody's own."""
    rebuilder = bank.make_rebuilder(dsn)
    report = rebuilder.rebuild("account_balance")
    db.execute("CREATE SCHEMA rebuilder_retired_mine; CREATE TABLE rebuilder_retired_mine.account_balance (id int);"
               "CREATE SCHEMA rebuilder_work_mine; CREATE TABLE rebuilder_work_mine.account_balance (id int)")
    live = photo(db)[:2]
    [gone] = rebuilder.cleanup(all_kept=True)
    assert (gone.label, gone.done) == (report.retired[0], True)
    assert schemas(db, "rebuilder_") == ["rebuilder_retired_mine", "rebuilder_work_mine"]
    assert db.execute("SELECT to_regclass('rebuilder_retired_mine.account_balance') IS NOT NULL,"
                      " to_regclass('rebuilder_work_mine.account_balance') IS NOT NULL").fetchone() == (True, True)
    assert photo(db)[:2] == live


def test_a_table_that_somebody_put_into_the_retired_schema_stays(db, dsn):
    """The retired table goes; the schema stays for what else is in it."""
    rebuilder = bank.make_rebuilder(dsn)
    [name] = rebuilder.rebuild("account_balance").retired
    schema = name.split(".")[0]
    db.execute(f"CREATE TABLE {schema}.notes (id int)")
    assert [cleaned.done for cleaned in rebuilder.cleanup(all_kept=True)] == [True]
    assert db.execute("SELECT relname FROM pg_class WHERE relnamespace = to_regnamespace(%s)",
                      [schema]).fetchall() == [("notes",)]


def test_a_retired_table_that_a_view_reads_is_reported_and_not_dropped(db, dsn):
    """Never CASCADE: the view is named as the reason, stays, and the drop goes through once it is gone."""
    rebuilder = bank.make_rebuilder(dsn)
    [name] = rebuilder.rebuild("account_balance").retired
    db.execute(f"CREATE VIEW before AS SELECT * FROM {name}")
    [kept] = rebuilder.cleanup(all_kept=True)
    assert (kept.done, kept.label) == (False, name)
    assert "other objects depend on it" in kept.error
    assert db.execute("SELECT count(*) FROM before").fetchone() == (2,)
    # The next rebuild owes it and says so; it is not a failure.
    report = rebuilder.rebuild("account_balance")
    assert [(item.kind, item.label) for item in report.owed] == [("drop-retired", name)]
    [status] = rebuilder.status()
    assert [item.label for item in status.owed] == [name]
    assert any(name in finding.message and finding.command == "rebuilder cleanup" for finding in rebuilder.doctor())
    db.execute("DROP VIEW before")
    assert [cleaned.done for cleaned in rebuilder.cleanup() if cleaned.label == name] == [True]
    assert rebuilder.status()[0].owed == ()


# --- owed keys -------------------------------------------------------------------------------------------------------


def test_a_key_that_can_not_be_validated_is_owed_until_it_can(db, dsn):
    """Rows that refer to what no replay makes leave the key NOT VALID: reported, and settled when they are mended."""
    db.execute("CREATE TABLE card (account text REFERENCES account_balance); INSERT INTO card VALUES ('nobody')")
    rebuilder = bank.make_rebuilder(dsn)
    report = rebuilder.rebuild("account_balance")
    assert [item.kind for item in report.owed] == ["validate-constraint"]
    valid = "SELECT convalidated FROM pg_constraint WHERE conrelid = 'card'::regclass AND contype = 'f'"
    assert db.execute(valid).fetchone() == (False,)
    with pytest.raises(psycopg.errors.ForeignKeyViolation):  # new rows are checked all the same
        db.execute("INSERT INTO card VALUES ('no such account')")
    [failed] = [cleaned for cleaned in rebuilder.cleanup() if cleaned.kind == "validate-constraint"]
    assert "card_account_fkey" in failed.error
    db.execute("UPDATE card SET account = 'account-1'")
    [done] = [cleaned for cleaned in rebuilder.cleanup() if cleaned.kind == "validate-constraint"]
    assert (done.done, done.error) == (True, None)
    assert db.execute(valid).fetchone() == (True,)


# --- what other runs left --------------------------------------------------------------------------------------------


def test_cleanup_closes_the_ticket_of_a_killed_process_and_of_no_other(db, dsn, program):
    """A run that is alive holds its state row, so its ticket is left alone."""
    rebuilder = bank.make_rebuilder(dsn)
    pid = program.start(dsn, "freeze")
    [running] = rebuilder.tickets()
    assert rebuilder.cleanup() == []
    assert rebuilder.tickets()[0].stage == Stage.RUNNING
    os.kill(pid, signal.SIGKILL)
    program.ended()
    nothing_left(db)
    [warned] = [finding for finding in rebuilder.doctor() if str(running.id) in finding.message]
    assert warned.command == "rebuilder cleanup"
    [closed] = rebuilder.cleanup()
    assert (closed.kind, closed.done) == ("abandoned-ticket", True)
    assert str(running.id) in closed.label
    assert (rebuilder.tickets()[0].stage, rebuilder.tickets()[0].failure_code) == (Stage.FAILED, "abandoned")


def test_what_a_handler_committed_of_the_shadow_is_dropped_by_cleanup(db, dsn):
    """A handler that commits ends the run's transaction: refused, live untouched, and its schemas are cleared away."""
    handlers = bank.make_handlers()
    handlers.on("Ended")(lambda event, target: target._connection.execute("COMMIT"))
    bank.append(db, "account-1", "Ended")
    before = photo(db)
    rebuilder = bank.make_rebuilder(dsn, bank.make_projection(handlers=handlers))
    with pytest.raises(WroteOutsideShadow, match="COMMIT") as caught:
        rebuilder.rebuild("account_balance")
    assert "rebuilder cleanup" in caught.value.hint
    nothing_left(db)
    assert photo(db)[:2] == before[:2]
    assert schemas(db, "rebuilder_work_") != []
    cleaned = rebuilder.cleanup()
    assert {(item.kind, item.done) for item in cleaned} == {("work-schema", True)}
    assert photo(db) == before
    assert rebuilder.tickets()[0].failure_code == "wrote-outside-shadow"
