"""install and demo: the commands that come first."""

from __future__ import annotations

from typing import Annotated

import typer

from rebuilder.cli import options as o
from rebuilder.cli.context import place
from rebuilder.cli.output import Output
from rebuilder.settings import Settings
from rebuilder.store.install import install as migrate
from rebuilder.store.install import install_sql

DONE = 0


def install(*, sql: Annotated[bool, typer.Option(
        "--sql", help="Print the statements instead of running them, for a database administrator.")] = False,
            work_schemas: Annotated[int, typer.Option(
                "--work-schemas", min=0, metavar="N",
                help="Make N pairs of schemas for a role that may not create its own.")] = 0,
            to: Annotated[str | None, typer.Option(
                "--to", metavar="ROLE", show_default=False, help="The role that may use them.")] = None,
            app: o.App = None, dsn: o.Dsn = None, schema: o.Schema = None, json: o.Json = False) -> int:
    """Make the bookkeeping schema in a database, or bring it to this version. Nothing is installed on any table."""
    output = Output(json=json)
    if sql:
        text = install_sql(Settings() if schema is None else Settings(schema=schema), work_schemas=work_schemas,
                           to=to)
        output.data({"sql": text}, text.rstrip)
        return DONE
    where = place(output, app=app, dsn=dsn, schema=schema, changing=True)
    migrate(where.conninfo, where.settings, work_schemas=work_schemas, to=to)
    output.data({"schema": where.settings.schema, "installed": True},
                lambda: f"The bookkeeping schema {where.settings.schema!r} is installed.")
    return DONE


def demo(*, events: Annotated[int, typer.Option(min=1, help="Events in the log at the start.")] = 200_000,
         writers: Annotated[int, typer.Option(min=0, help="Writers that never stop.")] = 4,
         readers: Annotated[int, typer.Option(min=0, help="Readers that never stop.")] = 3,
         seed: Annotated[int | None, typer.Option(show_default=False, help="Repeat the same chances.")] = None,
         dsn: Annotated[str | None, typer.Option(
             "--dsn", metavar="DSN", show_default=False,
             help="A server to make a database of its own on; else one is started, by the extra `embedded`.")] = None,
         json: o.Json = False) -> int:
    """Watch a wrong read model being rebuilt under live traffic, and see it proved right.

    Exit code 0 only if every claim held: rows equal to a replay, no failed and no empty read, no failed write.
    """
    # Late: nothing else needs it, and it may not be shipped.
    from rebuilder.demo import run

    return run(events=events, writers=writers, readers=readers, seed=seed, dsn=dsn, json=json)
