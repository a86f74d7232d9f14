"""invalidate and pending: what is declared stale, and what waits to be rebuilt."""

from __future__ import annotations

from typing import Annotated

import typer

from rebuilder.cli import options as o
from rebuilder.cli.context import application
from rebuilder.cli.interrupt import stopping
from rebuilder.cli.output import Output, table
from rebuilder.cli.progress import watched
from rebuilder.domain.ticket import Reason
from rebuilder.engine.pending import Pending, Ran

DONE, FAILED, NOT_NOW, OWED = 0, 1, 4, 6
# An unknown outcome before a failure, a failure before a refusal, that before "not now", and that before what is owed.
_GRAVITY = (0, 6, 4, 3, 2, 1, 7, 8)


def invalidate(name: o.Name, *, reason: o.Why = Reason.OPERATOR_REQUESTED, note: o.Note = None,
               actor: Annotated[str | None, typer.Option(
                   show_default=False, help="Who asks; else the role of the database.")] = None,
               app: o.App = None, dsn: o.Dsn = None, schema: o.Schema = None, json: o.Json = False) -> int:
    """Declare a read model stale: it is pending until a rebuild that begins after this is done.

    A rebuild that is running now does not answer the request, and is not waited for.
    """
    output = Output(json=json)
    rebuilder = application(output, app=app, dsn=dsn, schema=schema, changing=True)
    made = rebuilder.invalidate(name, reason, note=note, actor=actor)
    output.data({"request": str(made.id), "projection": made.projection, "generation": made.generation,
                 "reason": str(made.reason), "note": made.note, "actor": made.actor,
                 "requested_at": made.requested_at.isoformat()},
                lambda: f"Request {made.id}: {made.projection}, generation {made.generation}, {made.reason}, by "
                        f"{made.actor}. Next: rebuilder rebuild {made.projection}, or rebuilder pending --run")
    return DONE


def pending(*, run: Annotated[bool, typer.Option(
        "--run", help="Rebuild them, each after those it depends on.")] = False,
            app: o.App = None, dsn: o.Dsn = None, schema: o.Schema = None, json: o.Json = False) -> int:
    """List the projections that wait to be rebuilt: asked for, never built, or with a new recipe.

    With --run they are rebuilt; one that fails keeps back only those that depend on it, and the exit code is the
    gravest.
    """
    output = Output(json=json)
    rebuilder = application(output, app=app, dsn=dsn, schema=schema, changing=run)
    if not run:
        found = rebuilder.pending()
        output.data(found, lambda: _listed(found))
        return DONE
    with watched(output, "pending") as observer, stopping(output.say, "the rebuild") as stop:
        ran = rebuilder.run_pending(stop=stop, observer=observer)
    output.data(ran, lambda: "\n".join(map(_line, ran)) or "Nothing is pending.")
    return max((_code(each) for each in ran), key=_GRAVITY.index, default=DONE)


def _listed(found: list[Pending]) -> str:
    if not found:
        return "Nothing is pending."
    return table(["projection", "reason", "live", "recipe", "requests", "note"],
                 [(each.projection, each.reason, each.version, each.recipe_version, len(each.requests),
                   "; ".join(request.note for request in each.requests if request.note) or None) for each in found],
                 right=["live", "recipe", "requests"])


def _line(each: Ran) -> str:
    if each.report is not None:
        return f"done    {each.projection}: generation {each.report.generation}, {each.report.events_applied:,} events"
    if each.error is not None:
        return f"failed  {each.projection}: {' '.join(str(each.error).split())}"
    return f"waits   {each.projection}: for {each.waits_for}"


def _code(each: Ran) -> int:
    if each.error is not None:
        return each.error.exit_code
    if each.report is None:
        return NOT_NOW
    return OWED if each.report.owed or each.report.dead_letters else DONE
