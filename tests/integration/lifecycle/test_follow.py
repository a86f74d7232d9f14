"""The follower: exactly once, up to the horizon, beside rebuilds and held only by their fence."""

import threading
import time

import pytest

from rebuilder import StopToken
from rebuilder.errors import DefinitionError, HandlerFailed, RecipeOutdated, RefusedError, WroteOutsideShadow
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
from tests.fix_threads import wait_for_backend, wait_for_lock, wait_until

NAME = "account_balance"


@pytest.fixture
def db(dsn, connect):
    connection = connect(autocommit=True)
    make_schema(connection)
    append_many(connection, 50)
    return connection


def asynchronous(dsn, handlers=None, settings=None, **overrides):
    given = {"feeding": "async", **overrides}
    if handlers is not None:
        given["handlers"] = handlers
    return make_rebuilder(dsn, make_projection(**given),
                          settings={"batch": 7, "horizon_poll": 0.002, **(settings or {})})


@pytest.fixture
def rebuilder(dsn, db):
    return asynchronous(dsn)


def checkpoint(db):
    return db.execute("SELECT position FROM rebuilder.follower_checkpoint").fetchone()[0]


def deposit(db, stream="account-1"):
    return append(db, stream, "Deposited", {"amount": 1})


class Following:
    """A follower in a thread, ended by the test."""

    def __init__(self, rebuilder, spawn, **arguments):
        self.stop = StopToken()
        self.result = spawn(rebuilder.follow, NAME, stop=self.stop, **{"poll": 0.02, **arguments})

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop.request()
        self.done = self.result.result(30)


def test_every_event_is_applied_once(rebuilder, db):
    """In batches; what is there already is not applied again, what comes is."""
    done = rebuilder.follow(NAME, once=True)
    assert (done.position, done.events, done.batches) == (50, 50, 8)
    assert_equal_to_replay(db)
    assert rebuilder.follow(NAME, once=True).events == 0
    deposit(db)
    assert rebuilder.follow(NAME, once=True).events == 1
    assert_equal_to_replay(db)
    (status,) = rebuilder.status(NAME)
    assert status.lag == 0


def test_nothing_above_the_horizon_is_applied(rebuilder, db, connect, spawn):
    """Hazard C2: event 51 is open while 52 is committed. "Greater than the last seen" would go on from 52 and never see
    51; the follower waits for it, and applies both in order.
    """
    rebuilder.follow(NAME, once=True)
    slow = connect()
    slow.execute("SELECT 1")
    assert append(slow, "account-1", "OwnerRenamed", {"owner": "first"}) == 51
    assert append(db, "account-1", "OwnerRenamed", {"owner": "second"}) == 52
    with Following(rebuilder, spawn):
        looks = set()

        def looked_again_and_again():
            looks.update(db.execute(
                "SELECT query_start FROM pg_stat_activity WHERE application_name LIKE 'rebuilder:follow:%reader'"
                " AND query LIKE '%virtualtransaction%'").fetchall())
            return len(looks) >= 10

        wait_until(looked_again_and_again, what="looks at who holds the horizon")
        assert checkpoint(db) == 50
        naive = db.execute("SELECT array_agg(id) FROM events WHERE id > 50").fetchone()
        assert naive == ([52],)
        slow.commit()
        wait_until(lambda: checkpoint(db) == 52, what="both to be applied")
    assert_equal_to_replay(db)


def test_several_followers_take_turns(rebuilder, db, spawn):
    """Three processes on one projection: each event once, whoever applies it."""
    with Following(rebuilder, spawn) as one, Following(rebuilder, spawn) as two, Following(rebuilder, spawn) as three:
        for _ in range(60):
            deposit(db)
        wait_until(lambda: checkpoint_or_none(db) == 110, 30, "all to be applied")  # the row is made by the first
    assert sum(each.done.events for each in (one, two, three)) == 110
    assert_equal_to_replay(db)


