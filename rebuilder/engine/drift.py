"""Rows that differ between live and shadow, by primary key.

The whole comparison runs before the fence and keeps its candidates. Writers change both sides meanwhile: a candidate
whose two sides stand still between two looks is settled; the others, as many as writers touched, are looked at again
under the fence.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rebuilder.domain.report import Drift, DriftSample
from rebuilder.engine.run import Run
from rebuilder.engine.shadow import Shadow
from rebuilder.eventlog.columns import ALIAS
from rebuilder.eventlog.looking import looking
from rebuilder.sql import load
from rebuilder.sql.drift import Compared, Pair
from rebuilder.store.sessions import Connection, translated

if TYPE_CHECKING:
    from rebuilder.catalog.blueprint import LiveTable

_QUERIES = load("queries")
CANDIDATES = 100_000
"""Differing rows of a table that are remembered one by one. Beyond, the count is that of the whole comparison, which
may take a few rows in motion for different ones."""
_PART = 5000

Found = tuple[Any, ...]
"""kind, hash of live's row, hash of the shadow's, changed columns, key as text..."""


@dataclass(slots=True)
class Comparison:
    """One table's: how many rows each side has, which columns are filled, and what differs."""

    table: LiveTable
    pair: Pair
    live_rows: int = 0
    shadow_rows: int = 0
    filled: dict[str, tuple[int, int]] = field(default_factory=dict)
    candidates: dict[tuple[str, ...], Found] = field(default_factory=dict)
    settled: dict[tuple[str, ...], Found] = field(default_factory=dict)
    moving: list[tuple[str, ...]] = field(default_factory=list)
    uncounted: Drift | None = None

    def drift(self, label: str, sample: int, under_fence: Iterable[Found] = ()) -> Drift:
        """What differs, with the rows in motion as they were seen under the fence."""
        rows = [*self.settled.values(), *(found for found in under_fence if found[0] != "same")]
        shown = _sample(label, self.pair.key, rows, sample)
        if self.uncounted is not None:
            return Drift(self.uncounted.missing, self.uncounted.extra, self.uncounted.changed, shown)
        kinds = Counter(found[0] for found in rows)
        return Drift(kinds["missing"], kinds["extra"], kinds["changed"], shown)


def compare(run: Run, connection: Connection, shadow: Shadow) -> list[Comparison]:
    """Compare all tables whole. Live is read in a savepoint that is rolled back, so that no lock on it stays."""
    comparisons = []
    with translated("comparing live with the shadow"):
        for table in run.blueprint.tables:
            comparison = Comparison(table, pair_of(run, connection, shadow, table))
            with looking(connection):
                _whole(connection, comparison)
            comparisons.append(comparison)
    return comparisons


def settle_candidates(connection: Connection, comparisons: list[Comparison]) -> None:
    """Look again, once the shadow has caught up with what live was then: who stands still really differs."""
    with translated("comparing live with the shadow"):
        for comparison in comparisons:
            with looking(connection):
                now = {found[4:]: found for found in look_again(connection, comparison, list(comparison.candidates))}
            for key, before in comparison.candidates.items():
                found = now.get(key)
                if found is None or (found[0] == "same" and before[0] == "same"):
                    continue
                if found[:3] == before[:3]:
                    comparison.settled[key] = found
                else:
                    comparison.moving.append(key)


def look_again(connection: Connection, comparison: Comparison, keys: list[tuple[str, ...]]) -> list[Found]:
    """How given rows compare now."""
    found: list[Found] = []
    for start in range(0, len(keys), _PART):
        found += connection.execute(comparison.pair.again(keys[start:start + _PART])).fetchall()
    return found


def pair_of(run: Run, connection: Connection, shadow: Shadow, table: LiveTable) -> Pair:
    """What of a table is compared: stored columns that both sides have and the projection does not exclude."""
    name = run.projection.tables[run.blueprint.tables.index(table)]
    taking_part = [c for c in table.columns if not c.generated and c.name not in table.primary_key
                   and c.name in (table.live_columns or table.stored) and run.projection.compares(name, c.name)]
    rows = connection.execute(_QUERIES["incomparable_types"], {"types": [c.type for c in table.columns]}).fetchall()
    without = {row[0] for row in rows}
    by_name = {c.name: Compared(c.name, c.type, c.type not in without) for c in table.columns}
    return Pair(table.identifier, shadow.identifier(table), tuple(by_name[k] for k in table.primary_key),
                tuple(by_name[c.name] for c in taking_part))


def ghosts(run: Run, connection: Connection, comparison: Comparison, column: str,
           keys: list[tuple[str, ...]] | None = None) -> tuple[int, list[str]]:
    """Rows of live (or of these keys) whose stream has no event: how many, and a few keys."""
    statements = run.log.statements
    query = comparison.pair.ghosts(column, statements.relation, statements.stream[-1], ALIAS, run.settings.drift_sample,
                                   only=keys)
    with translated("looking for rows without events"), looking(connection):
        row = connection.execute(query).fetchone()
    return (int(row[0]), list(row[1] or [])) if row else (0, [])


def count_again(connection: Connection, comparison: Comparison) -> None:
    """Count once more, now that the shadow has caught up with what live was at the first count.

    At the first one it lagged by what writers had just committed; what live has come to have since must not count yet.
    """
    live, filled = comparison.live_rows, comparison.filled
    with translated("comparing live with the shadow"), looking(connection):
        _count(connection, comparison)
    comparison.live_rows = min(live, comparison.live_rows)
    comparison.filled = {name: (min(filled[name][0], now), shadow) for name, (now, shadow) in comparison.filled.items()}


def _whole(connection: Connection, comparison: Comparison) -> None:
    found = connection.execute(comparison.pair.candidates(CANDIDATES + 1)).fetchall()
    comparison.candidates = {row[4:]: row for row in found[:CANDIDATES]}
    differing = _count(connection, comparison)
    if len(found) > CANDIDATES:
        comparison.uncounted = differing


def _count(connection: Connection, comparison: Comparison) -> Drift:
    totals = connection.execute(comparison.pair.totals()).fetchone()
    assert totals is not None
    comparison.live_rows, comparison.shadow_rows = totals[0], totals[1]
    counts = totals[5:]
    comparison.filled = {column.name: (counts[2 * n], counts[2 * n + 1])
                         for n, column in enumerate(comparison.pair.columns)}
    return Drift(totals[2], totals[3], totals[4])


def _sample(label: str, key: tuple[Compared, ...], rows: Sequence[Found], most: int) -> tuple[DriftSample, ...]:
    shown: list[DriftSample] = []
    for kind in ("missing", "extra", "changed"):
        for row in [found for found in rows if found[0] == kind][:most]:
            values = dict(zip((column.name for column in key), row[4:], strict=True))
            shown.append(DriftSample(label, kind, values, tuple(row[3]) if kind == "changed" else ()))
    return tuple(shown)
