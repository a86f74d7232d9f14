"""Writers that wait on the fence: hazard C3, the version guard, and append and project in one transaction."""

import pytest

from rebuilder.errors import CutOverDuringTransaction, DefinitionError, RecipeOutdated
from tests.bank import append, assert_equal_to_replay, differences, make_projection, make_rebuilder, rows_of
from tests.fix_threads import wait_for_lock, wait_until
from tests.integration.hazards.schedule import (
    NAME,
    PATIENT,
    Moments,
    deposit,
    insert_event,
    main_pid,
    pid_of,
    plain_handlers,
)

ABOVE = ["REPEATABLE READ", "SERIALIZABLE"]


def application(dsn, **overrides):
    """With handlers whose UPDATE may meet no row."""
    return make_rebuilder(dsn, make_projection(handlers=plain_handlers(), **overrides), settings=PATIENT)


def through_the_swap(moments, watcher, spawn, begin, *writes):
    """Row "new" is born after the freeze; writers begin before the fence and write live while it is held.

    ``begin`` is called before the fence, each of ``writes`` is (connection, function) and goes on when the run commits.
    """
    futures = []

    def before_the_fence(run):
        append(watcher, "new", "AccountOpened", {"owner": "born after the freeze"}, live=moments.application)
        begin()

    def behind_the_fence(run):
        for connection, write in writes:
            futures.append(spawn(write))
            assert wait_for_lock(watcher, pid_of(connection)) == [main_pid(run)]

    moments.at("fence", before_the_fence)
    moments.at("before commit", behind_the_fence)
    return futures


@pytest.fixture
def swap(dsn, watcher, spawn):
    """`swap(application, begin, *writes)`: rebuild with such writers; their futures."""

    def run(rebuilder, begin, *writes):
        moments = Moments(rebuilder)
        moments.application = rebuilder
        futures = through_the_swap(moments, watcher, spawn, begin, *writes)
        rebuilder.rebuild(NAME)
        return futures

    return run


# --- C3 --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", ABOVE)
def test_a_plain_update_above_read_committed_that_waits_through_the_swap_is_lost_without_an_error(
        dsn, connect, watcher, swap, level):
    """What the application would do without `project`: UPDATE and DELETE meet 0 rows, and its COMMIT succeeds (C3)."""
    updater, deleter = connect(), connect()
    statements = {updater: "UPDATE account_balance SET balance = balance + 5, changes = changes + 1 WHERE id = 'new'",
                  deleter: "DELETE FROM account_balance WHERE id = 'new'"}

    def begin():
        for connection in statements:
            connection.execute(f"BEGIN ISOLATION LEVEL {level}")
        insert_event(updater, "new", amount=5)
        deleter.execute("SELECT 1")

    def write(connection):
        return lambda: (connection, connection.execute(statements[connection]).rowcount, connection.commit())

    futures = swap(application(dsn), begin, (updater, write(updater)), (deleter, write(deleter)))
    assert [future.result(10)[1] for future in futures] == [0, 0]
    assert differences(watcher) == [("lost", "new", "born after the freeze", 5, 2),
                                    ("invented", "new", "born after the freeze", 0, 1)]


@pytest.mark.parametrize("level", ABOVE)
@pytest.mark.parametrize("how", ["project", "guard"])
def test_project_and_guard_raise_when_the_snapshot_is_older_than_the_cut_over(dsn, connect, watcher, swap, level, how):
    """The same writer gets a retryable error instead of losing its event; repeated, it is applied (C3)."""
    feeding = "inline" if how == "project" else "own"
    rebuilder = application(dsn)
    writer = connect()
    held = []

    def begin():
        writer.execute(f"BEGIN ISOLATION LEVEL {level}")
        held.append(insert_event(writer, "new", amount=5))

    def write():
        with pytest.raises(CutOverDuringTransaction) as caught:
            if how == "project":
                rebuilder.project(writer, held[0])
            else:
                application(dsn, feeding=feeding).guard(writer)
        writer.rollback()
        return caught.value

    (future,) = swap(rebuilder, begin, (writer, write))
    error = future.result(10)
    assert (error.sqlstate, error.exit_code) == ("40001", 4)
    assert_equal_to_replay(watcher)
    writer.execute(f"BEGIN ISOLATION LEVEL {level}")
    rebuilder.project(writer, insert_event(writer, "new", amount=5))
    writer.commit()
    assert rows_of(watcher)[-1] == ("new", "born after the freeze", 5, 2)
    assert_equal_to_replay(watcher)


