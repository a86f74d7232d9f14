"""Which projections wait to be rebuilt, why, and the run that does it in the order of their dependencies."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rebuilder.domain.lifecycle import Invalidation
from rebuilder.domain.projection import Projection
from rebuilder.domain.report import RebuildReport
from rebuilder.domain.ticket import Reason
from rebuilder.errors import RebuilderError
from rebuilder.store.ledger import Bookkeeping
from rebuilder.store.requests import pending_requests
from rebuilder.store.sessions import Connection


@dataclass(frozen=True, slots=True)
class Pending:
    """A projection that waits to be rebuilt: because it was asked for, or because its recipe is not live's."""

    projection: str
    reason: Reason
    version: int | None
    recipe_version: int
    requests: tuple[Invalidation, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """As strings, numbers and lists."""
        return {
            "projection": self.projection, "reason": str(self.reason), "version": self.version,
            "recipe_version": self.recipe_version,
            "requests": [{"request": str(each.id), "reason": str(each.reason), "note": each.note, "actor": each.actor,
                          "requested_at": each.requested_at.isoformat()} for each in self.requests],
        }


@dataclass(frozen=True, slots=True)
class Ran:
    """What became of one pending projection: a report, an error, or the dependency that kept it from being tried."""

    projection: str
    report: RebuildReport | None = None
    error: RebuilderError | None = None
    waits_for: str | None = None

    def to_json(self) -> dict[str, Any]:
        """As strings, numbers, lists and objects."""
        return {"projection": self.projection, "report": self.report.to_json() if self.report else None,
                "error": self.error.to_json() if self.error else None, "waits_for": self.waits_for}


def recipe_of(projection: Projection) -> str:
    """A digest of what a recipe declares: it tells a changed recipe whose version was not raised.

    What the handlers do is not in it: code has no digest that a new Python would not change.
    """
    shape = {table: [(column.name, str(column.type), bool(column.nullable), bool(column.primary_key))
                     for column in getattr(wanted, "columns", ())] for table, wanted in projection.shape.items()}
    declared = [projection.version, list(projection.tables), sorted(projection.categories), list(projection.types),
                projection.order, shape]
    return hashlib.sha256(json.dumps(declared, sort_keys=True).encode()).hexdigest()


def find_pending(connection: Connection, books: Bookkeeping, projections: Sequence[Projection]) -> list[Pending]:
    """Those of the projections that wait, in the given order."""
    asked: dict[str, list[Invalidation]] = {}
    for each in pending_requests(connection, books):
        asked.setdefault(each.projection, []).append(each)
    found = [pending_of(connection, books, projection, asked.get(projection.name, [])) for projection in projections]
    return [each for each in found if each is not None]


def pending_of(connection: Connection, books: Bookkeeping, projection: Projection,
               asked: Sequence[Invalidation]) -> Pending | None:
    """Why a projection waits; None if it does not.

    Code that is older than live does not wait: its rebuild would be refused.
    """
    row = books.run(connection, "read_recipe", projection=projection.name).fetchone()
    _, version, recipe, rotated = row or (0, None, None, None)
    changed = version is None or version < projection.version or (
        version == projection.version and recipe is not None and recipe != recipe_of(projection))
    if version is not None and version > projection.version:
        return None
    if asked:
        return Pending(projection.name, asked[-1].reason, version, projection.version, tuple(asked))
    if rotated:
        return Pending(projection.name, Reason.SOURCE_CHANGED, version, projection.version)
    if changed:
        return Pending(projection.name, Reason.RECIPE_CHANGED, version, projection.version)
    return None


def run_pending(pending: Sequence[Pending], projections: Sequence[Projection],
                rebuild: Callable[[Pending], RebuildReport]) -> list[Ran]:
    """Rebuild in the given order; one that fails keeps back those that depend on it, and no others."""
    depends = {projection.name: projection.depends_on for projection in projections}
    held: dict[str, str] = {}
    ran = []
    for each in pending:
        blocking = next((name for name in depends[each.projection] if name in held), None)
        if blocking is not None:
            held[each.projection] = blocking
            ran.append(Ran(each.projection, waits_for=blocking))
            continue
        try:
            ran.append(Ran(each.projection, report=rebuild(each)))
        except RebuilderError as error:
            held[each.projection] = each.projection
            ran.append(Ran(each.projection, error=error))
    return ran
