"""What an application gets wrong is said with a hint, by the right class, and live is to the byte as it was."""

import dataclasses

import psycopg
import pytest
from psycopg import sql

from rebuilder import DefinitionError, RebuilderError, Stage
from rebuilder.errors import (
    ConnectionLost,
    HandlerFailed,
    MissingPrivilege,
    PreflightRefused,
    UnknownProjection,
    UnsupportedServer,
    WroteOutsideShadow,
)
from rebuilder.store import sessions
from tests import bank
from tests.integration.control.watch import last_ticket, nothing_left, photo


def refused(db, rebuilder, kind, exit_code, name="account_balance", **options):
    """A rebuild raises this, with a hint, and leaves nothing behind; the error."""
    before = photo(db)
    with pytest.raises(kind) as caught:
        rebuilder.rebuild(name, **options)
    error = caught.value
    assert type(error) is kind
    assert (error.exit_code, bool(error.hint)) == (exit_code, True)
    assert error.to_json()["hint"] == error.hint
    nothing_left(db)
    assert photo(db) == before
    return error


# --- definitions -----------------------------------------------------------------------------------------------------


def test_a_projection_that_is_not_registered_is_answered_with_the_closest_names(db, dsn):
    """A typing error costs one look, and no connection."""
    error = refused(db, bank.make_rebuilder(dsn), UnknownProjection, 2, name="acount_balance")
    assert "'account_balance'" in error.hint
    assert error.known == ["account_balance"]


def test_a_table_that_does_not_exist_is_named(db, dsn):
    """With the database in which it was looked for."""
    projection = bank.make_projection(tables=["account_balances"])
    error = refused(db, bank.make_rebuilder(dsn, projection), DefinitionError, 2)
    assert error.table == "account_balances"
    assert db.info.dbname in str(error)


def test_a_table_without_a_primary_key_is_refused(db, dsn):
    """Before anything is replayed, with the statement that gives it one."""
    db.execute("ALTER TABLE account_balance DROP CONSTRAINT account_balance_pkey")
    error = refused(db, bank.make_rebuilder(dsn), PreflightRefused, 3)
    assert "primary key" in str(error)
    assert "ADD PRIMARY KEY" in error.hint


@pytest.mark.parametrize("options", [
    {"max_rate": 0}, {"deadline": -1}, {"allow": ["shrinking"]}, {"reason": "because"}, {"retire": "burn"},
    {"blockers": "kill"}], ids=str)
def test_an_option_that_is_none_is_refused_before_anything_is_done(db, dsn, options):
    """A wrong word must not become a default that somebody did not mean."""
    rebuilder = bank.make_rebuilder(dsn)
    before = photo(db)
    with pytest.raises(DefinitionError) as caught:
        rebuilder.rebuild("account_balance", **options)
    [value] = options.values()
    assert str(value[0] if isinstance(value, list) else value) in str(caught.value)
    assert rebuilder.tickets() == []
    assert photo(db) == before


# --- events and handlers ---------------------------------------------------------------------------------------------


def poison(event, target):
    raise LookupError("no such thing")


@pytest.mark.parametrize("data,error_class,sqlstate", [
    ({}, "KeyError", None),
    ({"amount": "much"}, "InvalidTextRepresentation", "22P02"),
    ({"amount": 2**70}, "NumericValueOutOfRange", "22003"),
    ([1, 2], "TypeError", None),
], ids=str)
def test_an_event_that_is_not_what_its_handler_expects_is_named(db, dsn, data, error_class, sqlstate):
    """Position, type, stream, class and SQLSTATE; the right event, though its statement was queued among others."""
    position = bank.append(db, "account-3", "Deposited", data)
    bank.append_many(db, 20, accounts=5)
    rebuilder = bank.make_rebuilder(dsn)
    error = refused(db, rebuilder, HandlerFailed, 1)
    assert (error.position, error.type, error.stream) == (position, "Deposited", "account-3")
    assert (error.error_class, error.fields.get("sqlstate")) == (error_class, sqlstate)
    assert str(position) in str(error)
    assert "much" not in str(error)  # data stays out of messages
    assert "quarantine" in error.hint
    ticket = last_ticket(rebuilder)
    assert (ticket.stage, ticket.failure["position"]) == (Stage.FAILED, position)


def test_a_handler_that_raises_is_named_with_its_event(db, dsn):
    """What Python code raises is the cause of the error, so that its traceback is there."""
    handlers = bank.make_handlers()
    handlers.on("Odd")(poison)
    position = bank.append(db, "account-4", "Odd")
    error = refused(db, bank.make_rebuilder(dsn, bank.make_projection(handlers=handlers)), HandlerFailed, 1)
    assert (error.position, error.error_class) == (position, "LookupError")
    assert isinstance(error.__cause__, LookupError)


def test_a_handler_that_breaks_a_constraint_is_named_with_its_event(db, dsn):
    """The shadow has live's constraints from the start."""
    db.execute("DELETE FROM account_balance; ALTER TABLE account_balance ADD CHECK (balance < 100000)")
    position = bank.append(db, "account-2", "Deposited", {"amount": 10**6})
    error = refused(db, bank.make_rebuilder(dsn), HandlerFailed, 1)
    assert (error.position, error.sqlstate) == (position, "23514")
    assert "Failing row" not in str(error)  # the server's DETAIL quotes the row


