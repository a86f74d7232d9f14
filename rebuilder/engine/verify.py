"""Verify: replay the log beside live and compare, all as of one instant, and roll back.

One REPEATABLE READ transaction sees log, live and checkpoint at the same moment, so there is no false drift beside
writers. Pages and live are read in savepoints that are rolled back, so that no lock stays.
"""

from __future__ import annotations

import time

import psycopg

from rebuilder import errors
from rebuilder.domain.report import Drift, VerifyReport
from rebuilder.domain.ticket import Phase
from rebuilder.engine.drift import compare
from rebuilder.engine.replay import Replay, apply_page
from rebuilder.engine.run import Run
from rebuilder.engine.shadow import create_shadow, read_definitions
from rebuilder.engine.state_lock import connect_run
from rebuilder.sql import load
from rebuilder.store.sessions import begin, translate, translated

_QUERIES = load("queries")


def verify(run: Run) -> VerifyReport:
    """The rows in which live differs from a replay; nothing is changed, and no ticket written."""
    try:
        return _verify(run)
    except psycopg.Error as error:
        run.check()
        raise translate(error, f"verifying {run.projection.name!r}") from error
    except errors.RebuilderError:
        run.check()  # a cancelled statement looks like a failed one
        raise
    finally:
        run.close()


def _verify(run: Run) -> VerifyReport:
    began = time.monotonic()
    connect_run(run)
    with run.step(Phase.BUILD_SHADOW):
        read_definitions(run)
        run.main.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        begin(run.main, run.server)
        _check_snapshot(run)
        upto = _upto(run)
        with translated("building the shadow"):
            shadow = create_shadow(run, run.main, run.blueprint)
    replay = Replay()
    with run.step(Phase.CATCH_UP):
        while run.selection.types:
            page = run.log.page(run.main, run.selection, after=replay.cursor, upto=upto, limit=shadow.applier.page)
            apply_page(run, shadow, replay, page)
            if len(page) < shadow.applier.page:
                break
        shadow.applier.settle()
    with run.step(Phase.RECHECK):
        run.main.execute("SET CONSTRAINTS ALL IMMEDIATE")
        comparisons = compare(run, run.main, shadow)
    for comparison in comparisons:
        comparison.settled = comparison.candidates
    drift = sum((c.drift(c.table.label, run.settings.drift_sample) for c in comparisons), Drift())
    run.main.rollback()
    return VerifyReport(
        projection=run.projection.name, version=run.projection.version, position=replay.position, events=replay.applied,
        rows={c.table.label: c.shadow_rows for c in comparisons}, drift=drift, seconds=time.monotonic() - began)


def _check_snapshot(run: Run) -> None:
    """Definitions were read before the snapshot: a cut-over in between would compare the retired tables."""
    for table in run.blueprint.tables:
        row = run.main.execute("SELECT to_regclass(%s)::oid::int8", (table.identifier.as_string(run.main),)).fetchone()
        knows = run.main.execute(_QUERIES["snapshot_knows"], {"name": table.identifier.as_string(run.main)}).fetchone()
        if row != (table.oid,) or knows != (True,):
            raise errors.CutOverDuringTransaction(
                f"{table.label} was swapped by a rebuild while the verification began.", hint="repeat it",
                table=table.label)


def _upto(run: Run) -> int | None:
    """A followed live shows what lies below its checkpoint; the others all that is committed."""
    if run.projection.feeding_name == "external":
        raise errors.DefinitionError(
            f"{run.projection.name!r} is fed by an external follower whose checkpoint rebuilder can't read, so there "
            "is no position to verify it at.", hint="rebuild it instead: the report counts the drift")
    if run.projection.feeding_name != "async":
        return None
    row = run.main.execute(run.books.query("read_checkpoint"), {
        "scope": run.settings.scope, "projection": run.projection.name}).fetchone()
    return int(row[0]) if row else 0

