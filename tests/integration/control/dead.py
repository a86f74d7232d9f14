"""Poison for a bank's log, and what live must be when some events were set aside."""

from psycopg.types.json import Jsonb

from tests import bank

POISON = {"sql": {"amount": "much"}, "python": {}}
"""Data on which the handler of a deposit fails: on the server when its statement runs, or in Python before it."""


def letters(db):
    """Open dead letters in order: position, stream, cause, in_live."""
    return db.execute("SELECT position, stream, cause, in_live FROM rebuilder.dead_letter WHERE resolved_at IS NULL"
                      " ORDER BY position").fetchall()


def followers(db, *poison):
    """Positions of poison events and of all that follow them in their streams."""
    rows = db.execute(
        "SELECT e.id FROM events e WHERE e.category = 'account' AND EXISTS (SELECT FROM events p WHERE p.id = ANY (%s)"
        " AND p.stream = e.stream AND p.id <= e.id) ORDER BY 1", [list(poison)]).fetchall()
    return [row[0] for row in rows]


def poisoned(db, positions, data):
    """Turn deposits of the log into poison."""
    bank.correct(db, "UPDATE events SET type = 'Deposited', data = %s WHERE id = ANY (%s)",
                 [Jsonb(data), list(positions)])


def assert_replay_without(db, dead):
    """Live is what a replay makes of all events but these: neighbours are applied once each."""
    db.execute("CREATE OR REPLACE VIEW healthy AS SELECT * FROM events WHERE id NOT IN (SELECT position FROM"
               " rebuilder.dead_letter WHERE resolved_at IS NULL)")
    assert [letter[0] for letter in letters(db)] == sorted(dead)
    assert bank.rows_of(db) == bank.replay_in_sql(db, "healthy")
