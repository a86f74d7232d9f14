"""The guards that compare live with the shadow: ghost-rows, shrink, null-column."""

from __future__ import annotations

from rebuilder.engine.drift import Comparison, Found, ghosts
from rebuilder.engine.guards import trip
from rebuilder.engine.run import Run
from rebuilder.store.sessions import Connection


def check_guards(run: Run, connection: Connection, comparisons: list[Comparison]) -> None:
    """Raise :class:`~rebuilder.errors.GuardTripped` for the first guard that is not allowed."""
    for comparison in comparisons:
        _ghost_rows(run, connection, comparison)
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


def _shrink(run: Run, comparison: Comparison) -> None:
    live, shadow, table = comparison.live_rows, comparison.shadow_rows, comparison.table
    if 2 * shadow < live:
        trip(run, "shrink", f"{table.label} has {live} rows and would have {shadow}.",
             "look whether the projection subscribes to all its event types",
             table=table.label, live=live, shadow=shadow)


def _null_column(run: Run, comparison: Comparison) -> None:
    table = comparison.table
    if not comparison.shadow_rows:
        return  # nothing would be NULL in no row; that is what shrink is for
    for column, (live, shadow) in comparison.filled.items():
        if live and not shadow:
            trip(run, "null-column", f"{table.label}.{column} is filled in {live} rows of live and would be NULL in "
                 f"all {comparison.shadow_rows}.", "make the handlers fill it, or name it in not_compared",
                 table=table.label, column=column)
