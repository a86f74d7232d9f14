"""The bulk of folds keyed by stream, by several processes: each folds a part of the streams, all as of one snapshot.

The snapshot is exported from a connection of its own: one that main exported would forbid it COPY ... FREEZE. A worker
returns rows that are encoded for COPY; main forwards the bytes.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import psycopg

from rebuilder import errors
from rebuilder.engine import quarantine
from rebuilder.engine.apply_fold import FoldApplier
from rebuilder.engine.worker import FilledTable, Folded, Job, fold_part
from rebuilder.eventlog import Part
from rebuilder.store.sessions import translated

if TYPE_CHECKING:
    from rebuilder.engine.replay import Replay
    from rebuilder.engine.run import Run

_LOOK = 0.1


def wanted(run: Run, replay: Replay) -> bool:
    """Whether the bulk is for workers: nothing has been read yet, and there is more than one of them."""
    workers = run.options.workers
    return replay.cursor is None and (isinstance(workers, Executor) or workers > 1)


def check_workers(run: Run) -> None:
    """Refuse what workers can't do, before anything is read. Raises :class:`~rebuilder.errors.DefinitionError`."""
    workers, projection = run.options.workers, run.projection
    if not isinstance(workers, Executor) and workers < 2:
        return
    if not projection.folds or not all(fold.keyed_by_stream for fold in projection.folds):
        raise errors.DefinitionError(
            f"{projection.name!r} can't be rebuilt by workers: each has a part of the streams, so they need Folds "
            "without key=.", hint="leave workers out, or make the projection a Fold keyed by stream")
    if run.options.max_rate is not None:
        raise errors.DefinitionError("max_rate can't be held by workers.", hint="leave one of them out")
    try:
        pickle.dumps((projection, run.definition))
    except Exception as error:
        raise errors.DefinitionError(
            f"{projection.name!r} can't be sent to a worker: {error}.",
            hint="define Fold, upcasters and decoder at the top of a module, so that they can be imported") from error


def fold_in_parallel(run: Run, applier: FoldApplier, replay: Replay, upto: int) -> Iterator[int]:
    """Fold everything up to a settled horizon; yields the number of events of each part that is done."""
    with _executor(run) as (executor, parts), _snapshot(run) as snapshot:
        futures = {executor.submit(fold_part, job) for job in _jobs(run, applier, snapshot, upto, parts)}
        try:
            while futures:
                done, futures = wait(futures, timeout=_LOOK, return_when=FIRST_COMPLETED)
                run.check()
                for future in done:
                    folded = _result(future)
                    _take(run, applier, replay, folded)
                    yield folded.events
        except BaseException:
            _abandon(run, futures)
            raise
    replay.cursor = (upto,)


def _jobs(run: Run, applier: FoldApplier, snapshot: str, upto: int, parts: int) -> Iterator[Job]:
    live = {table.oid: table for table in run.blueprint.tables}
    tables = tuple(FilledTable(rows.oid, rows.table.label, rows.table.specs, live[rows.oid].primary_key)
                   for rows in applier.rows)
    for number in range(parts):
        yield Job(conninfo=run.conninfo, ticket=str(run.ticket)[:8], server=run.server, snapshot=snapshot,
                  log=run.definition, projection=run.projection, tables=tables, selection=run.selection,
                  part=Part(number, parts), upto=upto, page=run.settings.fold_page,
                  memory=run.settings.fold_memory // min(parts, os.cpu_count() or 1),
                  quarantine=run.options.quarantine)


@contextmanager
def _executor(run: Run) -> Iterator[tuple[Executor, int]]:
    workers = run.options.workers
    if isinstance(workers, Executor):
        known = getattr(workers, "_max_workers", None)
        yield workers, run.settings.fold_parts or (known if isinstance(known, int) else os.cpu_count() or 1)
        return
    # Not forked: this process has threads, whose locks a fork would copy as they are.
    pool = ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn"))
    try:
        yield pool, run.settings.fold_parts or workers
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


@contextmanager
def _snapshot(run: Run) -> Iterator[str]:
    """The name of an exported snapshot, which is taken now, after the horizon was settled."""
    connection = run.open("snapshot", autocommit=False)
    connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    try:
        with translated("exporting a snapshot for the workers"):
            connection.execute("SELECT set_config('idle_in_transaction_session_timeout', '0', true)")
            row = connection.execute("SELECT pg_export_snapshot()").fetchone()
        assert row is not None
        yield row[0]
    finally:
        connection.close()


def _result(future: Future[Folded]) -> Folded:
    try:
        return future.result()
    except errors.RebuilderError:
        raise
    except Exception as error:
        raise errors.WorkerLost(
            f"A worker ended without its result: {type(error).__name__}: {str(error).strip() or 'no message'}. Live is "
            "as it was.", hint="look into the workers' logs (memory?), then repeat, with fewer workers or workers=1"
            ) from error


def _take(run: Run, applier: FoldApplier, replay: Replay, folded: Folded) -> None:
    """Main's share of a worker's result."""
    for rows in applier.rows:
        if rows.oid in folded.chunks:
            with translated("writing the rows that a worker folded"):
                rows.give(run.main, folded.columns[rows.oid], folded.chunks[rows.oid], run.settings.fold_memory)
    for letter in folded.dead:
        quarantine.set_aside(run, replay, quarantine.DeadLetter(
            letter.raw, letter.cause, letter.error_class, letter.message, letter.sqlstate, letter.traceback))
        options = run.options.quarantine
        if options is not None and options.policy == "stream":
            replay.streams.setdefault(quarantine.stream_id(letter.raw), letter.raw.position)
    replay.read += folded.events
    replay.applied += folded.events - len(folded.dead)
    replay.position = max(replay.position, folded.position)
    run.events_done, run.position = replay.read, replay.position
    run.observe("progress")


def _abandon(run: Run, futures: set[Future[Folded]]) -> None:
    """End what the workers are doing: their statements fail, and with them their jobs, wherever they run."""
    for future in futures:
        future.cancel()
    with suppress(psycopg.Error, errors.RebuilderError), run.ledger.using() as connection:
        connection.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = %s",
                           (f"rebuilder:{str(run.ticket)[:8]}:worker",))
