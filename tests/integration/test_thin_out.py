"""The shadow is copied during the bulk, when row versions left behind slow it down, and nothing is lost by that."""

import pytest

from rebuilder import Quarantine, SqlHandlers
from rebuilder.domain.slowdown import Slowdown
from rebuilder.engine import catch_up, freeze
from tests.bank import (
    append,
    append_many,
    assert_equal_to_replay,
    make_handlers,
    make_projection,
    make_rebuilder,
    make_schema,
)


@pytest.fixture
def db(connect):
    connection = connect(autocommit=True)
    make_schema(connection)
    return connection


@pytest.fixture
def copies(monkeypatch):
    """Let every page be found slow, and count the copies."""
    made = []
    monkeypatch.setattr(Slowdown, "pays", lambda *_, **__: True)
    monkeypatch.setattr(Slowdown, "copied", lambda _self, rows, seconds: made.append(rows))
    monkeypatch.setattr(freeze, "_FEW_VERSIONS", 1)
    return made


def test_a_slow_bulk_is_copied_and_stays_equal_to_the_log(dsn, db, copies):
    append_many(db, 5000, accounts=20)
    report = make_rebuilder(dsn, settings={"batch": 500}).rebuild("account_balance")
    assert len(copies) == 10
    assert report.events_applied == 5000
    assert_equal_to_replay(db)


def test_after_a_copy_serial_positions_and_keys_go_on(dsn, db, copies):
    db.execute("ALTER TABLE account_balance ADD number bigserial UNIQUE, ADD tag bigint GENERATED ALWAYS AS IDENTITY")
    db.execute("CREATE INDEX by_owner ON account_balance (owner)")
    append_many(db, 2000, accounts=20)
    make_rebuilder(dsn, settings={"batch": 300}).rebuild("account_balance")
    assert len(copies) == 7
    assert_equal_to_replay(db)
    numbers = db.execute("SELECT count(DISTINCT number), count(DISTINCT tag), count(*) FROM account_balance").fetchone()
    assert numbers[0] == numbers[1] == numbers[2]
    assert db.execute("SELECT indexname FROM pg_indexes WHERE schemaname = 'public' AND tablename = 'account_balance'"
                      " ORDER BY 1").fetchall() == [
        ("account_balance_number_key",), ("account_balance_pkey",), ("by_owner",)]


def test_no_copy_is_made_inside_a_savepoint_of_the_quarantine(dsn, db, copies):
    handlers = make_handlers()

    @handlers.on("Poison")
    def poison(event, target):
        raise ValueError("poison")

    append_many(db, 1500, accounts=10)
    append(db, "elsewhere", "Poison")
    append_many(db, 1500, accounts=10)
    rebuilder = make_rebuilder(dsn, make_projection(handlers=handlers), settings={"batch": 50})
    report = rebuilder.rebuild("account_balance", quarantine=Quarantine(policy="event"))
    assert report.dead_letters == 1
    assert 20 < len(copies) < 60  # one for each savepoint that was released, not for each page
    assert_equal_to_replay(db)


def test_what_deferred_constraints_wait_for_may_come_with_a_later_page(dsn, db, copies):
    """Two rows that swap a unique value, an event each: between the two no copy may be made, and none fails."""
    db.execute("CREATE TABLE place (id text PRIMARY KEY, seat int NOT NULL,"
               " UNIQUE (seat) DEFERRABLE INITIALLY DEFERRED)")
    handlers = SqlHandlers()

    @handlers.on("Seated")
    def seated(event, target):
        target.execute("INSERT INTO place (id, seat) VALUES (%s, %s) ON CONFLICT (id) DO UPDATE"
                       " SET seat = excluded.seat", (event.stream, event.data["seat"]))

    for name, seat in (("a", 1), ("b", 2), ("a", 2), ("b", 1), ("a", 3)):
        append(db, name, "Seated", {"seat": seat})
    projection = make_projection("place", tables=["place"], handlers=handlers)
    make_rebuilder(dsn, projection, settings={"batch": 1}).rebuild("place")
    assert db.execute("SELECT * FROM place ORDER BY id").fetchall() == [("a", 3), ("b", 1)]
    assert copies == [2, 2]


def test_a_slowness_that_no_old_version_explains_makes_no_copy(dsn, db, copies, monkeypatch):
    monkeypatch.setattr(freeze, "_FEW_VERSIONS", 5000)
    append_many(db, 2000, accounts=20)
    make_rebuilder(dsn, settings={"batch": 500}).rebuild("account_balance")
    assert copies == []
    assert_equal_to_replay(db)


def test_each_page_is_measured(dsn, db, monkeypatch):
    told = []
    monkeypatch.setattr(catch_up.Slowdown, "add", lambda _self, events, seconds: told.append((events, seconds > 0)))
    append_many(db, 1200, accounts=20)
    make_rebuilder(dsn, settings={"batch": 500}).rebuild("account_balance")
    assert told[:3] == [(500, True), (500, True), (200, True)]
