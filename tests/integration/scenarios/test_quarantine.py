"""Poison events: they fail the run, or are set aside when that was asked for."""

import json

import pytest

from rebuilder import Health, Quarantine, Stage, Upcasters
from rebuilder.errors import HandlerFailed, TooManyDeadLetters
from tests.bank import append, append_many, make_handlers, make_projection, make_rebuilder, make_schema, rows_of

LETTERS = "SELECT position, type, cause, error_class, sqlstate, attempts, in_live FROM rebuilder.dead_letter ORDER BY 1"
EACH = Quarantine(policy="event")


@pytest.fixture
def db(connect):
    connection = connect(autocommit=True)
    make_schema(connection)
    return connection


def fragile(**overrides):
    """The bank, with one event type whose handler raises and one whose statement does."""
    handlers = make_handlers()

    @handlers.on("Raises")
    def raises(event, target):
        raise ValueError(f"can't read {event.data}")

    @handlers.on("Violates")
    def violates(event, target):
        target.execute("INSERT INTO account_balance (id, balance, changes) VALUES (%s, NULL, 1)", (event.stream,))

    return make_projection(handlers=handlers, **overrides)


def good(db, stream="a"):
    return append(db, stream, "Deposited", {"amount": 1})


def status(rebuilder):
    (found,) = rebuilder.status()
    return found


def test_a_poison_event_fails_a_strict_run(dsn, db):
    """Without quarantine the run fails at the event and records no dead letter (scenario 27)."""
    good(db)
    append(db, "a", "Raises", {"iban": "secret"})
    good(db)
    rebuilder = make_rebuilder(dsn, fragile())
    with pytest.raises(HandlerFailed) as caught:
        rebuilder.rebuild("account_balance")
    assert (caught.value.position, caught.value.type, caught.value.stream) == (2, "Raises", "a")
    assert rows_of(db) == []
    assert db.execute(LETTERS).fetchall() == []
    assert (status(rebuilder).health, rebuilder.tickets()[0].stage) == (Health.FAILED, Stage.FAILED)


def test_poison_events_are_set_aside_one_by_one(dsn, db):
    """Of good, raising, violating, good the two good ones are applied and the others are dead letters that say
    what of (scenario 28).
    """
    good(db)
    append(db, "a", "Raises")
    append(db, "a", "Violates")
    good(db)
    rebuilder = make_rebuilder(dsn, fragile())
    report = rebuilder.rebuild("account_balance", quarantine=EACH)
    assert (report.events_applied, report.dead_letters, report.position) == (2, 2, 4)
    assert rows_of(db) == [("a", None, 2, 2)]
    assert db.execute(LETTERS).fetchall() == [
        (2, "Raises", "handler", "ValueError", None, 1, True),
        (3, "Violates", "handler", "NotNullViolation", "23502", 1, True)]
    after = status(rebuilder)
    assert (after.health, after.dead_letters) == (Health.READY, 2)


def test_the_neighbours_of_a_poison_event_are_applied_once(dsn, db):
    """In a batch of three with the poison in the middle both neighbours count exactly one (scenario 28)."""
    good(db, "before")
    append(db, "poison", "Violates")
    good(db, "after")
    make_rebuilder(dsn, fragile(), settings={"batch": 3}).rebuild("account_balance", quarantine=EACH)
    assert rows_of(db) == [("after", None, 1, 1), ("before", None, 1, 1)]


def test_later_events_of_a_poisoned_stream_are_set_aside_by_default(dsn, db):
    """What comes after a hole in a stream is not applied to it; other streams are (scenario 28, the default policy)."""
    good(db)
    append(db, "a", "Raises")
    good(db)
    good(db, "b")
    report = make_rebuilder(dsn, fragile()).rebuild("account_balance", quarantine=True)
    assert (report.events_applied, report.dead_letters) == (2, 2)
    assert rows_of(db) == [("a", None, 1, 1), ("b", None, 1, 1)]
    assert [row[:3] for row in db.execute(LETTERS).fetchall()] == [(2, "Raises", "handler"), (3, "Deposited", "stream")]


def test_a_clean_log_leaves_no_dead_letter(dsn, db):
    """With quarantine, but nothing to set aside, the run is like any other (scenario 29)."""
    append_many(db, 100)
    report = make_rebuilder(dsn, fragile()).rebuild("account_balance", quarantine=True)
    assert (report.events_applied, report.dead_letters) == (100, 0)
    assert db.execute(LETTERS).fetchall() == []


