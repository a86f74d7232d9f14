"""archive and rotate-log: the log as files, and the log as another one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rebuilder.cli import options as o
from rebuilder.cli.context import application
from rebuilder.cli.interrupt import stopping
from rebuilder.cli.output import Output

DONE = 0


def archive(folder: Annotated[Path, typer.Argument(metavar="FOLDER", show_default=False, file_okay=False)], *,
            shard_events: Annotated[int, typer.Option(min=1, help="Events in a file.")] = 100_000,
            app: o.App = None, dsn: o.Dsn = None, schema: o.Schema = None, json: o.Json = False) -> int:
    """Write the closed part of the log as immutable Parquet files, for `rebuild --from-archive`.

    Only full files are written, of positions that are settled; again, it adds what has come since.
    """
    output = Output(json=json)
    rebuilder = application(output, app=app, dsn=dsn, schema=schema, changing=True)
    with stopping(output.say, "the archive") as stop:
        report = rebuilder.archive(folder, shard_events=shard_events, stop=stop)
    output.data(report, lambda: f"{report.added:,} shards added; {report.events:,} events in {report.shards:,} shards, "
                                f"up to position {report.position:,}.")
    return DONE


def rotate_log(reason: Annotated[str, typer.Argument(metavar="REASON", show_default=False)], *, app: o.App = None,
               dsn: o.Dsn = None, schema: o.Schema = None, json: o.Json = False) -> int:
    """Say that the log was restored or rewritten: what was built from it is pending, archives of it are refused."""
    output = Output(json=json)
    rebuilder = application(output, app=app, dsn=dsn, schema=schema, changing=True)
    made = rebuilder.rotate_log(reason)
    output.data({"generation": str(made)},
                lambda: f"The log is incarnation {made} from now on. Next: rebuilder pending --run")
    return DONE