def test_it_goes_on_beside_a_rebuild(rebuilder, db):
    """At every step before the fence live is still being fed; the drain goes at least as far as the follower has come
    (hazard R3), so that live does not jump back.
    """
    rebuilder.follow(NAME, once=True)
    seen = []

    def beside(run):
        deposit(db)
        seen.append((rebuilder.follow(NAME, once=True).events, checkpoint(db)))

    for point in ("build shadow", "freeze", "fence"):
        rebuilder._seam.points[point] = beside
    report = rebuilder.rebuild(NAME)
    assert [events for events, _ in seen] == [1] * len(seen)
    assert checkpoint(db) == report.position >= seen[-1][1] >= 53
    assert_equal_to_replay(db)
    rebuilder._seam.points.clear()
    deposit(db)
    assert rebuilder.follow(NAME, once=True).events == 1
    assert_equal_to_replay(db)


def test_only_the_fence_holds_it(rebuilder, db, connect, spawn):
    """It waits on its checkpoint's row, which both take first (hazard H6), nobody is killed, and then it goes on from
    the rebuilt position in the new table.
    """
    rebuilder.rebuild(NAME)
    waited = []

    def held(run):
        deposit(db)
        following.append(Following(rebuilder, spawn))
        pid = wait_for_backend(db, "rebuilder:follow:account_balance")
        waited.append(run.main.info.backend_pid in wait_for_lock(db, pid, 0.9))

    following = []
    rebuilder._seam.points["drain"] = held
    rebuilder.rebuild(NAME)
    with following[0]:
        wait_until(lambda: checkpoint(db) == 51, what="the follower to go on")
    assert waited == [True]
    assert following[0].done.events <= 1
    assert_equal_to_replay(db)
    assert db.execute("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()").fetchone() == (0,)


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_follower_and_twenty_rebuilds_under_appends(dsn, db, connect, spawn, rng):
    """With late commits and rollbacks all the while, two followers beside them: exact."""
    rebuilder = asynchronous(dsn, settings={"batch": 500})
    over = threading.Event()

    def writer(number):
        connection = connect()
        count = 0
        while not over.wait(0.02):  # about a hundred appends a second in all
            connection.execute("SELECT 1")
            deposit(connection, f"account-{rng.randrange(10)}")
            if rng.random() < 0.2:
                time.sleep(rng.random() * 0.02)  # the schedule under test: a late commit
            if rng.random() < 0.1:
                connection.rollback()
            else:
                connection.commit()
                count += 1
        return count

    with Following(rebuilder, spawn) as one, Following(rebuilder, spawn) as two:
        writers = [spawn(writer, number) for number in range(3)]
        reports = [rebuilder.rebuild(NAME, retire="drop") for _ in range(20)]
        over.set()
        appended = sum(each.result(30) for each in writers)
        wait_until(lambda: rebuilder.status(NAME)[0].lag == 0, 30, "the followers to catch up")
    assert [report.generation for report in reports] == list(range(1, 21))
    assert appended > 20
    assert one.done.events + two.done.events > 0
    assert_equal_to_replay(db)


def test_an_older_recipe_feeds_nothing(rebuilder, dsn, db):
    """Promise 5: a process that was not deployed stops, and leaves live and checkpoint as they are."""
    asynchronous(dsn, version=2).rebuild(NAME)
    before = rows_of(db)
    deposit(db)
    with pytest.raises(RecipeOutdated):
        rebuilder.follow(NAME, once=True)
    assert (rows_of(db), checkpoint(db)) == (before, 50)


def test_a_follower_that_becomes_outdated_stops(rebuilder, dsn, db, spawn):
    """The newer recipe's rebuild cuts over while it runs: its next batch is the end of it."""
    rebuilder.rebuild(NAME)
    follower = spawn(rebuilder.follow, NAME, poll=0.02)
    asynchronous(dsn, version=2).rebuild(NAME)
    assert isinstance(follower.exception(30), RecipeOutdated)
    assert_equal_to_replay(db)


