"""Dead letters outlive the run that wrote them, are counted once, and guard live against what would follow them."""

import pytest

from rebuilder import Quarantine, RefusedError, SqlHandlers
from rebuilder.errors import HookVetoed, TooManyDeadLetters
from tests import bank
from tests.integration.control.dead import POISON, assert_replay_without, followers, letters, poisoned
from tests.integration.control.watch import last_ticket, nothing_left, photo

SETTINGS = {"batch": 5}


def tolerant_handlers():
    """The mended recipe: what is no amount is nothing."""
    usual, handlers = bank.make_handlers(), SqlHandlers()

    @handlers.on(*usual.types)
    def apply(event, target):
        if event.type == "Deposited" and not isinstance(event.data.get("amount"), int):
            event.data["amount"] = 0
        usual.handler(event.type)(event, target)

    return handlers


def test_a_dead_letter_holds_what_is_needed_to_repair_and_no_data(db, dsn):
    """Position, stream, type, class, SQLSTATE, message, where it was raised; a copy of the data would outlive it."""
    position = bank.append(db, "account-3", "Deposited", {"amount": "secret"})
    rebuilder = bank.make_rebuilder(dsn, settings=SETTINGS)
    rebuilder.rebuild("account_balance", quarantine=True)
    row = db.execute("SELECT position, category, stream, type, cause, policy, error_class, sqlstate, attempts, ticket,"
                     " data FROM rebuilder.dead_letter").fetchone()
    assert row == (position, "account", "account-3", "Deposited", "handler", "stream", "InvalidTextRepresentation",
                   "22P02", 1, last_ticket(rebuilder).id, None)
    everything = db.execute("SELECT d::text FROM rebuilder.dead_letter d").fetchone()[0]
    assert "invalid input syntax for type bigint" in everything
    assert "secret" not in everything


def test_a_dead_letter_says_where_python_failed(db, dsn):
    """The traceback ends in the handler's own line."""
    bank.append(db, "account-3", "Deposited", {})
    bank.make_rebuilder(dsn).rebuild("account_balance", quarantine=True)
    where, message = db.execute("SELECT traceback, message FROM rebuilder.dead_letter").fetchone()
    assert 'event.data["amount"]' in where
    assert where.endswith("KeyError: 'amount'")
    assert message == "'amount'"


def test_a_dead_letter_keeps_the_data_when_that_is_asked_for(db, dsn):
    """For whoever mends the handler without access to the log."""
    bank.append(db, "account-3", "Deposited", {"amount": "kept"})
    bank.make_rebuilder(dsn).rebuild("account_balance", quarantine=Quarantine(keep_data=True))
    assert "kept" in db.execute("SELECT data::text FROM rebuilder.dead_letter").fetchone()[0]


def test_a_constraint_that_quotes_the_row_does_not_bring_it_into_the_letter(db, dsn):
    """The server's DETAIL shows the whole failing row."""
    db.execute("DELETE FROM account_balance; ALTER TABLE account_balance ADD CHECK (owner <> 'forbidden name')")
    bank.append(db, "account-3", "OwnerRenamed", {"owner": "forbidden name"})
    bank.make_rebuilder(dsn).rebuild("account_balance", quarantine=True)
    assert len(letters(db)) == 1
    assert "forbidden name" not in db.execute("SELECT d::text FROM rebuilder.dead_letter d").fetchone()[0]


def test_more_poison_than_allowed_ends_the_run_and_keeps_the_letters(db, dsn):
    """A handler that fails on everything must not empty the table quietly."""
    poisoned(db, [20, 30, 40], POISON["sql"])
    rebuilder, before = bank.make_rebuilder(dsn, settings=SETTINGS), photo(db)
    with pytest.raises(TooManyDeadLetters) as caught:
        rebuilder.rebuild("account_balance", quarantine=Quarantine(policy="event", max_dead_letters=2))
    assert (caught.value.exit_code, caught.value.position, bool(caught.value.hint)) == (1, 40, True)
    nothing_left(db)
    assert photo(db) == before
    assert [(letter[0], letter[3]) for letter in letters(db)] == [(20, False), (30, False)]
    assert rebuilder.status()[0].dead_letters == 0  # nothing is missing in live


def test_letters_outlive_a_failure_and_a_repeat_counts_them_instead_of_doubling(db, dsn):
    """Whatever ended the run after it set events aside, the work of finding them is not lost."""
    poisoned(db, [22, 41], POISON["python"])

    def veto(ticket):
        raise RuntimeError("not now")

    failing = bank.make_rebuilder(dsn, settings=SETTINGS, hooks={"before_fence": veto})
    quarantine = Quarantine(policy="event")
    with pytest.raises(HookVetoed):
        failing.rebuild("account_balance", quarantine=quarantine)
    assert [(letter[0], letter[3]) for letter in letters(db)] == [(22, False), (41, False)]
    bank.make_rebuilder(dsn, settings=SETTINGS).rebuild("account_balance", quarantine=quarantine)
    assert [(letter[0], letter[3]) for letter in letters(db)] == [(22, True), (41, True)]
    attempts = db.execute("SELECT position, attempts FROM rebuilder.dead_letter ORDER BY 1").fetchall()
    assert attempts == [(22, 2), (41, 2)]
    assert_replay_without(db, [22, 41])


