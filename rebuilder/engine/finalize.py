"""Step 8, second half: state row and ticket in the same transaction, the commit, and what is owed after it."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import replace
from typing import Any

import psycopg
from psycopg import errors as pg
from psycopg.types.json import Jsonb

from rebuilder import errors
from rebuilder.domain.report import Owed, RebuildReport
from rebuilder.engine.cleanup import settle_owed
from rebuilder.engine.fence import Fenced
from rebuilder.engine.pending import recipe_of
from rebuilder.engine.recheck import Findings
from rebuilder.engine.replay import Replay
from rebuilder.engine.run import Run
from rebuilder.engine.shadow import Shadow
from rebuilder.engine.source import record_source
from rebuilder.engine.swap import refuse_waiting_dump
from rebuilder.store.sessions import Server, connect, is_lost


def finalize(run: Run, fenced: Fenced, shadow: Shadow, replay: Replay, findings: Findings) -> RebuildReport:
    """Record and commit.

    Raises :class:`~rebuilder.errors.OutcomeUnknown` if the reply is lost and can't be asked for.
    """
    main = run.main
    position = replay.horizon if run.projection.followed else max(replay.horizon, replay.position)
    _record_owed(run, shadow)
    run.books.run(main, "settle_dead_letters", projection=run.projection.name, ticket=run.ticket,
                  positions=[raw.raw.position for raw in replay.dead.values()])
    run.books.run(main, "complete_state", projection=run.projection.name, generation=run.generation,
                  version=run.projection.version, position=position, fingerprint=run.blueprint.fingerprint)
    run.books.run(main, "complete_recipe", projection=run.projection.name, recipe=recipe_of(run.projection))
    record_source(run, replay, position)
    run.books.run(main, "answer_requests", ids=list(run.answers), ticket=run.ticket)
    report = _report(run, fenced, shadow, replay, findings, position)
    run.books.run(main, "complete_ticket", ticket=run.ticket, report=Jsonb(report.to_json()))
    refuse_waiting_dump(run)
    # With a synchronous standby the COMMIT would wait for it with the fence held; the ledger waits instead.
    main.execute("SET LOCAL synchronous_commit = local")
    run.seam.reach("before commit", run)
    # A cancel that was answered must not be followed by a commit, though no heartbeat has come since.
    run.hear(main)
    run.check()
    run.committing = True
    run.seam.reach("commit", run)
    _commit(run, shadow)
    held = fenced.held()
    run.deliver()
    return _confirm(run, report, held)


def _commit(run: Run, shadow: Shadow) -> None:
    try:
        run.main.commit()
    except psycopg.Error as error:
        if not is_lost(error, run.main):
            raise
        _look_up(run, shadow, error)


def _look_up(run: Run, shadow: Shadow, error: psycopg.Error) -> None:
    """The COMMIT's reply was lost: ask what became of the transaction."""
    end, status = time.monotonic() + run.settings.outcome_wait, "unknown"
    while time.monotonic() < end:
        with suppress(errors.RebuilderError, psycopg.Error), connect(
                run.conninfo, role="outcome", ticket=str(run.ticket)[:8], autocommit=True) as asking:
            if Server.of(asking).system_identifier == run.server.system_identifier:
                row = run.books.run(asking, "xact_status", xid=shadow.xid).fetchone()
                status = str(row[0]) if row and row[0] else "unknown"
        if status == "committed":
            run.warn("The connection was lost during COMMIT; the server says that it committed.")
            return
        if status == "aborted":
            raise errors.ConnectionLost(
                "The connection was lost during COMMIT; the server says that it rolled back. Live is as it was.",
                hint="repeat when the server answers") from error
        time.sleep(0.2)
    raise errors.OutcomeUnknown(
        f"The connection was lost during COMMIT and the server does not say what became of transaction {shadow.xid}.",
        hint=f"when it answers: SELECT pg_xact_status('{shadow.xid}'), or `rebuilder tickets`; look before repeating",
        xid=shadow.xid, ticket=str(run.ticket)) from error


def _record_owed(run: Run, shadow: Shadow) -> None:
    for owed in run.blueprint.owed(shadow.retired, keys_owed=run.keys_owed):
        _insert_owed(run, owed.kind, owed.label, owed.statement.as_string(run.main), 0.0)
    delay = run.settings.retain_hours * 3600 if run.options.retire == "keep" else 0.0
    for table in run.blueprint.tables:
        schema = shadow.retired[table.schema]
        _insert_owed(run, "drop-retired", f"{schema}.{table.name}", schema, delay)


def _insert_owed(run: Run, kind: str, label: str, statement: str, delay: float) -> None:
    run.books.run(run.main, "insert_owed", ticket=run.ticket, kind=kind, label=label, statement=statement, delay=delay)


def _report(run: Run, fenced: Fenced, shadow: Shadow, replay: Replay, findings: Findings,
            position: int) -> RebuildReport:
    now = time.monotonic()
    age = now - shadow.frozen_at if shadow.frozen_at is not None else 0.0
    return RebuildReport(
        projection=run.projection.name, ticket=str(run.ticket), generation=run.generation,
        version=run.projection.version, events_applied=replay.applied, dead_letters=len(replay.dead),
        position=position, rows=findings.rows, drift=findings.drift, attempts=run.attempts, late_events=replay.late,
        seconds={**run.seconds, "fence_wait_seconds": fenced.since - run.fence_began,
                 "fence_held_seconds": fenced.held(), "total": now - run.started},
        freeze_age_seconds=age, longest_wait_seconds=run.longest_wait, warnings=tuple(run.warnings),
        retired=tuple(f"{shadow.retired[t.schema]}.{t.name}" for t in run.blueprint.tables))


def _confirm(run: Run, report: RebuildReport, held: float) -> RebuildReport:
    """After the commit: live is rebuilt. An ordinary commit on the ledger, which a synchronous standby confirms; then
    what is owed, in transactions of its own.
    """
    changes: dict[str, Any] = {"seconds": {**report.seconds, "fence_held_seconds": held,
                                           "total": time.monotonic() - run.started}}
    changes["longest_wait_seconds"] = run.longest_wait
    try:
        run.hook("after_cutover")
        run.ledger.owed_superseded(run.ticket)
        settle_owed(run.ledger, run.projection.name)
        owed = tuple(Owed(kind, label) for _, kind, label, _, due, *_ in run.ledger.owed(run.projection.name) if due)
        report = replace(report, owed=owed, warnings=tuple(run.warnings), **changes)
        run.ledger.update_report(run.ticket, report.to_json())
    except (errors.RebuilderError, pg.Error) as error:
        # The cut-over is committed: what failed now is told, not turned into a failure of the rebuild.
        run.warn(f"The rebuild is committed, but its aftermath failed: {error}")
        owed = (*report.owed, Owed("aftermath", str(error)))
        report = replace(report, owed=owed, warnings=tuple(run.warnings), **changes)
    return report

