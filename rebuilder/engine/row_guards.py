"""The guards that compare live with the shadow: ghost-rows, shrink, null-column."""

from __future__ import annotations

from collections.abc import Iterator

from rebuilder.engine.drift import Comparison, Found, count_again, ghosts
from rebuilder.engine.guards import trip
from rebuilder.engine.run import Run
from rebuilder.store.sessions import Connection


def check_guards(run: Run, connection: Connection, comparisons: list[Comparison]) -> None:
    """Raise :class:`~rebuilder.errors.GuardTripped` for the first guard that is not allowed."""
    for comparison in comparisons:
        _ghost_rows(run, connection, comparison)
        if _shrinks(comparison) or any(_emptied(comparison)):
            # Writers were a moment ahead of the shadow at the first count: they must not end a long replay.
            count_again(connection, comparison)
        _shrink(run, comparison)
        _null_column(run, comparison)


def ghost_among(run: Run, connection: Connection, comparison: Comparison, found: list[Found]) -> None:
    """The guard ``ghost-rows`` for the rows that writers were changing, under the fence."""
    keys = [row[4:] for row in found if row[0] == "missing"]
    if keys:
        _ghost_rows(run, connection, comparison, keys)


def _ghost_rows(run: Run, connection: Connection, comparison: Comparison,
                keys: list[tuple[str, ...]] | None = None) -> None:
    table = comparison.table
    name = run.projection.tables[run.blueprint.tables.index(table)]
    column = run.projection.stream_columns.get(name)
    if column is None:
        return
    count, sample = ghosts(run, connection, comparison, column, keys)
    if count:
        more = "" if count <= len(sample) else ", ..."
        trip(run, "ghost-rows", f"{table.label} has {count} live rows whose stream has no event in the log: "
             f"{', '.join(sample)}{more}. The rebuild would delete them.",
             "append the events that are missing", table=table.label, rows=count, sample=sample)


def _shrinks(comparison: Comparison) -> bool:
    return 2 * comparison.shadow_rows < comparison.live_rows


def _shrink(run: Run, comparison: Comparison) -> None:
    live, shadow, table = comparison.live_rows, comparison.shadow_rows, comparison.table
    if _shrinks(comparison):
        trip(run, "shrink", f"{table.label} has {live} rows and would have {shadow}.",
             "look whether the projection subscribes to all its event types",
             table=table.label, live=live, shadow=shadow)


def _emptied(comparison: Comparison) -> Iterator[tuple[str, int]]:
    """Columns that are filled in live and in no row of the shadow, with how many rows of live fill them."""
    if comparison.shadow_rows:  # nothing would be NULL in no row; that is what shrink is for
        yield from ((column, live) for column, (live, shadow) in comparison.filled.items() if live and not shadow)


def _null_column(run: Run, comparison: Comparison) -> None:
    table = comparison.table
    for column, live in _emptied(comparison):
        trip(run, "null-column", f"{table.label}.{column} is filled in {live} rows of live and would be NULL in "
             f"all {comparison.shadow_rows}.", "make the handlers fill it, or name it in not_compared",
             table=table.label, column=column)
