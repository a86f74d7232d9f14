"""Reports about swaps that lost or damaged data: keys, crashes, freezing, indexes."""

import pytest
from psycopg import errors as pg

from rebuilder import SqlHandlers
from rebuilder.engine import freeze
from rebuilder.errors import ConnectionLost, RebuilderError
from rebuilder.store.install import install
from tests.bank import (
    append,
    append_many,
    assert_equal_to_replay,
    make_projection,
    make_rebuilder,
    make_schema,
    rows_of,
)

NAME = "account_balance"


@pytest.fixture
def db(connect):
    connection = connect(autocommit=True)
    make_schema(connection)
    append_many(connection, 100)
    return connection


# --- keys ------------------------------------------------------------------------------------------------------------

KEYS = {
    "bytea": ("bytea", [r"\x", r"\x00", r"\x0000", r"\x61", r"\x6100", r"\x610000", r"\x6200"], []),
    "char": ("character(6)", ["a", "ab", "b", "", "c", "abc", "d"], ["a  ", "ab ", " "]),
    "numeric": ("numeric", ["1", "2.50", "10", "-3.0", "0.000", "2.05", "NaN"], ["1.00", "2.5", "10.0", "-3"]),
    "citext": ("citext", ["a", "B", "c", "D", "e", "F", "ss"], ["A", "b", "C", "d"]),
}
"""Type, keys, and other spellings that are equal to one of them."""


@pytest.mark.parametrize("kind", KEYS)
def test_keys_are_the_same_if_their_type_says_so(dsn, connect, monkeypatch, kind):
    """Trailing zero bytes, padding, scale and case: rows are matched, copied in chunks and looked at again by the
    database's own equality, neither by texts nor by bytes (gh-ost#654, gh-ost#909).
    """
    monkeypatch.setattr(freeze, "_SMALLEST", 2)
    monkeypatch.setattr(freeze, "_rows_per_chunk", lambda run, main, old: 2)
    type_, keys, others = KEYS[kind]
    db = connect(autocommit=True)
    make_schema(db)
    if type_ == "citext":
        db.execute("CREATE EXTENSION citext")
    db.execute(f"CREATE TABLE keyed (id {type_} PRIMARY KEY, changes int NOT NULL)")
    handlers = SqlHandlers()

    @handlers.on("Counted")
    def counted(event, target):
        target.execute(f"INSERT INTO keyed AS k VALUES (%s::{type_}, 1)"
                       " ON CONFLICT (id) DO UPDATE SET changes = k.changes + 1", (event.stream,))

    rebuilder = make_rebuilder(dsn, make_projection("keyed", tables=["keyed"], handlers=handlers))
    for stream in [*keys, *others, *keys]:
        append(db, stream, "Counted")
    # Live has the other spelling, as an application may have written it.
    db.execute(f"INSERT INTO keyed SELECT stream::{type_}, count(*) FROM events GROUP BY 1")
    for stream in others:
        db.execute(f"UPDATE keyed SET id = %s::{type_} WHERE id = %s::{type_}", (stream, stream))
    spelled = {key for (key,) in db.execute("SELECT id::text FROM keyed")}
    report = rebuilder.rebuild("keyed")
    assert (report.drift.missing, report.drift.extra, report.drift.changed) == (0, 0, 0)
    assert (spelled != {key for (key,) in db.execute("SELECT id::text FROM keyed")}) == (
        kind in {"numeric", "citext"}), "matched as texts they would be lost and invented"
    db.execute(f"UPDATE keyed SET changes = 99 WHERE id = %s::{type_}", (keys[4],))
    db.execute(f"DELETE FROM keyed WHERE id = %s::{type_}", (keys[5],))
    drift = rebuilder.rebuild("keyed").drift
    assert drift.total == 2
    assert drift.changed == 1
    truth = f"SELECT stream::{type_} AS id, count(*)::int FROM events GROUP BY 1"
    assert len(rows_of(db, "keyed")) == len(keys)
    for one, other in ((truth, "TABLE keyed"), ("TABLE keyed", truth)):
        assert db.execute(f"({one}) EXCEPT ALL ({other})").fetchall() == []


