"""Field cases about sequences, partitions and further tables of one read model."""

import psycopg
import pytest

from rebuilder import SqlHandlers
from rebuilder.errors import HandlerFailed, PreflightRefused, WroteOutsideShadow
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

NAME = "account_balance"


@pytest.fixture
def db(connect):
    connection = connect(autocommit=True)
    make_schema(connection)
    append_many(connection, 100)
    return connection


def test_sequences_go_on_where_they_stood(dsn, db):
    """Of a bigserial, an identity and a hand-made `nextval` default: kept under name and owner, never behind a value
    that is in the table, and not gone with the old table (pg-toolbelt#228, field case B34).
    """
    db.execute("CREATE SEQUENCE tickets START 500; ALTER TABLE account_balance ADD a bigserial UNIQUE,"
               " ADD b bigint GENERATED ALWAYS AS IDENTITY UNIQUE, ADD c bigint DEFAULT nextval('tickets') UNIQUE")
    owned = ("SELECT s.relname, d.deptype::text, d.refobjid::regclass::text, d.refobjsubid FROM pg_class AS s"
             " LEFT JOIN pg_depend AS d ON d.classid = 'pg_class'::regclass AND d.objid = s.oid"
             " AND d.deptype IN ('a', 'i') AND d.refclassid = 'pg_class'::regclass"
             " WHERE s.relkind = 'S' AND s.relnamespace = 'public'::regnamespace ORDER BY 1")
    before = db.execute(owned).fetchall()
    assert [name for name, *_ in before] == ["account_balance_a_seq", "account_balance_b_seq", "events_id_seq",
                                             "tickets"]
    projection = make_projection(not_compared=["a", "b", "c"])
    for run in range(3):
        report = make_rebuilder(dsn, projection).rebuild(NAME)
        assert db.execute(owned).fetchall() == before
        if run == 1:
            db.execute(f"DROP TABLE {report.retired[0]}")
        highest = db.execute("SELECT max(a), max(b), max(c) FROM account_balance").fetchone()
        append(db, f"new-{run}", "Deposited", {"amount": 1}, live=make_rebuilder(dsn, projection))
        drawn = db.execute("SELECT a, b, c FROM account_balance WHERE id = %s", (f"new-{run}",)).fetchone()
        assert all(new > old for new, old in zip(drawn, highest, strict=True)), (drawn, highest)
    assert_equal_to_replay(db)


@pytest.mark.parametrize("table", ["account_balance", "balance_a"])
def test_a_partitioned_read_model_is_refused_by_name(dsn, db, table):
    """The parent is refused, and so is a partition of it; both are as they were (marten#4706, field case B40)."""
    db.execute("DROP TABLE account_balance; CREATE TABLE account_balance (id text, owner text, balance bigint NOT NULL,"
               " changes int NOT NULL, tenant text DEFAULT 'a', PRIMARY KEY (id, tenant)) PARTITION BY LIST (tenant);"
               "CREATE TABLE balance_a PARTITION OF account_balance FOR VALUES IN ('a');"
               "INSERT INTO account_balance VALUES ('account-1', 'x', 7, 1)")
    with pytest.raises(PreflightRefused, match="partition") as caught:
        make_rebuilder(dsn, make_projection(tables=[table])).rebuild(NAME)
    assert ("account_balance" in str(caught.value), caught.value.exit_code) == (True, 3)
    assert rows_of(db) == rows_of(db, "balance_a") == [("account-1", "x", 7, 1, "a")]
    assert db.execute("SELECT inhparent::regclass::text FROM pg_inherits"
                      " WHERE inhrelid = 'balance_a'::regclass").fetchall() == [("account_balance",)]


# --- more than one table ---------------------------------------------------------------------------------------------


def emailing():
    """The bank's handlers, which also keep a lookup table whose key an event changes."""
    inner, handlers = make_handlers(), SqlHandlers()

    @handlers.on("AccountOpened", "OwnerRenamed")
    def named(event, target):
        inner.handler(event.type)(event, target)
        target.execute("DELETE FROM account_by_owner WHERE account = %s", (event.stream,))
        target.execute("INSERT INTO account_by_owner (owner, account) VALUES (%s, %s)",
                       (event.data["owner"], event.stream))

    @handlers.on("Deposited", "Withdrawn")
    def moved(event, target):
        inner.handler(event.type)(event, target)

    @handlers.on("AccountClosed")
    def closed(event, target):
        target.execute("DELETE FROM account_by_owner WHERE account = %s", (event.stream,))
        inner.handler(event.type)(event, target)

    return handlers


