"""BatchSql: ranges of the log applied by the server alone."""

import pytest

from rebuilder import BatchSql, DefinitionError, Quarantine, RebuildError
from rebuilder.engine import windows
from rebuilder.engine.plan_text import plan_text
from rebuilder.errors import WroteOutsideShadow
from tests.bank import (
    append,
    append_many,
    assert_equal_to_replay,
    make_projection,
    make_rebuilder,
    make_schema,
    rows_of,
)
from tests.kinds import make_batch


@pytest.fixture
def db(connect, dsn):
    connection = connect(dsn, autocommit=True)
    make_schema(connection)
    return connection


def bank(dsn, batch=None, settings=None, **overrides):
    return make_rebuilder(dsn, make_projection(handlers=batch or make_batch(), **overrides), settings=settings)


@pytest.mark.parametrize("settings", [{}, {"batch_seconds": 0.001}], ids=["wide", "narrow"])
def test_ranges_of_any_width_give_the_rows_of_a_replay(db, dsn, monkeypatch, settings):
    """One range or sixty: closed accounts stay closed and every event counts once."""
    monkeypatch.setattr(windows, "FIRST", 50)
    append_many(db, 3000, accounts=100)
    seen = []
    rebuilder = bank(dsn, settings=settings)
    report = rebuilder.rebuild("account_balance", observer=lambda o: seen.append(o) if o.kind == "progress" else None)
    assert (report.events_applied, report.position) == (3000, 3000)
    assert assert_equal_to_replay(db) == report.rows["public.account_balance"]
    assert (len(seen) >= 10) == bool(settings)


def test_events_at_the_fence_and_in_project_come_one_by_one(db, dsn):
    """The tail under the fence and the application's own appends go through the same statements."""
    append_many(db, 300, accounts=10)
    rebuilder = bank(dsn)
    rebuilder.rebuild("account_balance")

    def appends(_run):
        rebuilder._seam.points.clear()
        append(db, "account-1", "Deposited", {"amount": 7}, live=rebuilder)
        append(db, "account-2", "AccountClosed", live=rebuilder)
        append(db, "fresh", "AccountOpened", {"owner": "me"}, live=rebuilder)

    rebuilder._seam.points["fence"] = appends
    report = rebuilder.rebuild("account_balance")
    assert report.events_applied == 303
    assert report.drift.missing + report.drift.extra + report.drift.changed == 0
    assert_equal_to_replay(db)


def test_an_event_that_is_not_in_the_log_yet_is_refused_by_project(db, dsn):
    """Its data is read from the log, so it must be appended first; nothing would be written without a word."""
    rebuilder = bank(dsn)
    position = append(db, "a", "Deposited", {"amount": 1})
    event = rebuilder.log.event({"id": position + 1, "stream": "a", "category": "account", "type": "Deposited",
                                 "schema_version": 1, "data": {"amount": 1}, "recorded_at": None})
    with pytest.raises(DefinitionError, match="append first"), db.transaction():
        rebuilder.project(db, event)


def test_work_mem_is_the_budget_and_only_in_the_run(db, dsn):
    """The main transaction has it locally; the role's own setting is as before."""
    append_many(db, 30)
    seen = []
    rebuilder = bank(dsn, settings={"batch_work_mem": 64 * 2**20})
    rebuilder._seam.points["freeze"] = lambda run: seen.append(run.main.execute("SHOW work_mem").fetchone())
    rebuilder.rebuild("account_balance")
    assert seen == [("64MB",)]
    assert db.execute("SHOW work_mem").fetchone() != ("64MB",)


def test_a_failed_statement_is_an_error_that_names_the_range(db, dsn):
    """Without quarantine it is not known which event it was, and live is as it was."""
    append_many(db, 100, accounts=10)
    position = append(db, "a", "Deposited", {"amount": "much"})
    with pytest.raises(RebuildError, match=rf"from position 1 to {position}: InvalidTextRepresentation") as caught:
        bank(dsn).rebuild("account_balance")
    assert caught.value.sqlstate == "22P02"
    assert rows_of(db) == []


