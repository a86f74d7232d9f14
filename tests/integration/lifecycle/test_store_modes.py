"""Manifests, modes, the JSON form, damage and trouble (lifecycle scenarios 90, 93 to 109)."""

import uuid

import psycopg
import pytest

from rebuilder.domain.archive import IndexCheckpoint, Manifest, Shard, ShardCheckpoint
from rebuilder.domain.documents import Document, InventoryQuery, Snapshot
from rebuilder.domain.invalid import InvalidCheckpoint, InvalidIndexCheckpoint
from rebuilder.domain.lifecycle import Start, Transition
from rebuilder.errors import (
    NotInstalled,
    ReadOnlyStore,
    RecordBusy,
    RecordConflict,
    RecordCorrupt,
    SpaceInsufficient,
    StoreClosed,
)
from rebuilder.store.access import store_errors
from rebuilder.store.documents import Live
from rebuilder.store.projection_store import ProjectionStore
from rebuilder.store.status_json import decode_status, encode_status
from tests.integration.lifecycle.steps import NAME, adopt, asked, cp, source_of, started


def shard(number, **overrides):
    first = (number - 1) * 10 + 1
    return Shard(**{"id": f"s{number}", "path": f"s{number}.parquet", "events": 10, "first_position": first,
                    "last_position": first + 9, "digest": bytes([number] * 32), **overrides})


def manifest(store, *shards):
    return Manifest(uuid.UUID(int=5), source_of(store), 10, shards or (shard(1), shard(2)))


# --- manifests -------------------------------------------------------------------------------------------------------


def test_a_manifest_is_kept_once(store):
    """93: read back whole; the same again is fine, with another digest it is a conflict and not damage."""
    made = manifest(store)
    assert store.put_event_index_manifest(made) == made
    assert store.put_event_index_manifest(made) == store.event_index_manifest(made.id) == made
    assert store.last_event_index_manifest(made.source) == made
    with pytest.raises(RecordConflict):
        store.put_event_index_manifest(manifest(store, shard(1), shard(2, digest=bytes(32))))
    assert store.event_index_manifest(uuid.uuid4()) is None


@pytest.mark.parametrize("damage", ["ordinal = 0", "ordinal = 1", None])
def test_a_manifest_with_missing_shards_is_corrupt(store, db, damage):
    """98: the first gone, the last gone, or the order changed."""
    made = store.put_event_index_manifest(manifest(store))
    if damage:
        db.execute(f"DELETE FROM rebuilder.event_index_shard WHERE {damage}")
    else:
        db.execute("UPDATE rebuilder.event_index_shard SET ordinal = 7 WHERE ordinal = 0")
    with pytest.raises(RecordCorrupt):
        store.event_index_manifest(made.id)


def test_a_checkpoint_over_shards_never_runs_backwards(store):
    """100: per shard, whatever the clock says; one that goes back is refused whole; a repeat is fine. It needs a
    manifest, a shard of it, and a ticket.
    """
    made, ticket = store.put_event_index_manifest(manifest(store)), started_ticket(store)

    def at(**positions):
        return IndexCheckpoint(ticket.id, made.id, [ShardCheckpoint(name, p, p) for name, p in positions.items()])

    store.put_event_index_checkpoint(at(s1=5, s2=12))
    store.put_event_index_checkpoint(at(s1=5, s2=12))
    with pytest.raises(InvalidIndexCheckpoint):
        store.put_event_index_checkpoint(at(s1=9, s2=11))
    assert store.event_index_checkpoint(ticket.id, made.id) == at(s1=5, s2=12)
    with pytest.raises(RecordConflict):
        store.put_event_index_checkpoint(at(s9=1))


def started_ticket(store):
    adopt(store)
    return started(store)


# --- read-only, closed -----------------------------------------------------------------------------------------------


MUTATORS = {
    "checkpoint": lambda store, full: store.checkpoint(cp(full, 20)),
    "invalidate": lambda store, full: store.invalidate(NAME, "operator_requested"),
    "request_rebuild": lambda store, full: store.request_rebuild(NAME, uuid.uuid4(), version=1),
    "transition_rebuild": lambda store, full: store.transition_rebuild(Transition(uuid.uuid4(), 1, Start())),
    "put_documents": lambda store, full: store.put_documents([Document("a", b"1")], Live(NAME, 1)),
    "expire_documents": lambda store, full: store.expire_documents(NAME),
    "put_snapshot": lambda store, full: store.put_snapshot(Snapshot(NAME, uuid.uuid4(), 1, b"1")),
    "put_event_index_manifest": lambda store, full: store.put_event_index_manifest(manifest(full)),
    "put_event_index_checkpoint": lambda store, full: store.put_event_index_checkpoint(
        IndexCheckpoint(uuid.uuid4(), uuid.uuid4())),
    "transaction": lambda store, full: store.transaction().__enter__(),
}


@pytest.mark.parametrize("name", sorted(MUTATORS))
def test_a_read_only_store_changes_nothing(store, rebuilder, name):
    """103: refused before the database is asked, by an error that says so and not by "unavailable"."""
    adopt(store)
    with rebuilder.store(read_only=True) as reading:
        with pytest.raises(ReadOnlyStore):
            MUTATORS[name](reading, store)
        assert reading._connection is None  # nobody has been asked


