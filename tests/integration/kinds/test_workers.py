"""Folds by several processes: the same rows, whatever carries the jobs, and an error when a worker is lost."""

import multiprocessing
import pickle
import threading
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path

import pytest

from rebuilder import DefinitionError, Fold, Quarantine, RebuildCancelled, RebuildError, StopToken
from rebuilder.errors import HandlerFailed, WorkerLost
from tests import folds
from tests.bank import (
    append,
    append_many,
    assert_equal_to_replay,
    make_projection,
    make_rebuilder,
    make_schema,
    rows_of,
)
from tests.kinds import make_batch, make_fold


@pytest.fixture
def db(connect, dsn):
    connection = connect(dsn, autocommit=True)
    make_schema(connection)
    return connection


def bank(dsn, fold=folds.balances, settings=None, **overrides):
    return make_rebuilder(dsn, make_projection(handlers=fold, **overrides), settings=settings)


@pytest.fixture(scope="module")
def spawned():
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as pool:
        yield pool


def test_a_number_of_workers_gives_the_rows_of_one_process(db, dsn):
    """Two spawned processes import the fold and fold a part of the streams each."""
    append_many(db, 3000, accounts=100)
    report = bank(dsn).rebuild("account_balance", workers=2)
    assert report.events_applied == 3000
    assert assert_equal_to_replay(db) == report.rows["public.account_balance"]


@pytest.mark.parametrize("parts", [None, 5])
def test_an_executor_of_the_application_carries_the_jobs(db, dsn, spawned, parts):
    """Into as many parts as asked for; what comes during the run is folded by the main process."""
    append_many(db, 2000, accounts=50)
    rebuilder = bank(dsn, settings={"fold_parts": parts, "fold_page": 100})
    rebuilder.rebuild("account_balance", workers=spawned)

    def appends(_run):
        rebuilder._seam.points.clear()
        append(db, "account-1", "Deposited", {"amount": 7}, live=rebuilder)
        append(db, "fresh", "AccountOpened", {"owner": "me"}, live=rebuilder)
        append(db, "account-2", "AccountClosed", live=rebuilder)

    rebuilder._seam.points["fence"] = appends
    report = rebuilder.rebuild("account_balance", workers=spawned)
    assert report.events_applied == 2003
    assert_equal_to_replay(db)


def test_forked_workers_do_as_well(db, dsn):
    """A pool that was forked before the run began."""
    append_many(db, 500, accounts=20)
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("fork")) as pool:
        pool.submit(int).result()
        bank(dsn).rebuild("account_balance", workers=pool)
    assert_equal_to_replay(db)


def test_workers_see_one_snapshot_and_main_what_came_after(db, dsn, spawned, connect):
    """Events that commit while the workers fold are in nobody's snapshot, and are folded afterwards, once."""
    append_many(db, 1000, accounts=20)
    writer = connect(dsn, autocommit=True)
    rebuilder = bank(dsn, settings={"fold_page": 50})
    stop = threading.Event()

    def write():
        while not stop.is_set():
            append(writer, "account-3", "Deposited", {"amount": 1}, live=rebuilder)

    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(write)
        try:
            for _ in range(3):
                rebuilder.rebuild("account_balance", workers=spawned)
        finally:
            stop.set()
        writing.result()
    assert_equal_to_replay(db)


def test_no_worker_keeps_a_lock_on_the_log(db, dsn, monkeypatch):
    """DDL on the log goes through between two pages of a worker: it, and the appends behind it, need not wait (H3)."""
    append_many(db, 200, accounts=20)
    got = []
    local = Fold()

    @local.on("Deposited")
    def look(row, event):
        if event.position == 150:
            with db.transaction():
                db.execute("SET LOCAL lock_timeout = '5s'")
                db.execute("LOCK TABLE events IN ACCESS EXCLUSIVE MODE")
                got.append(event.position)
        return {"id": event.stream, "owner": None, "balance": 0, "changes": 1}

    # A thread does a worker's job here, so that the test can look out of its function.
    monkeypatch.setattr("rebuilder.engine.parallel.check_workers", lambda _run: None)
    monkeypatch.setattr("rebuilder.engine.shadow.check_workers", lambda _run: None)
    with ThreadPoolExecutor(1) as pool:
        bank(dsn, local, settings={"fold_page": 10}).rebuild("account_balance", workers=pool)
    assert got == [150]


def test_a_worker_that_dies_fails_the_run_with_an_error(db, dsn):
    """Killed by the kernel, say: live is as it was, and the next run works."""
    append_many(db, 300, accounts=10)
    with pytest.raises(WorkerLost, match="BrokenProcessPool"):
        bank(dsn, folds.deadly).rebuild("account_balance", workers=2)
    assert rows_of(db) == []
    bank(dsn).rebuild("account_balance")
    assert_equal_to_replay(db)