def test_a_followed_projection_quarantines_as_well(dsn, db):
    """For a projection that a follower feeds, good, violating, good leaves one dead letter, and the checkpoint is at
    the last event (scenario 30).
    """
    good(db)
    append(db, "a", "Violates")
    good(db)
    rebuilder = make_rebuilder(dsn, fragile(feeding="async"))
    report = rebuilder.rebuild("account_balance", quarantine=EACH)
    assert (report.events_applied, report.dead_letters, report.position) == (2, 1, 3)
    assert rows_of(db) == [("a", None, 2, 2)]
    assert db.execute("SELECT position FROM rebuilder.follower_checkpoint").fetchall() == [(3,)]
    assert (status(rebuilder).lag, status(rebuilder).dead_letters) == (0, 1)


def test_too_many_dead_letters_fail_the_run(dsn, db):
    """A broken recipe does not succeed with an empty table: beyond the limit the run fails and live stays
    (scenario 28, with a threshold).
    """
    for _ in range(4):
        append(db, "a", "Raises")
    with pytest.raises(TooManyDeadLetters) as caught:
        make_rebuilder(dsn, fragile()).rebuild("account_balance", quarantine=Quarantine(max_dead_letters=3))
    assert caught.value.position == 4
    # They outlive the rollback, so that they can be looked at; live is not missing them.
    assert [(row[0], row[-1]) for row in db.execute(LETTERS).fetchall()] == [(1, False), (2, False), (3, False)]


def test_a_failing_upcaster_fails_a_strict_run_and_is_set_aside_else(dsn, db):
    """A data error in an upcaster stops the run by the event's name, or makes a dead letter of cause upcaster
    (scenario 112).
    """
    upcasters = Upcasters()
    upcasters.on("Deposited", from_version=1)(lambda data, context: {"amount": data["cents"] // 100})
    append(db, "a", "Deposited", {"cents": 500})
    append(db, "b", "Deposited", {"euros": 5})
    append(db, "c", "Deposited", {"amount": 7}, schema_version=2)
    rebuilder = make_rebuilder(dsn, make_projection(upcasters=upcasters))
    with pytest.raises(HandlerFailed, match="An upcaster") as caught:
        rebuilder.rebuild("account_balance")
    assert (caught.value.position, caught.value.cause, caught.value.error_class) == (2, "upcaster", "KeyError")
    assert db.execute(LETTERS).fetchall() == []
    report = rebuilder.rebuild("account_balance", quarantine=EACH)
    assert (report.events_applied, report.dead_letters) == (2, 1)
    assert rows_of(db) == [("a", None, 5, 1), ("c", None, 7, 1)]
    assert db.execute(LETTERS).fetchall() == [(2, "Deposited", "upcaster", "KeyError", None, 1, True)]


def test_meeting_the_same_poison_again_counts_and_does_not_double(dsn, db):
    """A second run that sets the same event aside leaves one dead letter with two attempts; one that can apply it
    resolves it (scenario 112, where the reference keeps a row for each time).
    """
    append(db, "a", "Raises")
    rebuilder = make_rebuilder(dsn, fragile())
    rebuilder.rebuild("account_balance", quarantine=True)
    rebuilder.rebuild("account_balance", quarantine=True)
    assert [row[5] for row in db.execute(LETTERS).fetchall()] == [2]
    mended = make_handlers()
    mended.on("Raises")(lambda event, target: None)
    rebuilder = make_rebuilder(dsn, make_projection(handlers=mended))
    rebuilder.rebuild("account_balance", quarantine=True)
    assert status(rebuilder).dead_letters == 0
    assert db.execute("SELECT resolution FROM rebuilder.dead_letter").fetchall() == [("rebuilt",)]


def test_dead_letters_hold_no_data_unless_asked(dsn, db):
    """A copy of the event's data would outlive the log's own retention (scenario 112)."""
    append(db, "a", "Raises", {"iban": "secret"})
    rebuilder = make_rebuilder(dsn, fragile())
    rebuilder.rebuild("account_balance", quarantine=True)
    assert db.execute("SELECT data FROM rebuilder.dead_letter").fetchone() == (None,)
    rebuilder.rebuild("account_balance", quarantine=Quarantine(keep_data=True))
    (kept,) = db.execute("SELECT data ->> 'text' FROM rebuilder.dead_letter").fetchone()
    assert json.loads(kept) == {"iban": "secret"}