def test_a_read_only_store_reads(store, rebuilder):
    """90: status, tickets, inventory; and its session could not write either."""
    adopt(store)
    ticket = asked(store)
    with rebuilder.store(read_only=True) as reading:
        assert reading.status(NAME) == store.status(NAME)
        assert reading.rebuild(ticket.id) == ticket
        assert reading.inventory(InventoryQuery(NAME)).rows == ()
        with pytest.raises(psycopg.errors.ReadOnlySqlTransaction), reading._connection.transaction():
            reading._connection.execute("DELETE FROM rebuilder.rebuild_ticket")


def test_a_closed_store_says_so(store):
    """90: and does not open itself again."""
    store.close()
    with pytest.raises(StoreClosed):
        store.status(NAME)
    with pytest.raises(StoreClosed):
        store.invalidate(NAME, "operator_requested")


def test_a_database_without_bookkeeping_is_named(bare_dsn):
    """As everywhere else: the command that makes it."""
    with ProjectionStore(bare_dsn) as store, pytest.raises(NotInstalled):
        store.status(NAME)


# --- the JSON form ---------------------------------------------------------------------------------------------------


def examples(store):
    yield store.status(NAME)
    adopt(store)
    yield store.status(NAME)
    started(store)
    yield store.status(NAME)


def test_a_status_survives_its_json_form(store):
    """Every kind of status, byte for byte the same when it is written again."""
    store.invalidate(NAME, "operator_requested")
    for status in examples(store):
        text = encode_status(status)
        assert decode_status(text) == status
        assert encode_status(decode_status(text)) == text


def test_anything_else_is_refused(store):
    """102, 104: every truncation, trailing text, an unknown or missing or doubled name, another version; and whatever
    byte is changed, the answer is a status or "corrupt", never another error.
    """
    started_ticket(store)
    text = encode_status(store.status(NAME))
    wrong = [text[:n] for n in range(len(text))]
    wrong += [text + b" ", text + b"x", b" " + text, text.replace(b'"format":1', b'"format":2'),
              text.replace(b'"format":1', b'"format":true'), text.replace(b"{", b'{"new":1,', 1),
              text.replace(b'"generation":1', b'"generation":1,"generation":2'), text.replace(b"generation", b"gen", 1),
              b"[]", b"null", b"[" * 100_000, b"\xff", text.replace(b'"events":10', b'"events":NaN')]
    for each in wrong:
        with pytest.raises(RecordCorrupt):
            decode_status(each)
    for place in range(len(text)):
        for bit in (1, 4, 128):
            flipped = text[:place] + bytes([text[place] ^ bit]) + text[place + 1:]
            try:
                assert encode_status(decode_status(flipped)) == flipped
            except RecordCorrupt:
                continue


# --- damage and trouble ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("damage", [
    "projection_state DROP CONSTRAINT projection_state_health; UPDATE rebuilder.projection_state SET health = 'fine'",
    "projection_state DROP CONSTRAINT projection_state_version; UPDATE rebuilder.projection_state SET version = 0",
    "follower_checkpoint DROP CONSTRAINT follower_checkpoint_numbers; UPDATE rebuilder.follower_checkpoint SET rows=-1",
])
def test_a_status_that_was_damaged_is_corrupt(store, db, damage):
    """105: below the constraints; not a status that looks right, and not an error of Python's."""
    adopt(store)
    db.execute("ALTER TABLE rebuilder." + damage)
    with pytest.raises(RecordCorrupt):
        store.status(NAME)


def test_an_event_and_a_checkpoint_that_regresses_are_one_transaction(store, db):
    """106, 107: what the checkpoint refuses takes the rest with it."""
    adopt(store)
    with pytest.raises(InvalidCheckpoint), store.transaction():
        store.put_documents([Document("a", b"1")], Live(NAME, 1))
        store.checkpoint(cp(store, 5))
    assert (store.status(NAME).checkpoint.source.position, store.document(NAME, "a")) == (10, None)


def test_a_record_that_somebody_holds_is_busy(store, connect):
    """109: a lock timeout is not damage, and is told without the statement."""
    adopt(store)
    holder = connect()
    holder.execute("SELECT FROM rebuilder.follower_checkpoint FOR UPDATE")
    with pytest.raises(RecordBusy) as caught:
        store.checkpoint(cp(store, 20))
    assert (caught.value.exit_code, caught.value.sqlstate) == (4, "55P03")
    assert "SELECT" not in str(caught.value)
    holder.rollback()
    assert store.checkpoint(cp(store, 20)).source.position == 20


@pytest.mark.parametrize("sqlstate, kind", [
    ("53100", SpaceInsufficient), ("53200", SpaceInsufficient), ("55P03", RecordBusy), ("40001", RecordBusy),
    ("40P01", RecordBusy), ("57014", RecordBusy), ("23505", RecordConflict), ("23503", RecordConflict),
    ("23514", RecordCorrupt)])
def test_each_sqlstate_means_one_thing(db, sqlstate, kind):
    """109: no room, somebody else, another record, damage; neither path nor statement is in the message."""
    with pytest.raises(kind) as caught, store_errors("writing"):
        db.execute(f"DO $$BEGIN RAISE EXCEPTION 'the disk /var/lib is full' USING ERRCODE = '{sqlstate}'; END$$")
    assert "DO $$" not in str(caught.value)
    assert kind is RecordCorrupt or "/var" not in str(caught.value)


def test_a_connection_that_was_lost_is_opened_again(store, db):
    """After a restart the store goes on; what was in flight is an error, not half done."""
    adopt(store)
    db.execute("SELECT pg_terminate_backend(%s, 5000)", (store._connection.info.backend_pid,))
    with pytest.raises(Exception, match="lost"):
        store.status(NAME)
    assert store.status(NAME).generation == 1
