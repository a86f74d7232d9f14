"""Live as the application wrote it against live as a rebuild makes it: what is the same, reported, or refused."""

import pytest

from rebuilder.errors import GuardTripped
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

GUARDED = {"stream_columns": {"account_balance": "id"}}


@pytest.fixture
def db(connect):
    connection = connect(autocommit=True)
    make_schema(connection)
    return connection


def open_account(db, stream, rebuilder):
    append(db, stream, "AccountOpened", {"owner": f"owner of {stream}"}, live=rebuilder)


def test_rows_that_handlers_wrote_are_the_same_afterwards(dsn, db):
    """What `project` wrote with the same handlers is what the rebuild makes: no drift (scenario 79)."""
    rebuilder = make_rebuilder(dsn, make_projection(**GUARDED))
    for stream in "abc":
        open_account(db, stream, rebuilder)
    before = rows_of(db)
    report = rebuilder.rebuild("account_balance")
    assert report.drift.total == 0
    assert rows_of(db) == before
    assert len(before) == 3


def test_a_row_without_any_event_stops_the_rebuild(dsn, db):
    """A row that was inserted by hand would vanish: the guard names it and both rows stay (scenario 80)."""
    rebuilder = make_rebuilder(dsn, make_projection(**GUARDED))
    open_account(db, "a", rebuilder)
    db.execute("INSERT INTO account_balance VALUES ('by hand', 'nobody', 7, 1)")
    with pytest.raises(GuardTripped, match="1 live rows whose stream has no event in the log: by hand") as caught:
        rebuilder.rebuild("account_balance")
    assert (caught.value.guard, caught.value.rows, caught.value.sample) == ("ghost-rows", 1, ["by hand"])
    assert [row[0] for row in rows_of(db)] == ["a", "by hand"]
    assert rebuilder.rebuild("account_balance", allow=["ghost-rows"]).drift.missing == 1
    assert [row[0] for row in rows_of(db)] == ["a"]


def test_a_column_that_was_written_by_hand_is_put_right_and_told(dsn, db):
    """A changed value of a row that has events is replaced by the replay's and reported as drift (scenario 81)."""
    rebuilder = make_rebuilder(dsn, make_projection(**GUARDED))
    open_account(db, "a", rebuilder)
    db.execute("UPDATE account_balance SET balance = 1000000")
    report = rebuilder.rebuild("account_balance")
    assert (report.drift.missing, report.drift.extra, report.drift.changed) == (0, 0, 1)
    (sample,) = report.drift.sample
    assert (sample.kind, sample.key, sample.columns) == ("changed", {"id": "a"}, ("balance",))
    assert rows_of(db) == [("a", "owner of a", 0, 1)]


def test_drift_is_counted_beyond_the_sample(dsn, db):
    """21 rows written by hand are 21, although 20 are shown (scenario 82)."""
    rebuilder = make_rebuilder(dsn)
    for number in range(25):
        open_account(db, f"a{number:02}", rebuilder)
    db.execute("UPDATE account_balance SET balance = 5 WHERE id < 'a21'")
    report = rebuilder.rebuild("account_balance")
    assert report.drift.changed == 21
    assert len(report.drift.sample) == 20
    assert_equal_to_replay(db)


def test_the_row_of_an_archived_stream_goes_without_a_word_of_ghosts(dsn, db):
    """An archived stream still has its events, so its row is no ghost; it is not replayed (scenario 83).

    That the table would shrink to nothing is another guard's business.
    """
    db.execute("CREATE TABLE archived_stream (stream text PRIMARY KEY)")
    log = make_log(archived="EXISTS (SELECT FROM archived_stream a WHERE a.stream = event.stream)")
    rebuilder = make_rebuilder(dsn, make_projection(**GUARDED), log=log)
    open_account(db, "a", rebuilder)
    db.execute("INSERT INTO archived_stream VALUES ('a')")
    with pytest.raises(GuardTripped) as caught:
        rebuilder.rebuild("account_balance")
    assert caught.value.guard == "shrink"
    report = rebuilder.rebuild("account_balance", allow=["shrink"])
    assert (report.events_applied, report.drift.missing) == (0, 1)
    assert rows_of(db) == []


def test_creations_updates_deletions_and_restorations_replay_to_the_same_rows(dsn, db):
    """Four accounts that were opened, changed, closed and opened again: nine events, and each row as it was
    (scenario 84).
    """
    rebuilder = make_rebuilder(dsn)
    for stream in "abcd":
        open_account(db, stream, rebuilder)
    append(db, "b", "Deposited", {"amount": 10**15}, live=rebuilder)
    append(db, "c", "AccountClosed", live=rebuilder)
    append(db, "d", "OwnerRenamed", {"owner": "Ω ' \" \\ 名"}, live=rebuilder)
    append(db, "d", "AccountClosed", live=rebuilder)
    append(db, "d", "AccountOpened", {"owner": "restored"}, live=rebuilder)
    before = rows_of(db)
    assert [row[0] for row in before] == ["a", "b", "d"]
    report = rebuilder.rebuild("account_balance")
    assert (report.events_applied, report.drift.total) == (9, 0)
    assert rows_of(db) == before
    assert_equal_to_replay(db)


def test_verify_tells_what_a_rebuild_would_change_and_changes_nothing(dsn, db):
    """Drift can be asked for without a rebuild (scenarios 79 to 82)."""
    append_many(db, 60)
    rebuilder = make_rebuilder(dsn)
    rebuilder.rebuild("account_balance")
    assert rebuilder.verify("account_balance").drift.total == 0
    db.execute("UPDATE account_balance SET balance = balance + 1 WHERE id = 'account-1';"
               "DELETE FROM account_balance WHERE id = 'account-2';"
               "INSERT INTO account_balance VALUES ('by hand', 'nobody', 7, 1)")
    before = rows_of(db)
    drift = rebuilder.verify("account_balance").drift
    assert (drift.changed, drift.extra, drift.missing) == (1, 1, 1)
    assert rows_of(db) == before


def test_rows_that_are_a_moment_younger_than_the_shadow_trip_no_guard(dsn, db):
    """Writers that fill an empty read model, and a column that was never filled, while the run compares, don't make it
    fail: the shadow has those events a moment later (scenarios 80 and 21).
    """
    handlers = make_handlers()
    handlers.on("Noted")(lambda event, target: target.execute(
        "UPDATE account_balance SET note = 'seen' WHERE id = %s", (event.stream,)))
    db.execute("ALTER TABLE account_balance ADD note text")
    rebuilder = make_rebuilder(dsn, make_projection(handlers=handlers, **GUARDED))
    open_account(db, "a", rebuilder)
    came = []

    def write(run):
        if not came:
            append(db, "a", "Noted", live=rebuilder)
            for stream in "bcd":
                open_account(db, stream, rebuilder)
        came.append(run.phase)

    rebuilder._seam.points["freeze"] = write  # the bulk has been read, nothing is compared yet
    report = rebuilder.rebuild("account_balance")
    assert (report.drift.total, report.warnings) == (0, ())
    assert [(row[0], row[-1]) for row in rows_of(db)] == [("a", "seen"), ("b", None), ("c", None), ("d", None)]
