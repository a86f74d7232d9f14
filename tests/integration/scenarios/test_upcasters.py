"""Old events are lifted to their current version when they are read; what is stored stays as it is."""

import psycopg
import pytest

from rebuilder import Upcasters
from rebuilder.errors import HandlerFailed, LogDefinitionError
from tests.bank import append, make_log, make_projection, make_rebuilder, make_schema, rows_of


@pytest.fixture
def db(connect):
    connection = connect(autocommit=True)
    make_schema(connection)
    return connection


def chain():
    """Version 1 counts in euros, 2 in cents, 3 calls the field `amount`."""
    upcasters = Upcasters({"Deposited": 3})
    upcasters.on("Deposited", from_version=1)(lambda data, context: {"cents": data["euros"] * 100})
    upcasters.on("Deposited", from_version=2)(lambda data, context: {"amount": data["cents"]})
    return upcasters


def test_mixed_versions_are_replayed_in_the_current_shape(dsn, db):
    """Events of versions 1, 2 and 3 arrive in the shape of version 3, live as in the rebuild (scenario 109)."""
    rebuilder = make_rebuilder(dsn, make_projection(upcasters=chain()))
    append(db, "a", "Deposited", {"euros": 1}, live=rebuilder)
    append(db, "a", "Deposited", {"cents": 20}, schema_version=2, live=rebuilder)
    append(db, "a", "Deposited", {"amount": 3}, schema_version=3, live=rebuilder)
    stored = db.execute("SELECT data, schema_version FROM events ORDER BY id").fetchall()
    assert rows_of(db) == [("a", None, 123, 3)]
    report = rebuilder.rebuild("account_balance")
    assert (report.events_applied, report.drift.total) == (3, 0)
    assert rows_of(db) == [("a", None, 123, 3)]
    assert db.execute("SELECT data, schema_version FROM events ORDER BY id").fetchall() == stored


def test_an_upcaster_may_look_things_up(dsn, db):
    """Data that old events did not carry can come from another table, by the event's own tenant (scenario 110)."""
    db.execute("CREATE TABLE rate (tenant text, currency text, cents int);"
               "INSERT INTO rate VALUES ('blue', 'USD', 90), ('red', 'USD', 80);"
               "ALTER TABLE events ADD tenant text")
    upcasters = Upcasters()

    @upcasters.on("Deposited", from_version=1)
    def in_cents(data, context):
        row = context.fetch_one("SELECT cents FROM rate WHERE tenant = %s AND currency = %s",
                                (context.tenant, data["currency"]))
        return {"amount": data["amount"] * row[0]}

    rebuilder = make_rebuilder(dsn, make_projection(upcasters=upcasters), log=make_log(columns={"tenant": "tenant"}))
    append(db, "a", "Deposited", {"amount": 2, "currency": "USD"}, tenant="blue", live=rebuilder)
    append(db, "b", "Deposited", {"amount": 2, "currency": "USD"}, tenant="red", live=rebuilder)
    assert rebuilder.rebuild("account_balance").drift.total == 0
    assert rows_of(db) == [("a", None, 180, 1), ("b", None, 160, 1)]


def test_an_upcaster_can_not_write_in_a_rebuild(dsn, db):
    """Its look into the database is read-only: a write fails the run at the event (scenario 110)."""
    upcasters = Upcasters()
    upcasters.on("Deposited", from_version=1)(
        lambda data, context: context.fetch_one("DELETE FROM events RETURNING id"))
    append(db, "a", "Deposited", {"amount": 1})
    with pytest.raises(HandlerFailed, match="read-only") as caught:
        make_rebuilder(dsn, make_projection(upcasters=upcasters)).rebuild("account_balance")
    assert isinstance(caught.value.__cause__, psycopg.errors.ReadOnlySqlTransaction)
    assert db.execute("SELECT count(*) FROM events").fetchone() == (1,)


def test_upcasters_need_to_know_the_version_of_an_event(dsn, db):
    """A log whose columns name no schema version can't be lifted: that is said before anything is read
    (scenario 111).
    """
    rebuilder = make_rebuilder(dsn, make_projection(upcasters=chain()), log=make_log(columns={"schema_version": None}))
    with pytest.raises(LogDefinitionError, match="schema_version"):
        rebuilder.rebuild("account_balance")


def test_an_event_from_the_future_is_left_as_it_is(dsn, db):
    """A version later than the chain knows is not lifted: what the handler makes of it is the handler's business
    (scenario 111).
    """
    append(db, "a", "Deposited", {"amount": 4}, schema_version=7)
    make_rebuilder(dsn, make_projection(upcasters=chain())).rebuild("account_balance")
    assert rows_of(db) == [("a", None, 4, 1)]