@pytest.mark.parametrize("policy", ["event", "stream"])
def test_quarantine_finds_the_poison_by_bisection(db, dsn, policy):
    """Two poison events among hundreds are set aside alone, or with what follows in their streams."""
    append_many(db, 200, accounts=10)
    poison = [append(db, "account-1", "Deposited", {"amount": "much"})]
    append_many(db, 200, accounts=10)
    poison.append(append(db, "account-2", "Withdrawn", {"amount": "more"}))
    after = append(db, "account-2", "Deposited", {"amount": 1})
    rebuilder = bank(dsn, settings={"batch_page": 64})
    report = rebuilder.rebuild("account_balance", quarantine=Quarantine(policy=policy))
    dead = [row[0] for row in db.execute("SELECT position FROM rebuilder.dead_letter ORDER BY position").fetchall()]
    follow = [row[0] for row in db.execute(
        "SELECT id FROM events WHERE (stream = 'account-1' AND id > %s) OR id = %s", (poison[0], after)).fetchall()]
    assert dead == sorted([*poison, *(follow if policy == "stream" else [])])
    assert report.dead_letters == len(dead)
    db.execute("CREATE TABLE all_events AS SELECT * FROM events")
    db.execute("DELETE FROM events WHERE id = ANY (%s)", (dead,))
    assert_equal_to_replay(db)


def test_no_commit_hides_behind_a_statement(db, dsn):
    """Two commands in one text are refused by the server before any of them runs."""
    append_many(db, 30)
    batch = BatchSql("INSERT INTO account_balance (id, balance, changes) SELECT DISTINCT stream, 0, 0 FROM batch;"
                     " COMMIT", types=["AccountOpened"])
    with pytest.raises(RebuildError, match="multiple commands"):
        bank(dsn, batch).rebuild("account_balance")
    assert rows_of(db) == []


def test_a_write_outside_the_shadow_stops_the_run(db, dsn):
    """The statement names the live table in full."""
    append_many(db, 30)
    batch = BatchSql("INSERT INTO public.account_balance (id, balance, changes)"
                     " SELECT DISTINCT stream, 0, 0 FROM batch", types=["AccountOpened"])
    with pytest.raises(WroteOutsideShadow):
        bank(dsn, batch).rebuild("account_balance")
    assert rows_of(db) == []


def test_the_plan_says_that_ddl_on_the_log_waits(db, dsn):
    """The statements keep their lock on the log to the end of the run (hazard H3): a person must know before."""
    append_many(db, 30)
    plan = bank(dsn).plan("account_balance")
    assert any("DDL on public.events waits" in note for note in plan.notes)
    assert "DDL on public.events waits" in plan_text(plan)
    held = []

    def look(run):
        held.append(db.execute("SELECT mode FROM pg_locks WHERE pid = %s AND relation = 'events'::regclass",
                               (run.main.info.backend_pid,)).fetchall())

    rebuilder = bank(dsn)
    rebuilder._seam.points["freeze"] = look
    rebuilder.rebuild("account_balance")
    assert held == [[("AccessShareLock",)]]


def test_percent_signs_and_verify(db, dsn):
    """A statement's % is its own, and verify goes the same way."""
    append_many(db, 60, accounts=5)
    batch = BatchSql("INSERT INTO account_balance AS b (id, balance, changes) SELECT stream, 0, count(*) FROM batch"
                     " WHERE type LIKE 'Depo%' GROUP BY stream ON CONFLICT (id) DO UPDATE"
                     " SET changes = b.changes + excluded.changes", types=["Deposited", "Withdrawn"])
    rebuilder = bank(dsn, batch)
    rebuilder.rebuild("account_balance")
    assert rows_of(db) == db.execute("SELECT stream, NULL, 0, count(*)::int FROM events WHERE type = 'Deposited'"
                                     " GROUP BY stream ORDER BY 1").fetchall()
    assert rebuilder.verify("account_balance").drift.changed == 0


def test_windows_grow_to_what_is_fast_and_shrink_from_what_is_slow():
    """The width aims at a time, grows at most 64-fold at once, and comes back from a range that did not fit."""
    width = windows.Width(10.0)
    width.saw(windows.FIRST, 0.02)
    assert width.positions == windows.FIRST * 64
    width.saw(width.positions, 1.0)
    assert width.positions == 6_400_000
    width.saw(width.positions, 40.0)
    assert width.positions == 1_600_000
