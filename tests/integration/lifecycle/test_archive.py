"""Archives of the log, and rebuilds from them."""

import json
import shutil
import uuid

import pytest

from rebuilder.domain.archive import IndexCheckpoint
from rebuilder.errors import ArchiveRefused, DefinitionError, RebuilderError
from tests.bank import append, append_many, assert_equal_to_replay, make_rebuilder, make_schema, rows_of

NAME = "account_balance"


@pytest.fixture
def db(dsn, connect):
    """1050 events."""
    connection = connect(autocommit=True)
    make_schema(connection)
    append_many(connection, 1050)
    return connection


@pytest.fixture
def rebuilder(dsn, db):
    return make_rebuilder(dsn, settings={"batch": 70})


@pytest.fixture
def folder(tmp_path, rebuilder):
    """Ten shards of a hundred."""
    report = rebuilder.archive(tmp_path / "archive", shard_events=100)
    assert (report.added, report.events, report.position) == (10, 1000, 1000)
    return tmp_path / "archive"


def shards(folder):
    return sorted(folder.glob("*.parquet"))


def test_a_rebuild_from_an_archive_and_the_tail_equals_one_from_the_table(rebuilder, db, folder):
    """The same rows, the same number of events, the same position; all files were read."""
    plain = rebuilder.rebuild(NAME)
    rows = rows_of(db)
    report = rebuilder.rebuild(NAME, from_archive=folder)
    assert (report.events_applied, report.position) == (plain.events_applied, plain.position) == (1050, 1050)
    assert report.drift.total == 0
    assert rows_of(db) == rows
    assert_equal_to_replay(db)
    with rebuilder.store() as store:
        id_ = uuid.UUID(json.loads((folder / "manifest.json").read_text())["manifest"])
        at = store.event_index_checkpoint(uuid.UUID(report.ticket), id_)
        manifest = store.event_index_manifest(id_)
    assert [each.position for each in at.shards] == [shard.last_position for shard in manifest.shards]
    assert isinstance(at, IndexCheckpoint)


def test_events_really_come_from_the_files(rebuilder, db, folder):
    """What is in the table below the archive's end is not looked at but for its count: an event that was altered there
    has the archive's content in the read model.
    """
    before = db.execute("SELECT data FROM events WHERE id = 500").fetchone()[0]
    db.execute("""UPDATE events SET data = '{"amount": 1000000}' WHERE id = 500""")
    rebuilder.rebuild(NAME, from_archive=folder)
    assert db.execute("SELECT max(balance) < 500000 FROM account_balance").fetchone() == (True,)
    assert before["amount"] < 1000


def test_what_came_since_is_added(rebuilder, db, folder):
    """Files are never written again; the manifest is a new one, of all of them; nothing new adds nothing."""
    written = {path.name: path.stat().st_mtime_ns for path in shards(folder)}
    assert rebuilder.archive(folder, shard_events=100).added == 0
    append_many(db, 130)
    report = rebuilder.archive(folder, shard_events=100)
    assert (report.added, report.shards, report.position) == (1, 11, 1100)
    assert {path.name: path.stat().st_mtime_ns for path in shards(folder) if path.name in written} == written
    rebuilder.rebuild(NAME, from_archive=folder)
    assert_equal_to_replay(db)


def test_what_is_not_settled_is_not_archived(rebuilder, db, folder, connect, spawn):
    """An open append might become visible inside a closed range: it is waited for, and is in the file."""
    slow = connect()
    slow.execute("SELECT 1")
    assert append(slow, "account-1", "Deposited", {"amount": 7}) == 1051
    append_many(db, 100)
    waiting = spawn(rebuilder.archive, folder, shard_events=100)
    slow.commit()
    assert waiting.result(30).position == 1100
    rebuilder.rebuild(NAME, from_archive=folder)
    assert_equal_to_replay(db)


@pytest.mark.parametrize("damage", ["missing", "altered", "swapped", "truncated"])
def test_a_missing_or_altered_shard_is_refused_by_name(rebuilder, db, folder, damage):
    """Live is as it was, whatever was read before that shard."""
    rebuilder.rebuild(NAME)
    rows = rows_of(db)
    victim, other = shards(folder)[4:6]
    for path in (victim, other):
        path.chmod(0o644)
    if damage == "missing":
        victim.unlink()
    elif damage == "altered":
        content = bytearray(victim.read_bytes())
        content[100] ^= 1
        victim.write_bytes(content)
    elif damage == "truncated":
        victim.write_bytes(victim.read_bytes()[:-1])
    else:
        shutil.copyfile(other, victim)
    with pytest.raises(ArchiveRefused) as caught:
        rebuilder.rebuild(NAME, from_archive=folder)
    assert caught.value.shard == victim.stem
    assert (rows_of(db), rebuilder.status(NAME)[0].generation) == (rows, 1)


def test_an_archive_of_another_log_is_refused(rebuilder, db, folder, tmp_path):
    """After a restore the same positions may be other events; a folder without an archive is no archive."""
    with pytest.raises(ArchiveRefused, match="no archive"):
        rebuilder.rebuild(NAME, from_archive=tmp_path)
    rebuilder.rotate_log("restored from a backup")
    with pytest.raises(ArchiveRefused, match="incarnation"):
        rebuilder.rebuild(NAME, from_archive=folder)
    with pytest.raises(ArchiveRefused, match="incarnation"):
        rebuilder.archive(folder)


def test_an_index_that_was_altered_is_refused(rebuilder, folder):
    """The bookkeeping's manifest decides: the folder only names it."""
    index = folder / "manifest.json"
    for text in ("{}", "x", json.dumps({"manifest": str(uuid.uuid4())})):
        index.write_text(text)
        with pytest.raises(ArchiveRefused):
            rebuilder.rebuild(NAME, from_archive=folder)


def test_a_size_of_nothing_is_refused(rebuilder, tmp_path):
    """Before a file is written."""
    with pytest.raises(DefinitionError):
        rebuilder.archive(tmp_path / "new", shard_events=0)
    assert not (tmp_path / "new").exists()


def test_a_log_that_is_too_short_is_left_in_its_table(rebuilder, tmp_path):
    """Only full files are written."""
    assert rebuilder.archive(tmp_path / "new").added == 0
    with pytest.raises(RebuilderError):
        rebuilder.rebuild(NAME, from_archive=tmp_path / "new")


def test_the_command_line_archives_and_rebuilds(cli, db, tmp_path):
    """archive, rebuild --from-archive, rotate-log."""
    folder = str(tmp_path / "archive")
    assert cli("archive", folder, "--shard-events", "100", "--json").json["added"] == 10
    assert cli("rebuild", NAME, "--from-archive", folder).code == 0
    assert_equal_to_replay(db)
    assert cli("rotate-log", "restored").code == 0
    assert [each["reason"] for each in cli("pending", "--json").json] == ["source_changed"]
    assert cli("rebuild", NAME, "--from-archive", folder).code == 3
