"""The named guards: checks that stop a run before the cut-over unless they are allowed by name."""

from __future__ import annotations

from rebuilder import errors
from rebuilder.engine.run import Run

NAMES = ("ghost-rows", "shrink", "null-column", "downgrade", "long-transaction")


def trip(run: Run, guard: str, message: str, hint: str, **fields: object) -> None:
    """Stop the run, or note that the guard was allowed."""
    if guard in run.options.allow:
        run.warn(f"Guard {guard} was allowed: {message}")
        return
    raise errors.GuardTripped(f"Guard {guard}: {message} Live is as it was.", hint=f"{hint}, or --allow {guard}",
                              guard=guard, **fields)
