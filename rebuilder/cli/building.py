"""plan, rebuild, verify: the commands that need the application."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rebuilder.cli import options as o
from rebuilder.cli.context import application
from rebuilder.cli.interrupt import stopping
from rebuilder.cli.output import Output
from rebuilder.cli.progress import naming_ticket, watched
from rebuilder.cli.reports import log_text, rebuild_text, verify_text
from rebuilder.domain.quarantine import Quarantine
from rebuilder.domain.report import RebuildReport
from rebuilder.domain.ticket import Reason
from rebuilder.engine.plan_text import plan_text
from rebuilder.errors import DefinitionError

DONE, REFUSED, DRIFT, OWED = 0, 3, 5, 6


def plan(name: o.Name, *, allow: o.Allow = None, allow_loss: o.AllowLoss = None, app: o.App = None, dsn: o.Dsn = None,
         schema: o.Schema = None, json: o.Json = False) -> int:
    """Show what a rebuild would do: verdicts, DDL, locks in order, its price, and who would be in the way now.

    Nothing is changed. Exit code 3 if the rebuild would be refused.
    """
    output = Output(json=json)
    rebuilder = application(output, app=app, dsn=dsn, schema=schema, changing=False)
    made = rebuilder.plan(name, allow=_allowed(allow, allow_loss))
    output.data(made.to_json(), lambda: plan_text(made))
    return REFUSED if made.refused else DONE


def rebuild(
    name: o.Name, *, reason: o.Why = Reason.OPERATOR_REQUESTED, note: o.Note = None,
    quarantine: Annotated[bool, typer.Option(
        "--quarantine", help="Set poison events aside instead of failing.")] = False,
    quarantine_policy: Annotated[o.Policy | None, typer.Option(
        help="What is set aside: the rest of the poison event's stream too (the default), or the event alone. Implies "
             "--quarantine.", show_default=False)] = None,
    max_dead_letters: Annotated[int | None, typer.Option(
        min=1, show_default=False, help="Fail when more events than this would be set aside (100).")] = None,
    keep_data: Annotated[bool, typer.Option(
        "--keep-data", help="Keep a copy of the event's data in the dead letter.")] = False,
    allow: o.Allow = None, allow_loss: o.AllowLoss = None,
    retire: Annotated[o.Retire, typer.Option(
        help="Keep the old table until the next rebuild or its retention ends, or drop it after the commit.")]
    = o.Retire.KEEP,
    max_rate: Annotated[float | None, typer.Option(
        metavar="EVENTS", show_default=False, help="Replay no more than this many events a second.")] = None,
    wait: Annotated[float, typer.Option(
        metavar="SECONDS", min=0, help="How long to wait for another run of the same projection.")] = 0,
    deadline: Annotated[float | None, typer.Option(
        metavar="SECONDS", show_default=False, help="Give up, live as it was, when the whole takes longer.")] = None,
    blockers: Annotated[o.Blockers, typer.Option(
        help="What may be done to sessions in front of the fence.")] = o.Blockers.REPORT,
    blockers_after: Annotated[float, typer.Option(
        metavar="SECONDS", min=0, help="How long they are only reported.")] = 60,
    workers: Annotated[int, typer.Option(
        min=1, help="Processes that fold the bulk of a projection of Folds keyed by stream.")] = 1,
    from_archive: Annotated[Path | None, typer.Option(
        metavar="FOLDER", show_default=False, help="Read the log from the files that `rebuilder archive` wrote, "
                                                   "and the rest from the table.")] = None,
    fail_on_drift: Annotated[bool, typer.Option(
        "--fail-on-drift", help="Exit with 5 if old and new rows differed. The cut-over has happened by then: to look "
                                "beforehand, use verify.")] = False,
    accept_dead_letters: Annotated[bool, typer.Option(
        "--accept-dead-letters", help="Events that were set aside don't make the exit code 6.")] = False,
    app: o.App = None, dsn: o.Dsn = None, schema: o.Schema = None, json: o.Json = False,
) -> int:
    """Rebuild a projection from its event log, online, and cut over atomically.

    The exit code is 0 when all is done and nothing owed; 5 if rows differed and --fail-on-drift was given; 6 if it is
    done and something is owed (dead letters, a key left NOT VALID, a table not dropped); the others are those of
    `rebuilder --help`, and with them live is as it was (but for 8: look before repeating).
    """
    output = Output(json=json)
    setting_aside = _quarantine(quarantine, quarantine_policy, max_dead_letters, keep_data=keep_data)
    rebuilder = application(output, app=app, dsn=dsn, schema=schema, changing=True)
    with (watched(output, name) as observer, naming_ticket(observer) as told,
          stopping(output.say, "the rebuild") as stop):
        report = rebuilder.rebuild(
            name, reason=reason, note=note, quarantine=setting_aside or False, allow=_allowed(allow, allow_loss),
            retire=retire.value, max_rate=max_rate, wait=wait, deadline=deadline, blockers=blockers.value,
            blockers_after=blockers_after, workers=workers, from_archive=from_archive, stop=stop, observer=told)
    code = outcome(report, fail_on_drift=fail_on_drift, accept_dead_letters=accept_dead_letters)
    output.data({**report.to_json(), "exit_code": code}, lambda: rebuild_text(report))
    return code


def outcome(report: RebuildReport, *, fail_on_drift: bool, accept_dead_letters: bool) -> int:
    """The exit code of a rebuild that is committed."""
    if fail_on_drift and report.drift.total:
        return DRIFT
    if report.owed or (report.dead_letters and not accept_dead_letters):
        return OWED
    return DONE


def verify(name: o.Name, *, deep: Annotated[bool, typer.Option(
        "--deep", help="Look first whether old events are what they were, by the digests that were stored of them.")]
           = False, app: o.App = None, dsn: o.Dsn = None, schema: o.Schema = None, json: o.Json = False) -> int:
    """Replay the log beside live, compare row by row, and roll back. Nothing is changed.

    Log, live and checkpoint are seen at one instant, so writers cause no false drift. Exit code 5 if rows differ, or
    with --deep if the log was altered.
    """
    output = Output(json=json)
    rebuilder = application(output, app=app, dsn=dsn, schema=schema, changing=False)
    with watched(output, name) as observer, stopping(output.say, "the verification") as stop:
        log = rebuilder.verify_log(stop=stop) if deep else None
        report = rebuilder.verify(name, stop=stop, observer=observer)
    code = DRIFT if report.drift.total or (log is not None and log.altered) else DONE
    output.data({**report.to_json(), "exit_code": code, **({"log": log.to_json()} if log else {})},
                lambda: "\n".join([*([log_text(log)] if log else []), verify_text(report)]))
    return code


def _allowed(allow: list[str] | None, allow_loss: list[str] | None) -> list[str]:
    return [*(allow or ()), *(f"loss:{name}" for name in allow_loss or ())]


def _quarantine(asked: bool, policy: o.Policy | None, most: int | None, *, keep_data: bool) -> Quarantine | None:
    if not asked and policy is None:
        if most is not None or keep_data:
            raise DefinitionError("--max-dead-letters and --keep-data say how events are set aside, but --quarantine "
                                  "is not given.", hint="add --quarantine")
        return None
    chosen = Quarantine(policy=(policy or o.Policy.STREAM).value, keep_data=keep_data)
    return chosen if most is None else Quarantine(policy=chosen.policy, keep_data=keep_data, max_dead_letters=most)