def test_a_function_that_raises_in_a_worker_is_named_with_its_event(db, dsn, spawned):
    """The error crosses the process's border whole."""
    for n in range(20):
        append(db, f"s{n}", "Deposited", {"amount": n})
    with pytest.raises(HandlerFailed, match=r"event 14 \(Deposited, stream s13\): ValueError: unlucky") as caught:
        bank(dsn, folds.failing).rebuild("account_balance", workers=spawned)
    assert caught.value.position == 14


@pytest.mark.parametrize("policy", ["event", "stream"])
def test_workers_set_poison_aside_as_one_process_does(db, dsn, spawned, policy):
    """The same dead letters and the same rows."""
    for n in range(60):
        append(db, f"s{n % 5}", "Deposited", {"amount": n if n != 33 else 13})
    rebuilder = bank(dsn, folds.failing)
    found = []
    for workers in (1, spawned):
        report = rebuilder.rebuild("account_balance", workers=workers, quarantine=Quarantine(policy=policy),
                                   allow=["null-column"])
        letters = db.execute("SELECT position, cause, error_class FROM rebuilder.dead_letter WHERE resolved_at IS NULL"
                             " ORDER BY position").fetchall()
        found.append((report.dead_letters, report.events_applied, letters, rows_of(db)))
    assert found[0] == found[1]
    assert found[0][0] == (2 if policy == "event" else 10)


def test_upcasters_work_in_workers(db, dsn, spawned):
    """With their look into the database."""
    for n in range(40):
        append(db, f"s{n % 5}", "Deposited", {"amount": n})
    bank(dsn, upcasters=folds.upcasters).rebuild("account_balance", workers=spawned)
    assert [row[2] for row in rows_of(db)] == [100 * sum(range(s, 40, 5)) for s in range(5)]


def test_what_workers_can_not_do_is_refused_at_the_start(db, dsn, spawned):
    """Another kind of handlers, a key that is not the stream, definitions that can't be imported, a rate."""
    by_key = Fold()
    by_key.on("Deposited", key=len)(lambda row, _event: row)
    for fold, options, why in ((make_batch(), {}, "need Folds without key="), (by_key, {}, "need Folds without key="),
                               (make_fold(), {}, "can't be sent to a worker"),
                               (folds.balances, {"max_rate": 5}, "max_rate can't be held")):
        with pytest.raises(DefinitionError, match=why):
            bank(dsn, fold).rebuild("account_balance", workers=spawned, **options)
    with pytest.raises(DefinitionError, match="whole number from 1"):
        bank(dsn).rebuild("account_balance", workers=0)


def test_a_cancel_is_heard_while_workers_fold(db, dsn, spawned):
    """Their statements are ended, and live is as it was."""
    append_many(db, 20_000, accounts=100)
    stop = StopToken()
    rebuilder = bank(dsn, settings={"fold_page": 10, "fold_parts": 8})

    def ask(seen):
        if seen.kind == "phase" and str(seen.phase) == "catch up":
            stop.request("the test")

    with pytest.raises(RebuildCancelled):
        rebuilder.rebuild("account_balance", workers=spawned, stop=stop, observer=ask)
    assert rows_of(db) == []


def test_rows_that_outgrow_a_worker_are_an_error_with_the_way_out(db, dsn, spawned):
    """A worker can't spill to a shadow that it can't see."""
    append_many(db, 500, accounts=100)
    with pytest.raises(RebuildError, match="fold_parts"):
        bank(dsn, settings={"fold_memory": 1000, "fold_page": 50}).rebuild("account_balance", workers=spawned)


def test_a_fold_is_pickled_by_where_it_is_defined():
    """Functions of one name in one module don't matter, nor what is in the fold."""
    for fold in (folds.balances, folds.deadly, folds.failing):
        assert pickle.loads(pickle.dumps(fold)) is fold  # noqa: S301 (our own)


def test_the_command_line_takes_workers(db, cli, tmp_path):
    """`rebuilder rebuild --workers 2`, with the application's fold at the top of a module that workers import."""
    append_many(db, 200, accounts=10)
    (tmp_path / "ledger.py").write_text(
        "from tests import folds\nfrom tests.bank import make_projection, make_rebuilder\n"
        f"rebuilder = make_rebuilder({db.info.dsn!r}, make_projection(handlers=folds.balances))\n", encoding="utf-8")
    done = cli("rebuild", "account_balance", "--workers", "2", "--json", REBUILDER_APP="ledger:rebuilder",
               PYTHONPATH=f"{tmp_path}:{Path(__file__).parents[3]}")
    assert (done.code, done.json["events_applied"]) == (0, 200)
    assert_equal_to_replay(db)
    refused = cli("rebuild", "account_balance", "--workers", "0")
    assert refused.code == 2
