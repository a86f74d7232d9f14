"""status, tickets, doctor: the commands that only look. A DSN is enough; the application adds what only it knows."""

from __future__ import annotations

import sys
import time
from contextlib import suppress
from typing import Annotated

import typer
from rich.live import Live
from rich.text import Text

from rebuilder.cli import options as o
from rebuilder.cli.context import Place, place
from rebuilder.cli.output import Output, table
from rebuilder.cli.statuses import status_text, ticket_rows
from rebuilder.engine.doctor import Finding, examine
from rebuilder.engine.status import ProjectionStatus, status_of, status_without_application

DONE, REFUSED = 0, 3
_EVERY = 2.0


def status(name: o.OptionalName = None, *, watch: Annotated[bool, typer.Option(
        "--watch", help="Repeat every two seconds, until Ctrl-C; with --json one line each.")] = False,
           app: o.App = None, dsn: o.Dsn = None, schema: o.Schema = None, json: o.Json = False) -> int:
    """Show how projections are: health, version, position, lag, the running ticket, what is owed.

    Without the application only those are known that were once rebuilt, and neither lag nor the recipe's version.
    """
    output = Output(json=json)
    where = place(output, app=app, dsn=dsn, schema=schema, changing=False)
    if not watch:
        found = _status(where, name)
        output.data(found, lambda: status_text(found, one=name is not None))
        return DONE
    with suppress(KeyboardInterrupt):  # the way to end it
        _watch(output, where, name)
    return DONE


def _status(where: Place, name: str | None) -> list[ProjectionStatus]:
    with where.books("status") as (connection, books):
        where.check_name(name, connection, books)
        application = where.application
        if application is None:
            return status_without_application(connection, books, name)
        mine = [each for each in application.registry if name in {None, each.name}]
        found = status_of(connection, books, mine, application.log)
        # What the bookkeeping knows and the code does not any more: it may still be owed something.
        names = {each.name for each in application.registry}
        return found + [each for each in status_without_application(connection, books, name)
                        if each.projection not in names]


def _watch(output: Output, where: Place, name: str | None) -> None:
    if output.json or not sys.stdout.isatty():
        while True:
            found = _status(where, name)
            output.line(found, lambda found=found: status_text(found, one=name is not None))  # type: ignore[misc]
            time.sleep(_EVERY)
    with Live(auto_refresh=False) as live:
        while True:
            live.update(Text.from_ansi(status_text(_status(where, name), one=name is not None)), refresh=True)
            time.sleep(_EVERY)


def tickets(name: o.OptionalName = None, *, limit: Annotated[int, typer.Option(
        min=1, help="How many.")] = 20, app: o.App = None, dsn: o.Dsn = None, schema: o.Schema = None,
            json: o.Json = False) -> int:
    """List the last rebuilds, newest first."""
    output = Output(json=json)
    where = place(output, app=app, dsn=dsn, schema=schema, changing=False)
    with where.books("tickets") as (connection, books):
        where.check_name(name, connection, books)
        found = books.tickets(connection, name, limit=limit)
    output.data(found, lambda: table(
        ["ticket", "projection", "generation", "version", "stage", "started", "took", "reason", "outcome"],
        ticket_rows(found), right=["generation", "version", "took"]) if found else "There has been no rebuild.")
    return DONE


def doctor(*, app: o.App = None, dsn: o.Dsn = None, schema: o.Schema = None, json: o.Json = False) -> int:
    """Look for what would stop a rebuild, with the GRANT or command that mends it.

    Exit code 3 if there is a problem. With the application its log and tables are looked at too.
    """
    output = Output(json=json)
    where = place(output, app=app, dsn=dsn, schema=schema, changing=False)
    application = where.application
    log, registry = (None, None) if application is None else (application.log, application.registry)
    found = examine(where.conninfo, where.settings, log, registry)
    output.data(found, lambda: "\n".join(_finding(each) for each in found))
    return REFUSED if any(each.level == "problem" for each in found) else DONE


def _finding(found: Finding) -> str:
    lines = [f"{found.level:<8} {found.subject}: {found.message}"]
    if found.command:
        lines.append(f"         next: {found.command}")
    return "\n".join(lines)
