"""Field cases about what the log holds: nothing, old versions, broken payloads."""

import pytest

from rebuilder import Health, SqlHandlers
from rebuilder.errors import HandlerFailed
from tests.bank import (
    append,
    append_many,
    assert_equal_to_replay,
    make_handlers,
    make_log,
    make_projection,
    make_rebuilder,
    make_schema,
    rows_of,
)


@pytest.fixture
def db(connect):
    connection = connect(autocommit=True)
    make_schema(connection)
    return connection


def test_an_optimistic_check_in_a_handler_does_not_reject_the_replay(dsn, db):
    """A handler that writes only later versions than the row has starts from nothing, every time (field case B46)."""
    db.execute("CREATE TABLE document (id text PRIMARY KEY, version bigint NOT NULL, title text NOT NULL)")
    handlers = SqlHandlers()

    @handlers.on("Titled")
    def titled(event, target):
        target.execute("INSERT INTO document AS d VALUES (%s, %s, %s) ON CONFLICT (id) DO UPDATE SET"
                       " version = excluded.version, title = excluded.title WHERE d.version < excluded.version",
                       (event.stream, event.position, event.data["title"]))

    rebuilder = make_rebuilder(dsn, make_projection("documents", tables=["document"], handlers=handlers))
    for number in range(6):
        append(db, "ab"[number % 2], "Titled", {"title": f"title {number}"}, live=rebuilder)
    before = rows_of(db, "document")
    assert before == [("a", 5, "title 4"), ("b", 6, "title 5")]
    for _ in range(2):
        report = rebuilder.rebuild("documents")
        assert (report.events_applied, report.drift.total) == (6, 0)
        assert rows_of(db, "document") == before


@pytest.mark.parametrize("others", ["nothing", "types", "categories"])
@pytest.mark.parametrize("feeding", ["inline", "async"])
def test_a_log_without_an_event_for_it_is_an_empty_read_model(dsn, db, others, feeding):
    """No event at all, none of its types, none of its categories: the rebuild ends, with no row (field case B50)."""
    if others == "types":
        append(db, "a", "SomethingElse")
    if others == "categories":
        append(db, "a", "Deposited", {"amount": 1}, category="loan")
    rebuilder = make_rebuilder(dsn, make_projection(feeding=feeding))
    report = rebuilder.rebuild("account_balance")
    assert (report.events_applied, report.rows) == (0, {"public.account_balance": 0})
    (after,) = rebuilder.status()
    assert (after.health, after.lag) == (Health.READY, 0)
    append(db, "a", "Deposited", {"amount": 1})
    assert rebuilder.rebuild("account_balance").events_applied == 1
    assert rows_of(db) == [("a", None, 1, 1)]


BROKEN = {
    "a field is missing": ('{"sum": 5}', "KeyError", "handler"),
    "it is of another type": ('{"amount": "lots"}', "InvalidTextRepresentation", "handler"),
    "it is too large": ('{"amount": 99999999999999999999999}', "NumericValueOutOfRange", "handler"),
    "it is no object": ("[]", "TypeError", "handler"),
    "it is no JSON": ('{"amount": 5', "DecodeError", "decode"),
}


@pytest.mark.parametrize("payload, error_class, cause", BROKEN.values(), ids=BROKEN)
def test_a_broken_payload_stops_the_run_with_its_place(dsn, db, payload, error_class, cause):
    """One broken event at position 500 of 1,000: the run fails there, with position, type and stream, and does not hang
    (field case B53).
    """
    append_many(db, 1000)
    db.execute("ALTER TABLE events ALTER data DROP DEFAULT, ALTER data TYPE text;"
               "CREATE VIEW log AS SELECT id, stream, category, schema_version, recorded_at,"
               " CASE WHEN id = 500 THEN 'Deposited' ELSE type END AS type,"
               " CASE WHEN id = 500 THEN current_setting('test.payload') ELSE data END AS data FROM events")
    (name,) = db.execute("SELECT current_database()").fetchone()
    db.execute(f"ALTER DATABASE {name} SET test.payload = '{payload}'")
    positions, inner, handlers = [], make_handlers(), SqlHandlers()

    @handlers.on(*inner.types)
    def noted(event, target):
        positions.append(event.position)
        inner.handler(event.type)(event, target)

    rebuilder = make_rebuilder(dsn, make_projection(handlers=handlers), log=make_log(relation="log"),
                               settings={"batch": 100})
    with pytest.raises(HandlerFailed, match="event 500") as caught:
        rebuilder.rebuild("account_balance")
    error = caught.value
    assert (error.position, error.type, error.stream) == (500, "Deposited", "account-9")
    assert (error.error_class, error.cause, error.exit_code) == (error_class, cause, 1)
    assert max(positions) <= 500
    assert payload not in str(error)
    assert rows_of(db) == []
    assert rebuilder.tickets()[0].failure["position"] == 500
    db.execute(f"ALTER DATABASE {name} SET test.payload = '{{\"amount\": 0}}'")
    assert rebuilder.rebuild("account_balance").events_applied == 1000


def test_the_log_itself_is_never_written(dsn, db):
    """Rebuilding twice leaves every event as it was, and draws no position (field cases B24 and B53)."""
    append_many(db, 200)
    digest = ("SELECT count(*), md5(string_agg(e::text, '' ORDER BY id)), (SELECT last_value FROM events_id_seq)"
              " FROM events e")
    before = db.execute(digest).fetchone()
    for _ in range(2):
        make_rebuilder(dsn).rebuild("account_balance")
    assert db.execute(digest).fetchone() == before
    assert_equal_to_replay(db)