@pytest.mark.parametrize("statement,named", [
    ("INSERT INTO public.account_balance VALUES ('new', 'x', 1, 1)", "public.account_balance"),
    ("UPDATE public.account_balance SET balance = 0 WHERE id = 'no such row'", "public.account_balance"),
    ("DELETE FROM public.account_balance", "public.account_balance"),
    ("TRUNCATE public.account_balance", "public.account_balance"),
    ("INSERT INTO notes VALUES ('sent')", "public.notes"),
    ("SELECT nextval('numbers')", "public.numbers"),
    ("LOCK TABLE notes IN SHARE MODE", "public.notes"),
])
def test_a_handler_that_writes_elsewhere_is_stopped(db, dsn, statement, named):
    """To live itself or to a table that the projection does not declare, rows or none: a replay must not repeat it."""
    db.execute("CREATE TABLE notes (text text); CREATE SEQUENCE numbers")
    handlers = bank.make_handlers()
    handlers.on("Noted")(lambda event, target: target.execute(statement))
    bank.append(db, "account-1", "Noted")
    rebuilder = bank.make_rebuilder(dsn, bank.make_projection(handlers=handlers))
    error = refused(db, rebuilder, WroteOutsideShadow, 1)
    assert error.tables == [named]
    assert named in str(error)
    assert db.execute("SELECT count(*) FROM notes").fetchone() == (0,)
    assert last_ticket(rebuilder).failure_code == "wrote-outside-shadow"


@pytest.mark.parametrize("statement", [
    "COMMIT", b"commit and chain", " /* now */ END", "; -- now\nABORT", sql.SQL("ROLLBACK"), "Rollback Work", "BEGIN",
    "PREPARE TRANSACTION 'mine'", "SAVEPOINT mine", "SET search_path = public", "DO $$ BEGIN COMMIT; END $$",
    "SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY"], ids=str)
def test_a_handler_that_controls_the_transaction_does_no_harm(db, dsn, statement):
    """Either the run fails, or live is a replay of the log: what comes after a COMMIT would be written to live."""
    handlers = bank.make_handlers()
    handlers.on("Odd")(lambda event, target: target.execute(statement))
    bank.append(db, "account-1", "Odd")
    bank.append_many(db, 20, accounts=5)
    rebuilder, before = bank.make_rebuilder(dsn, bank.make_projection(handlers=handlers)), photo(db)[:2]
    try:
        rebuilder.rebuild("account_balance")
    except RebuilderError:
        assert photo(db)[:2] == before
        assert last_ticket(rebuilder).stage == Stage.FAILED
    else:
        assert bank.assert_equal_to_replay(db) == 5
    nothing_left(db)


# --- servers ---------------------------------------------------------------------------------------------------------


def test_a_server_that_is_too_old_is_refused(db, dsn, monkeypatch):
    """By the number that the server gives."""
    ask = sessions.Server.of.__func__
    monkeypatch.setattr(sessions.Server, "of", classmethod(
        lambda cls, connection: dataclasses.replace(ask(cls, connection), version=130011)))
    error = refused(db, bank.make_rebuilder(dsn), UnsupportedServer, 3)
    assert error.version == 130011
    assert "13" in str(error)


def test_a_standby_is_refused_and_still_answers_what_only_looks(private_server):
    """A server in recovery takes no writes: said at the start, with the way to the primary; status works there."""
    server = private_server()
    with psycopg.connect(server.dsn, autocommit=True) as db:
        bank.make_schema(db)
        bank.append_many(db, 20, accounts=5)
    rebuilder = bank.make_rebuilder(server.dsn)
    rebuilder.install()
    report = rebuilder.rebuild("account_balance")
    server._call("pg_ctl", "stop", "-w", "-m", "fast", "-D", str(server.data))
    (server.data / "standby.signal").touch()
    server.start()
    with pytest.raises(UnsupportedServer, match="read-only standby") as caught:
        rebuilder.rebuild("account_balance")
    assert (caught.value.exit_code, "read-write" in caught.value.hint) == (3, True)
    [status] = rebuilder.status()
    assert (status.health, status.position) == ("ready", report.position)
    assert [ticket.stage for ticket in rebuilder.tickets()] == [Stage.COMPLETED]
    with pytest.raises(UnsupportedServer):
        rebuilder.cleanup()


def test_a_server_that_is_not_there_is_a_lost_connection(db, dsn, proxy):
    """Nothing was begun; the message says what could not be reached."""
    between = proxy(dsn)
    between.refuse()
    error = refused(db, bank.make_rebuilder(between.dsn), ConnectionLost, 1)
    assert "connect" in str(error)


def test_a_wrong_database_and_a_wrong_role_are_told_apart(db, dsn):
    """A name that does not exist is said, and no password repeated."""
    # The right password, if the server wants one: a wrong one would be told of first.
    nowhere = psycopg.conninfo.make_conninfo(dsn, dbname="no_such_database")
    with pytest.raises(ConnectionLost, match="no_such_database") as caught:
        bank.make_rebuilder(nowhere).rebuild("account_balance")
    assert caught.value.hint
    nobody = psycopg.conninfo.make_conninfo(dsn, user="no_such_role", password="secret")
    with pytest.raises((MissingPrivilege, ConnectionLost), match="no_such_role") as caught:
        bank.make_rebuilder(nobody).rebuild("account_balance")
    assert caught.value.hint
    assert "secret" not in str(caught.value)
