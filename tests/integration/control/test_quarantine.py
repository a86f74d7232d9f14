"""Quarantine sets aside exactly the poison events, and every neighbour is applied exactly once."""

import psycopg
import pytest

from rebuilder import NotNow, Quarantine, RebuilderError, SqlHandlers, Upcasters
from rebuilder.errors import HandlerFailed, WroteOutsideShadow
from tests import bank
from tests.integration.control.dead import POISON, assert_replay_without, followers, letters, poisoned
from tests.integration.control.watch import last_ticket, nothing_left, photo

EVENT = Quarantine(policy="event", max_dead_letters=1000)
STREAM = Quarantine(policy="stream", max_dead_letters=1000)


def reading_handlers():
    """Handlers that read the row before they write it: applied twice, or to a wrong row, the balance is wrong."""
    usual, handlers = bank.make_handlers(), SqlHandlers()

    @handlers.on(*usual.types)
    def apply(event, target):
        before = target.fetch_one("SELECT changes FROM account_balance WHERE id = %s", (event.stream,))
        usual.handler(event.type)(event, target)
        if before is not None and event.type != "AccountClosed":
            target.execute("UPDATE account_balance SET changes = %s WHERE id = %s", (before[0] + 1, event.stream))

    return handlers


def savepoints(rebuilder):
    """The savepoints around batches that the next run makes."""
    made = []

    def count(run):
        execute = run.main.execute

        def counting(statement, *args, **kwargs):
            made.extend([statement] if statement == "SAVEPOINT rebuilder_batch" else [])
            return execute(statement, *args, **kwargs)

        run.main.execute = counting
        del rebuilder._seam.points["catch up"]  # it is reached again before each attempt

    rebuilder._seam.points["catch up"] = count
    return made


def test_a_healthy_log_costs_a_savepoint_a_batch_and_never_more_than_fifty(db, dsn):
    """64 released ones would overflow the subtransaction cache of the whole cluster: later ones span more batches."""
    bank.append_many(db, 340, accounts=40)
    few, many = (bank.make_rebuilder(dsn, settings={"batch": batch}) for batch in (100, 3))
    made = savepoints(few)
    assert few.rebuild("account_balance", quarantine=EVENT).dead_letters == 0
    assert 4 <= len(made) <= 8
    made = savepoints(many)
    assert many.rebuild("account_balance", quarantine=EVENT).dead_letters == 0
    assert 24 < len(made) <= 50
    assert bank.assert_equal_to_replay(db) == 40
    assert letters(db) == []


@pytest.mark.parametrize("kind", POISON)
@pytest.mark.parametrize("position", [21, 23, 25])
@pytest.mark.parametrize("policy", [EVENT, STREAM], ids=["event", "stream"])
def test_one_poison_event_is_set_aside_wherever_it_stands_in_its_batch(db, dsn, kind, position, policy):
    """First, in the middle, last of five: only it, or it and what follows in its stream."""
    poisoned(db, [position], POISON[kind])
    rebuilder = bank.make_rebuilder(dsn, settings={"batch": 5})
    report = rebuilder.rebuild("account_balance", quarantine=policy)
    dead = [position] if policy is EVENT else followers(db, position)
    assert_replay_without(db, dead)
    assert (report.dead_letters, report.events_applied) == (len(dead), 60 - len(dead))
    causes = {letter[0]: letter[2] for letter in letters(db)}
    assert causes == {each: "handler" if each == position else "stream" for each in dead}
    assert rebuilder.status()[0].dead_letters == len(dead)


def test_without_quarantine_the_first_poison_event_ends_the_run(db, dsn):
    """It is off unless it is asked for."""
    poisoned(db, [21, 30], POISON["sql"])
    with pytest.raises(HandlerFailed) as caught:
        bank.make_rebuilder(dsn).rebuild("account_balance")
    assert caught.value.position == 21
    assert letters(db) == []