@pytest.fixture
def lookup(db):
    db.execute("CREATE TABLE account_by_owner (owner text PRIMARY KEY, account text NOT NULL UNIQUE)")
    return db


def expected_lookup(db):
    return db.execute("SELECT owner, id FROM account_balance WHERE owner IS NOT NULL ORDER BY 1").fetchall()


@pytest.mark.parametrize("there, error", [(True, HandlerFailed), (False, WroteOutsideShadow)])
def test_a_second_table_that_is_not_declared_is_caught(dsn, lookup, there, error):
    """Whether it is empty or already has the rows and the replay stumbles over them: the run fails, names the table,
    and both tables are as they were; declared, the run goes through (marten#4969, field case B41).
    """
    handlers = SqlHandlers()
    inner = make_handlers()

    @handlers.on(*inner.types)
    def handler(event, target):
        inner.handler(event.type)(event, target)
        if event.type == "AccountOpened":
            target.execute("INSERT INTO account_by_owner (owner, account) VALUES (%s, %s)",
                           (event.data["owner"], event.stream))

    rebuilder = make_rebuilder(dsn, make_projection(tables=[NAME, "account_by_owner"], handlers=handlers))
    rebuilder.rebuild(NAME)
    lookup.execute("UPDATE account_balance SET balance = -1")
    if not there:
        lookup.execute("TRUNCATE account_by_owner")
    before = rows_of(lookup), rows_of(lookup, "account_by_owner")
    with pytest.raises(error, match="account_by_owner"):
        make_rebuilder(dsn, make_projection(handlers=handlers)).rebuild(NAME)
    assert (rows_of(lookup), rows_of(lookup, "account_by_owner")) == before
    rebuilder.rebuild(NAME)
    assert_equal_to_replay(lookup)
    assert len(rows_of(lookup, "account_by_owner")) == 10


def test_main_and_lookup_table_are_rebuilt_and_swapped_together(dsn, lookup):
    """A key that an event changes is changed in both, in the bulk and in what comes during the run; when the swap is
    undone at its last moment neither is swapped (marten#4788, #4966 and #5041, field case B43).
    """
    projection = make_projection(tables=[NAME, "account_by_owner"], handlers=emailing())
    rebuilder, application = make_rebuilder(dsn, projection), make_rebuilder(dsn, projection)
    rebuilder.rebuild(NAME)
    assert rows_of(lookup, "account_by_owner") == expected_lookup(lookup)
    lookup.execute("UPDATE account_by_owner SET owner = 'stale ' || owner; UPDATE account_balance SET balance = -1")
    before = rows_of(lookup), rows_of(lookup, "account_by_owner")

    class Undone(Exception):
        pass

    def undo(run):
        raise Undone

    rebuilder._seam.points["before commit"] = undo
    with pytest.raises(Undone):
        rebuilder.rebuild(NAME)
    assert (rows_of(lookup), rows_of(lookup, "account_by_owner")) == before
    del rebuilder._seam.points["before commit"]
    renamed = []

    def rename(run):
        if not renamed:
            renamed.append(append(lookup, "account-1", "OwnerRenamed", {"owner": "late"}, live=application))

    rebuilder._seam.points["freeze"] = rename
    rebuilder.rebuild(NAME)
    assert renamed
    assert_equal_to_replay(lookup)
    assert rows_of(lookup, "account_by_owner") == expected_lookup(lookup)
    assert ("late", "account-1") in rows_of(lookup, "account_by_owner")
    append(lookup, "account-1", "OwnerRenamed", {"owner": "later"}, live=application)
    assert rows_of(lookup, "account_by_owner") == expected_lookup(lookup)
    with pytest.raises(psycopg.errors.UniqueViolation):
        lookup.execute("INSERT INTO account_by_owner VALUES ('later', 'x')")