def test_letters_are_resolved_by_a_later_rebuild_that_applies_their_events(db, dsn):
    """With the mended recipe nothing is missing in live any more, and the records say how that came."""
    poisoned(db, [22, 41], POISON["sql"])
    bank.make_rebuilder(dsn, settings=SETTINGS).rebuild("account_balance", quarantine=True)
    dead = len(letters(db))
    mended = bank.make_rebuilder(dsn, bank.make_projection(version=2, handlers=tolerant_handlers()), settings=SETTINGS)
    assert mended.status()[0].dead_letters == dead >= 2
    report = mended.rebuild("account_balance", quarantine=True)
    assert (report.dead_letters, report.events_applied) == (0, 60)
    assert letters(db) == []
    assert db.execute("SELECT resolution, in_live, count(*)::int FROM rebuilder.dead_letter GROUP BY 1, 2"
                      ).fetchall() == [("rebuilt", False, dead)]
    assert mended.status()[0].dead_letters == 0


def test_poison_that_arrives_under_the_fence_is_set_aside_there(db, dsn):
    """The last events of a log are no better than the others; who wrote beside them loses nothing."""
    rebuilder, positions = bank.make_rebuilder(dsn, settings=SETTINGS), []

    def write(run):
        if not positions:
            positions.append(bank.append(db, "account-1", "Deposited", {"amount": 5}))
            positions.append(bank.append(db, "account-2", "Deposited", POISON["sql"]))
            positions.append(bank.append(db, "account-3", "Deposited", {"amount": 7}))
            positions.append(bank.append(db, "account-2", "Deposited", {"amount": 9}))

    rebuilder._seam.points["drain"] = write
    report = rebuilder.rebuild("account_balance", quarantine=True)
    assert report.position == positions[-1]
    assert report.dead_letters == 2
    assert_replay_without(db, [positions[1], positions[3]])
    assert [letter[3] for letter in letters(db)] == [True, True]


def test_poison_met_in_an_attempt_that_is_given_back_is_counted_once(db, dsn):
    """The attempt is undone and its events applied again; the letter, written by another connection, stays one."""
    rebuilder, positions = bank.make_rebuilder(dsn, settings={**SETTINGS, "fence_hold": 0.4}), []

    def write(run):
        if not positions:
            positions.append(bank.append(db, "account-2", "Deposited", POISON["sql"]))

    held = []

    def hold(run):
        if not held:
            held.append(db.execute("SELECT pg_sleep(0.5)"))

    rebuilder._seam.points.update({"drain": write, "swap": hold})
    report = rebuilder.rebuild("account_balance", quarantine=Quarantine(policy="event"))
    assert report.attempts >= 2
    assert_replay_without(db, positions)
    assert (report.dead_letters, report.events_applied) == (1, 60)
    assert db.execute("SELECT attempts FROM rebuilder.dead_letter").fetchall() == [(1,)]


@pytest.mark.parametrize("policy", ["stream", "event"])
def test_project_refuses_a_stream_that_has_a_hole(db, dsn, connect, policy):
    """Under policy "stream" what follows would be applied to a state with a hole; under "event" that is accepted."""
    poisoned(db, [22], POISON["sql"])
    rebuilder = bank.make_rebuilder(dsn, settings=SETTINGS)
    rebuilder.rebuild("account_balance", quarantine=Quarantine(policy=policy))
    [stream] = {letter[1] for letter in letters(db)}
    other = next(f"account-{n}" for n in range(5) if f"account-{n}" != stream)
    writer = connect()
    bank.append(writer, other, "Deposited", {"amount": 3}, live=rebuilder)
    writer.commit()
    before, events = bank.rows_of(db), db.execute("SELECT count(*) FROM events").fetchone()
    if policy == "event":
        bank.append(writer, stream, "Deposited", {"amount": 3}, live=rebuilder)
        writer.commit()
        assert bank.rows_of(db) != before
        assert_replay_without(db, [22])
        return
    with pytest.raises(RefusedError, match="quarantine") as caught:
        bank.append(writer, stream, "Deposited", {"amount": 3}, live=rebuilder)
    writer.commit()
    assert (caught.value.stream, bool(caught.value.hint)) == (stream, True)
    assert bank.rows_of(db) == before
    assert db.execute("SELECT count(*) FROM events").fetchone() == events
    assert_replay_without(db, followers(db, 22))
