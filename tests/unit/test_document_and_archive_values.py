"""Documents, pages, snapshots, shards and manifests check themselves."""

import uuid
from datetime import UTC, datetime, timedelta

import pytest

from rebuilder.domain.archive import IndexCheckpoint, Manifest, Shard, ShardCheckpoint
from rebuilder.domain.documents import VALUE_BYTES, Document, InventoryQuery, Page, Place, Row, Snapshot
from rebuilder.domain.invalid import (
    InvalidDocument,
    InvalidIndexCheckpoint,
    InvalidManifest,
    InvalidName,
    InvalidShard,
    InvalidSnapshot,
)

ONE, TWO = uuid.UUID(int=1), uuid.UUID(int=2)
NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize("key, value", [
    ("", b"x"), (" key", b"x"), ("key ", b"x"), ("key\npart", b"x"), ("k" * 513, b"x"), ("é" * 257, b"x"),
    ("key", b""), ("key", b"x" * (VALUE_BYTES + 1)), ("key", "text"), ("key", {"a": float("nan")}),
    ("key", {"a": object()})])
def test_a_document_that_can_not_be_kept_is_refused(key, value):
    """Scenario 75: keys by bytes and not by characters, values of 1 byte to 16 MiB."""
    with pytest.raises(InvalidDocument):
        Document(key, value)


def test_the_limits_themselves_are_fine():
    """512 bytes, 16 MiB, and space inside a key."""
    Document("é" * 256, b"x" * VALUE_BYTES)
    assert repr(Document("a key", {"secret": 1})) == "Document(key='a key')"


@pytest.mark.parametrize("arguments", [
    {"limit": 0}, {"limit": 257}, {"limit": True}, {"generation": 0},
    {"after": Place("other", None, 1, "a")}, {"after": Place("food", 1, 1, "a")}])
def test_a_page_is_asked_for_within_limits(arguments):
    """Scenarios 83 and 86: a place belongs to its projection and generations; the limit may be another."""
    with pytest.raises(InvalidDocument):
        InventoryQuery(**{"projection": "food", **arguments})
    assert InventoryQuery("food", None, 3, Place("food", None, 1, "a")).limit == 3


def row(key, generation=1, size=1):
    return Row(generation, key, None, size)


@pytest.mark.parametrize("rows, next_", [
    ((row("b"), row("a")), None), ((row("a"), row("a")), None), ((row("a"), row("b"), row("c")), None),
    ((row("a", size=VALUE_BYTES), row("b")), None), ((row("a", generation=2),), None),
    ((), Place("food", 1, 1, "a")), ((row("a"),), Place("food", 1, 1, "b"))])
def test_a_page_that_can_not_be_is_refused(rows, next_):
    """Scenario 91: out of order, twice, over limit or budget, out of scope, going on from nowhere."""
    query = InventoryQuery("food", 1, 2)
    assert Page(query, (row("a"), row("b")), Place("food", 1, 1, "b")).rows
    with pytest.raises(InvalidDocument):
        Page(query, rows, next_)


def test_a_page_lies_behind_its_place():
    """What came before is not shown again."""
    with pytest.raises(InvalidDocument):
        Page(InventoryQuery("food", 1, 2, Place("food", 1, 1, "b")), (row("b"),))


@pytest.mark.parametrize("arguments", [(uuid.UUID(int=0), 1, b"x"), (ONE, 0, b"x"), (ONE, 1, b"")])
def test_a_snapshot_that_can_not_be_is_refused(arguments):
    """Its number, its generation, its value (scenario 3)."""
    with pytest.raises(InvalidSnapshot):
        Snapshot("food", *arguments)


def shard(number=1, **overrides):
    first = (number - 1) * 10 + 1
    return Shard(**{"id": f"shard-{number:06}", "path": f"shard-{number:06}.parquet", "events": 10,
                    "first_position": first, "last_position": first + 9, "digest": bytes(32), **overrides})


@pytest.mark.parametrize("path", ["", "/absolute", "../escape", "a/../b", "a//b", "a\\b", " a", "a/./b", "x" * 513,
                                  "é" * 257, "a\nb"])
def test_a_shard_stays_inside_its_folder(path):
    """Scenario 96."""
    with pytest.raises(InvalidShard):
        shard(path=path)


@pytest.mark.parametrize("overrides, error", [
    ({"events": 0}, InvalidShard), ({"first_position": 0}, InvalidShard), ({"last_position": 0}, InvalidShard),
    ({"digest": b"x"}, InvalidShard), ({"first_recorded_at": NOW}, InvalidShard), ({"id": "A/b"}, InvalidName),
    ({"first_recorded_at": NOW, "last_recorded_at": NOW - timedelta(seconds=1)}, InvalidShard)])
def test_a_shard_that_can_not_be_is_refused(overrides, error):
    """Scenario 97: counts, ranges, times."""
    with pytest.raises(error):
        shard(**overrides)


def manifest(*shards, target=10):
    return Manifest(ONE, TWO, target, shards or (shard(1), shard(2)))


@pytest.mark.parametrize("shards, target", [
    ((), 10), ((shard(1), shard(2)), 0), ((shard(1), shard(2)), 9), ((shard(2), shard(1)), 10),
    ((shard(1), shard(2, first_position=10)), 10), ((shard(1), shard(2, path="shard-000001.parquet")), 10),
    ((shard(1), shard(2, id="shard-000001")), 10), ((shard(1), shard(2, id="a")), 10),
    (tuple(shard(n) for n in range(1, 4098)), 10)])
def test_shards_of_a_manifest_fit_together(shards, target):
    """Scenarios 94 and 95: none or too many, too large, overlapping, out of order, one path or name for two."""
    with pytest.raises(InvalidManifest):
        Manifest(ONE, TWO, target, shards)


def test_a_manifest_sums_up_its_shards():
    """Totals are computed, so that they can't contradict the shards."""
    assert (manifest().total_events, manifest().last_position) == (20, 20)


def test_a_checkpoint_over_shards_is_sorted_and_names_each_once():
    """Scenarios 99 and 101: given unsorted it is sorted; a shard twice, none, or at no position is refused."""
    found = IndexCheckpoint(ONE, TWO, [ShardCheckpoint("b", 2, 1), ShardCheckpoint("a", 1, 1)])
    assert [each.shard for each in found.shards] == ["a", "b"]
    assert found.of("b") == ShardCheckpoint("b", 2, 1)
    assert found.of("c") is None
    with pytest.raises(InvalidIndexCheckpoint):
        IndexCheckpoint(ONE, TWO, [ShardCheckpoint("a", 1, 1), ShardCheckpoint("a", 2, 1)])
    with pytest.raises(InvalidIndexCheckpoint):
        IndexCheckpoint(ONE, TWO, [ShardCheckpoint(f"s{n}", 1, 1) for n in range(4097)])
    for bad in [("", 1, 1), (" a", 1, 1), ("a\n", 1, 1), ("a", 0, 1), ("a", 1, -1)]:
        with pytest.raises(InvalidIndexCheckpoint):
            ShardCheckpoint(*bad)
