"""cancel and cleanup: the commands that end and tidy. A DSN is enough."""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

import typer

from rebuilder.cli import options as o
from rebuilder.cli.context import place
from rebuilder.cli.output import Output
from rebuilder.engine.cleanup import Cleaned
from rebuilder.engine.cleanup import cleanup as settle
from rebuilder.engine.status import request_cancel
from rebuilder.errors import DefinitionError, RebuildError
from rebuilder.store.ledger import Bookkeeping

DONE, OWED = 0, 6


def cancel(ticket: Annotated[str, typer.Argument(
        metavar="TICKET", show_default=False, help="The rebuild, as `rebuilder status` shows it.")], *,
           app: o.App = None, dsn: o.Dsn = None, schema: o.Schema = None, json: o.Json = False) -> int:
    """Ask a running rebuild to stop; its running statement is cancelled, and live stays as it was."""
    output = Output(json=json)
    try:
        wanted = UUID(ticket)
    except ValueError as error:
        raise DefinitionError(f"{ticket!r} is not a ticket: it must be a UUID.",
                              hint="take it from `rebuilder status` or `rebuilder tickets`") from error
    where = place(output, app=app, dsn=dsn, schema=schema, changing=True)
    if not request_cancel(where.conninfo, Bookkeeping(where.settings), wanted):
        with where.books("cancel") as (connection, books):
            known = books.tickets(connection, None, ticket=wanted, limit=1)
        if not known:
            raise DefinitionError(f"There is no ticket {wanted}.", hint="see `rebuilder tickets`", ticket=str(wanted))
        raise RebuildError(f"Ticket {wanted} of {known[0].projection!r} is not running: it is {known[0].stage}.",
                           hint="see `rebuilder tickets`", ticket=str(wanted), stage=str(known[0].stage))
    output.data({"ticket": str(wanted), "cancel_requested": True},
                lambda: f"Ticket {wanted} is asked to stop; `rebuilder tickets` shows when it has.")
    return DONE


def cleanup(name: o.OptionalName = None, *, all_kept: Annotated[bool, typer.Option(
        "--all-kept", help="Drop the retired tables that are still being kept, too.")] = False,
            app: o.App = None, dsn: o.Dsn = None, schema: o.Schema = None, json: o.Json = False) -> int:
    """Settle what is owed, close abandoned tickets, drop retired tables whose time has come.

    What is kept is listed with its time. Exit code 6 if something is still owed.
    """
    output = Output(json=json)
    where = place(output, app=app, dsn=dsn, schema=schema, changing=True)
    with where.books("cleanup") as (connection, books):
        where.check_name(name, connection, books)
    cleaned = settle(where.conninfo, where.settings, name, all_kept=all_kept)
    output.data(cleaned, lambda: "\n".join(map(_line, cleaned)) or "There is nothing to clean up.")
    return OWED if any(each.error is not None for each in cleaned) else DONE


def _line(each: Cleaned) -> str:
    if each.done:
        return f"done   {each.kind} {each.label}"
    if each.error is not None:
        return f"owed   {each.kind} {each.label}: {each.error}\n       next: rebuilder cleanup"
    return f"kept   {each.kind} {each.label}, until {each.due} (earlier: rebuilder cleanup --all-kept)"
