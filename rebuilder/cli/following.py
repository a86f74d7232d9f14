"""follow: feeds the live tables of async projections."""

from __future__ import annotations

from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from typing import Annotated

import typer

from rebuilder.cli import options as o
from rebuilder.cli.context import application
from rebuilder.cli.interrupt import stopping
from rebuilder.cli.output import Output
from rebuilder.engine.follow import Followed
from rebuilder.errors import DefinitionError

DONE = 0


def follow(names: Annotated[list[str] | None, typer.Argument(
        metavar="[NAME]...", show_default=False, help="The projections; all async ones if left out.")] = None, *,
           once: Annotated[bool, typer.Option("--once", help="End when all that is there now is applied.")] = False,
           poll: Annotated[float, typer.Option(
               metavar="SECONDS", min=0.01, help="Look again after this long, if nobody notifies.")] = 1.0,
           channel: Annotated[str, typer.Option(
               help="NOTIFY on this channel, in the transaction that appends, and nothing waits for the poll.")]
           = "rebuilder",
           app: o.App = None, dsn: o.Dsn = None, schema: o.Schema = None, json: o.Json = False) -> int:
    """Apply events to live as they come (feeding "async"), exactly once, until SIGINT or SIGTERM.

    It goes on beside a rebuild and is held only by its fence; several processes may follow one projection. The batch
    that runs when it is asked to stop is finished.
    """
    output = Output(json=json)
    rebuilder = application(output, app=app, dsn=dsn, schema=schema, changing=True)
    chosen = names or [each.name for each in rebuilder.registry if each.feeding_name == "async"]
    if not chosen:
        raise DefinitionError("No projection is async, so there is nothing to follow.",
                              hint='declare one with feeding="async"')

    def told(done: Followed) -> None:
        output.say(f"{done.projection}: {done.events:,} events, position {done.position:,}")

    with stopping(output.say, "the follower") as stop, ThreadPoolExecutor(len(chosen)) as pool:
        running = [pool.submit(rebuilder.follow, name, stop=stop, once=once, poll=poll, channel=channel, told=told)
                   for name in chosen]
        # One that fails ends the others: whoever watches the process is to see it.
        finished, _ = wait(running, return_when=FIRST_EXCEPTION)
        if any(each.exception() for each in finished):
            stop.request("another follower failed")
    done = [each.result() for each in running]
    output.data(done, lambda: "\n".join(
        f"{each.projection}: {each.events:,} events in {each.batches:,} batches, position {each.position:,}"
        for each in done))
    return DONE
