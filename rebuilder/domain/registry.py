"""The projections that an application has."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches

from rebuilder.domain.projection import Projection
from rebuilder.errors import DefinitionError, DuplicateDefinition, UnknownProjection


class Registry:
    """A closed set of projections; refuses two of one name, two on one table, and dependencies in a circle."""

    def __init__(self, *projections: Projection) -> None:
        self._projections: dict[str, Projection] = {}
        owners: dict[str, str] = {}
        for projection in projections:
            if projection.name in self._projections:
                raise DuplicateDefinition(f"Two projections are called {projection.name!r}.", name=projection.name)
            self._projections[projection.name] = projection
            for table in projection.tables:
                key = table if "." in table else f"public.{table}"
                if key in owners:
                    raise DuplicateDefinition(
                        f"Table {table} is filled by two projections, {owners[key]!r} and {projection.name!r}: the "
                        "rebuild of one would drop the other's rows.",
                        hint="make them one projection, or give each its own table", table=table)
                owners[key] = projection.name
        self.in_order()

    def __iter__(self) -> Iterator[Projection]:
        return iter(self._projections.values())

    def __len__(self) -> int:
        return len(self._projections)

    def get(self, name: str) -> Projection:
        """The projection of a name. Raises :class:`~rebuilder.errors.UnknownProjection` with the closest names."""
        if name in self._projections:
            return self._projections[name]
        known = sorted(self._projections)
        close = get_close_matches(name, known, n=3, cutoff=0.5)
        hint = f"did you mean {' or '.join(map(repr, close))}?" if close else None
        raise UnknownProjection(f"No projection is called {name!r}. Registered: {', '.join(known) or 'none'}.",
                                hint=hint, name=name, known=known)

    def in_order(self) -> tuple[Projection, ...]:
        """All projections, each after those it depends on."""
        done: dict[str, Projection] = {}

        def visit(projection: Projection, path: tuple[str, ...]) -> None:
            if projection.name in done:
                return
            if projection.name in path:
                raise DefinitionError(f"Projections depend on each other in a circle: "
                                      f"{' -> '.join((*path, projection.name))}.")
            for name in projection.depends_on:
                if name not in self._projections:
                    raise DefinitionError(f"Projection {projection.name!r} depends on {name!r}, which is not "
                                          "registered.")
                visit(self._projections[name], (*path, projection.name))
            done[projection.name] = projection

        for projection in self:
            visit(projection, ())
        return tuple(done.values())