@pytest.mark.parametrize("level", ABOVE)
def test_a_snapshot_from_before_the_cut_over_that_comes_after_it_is_refused_too(dsn, connect, watcher, level):
    """Also without having waited: the snapshot alone decides, and an ordinary ALTER TABLE does not trip it (C3)."""
    rebuilder = application(dsn)
    writer, other = connect(), connect()
    for connection in (writer, other):
        connection.execute(f"BEGIN ISOLATION LEVEL {level}")
        connection.execute("SELECT 1")  # takes the snapshot, and no lock that anybody would wait for
    watcher.execute("ALTER TABLE account_balance ADD COLUMN note text")
    rebuilder.project(other, insert_event(other, "a1", amount=7))
    other.commit()
    rebuilder.rebuild(NAME)
    event = insert_event(writer, "a1", amount=5)
    with pytest.raises(CutOverDuringTransaction):
        rebuilder.project(writer, event)
    writer.rollback()
    assert_equal_to_replay(watcher)


def test_a_read_committed_writer_that_waits_through_the_swap_is_applied_once_to_the_new_table(
        dsn, connect, watcher, swap):
    """Inline writers in READ COMMITTED need no retry, also for a row born after the freeze (promise 1)."""
    rebuilder = application(dsn)
    writer = connect()
    held = []

    def write():
        rebuilder.project(writer, held[0])
        writer.commit()

    (future,) = swap(rebuilder, lambda: held.append(insert_event(writer, "new", amount=5)), (writer, write))
    future.result(10)
    assert rows_of(watcher)[-1] == ("new", "born after the freeze", 5, 2)
    assert_equal_to_replay(watcher)


# --- the version guard -----------------------------------------------------------------------------------------------


def test_a_writer_of_an_older_recipe_that_waits_through_the_cut_over_writes_nothing(dsn, connect, watcher, swap):
    """It reads which version live was built with only once it has the lock on live (promise 5)."""
    old = application(dsn, version=1)
    old.rebuild(NAME)
    writer = connect()
    held = []

    def write():
        with pytest.raises(RecipeOutdated) as caught:
            old.project(writer, held[0])
        writer.rollback()
        return caught.value

    (future,) = swap(application(dsn, version=2), lambda: held.append(insert_event(writer, "new", amount=5)),
                     (writer, write))
    error = future.result(10)
    assert (error.built_with, error.version) == (2, 1)
    assert_equal_to_replay(watcher)


def test_a_rebuild_of_an_older_recipe_that_waited_for_a_newer_one_changes_nothing(dsn, watcher, spawn):
    """It is asked after the state row is locked which version live was built with (promise 5)."""
    old, new = application(dsn, version=1), application(dsn, version=2)
    futures = []

    def start_the_old_one(run):
        futures.append(spawn(old.rebuild, NAME, wait=20))
        wait_until(lambda: watcher.execute(
            "SELECT 1 FROM pg_stat_activity WHERE %s = ANY (pg_blocking_pids(pid))", (main_pid(run),)).fetchone(),
            what="the older rebuild to wait for the state row")

    Moments(new).at("before commit", start_the_old_one)
    report = new.rebuild(NAME)
    assert isinstance(futures[0].exception(20), RecipeOutdated)
    (state,) = new.status(NAME)
    assert (state.generation, state.version) == (report.generation, 2)


# --- one transaction -------------------------------------------------------------------------------------------------


def test_append_and_project_on_an_autocommit_connection_is_refused(dsn, watcher):
    """The event would be committed before its effect: a cut-over between the two applies it, then the writer again."""
    rebuilder = make_rebuilder(dsn)
    event = insert_event(watcher, "a1", amount=5)
    with pytest.raises(DefinitionError, match="in no transaction"):
        rebuilder.project(watcher, event)
    rebuilder.rebuild(NAME)
    assert_equal_to_replay(watcher)
    # The naive version, without that refusal: the same event twice.
    watcher.execute("UPDATE account_balance SET balance = balance + 5, changes = changes + 1 WHERE id = 'a1'")
    assert [what for what, *_ in differences(watcher)] == ["lost", "invented"]


def test_in_a_transaction_block_of_an_autocommit_connection_it_is_not(dsn, watcher):
    """What counts is the transaction, not the connection's mode."""
    rebuilder = make_rebuilder(dsn)
    with watcher.transaction():
        rebuilder.project(watcher, insert_event(watcher, "a1", amount=5))
    assert_equal_to_replay(watcher)


def test_an_event_committed_before_its_effect_under_the_fence_is_not_applied_twice(dsn, connect, watcher, spawn):
    """An inline writer that holds both back until after the cut-over: the drain does not see what is not committed."""
    rebuilder = make_rebuilder(dsn, settings=PATIENT)
    moments = Moments(rebuilder)
    writers = [connect() for _ in range(3)]
    futures = []

    def one(connection, event):
        rebuilder.project(connection, event)
        connection.commit()

    def behind_the_fence(run):
        for number, connection in enumerate(writers):
            event = insert_event(connection, f"a{number + 1}", amount=5)
            futures.append(spawn(one, connection, event))
            wait_for_lock(watcher, pid_of(connection))

    moments.at("drain", behind_the_fence)
    deposit(watcher, rebuilder)
    rebuilder.rebuild(NAME)
    for future in futures:
        future.result(10)
    assert_equal_to_replay(watcher)