def poisonous():
    handlers = make_handlers()

    @handlers.on("Poison")
    def poison(event, target):
        target.execute("UPDATE account_balance SET balance = -1")
        raise ValueError("poison")

    return handlers


def test_an_event_that_fails_stops_it_before_that_batch(dsn, db):
    """Named by position, type and stream; the batches before stay, its own leaves nothing, no dead letter is made."""
    append(db, "account-2", "Poison")
    rebuilder = asynchronous(dsn, poisonous())
    with pytest.raises(HandlerFailed) as caught:
        rebuilder.follow(NAME, once=True)
    assert (caught.value.position, caught.value.type, caught.value.stream) == (51, "Poison", "account-2")
    assert checkpoint(db) == 49
    assert db.execute("SELECT count(*) FROM account_balance WHERE balance = -1").fetchone() == (0,)
    assert db.execute("SELECT count(*) FROM rebuilder.dead_letter").fetchone() == (0,)


def test_a_stream_under_quarantine_stops_it(dsn, db):
    """Later events of it would be applied to a state with a hole."""
    append(db, "account-2", "Poison")
    rebuilder = asynchronous(dsn, poisonous())
    rebuilder.rebuild(NAME, quarantine=True)
    deposit(db, "account-3")
    assert rebuilder.follow(NAME, once=True).events == 1
    deposit(db, "account-2")
    with pytest.raises(RefusedError, match="quarantine"):
        rebuilder.follow(NAME, once=True)


def test_tables_of_unknown_content_are_not_fed(rebuilder, db):
    """Never rebuilt and not empty: from the first event on it would double what is in them."""
    db.execute("INSERT INTO account_balance (id, balance, changes) VALUES ('account-1', 1, 1)")
    with pytest.raises(RefusedError, match="never rebuilt"):
        rebuilder.follow(NAME, once=True)
    rebuilder.rebuild(NAME)
    rebuilder.follow(NAME, once=True)
    assert_equal_to_replay(db)


def test_only_async_projections_are_followed(dsn, db):
    """Inline live is fed by its writers: a follower would double it."""
    with pytest.raises(DefinitionError, match="inline"):
        make_rebuilder(dsn).follow(NAME, once=True)


def test_a_notification_is_not_kept_waiting_for_the_poll(rebuilder, db, spawn):
    """LISTEN: an application that notifies in its transaction is served at its commit, though the poll is an hour."""
    with Following(rebuilder, spawn, poll=3600):
        wait_until(lambda: checkpoint_or_none(db) == 50, what="what is there to be applied")
        with db.transaction():
            deposit(db)
            db.execute("NOTIFY rebuilder")
        wait_until(lambda: checkpoint(db) == 51, 5, "the notified event to be applied")
    assert_equal_to_replay(db)


def checkpoint_or_none(db):
    row = db.execute("SELECT position FROM rebuilder.follower_checkpoint").fetchone()
    return row[0] if row else None


def test_without_a_notification_the_poll_finds_it(rebuilder, db, spawn):
    """Also without a channel, as behind a pooler."""
    with Following(rebuilder, spawn, channel=None):
        deposit(db)
        wait_until(lambda: checkpoint_or_none(db) == 51, what="the event to be applied")
    assert_equal_to_replay(db)


def test_a_batch_that_is_killed_leaves_nothing(dsn, db, spawn):
    """The backend is terminated between the rows and the checkpoint: both are gone, and the follower comes back and
    applies the batch once.
    """
    killed = []
    handlers = make_handlers()

    @handlers.on("Kill")
    def kill(event, target):
        target.execute("UPDATE account_balance SET changes = changes + 1000")
        if not killed:
            killed.append(event.position)
            pid = target.fetch_one("SELECT pg_backend_pid()")[0]
            db.execute("SELECT pg_terminate_backend(%s, 5000)", (pid,))
        target.execute("UPDATE account_balance SET changes = changes - 1000")

    append(db, "account-1", "Kill")
    rebuilder = asynchronous(dsn, handlers)
    rebuilder.follow(NAME, once=True)
    assert killed == [51]
    assert checkpoint(db) == 51
    assert_equal_to_replay(db)


