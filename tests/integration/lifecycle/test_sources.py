"""Which log a rebuild saw: incarnations, fingerprints, and edits of old events."""

import uuid

import pytest

from rebuilder import Reason
from rebuilder.errors import SourceRotated
from rebuilder.eventlog import fingerprint
from tests.bank import append, append_many, make_rebuilder, make_schema

NAME = "account_balance"


@pytest.fixture
def db(dsn, connect):
    connection = connect(autocommit=True)
    make_schema(connection)
    append_many(connection, 3500)
    return connection


@pytest.fixture
def rebuilder(dsn, db):
    return make_rebuilder(dsn)


def ticket_of(rebuilder, report):
    with rebuilder.store() as store:
        return store.rebuild(uuid.UUID(report.ticket))


def test_a_completed_rebuild_says_which_log_it_saw(rebuilder, db):
    """Incarnation, events, position; live's row names the incarnation too."""
    found = ticket_of(rebuilder, rebuilder.rebuild(NAME)).source
    assert (found.tier, found.events, found.position, found.digest) == ("count", 3500, 3500, None)
    assert db.execute("SELECT source_generation FROM rebuilder.projection_state").fetchone() == (found.generation,)


def test_a_digest_of_the_closed_segments_where_it_is_asked_for(dsn, db):
    """The same log has the same digest, hashed once: the second rebuild finds the segments stored."""
    rebuilder = make_rebuilder(dsn, settings={"log_fingerprint": "sha256"})
    first, second = (ticket_of(rebuilder, rebuilder.rebuild(NAME)).source for _ in range(2))
    assert first == second
    assert (first.tier, len(first.digest)) == ("sha256", 64)
    assert db.execute("SELECT count(*), min(events), max(last_position) FROM rebuilder.log_segment").fetchone() == (
        3, 1000, 3000)


def test_an_old_event_that_was_edited_is_found(rebuilder, db):
    """In place: neither count nor maximum tells. Within a thousand positions, in the first look after it."""
    first = rebuilder.verify_log()
    assert (first.segments, first.closed, first.altered) == (0, 3, ())
    db.execute("""UPDATE events SET data = '{"amount": 1000000}' WHERE id = 1234""")
    second = rebuilder.verify_log()
    assert second.segments == 3
    assert [(each.first_position, each.last_position, each.events_before, each.events_now)
            for each in second.altered] == [(1001, 2000, 1000, 1000)]


@pytest.mark.parametrize("change, counts", [
    ("DELETE FROM events WHERE id = 5", (1000, 999)), ("DELETE FROM events WHERE id <= 1000", (1000, 0)),
    ("UPDATE events SET stream = 'account-2' WHERE id = 5", (1000, 1000)),
    ("UPDATE events SET type = 'Withdrawn' WHERE id = 16", (1000, 1000)),
    ("UPDATE events SET category = 'other' WHERE id = 5", (1000, 1000)),
    ("UPDATE events SET schema_version = 2 WHERE id = 5", (1000, 1000))])
def test_any_change_of_an_old_event_is_found(rebuilder, db, change, counts):
    """Removed, moved to another stream, type, category or version."""
    rebuilder.verify_log()
    db.execute(change)
    (found,) = rebuilder.verify_log().altered
    assert (found.first_position, found.events_before, found.events_now) == (1, *counts)


def test_appends_and_representations_alter_nothing(rebuilder, db):
    """New events close new segments; key order of JSON is no edit, nor is a vacuum that moves rows."""
    rebuilder.verify_log()
    append_many(db, 1000)
    db.execute("UPDATE events SET recorded_at = recorded_at WHERE id = 7")
    db.execute("VACUUM FULL events")
    found = rebuilder.verify_log()
    assert (found.segments, found.closed, found.altered) == (3, 1, ())
    assert rebuilder.verify_log().digest == found.digest


def test_fields_do_not_run_into_each_other(rebuilder, db):
    """Stream "ab" of type "c" is not stream "a" of type "bc": both tiers frame what they hash."""
    digests = set()
    for stream, type_ in (("ab", "c"), ("a", "bc"), ("", "abc")):
        db.execute("TRUNCATE events RESTART IDENTITY")
        append(db, stream, type_)
        log = rebuilder.log.open(db)
        digests |= {fingerprint.sum64(log, db).digest, fingerprint.segments(log, db)[0].digest}
    assert len(digests) == 6


def test_the_fingerprint_does_not_depend_on_who_asks(rebuilder, db, connect, dsn):
    """Session settings that change how times and bytes look do not change it."""
    log = rebuilder.log.open(db)
    other = connect(dsn, autocommit=True)
    other.execute("SET bytea_output = 'escape'; SET TimeZone = 'Asia/Tokyo'; SET DateStyle = 'German'")
    assert fingerprint.sum64(log, other) == fingerprint.sum64(log, db)
    assert fingerprint.segments(log, other) == fingerprint.segments(log, db)


def test_after_a_restore_everything_is_pending(rebuilder, db):
    """rotate_log: what was built before is of another log, and no version has to be raised for it."""
    rebuilder.rebuild(NAME)
    assert rebuilder.pending() == []
    rebuilder.rotate_log("restored from the backup of Monday")
    assert [each.reason for each in rebuilder.pending()] == [Reason.SOURCE_CHANGED]
    rebuilder.rebuild(NAME)
    assert rebuilder.pending() == []
    assert rebuilder.verify_log().segments == 0  # the old digests are of the old log


def test_a_rebuild_across_a_rotation_does_not_complete(rebuilder, db):
    """What it has read is of the log before: live is as it was."""
    rebuilder.rebuild(NAME)
    rebuilder._seam.points["freeze"] = lambda run: rebuilder.rotate_log("restored")
    with pytest.raises(SourceRotated):
        rebuilder.rebuild(NAME)
    rebuilder._seam.points.clear()
    (status,) = rebuilder.status(NAME)
    assert (status.generation, status.pending.reason) == (1, Reason.SOURCE_CHANGED)
    assert rebuilder.rebuild(NAME).generation == 3


def test_the_command_line_looks_deep(cli, rebuilder, db):
    """verify --deep: exit 5 for an edit, though live and replay agree."""
    rebuilder.rebuild(NAME)
    assert cli("verify", NAME, "--deep").code == 0
    db.execute("UPDATE events SET recorded_at = now(), schema_version = 7 WHERE id = 1234")
    done = cli("verify", NAME, "--deep", "--json")
    assert (done.code, done.json["drift"]["changed"]) == (5, 0)
    assert done.json["log"]["altered"][0]["first_position"] == 1001
    assert "1,001 to 2,000" in cli("verify", NAME, "--deep").stdout
