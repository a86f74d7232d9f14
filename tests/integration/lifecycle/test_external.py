"""Somebody else's follower: its tracking row is locked by the fence and set by the swap."""

import pytest
from psycopg.rows import dict_row

from rebuilder import ExternalCheckpoint
from tests.bank import append, append_many, assert_equal_to_replay, make_projection, make_rebuilder, make_schema

NAME = "account_balance"

# As the `eventsourcing` library keeps it for a projection (one row for each upstream application).
TRACKING = """
CREATE TABLE balances_tracking (application_name text PRIMARY KEY, notification_id bigint NOT NULL);
INSERT INTO balances_tracking VALUES ('bank', 0)
"""
CHECKPOINT = ExternalCheckpoint(
    lock="SELECT FROM balances_tracking WHERE application_name = 'bank' FOR UPDATE",
    advance="INSERT INTO balances_tracking VALUES ('bank', %s)"
            " ON CONFLICT (application_name) DO UPDATE SET notification_id = excluded.notification_id")


@pytest.fixture
def db(dsn, connect):
    connection = connect(autocommit=True)
    make_schema(connection)
    connection.execute(TRACKING)
    append_many(connection, 50)
    return connection


def follow(dsn, connection):
    """Their follower: tracking row first, then the events behind it, both in one transaction."""
    writer = make_rebuilder(dsn)  # lends its handlers
    with connection.transaction():
        (tracked,) = connection.execute(
            "SELECT notification_id FROM balances_tracking WHERE application_name = 'bank' FOR UPDATE").fetchone()
        rows = connection.cursor(row_factory=dict_row).execute(
            "SELECT * FROM events WHERE id > %s ORDER BY id", (tracked,)).fetchall()
        if rows:
            writer.project(connection, *(writer.log.event(row) for row in rows))
            connection.execute("UPDATE balances_tracking SET notification_id = %s", (rows[-1]["id"],))
    return len(rows)


def tracked(db):
    return db.execute("SELECT notification_id FROM balances_tracking").fetchone()[0]


def test_their_follower_goes_on_from_the_rebuilt_position(dsn, db, connect):
    """Before, during and after a rebuild: nothing lost, nothing twice, and their row says where live is."""
    theirs = connect(dsn)
    assert follow(dsn, theirs) == 50
    rebuilder = make_rebuilder(dsn, make_projection(feeding=CHECKPOINT))
    for point in ("build shadow", "freeze"):
        rebuilder._seam.points[point] = lambda run: (
            append(db, "account-1", "Deposited", {"amount": 1}), follow(dsn, theirs))
    report = rebuilder.rebuild(NAME)
    assert tracked(db) == report.position >= 52
    assert_equal_to_replay(db)
    append(db, "account-1", "Deposited", {"amount": 1})
    assert follow(dsn, theirs) == 1
    assert_equal_to_replay(db)


def test_a_tracking_row_that_is_not_there_yet_is_made(dsn, db, connect):
    """A projection that their follower has not begun: the swap writes its first row."""
    db.execute("DELETE FROM balances_tracking")
    make_rebuilder(dsn, make_projection(feeding=CHECKPOINT)).rebuild(NAME)
    assert tracked(db) == 50
    assert follow(dsn, connect(dsn)) == 0
    assert_equal_to_replay(db)