@pytest.mark.parametrize("handlers", [bank.make_handlers, reading_handlers], ids=["writing", "reading"])
@pytest.mark.parametrize("policy", [EVENT, STREAM], ids=["event", "stream"])
def test_poison_all_over_a_log_is_set_aside_across_batches_and_savepoints(db, dsn, rng, seed, handlers, policy):
    """300 events in batches of three, so that savepoints span many of them; a dozen are poison, two in one batch."""
    print("seed", seed)
    db.execute("TRUNCATE events RESTART IDENTITY")
    bank.append_many(db, 300, accounts=60)
    poison = sorted({*rng.sample(range(61, 301), 9), 70, 71, 72, 298, 300})
    poisoned(db, poison[::2], POISON["sql"])
    poisoned(db, poison[1::2], POISON["python"])
    rebuilder = bank.make_rebuilder(dsn, bank.make_projection(handlers=handlers()), settings={"batch": 3})
    report = rebuilder.rebuild("account_balance", quarantine=policy)
    dead = poison if policy is EVENT else followers(db, *poison)
    assert_replay_without(db, dead)
    assert report.events_applied == 300 - len(dead)
    assert report.position == 300


def test_a_statement_that_a_failed_batch_was_to_prepare_does_not_blame_a_neighbour(db, dsn):
    """psycopg prepares at the sixth use and takes for prepared what a failed pipeline skipped. It forgets that at a
    rollback, unless it has seen one with nothing prepared yet; the server then says of an innocent event that it does
    not know the statement.
    """
    handlers = bank.make_handlers()
    handlers.on("Seen")(lambda event, target: target.execute(
        "INSERT INTO account_balance VALUES (%s, 'seen', 0, 1)", (f"{event.stream} {event.position}",)))
    poisoned(db, [2, 10], POISON["sql"])
    seen = [4, 5, 6, 7, 8, 11, 12]  # the sixth is queued behind the second poison event
    bank.correct(db, "UPDATE events SET type = 'Seen' WHERE id = ANY (%s)", [seen])
    rebuilder = bank.make_rebuilder(dsn, bank.make_projection(handlers=handlers), settings={"batch": 3})
    report = rebuilder.rebuild("account_balance", quarantine=EVENT)
    assert [letter[0] for letter in letters(db)] == [2, 10]
    assert report.events_applied == 58
    assert db.execute("SELECT count(*) FROM account_balance WHERE owner = 'seen'").fetchone() == (len(seen),)


def test_a_log_that_is_nothing_but_poison_makes_an_empty_table_if_that_is_allowed(db, dsn):
    """Each event is tried alone, none is lost from the records."""
    poisoned(db, range(1, 61), POISON["sql"])
    rebuilder = bank.make_rebuilder(dsn, settings={"batch": 7})
    report = rebuilder.rebuild("account_balance", quarantine=EVENT, allow=["shrink"])
    assert (report.dead_letters, report.events_applied) == (60, 0)
    assert_replay_without(db, range(1, 61))


def test_what_a_decoder_or_an_upcaster_can_not_read_is_set_aside_with_its_cause(db, dsn):
    """Poison need not reach the handler to be poison."""
    db.execute("ALTER TABLE events ALTER data TYPE text; ALTER TABLE events ALTER data DROP DEFAULT")
    db.execute("UPDATE events SET data = 'not JSON' WHERE id = 33; UPDATE events SET schema_version = 2 WHERE id <> 44")
    bank.correct(db, "UPDATE events SET type = 'Deposited' WHERE id = 44")
    upcasters = Upcasters({"Deposited": 2})
    upcasters.on("Deposited", from_version=1)(lambda data, context: data["no such key"])
    rebuilder = bank.make_rebuilder(dsn, bank.make_projection(upcasters=upcasters), settings={"batch": 10})
    report = rebuilder.rebuild("account_balance", quarantine=EVENT)
    assert report.dead_letters == 2
    assert [(letter[0], letter[2]) for letter in letters(db)] == [(33, "decode"), (44, "upcaster")]
    db.execute("ALTER TABLE events ALTER data TYPE jsonb USING CASE WHEN id = 33 THEN '{}' ELSE data::jsonb END")
    assert_replay_without(db, [33, 44])


