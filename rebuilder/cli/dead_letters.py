"""dead-letters list, show: events that were set aside. A DSN is enough."""

from __future__ import annotations

from typing import Annotated

import typer

from rebuilder.cli import options as o
from rebuilder.cli.context import place
from rebuilder.cli.output import Output, pairs, table
from rebuilder.errors import DefinitionError
from rebuilder.store.dead_letters import DeadLetterRecord, find_dead_letter, open_dead_letters

DONE = 0

app = typer.Typer(help="Events that were set aside, and why.", rich_markup_mode="rich",
                  context_settings={"help_option_names": ["-h", "--help"]})


@app.command("list")
def list_(name: o.OptionalName = None, *, limit: Annotated[int, typer.Option(min=1, help="How many.")] = 100,
          app: o.App = None, dsn: o.Dsn = None, schema: o.Schema = None, json: o.Json = False) -> int:
    """List the open dead letters, in the order of the log."""
    output = Output(json=json)
    where = place(output, app=app, dsn=dsn, schema=schema, changing=False)
    with where.books("dead letters") as (connection, books):
        where.check_name(name, connection, books)
        found = open_dead_letters(connection, books, name, limit=limit)
    output.data(found, lambda: table(
        ["id", "projection", "position", "stream", "type", "cause", "missing in live", "attempts", "error"],
        [(each.id, each.projection, each.position, each.stream, each.type, each.cause, each.in_live, each.attempts,
          f"{each.error_class}: {each.message}") for each in found],
        right=["id", "position", "attempts"]) if found else "There is no dead letter.")
    return DONE


@app.command()
def show(id: Annotated[int, typer.Argument(metavar="ID", show_default=False, help="As the list shows it.")], *,
         app: o.App = None, dsn: o.Dsn = None, schema: o.Schema = None, json: o.Json = False) -> int:
    """Show one dead letter whole, with the traceback, and the event's data if --keep-data was given."""
    output = Output(json=json)
    where = place(output, app=app, dsn=dsn, schema=schema, changing=False)
    with where.books("dead letters") as (connection, books):
        found = find_dead_letter(connection, books, id)
    if found is None:
        raise DefinitionError(f"There is no dead letter {id}.", hint="see `rebuilder dead-letters list`", id=id)
    output.data(found, lambda: _text(found))
    return DONE


def _text(found: DeadLetterRecord) -> str:
    values = found.to_json()
    traceback = values.pop("traceback")
    lines = [pairs((name.replace("_", " "), value) for name, value in values.items())]
    if traceback:
        lines += ["", str(traceback).rstrip()]
    return "\n".join(lines)