def test_a_deadlock_with_a_writer_is_tried_again(dsn, db, connect):
    """Who was chosen as the victim has lost a batch, not an event."""
    failed = []
    handlers = make_handlers()

    @handlers.on("Unlucky")
    def unlucky(event, target):
        if not failed:
            failed.append(event.position)
            target.execute("DO $$BEGIN RAISE EXCEPTION 'deadlock' USING ERRCODE = '40P01'; END$$")

    append(db, "account-1", "Unlucky")
    asynchronous(dsn, handlers).follow(NAME, once=True)
    assert failed == [51]
    assert_equal_to_replay(db)


def test_a_handler_may_append_where_it_does_not_replay(dsn, db):
    """Scenario 36 of the rebuilds: a process manager reacts to an event with another. The follower lets it; in a
    rebuild `event.replaying` is for not doing it again, and an attempt is an error that appends nothing.
    """
    def reacting(*, careful):
        handlers = make_handlers()

        @handlers.on("Ordered")
        def ordered(event, target):
            if not (careful and event.replaying):
                target.execute("INSERT INTO events (stream, type, data) VALUES (%s, 'Deposited', '{\"amount\": 5}')",
                               (event.stream,))
        return handlers

    append(db, "account-1", "Ordered")
    careful, careless = (asynchronous(dsn, reacting(careful=each)) for each in (True, False))
    careful.follow(NAME, once=True)
    careful.follow(NAME, once=True)
    count = "SELECT count(*) FROM events"
    assert db.execute(count).fetchone() == (52,)
    assert_equal_to_replay(db)
    with pytest.raises(WroteOutsideShadow, match="events"):
        careless.rebuild(NAME)
    assert db.execute(count).fetchone() == (52,)
    careful.rebuild(NAME)
    assert db.execute(count).fetchone() == (52,)
    assert_equal_to_replay(db)


def test_the_command_follows_until_it_is_told_to_stop(dsn, db, cli, tmp_path):
    """--once ends by itself; without it SIGTERM ends it after its batch, with exit 0."""
    (tmp_path / "bank_async.py").write_text(
        "import os\nfrom tests.bank import make_projection, make_rebuilder\n"
        "rebuilder = make_rebuilder(os.environ['BANK_DSN'], make_projection(feeding='async'))\n")
    done = cli("follow", "--app", "bank_async:rebuilder", "--once", "--json")
    assert (done.code, done.json[0]["events"]) == (0, 50)
    running = cli.start("follow", NAME, "--app", "bank_async:rebuilder", "--poll", "0.05")
    deposit(db)
    running.says("1 events")
    running.signal(15)
    assert running.done().code == 0
    assert_equal_to_replay(db)
    assert cli("follow").code == 2  # the application's projection is inline


def test_a_reader_in_the_way_is_not_killed(rebuilder, db, connect, spawn):
    """Somebody holds the checkpoint's row for longer than a lock is waited for: the follower asks again and again."""
    rebuilder.follow(NAME, once=True)
    holder = connect()
    holder.execute("SELECT FROM rebuilder.follower_checkpoint FOR UPDATE")
    deposit(db)
    with Following(rebuilder, spawn):
        pid = wait_for_backend(db, "rebuilder:follow:account_balance")
        assert holder.info.backend_pid in wait_for_lock(db, pid)
        wait_until(lambda: pid not in {row[0] for row in db.execute(
            "SELECT pid FROM pg_stat_activity WHERE application_name = 'rebuilder:follow:account_balance'").fetchall()},
            what="the first attempt to be given up")
        holder.rollback()
        wait_until(lambda: checkpoint(db) == 51, what="the follower to go on")
    assert_equal_to_replay(db)