@pytest.mark.parametrize("events", [60, 200])
def test_an_event_that_breaks_a_deferred_constraint_is_found(db, dsn, events):
    """No statement of it fails: its savepoint is bisected for where the constraint begins to be broken."""
    db.execute("DELETE FROM account_balance; TRUNCATE events RESTART IDENTITY;"
               "ALTER TABLE account_balance ADD UNIQUE (owner) DEFERRABLE INITIALLY DEFERRED")
    bank.append_many(db, 30, accounts=30)
    db.execute("INSERT INTO events (stream, type, data) SELECT 'account-' || n %% 30, 'Deposited', '{\"amount\": 1}'"
               " FROM generate_series(31, %s) n", [events])
    culprit = events - 5
    db.execute("UPDATE events SET type = 'OwnerRenamed', data = '{\"owner\": \"owner 3\"}' WHERE id = %s", [culprit])
    # Two that are right together and wrong apart, in one batch: neither is poison.
    bank.correct(db, "UPDATE events SET type = 'OwnerRenamed',"
                 " stream = 'account-' || CASE id WHEN 32 THEN 7 ELSE 8 END,"
                 " data = jsonb_build_object('owner', CASE WHEN id = 32 THEN 'owner 8' ELSE 'new' END)"
                 " WHERE id IN (32, 33)")
    rebuilder = bank.make_rebuilder(dsn, settings={"batch": 3})
    report = rebuilder.rebuild("account_balance", quarantine=EVENT)
    assert_replay_without(db, [culprit])
    assert report.events_applied == events - 1
    assert db.execute("SELECT sqlstate, cause FROM rebuilder.dead_letter").fetchall() == [("23505", "handler")]


# --- what is no poison -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state,kind", [
    ("40P01", NotNow), ("40001", NotNow), ("55P03", NotNow), ("57014", RebuilderError), ("53100", RebuilderError),
    ("53200", RebuilderError), ("58030", RebuilderError)])
def test_an_error_that_may_pass_is_never_set_aside(db, dsn, state, kind):
    """Deadlock, serialization, lock and statement timeout, disk or memory full, I/O: the event is not to blame
    (gh-ost#150).
    """
    db.execute("CREATE FUNCTION fail(state text) RETURNS void LANGUAGE plpgsql AS"
               " $$ BEGIN RAISE EXCEPTION 'it happens' USING ERRCODE = state; END $$")
    handlers = bank.make_handlers()
    handlers.on("Odd")(lambda event, target: target.execute("SELECT fail(%s)", (state,)))
    bank.append(db, "account-1", "Odd")
    rebuilder, before = bank.make_rebuilder(dsn, bank.make_projection(handlers=handlers)), photo(db)
    with pytest.raises(kind) as caught:
        rebuilder.rebuild("account_balance", quarantine=EVENT)
    assert caught.value.sqlstate == state
    assert isinstance(caught.value.__cause__, psycopg.Error)
    nothing_left(db)
    assert photo(db) == before
    assert letters(db) == []
    assert last_ticket(rebuilder).failure["sqlstate"] == state


@pytest.mark.parametrize("statement", ["UPDATE public.account_balance SET balance = 0", "COMMIT"])
def test_a_handler_that_leaves_its_place_ends_the_run_whatever_the_quarantine(db, dsn, statement):
    """That is an error of the program, not of an event."""
    handlers = bank.make_handlers()
    handlers.on("Odd")(lambda event, target: target.execute(statement))
    bank.append(db, "account-1", "Odd")
    rebuilder, before = bank.make_rebuilder(dsn, bank.make_projection(handlers=handlers)), photo(db)
    with pytest.raises(WroteOutsideShadow):
        rebuilder.rebuild("account_balance", quarantine=EVENT)
    nothing_left(db)
    assert photo(db) == before
    assert letters(db) == []