# --- a crash ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("persistence", ["p", "u"])
def test_a_server_that_crashes_in_a_rebuild_leaves_live_as_it_was(private_server, connect, persistence):
    """Not a row version of live moves, nothing of the run is found after recovery, and the next run keeps the table as
    it was declared, UNLOGGED too; such a table is emptied by the server, never half filled (pg_repack#71).
    """
    server = private_server()
    install(server.dsn)
    make_schema(db := connect(server.dsn, autocommit=True))
    append_many(db, 200)
    if persistence == "u":
        db.execute("ALTER TABLE account_balance SET UNLOGGED")
    rebuilder = make_rebuilder(server.dsn)
    rebuilder.rebuild(NAME)
    photo = ("SELECT tableoid, pg_relation_filenode(tableoid), ctid, xmin::text, xmax::text, id, owner, balance,"
             " changes FROM account_balance ORDER BY ctid")
    declared = "SELECT oid, relpersistence FROM pg_class WHERE oid = 'account_balance'::regclass"
    before, what = db.execute(photo).fetchall(), db.execute(declared).fetchone()
    assert what[1] == persistence
    db.close()
    rebuilder._seam.points["freeze"] = lambda run: server.crash()
    with pytest.raises(ConnectionLost):
        rebuilder.rebuild(NAME)
    server.start()
    rebuilder._seam.points.clear()
    db = connect(server.dsn, autocommit=True)
    assert db.execute(photo).fetchall() == (before if persistence == "p" else [])
    assert db.execute(declared).fetchone() == what
    rebuilder.rebuild(NAME)
    assert db.execute(declared).fetchone()[1] == persistence
    assert assert_equal_to_replay(db) == len(before)


# --- freezing --------------------------------------------------------------------------------------------------------


def test_the_new_table_is_young_and_sound(dsn, db):
    """relfrozenxid of table and TOAST table is that of the rebuild, not of the table that was replaced, and no row is
    older than it says; heap and indexes agree (pg_repack#152, pg_repack#377).
    """
    db.execute("CREATE INDEX by_owner ON account_balance (owner)")
    rebuilder = make_rebuilder(dsn)
    rebuilder.rebuild(NAME)
    db.execute("DO $$ BEGIN FOR n IN 1..2000 LOOP PERFORM pg_current_xact_id(); COMMIT; END LOOP; END $$")
    ages = ("SELECT age(c.relfrozenxid), age(t.relfrozenxid), mxid_age(c.relminmxid) FROM pg_class c"
            " JOIN pg_class t ON t.oid = c.reltoastrelid WHERE c.oid = 'account_balance'::regclass")
    old, old_toast, _ = db.execute(ages).fetchone()
    assert min(old, old_toast) >= 2000
    for owner in ("x" * 100_000, "y"):  # what is applied before and after the freeze
        append(db, "account-1", "OwnerRenamed", {"owner": owner})
        rebuilder._seam.points["fence"] = lambda run: append(db, "account-2", "OwnerRenamed", {"owner": "z"})
        rebuilder.rebuild(NAME)
    age, toast, multi = db.execute(ages).fetchone()
    assert max(age, toast) < 1000
    assert multi < 1000
    assert db.execute("SELECT min(age(xmin)) >= 0, max(age(xmin)) FILTER (WHERE xmin::text::bigint > 2) <= %s"
                      " FROM account_balance", (age,)).fetchone()[0]
    if db.execute("SELECT FROM pg_available_extensions WHERE name = 'amcheck'").fetchone() is not None:
        db.execute("CREATE EXTENSION amcheck")
        assert db.execute("SELECT * FROM verify_heapam('account_balance', check_toast => true)").fetchall() == []
        db.execute("SELECT bt_index_parent_check(indexrelid, true, true) FROM pg_index"
                   " WHERE indrelid = 'account_balance'::regclass")
    assert_equal_to_replay(db)


# --- indexes ---------------------------------------------------------------------------------------------------------


def test_an_index_that_could_not_be_built_is_refused_by_name(dsn, db):
    """CREATE UNIQUE INDEX CONCURRENTLY that met duplicates leaves an invalid index: a copy of it would fail or be
    valid. The run says so before it reads anything, and goes through once it is gone (pg_repack#284, pg_repack#422).
    """
    rebuilder = make_rebuilder(dsn)
    rebuilder.rebuild(NAME)
    db.execute("UPDATE account_balance SET balance = 7")
    with pytest.raises(pg.UniqueViolation):
        db.execute("CREATE UNIQUE INDEX CONCURRENTLY broken ON account_balance (balance)")
    before, reached = rows_of(db), []
    rebuilder._seam.points["freeze"] = reached.append
    with pytest.raises(RebuilderError, match="broken") as caught:
        rebuilder.rebuild(NAME)
    assert "invalid" in str(caught.value)
    assert (rows_of(db), reached) == (before, [])
    db.execute("DROP INDEX broken")
    rebuilder.rebuild(NAME)
    assert_equal_to_replay(db)
