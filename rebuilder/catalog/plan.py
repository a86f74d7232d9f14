"""Reads the blueprint of a projection's live tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
import sqlalchemy
from psycopg import sql

from rebuilder.catalog import clone, swap
from rebuilder.catalog.blueprint import (
    Column,
    FenceLock,
    LiveTable,
    OwedStatement,
    OwnedSequence,
    Schemas,
    Statement,
    Verdict,
)
from rebuilder.catalog.dependents import Dependents, find, read_dependents
from rebuilder.catalog.facts import TableFacts
from rebuilder.catalog.fence import locks
from rebuilder.catalog.fingerprint import closure_of, fingerprint_of, quiet, read_grants, read_parts
from rebuilder.catalog.reader import QUERIES, read_tables, resolve, rows
from rebuilder.catalog.session import Session, read_session
from rebuilder.catalog.shape import Target, reshape
from rebuilder.catalog.shape_columns import print_types, read_wanted
from rebuilder.catalog.verdicts import combine, dependent_verdict, judge
from rebuilder.errors import DefinitionError, LiveChanged

ATTEMPTS = 5
"""How often the catalog is read again when DDL came in between."""


@dataclass(slots=True)
class CatalogBlueprint:
    """The blueprint, made from what the catalog said at one moment."""

    tables: tuple[LiveTable, ...]
    verdicts: tuple[Verdict, ...]
    fingerprint: str
    closure: frozenset[str]
    grants: str
    parts: Mapping[str, tuple[str, ...]]
    locks: tuple[FenceLock, ...]
    run_id: str
    facts: Mapping[int, TableFacts]
    targets: Mapping[int, Target]
    dependents: Dependents
    session: Session

    def create(self, table: LiveTable, work: Schemas, name: str) -> list[Statement]:
        target, made = self.targets[table.oid], sql.Identifier(work[table.schema], name)
        return [*clone.create(table, target.facts, work, name), *target.to_final_names(made)]

    def keys(self, table: LiveTable, work: Schemas) -> list[Statement]:
        target = self.targets[table.oid]
        statements = clone.keys(table, target.facts, work)
        return [*target.under_live_names(self._shadow(table, work), statements), *target.new_keys(work[table.schema])]

    def indexes(self, table: LiveTable, work: Schemas) -> list[Statement]:
        target = self.targets[table.oid]
        statements = clone.indexes(table, target.facts, work)
        new = target.new_indexes(work[table.schema])
        return [*target.under_live_names(self._shadow(table, work), statements), *new]

    def dress(self, table: LiveTable, work: Schemas) -> list[Statement]:
        target = self.targets[table.oid]
        return target.under_live_names(self._shadow(table, work), clone.dress(table, target.facts, work))

    def swap(self, work: Schemas, retired: Schemas, *, keys_owed: bool = False) -> list[Statement]:
        return swap.swap(self._swapped, self.dependents, self.session, work, retired, keys_owed=keys_owed)

    def owed(self, retired: Schemas, *, keys_owed: bool = False) -> list[OwedStatement]:
        return swap.owed(self._swapped, self.dependents, retired, keys_owed=keys_owed)

    @staticmethod
    def _shadow(table: LiveTable, work: Schemas) -> sql.Identifier:
        return sql.Identifier(work[table.schema], table.name)

    @property
    def _swapped(self) -> list[tuple[LiveTable, TableFacts, Target]]:
        return [(table, self.facts[table.oid], self.targets[table.oid]) for table in self.tables]


def read_blueprint(
    connection: psycopg.Connection[Any],
    relations: Sequence[str],
    *,
    shape: Mapping[str, sqlalchemy.Table] | None = None,
    run_id: str,
) -> CatalogBlueprint:
    """What the tables are and what follows; see the package's docstring."""
    shapes = dict(shape or {})
    _check_shapes(shapes, relations)
    with connection.transaction(force_rollback=True):
        oids = resolve(connection, relations)
        # Types are found by the caller's search_path, like the tables.
        wanted = {name: read_wanted(connection, table) for name, table in shapes.items()}
        with quiet(connection):
            rows(connection, QUERIES["impatient"])
            session = read_session(connection)
            for _ in range(ATTEMPTS):
                parts, grants = read_parts(connection, oids), read_grants(connection, oids)
                tables = read_tables(connection, oids)
                dependents = read_dependents(connection, tables, publication_filters=session.publication_filters)
                # Definitions are printed from today's catalog, each for itself: DDL between two of them would give a
                # blueprint of a table that never was. Same before and after, same in between.
                if (read_parts(connection, oids), read_grants(connection, oids)) == (parts, grants) and closure_of(
                    find(connection, oids)
                ) == closure_of(dependents.found):
                    break
            else:
                raise LiveChanged(
                    f"The definition of {', '.join(relations)} changed {ATTEMPTS} times while it was read.",
                    hint="Wait for the migration to end, then repeat.",
                )
            wanted = {name: print_types(connection, columns) for name, columns in wanted.items()}
            verdicts = judge(connection, tables, dependents, session)
    targets: dict[int, Target] = {}
    for name, facts in zip(relations, tables, strict=True):
        targets[facts.oid] = Target(facts)
        if name in shapes:
            judged = [
                (d, dependent_verdict(facts, d, dependents, session))
                for d in dependents.found
                if d.live == facts.oid and d.category != "inheritance"
            ]
            targets[facts.oid], touched = reshape(facts, wanted[name], shapes[name], judged, session)
            verdicts = combine(verdicts, touched)
    return CatalogBlueprint(
        tables=tuple(_live(facts, targets[facts.oid]) for facts in tables),
        verdicts=verdicts,
        fingerprint=fingerprint_of(parts, grants),
        closure=closure_of(dependents.found),
        grants=grants,
        parts=parts,
        locks=locks(tables, dependents),
        run_id=run_id,
        facts={facts.oid: facts for facts in tables},
        targets=targets,
        dependents=dependents,
        session=session,
    )


def _check_shapes(shapes: Mapping[str, sqlalchemy.Table], relations: Sequence[str]) -> None:
    for name in shapes:
        if name not in relations:
            raise DefinitionError(
                f"There is a shape for {name}, which is none of the projection's tables ({', '.join(relations)}).",
                hint="Write the table's name in shape as in tables.",
            )


def _live(facts: TableFacts, target: Target) -> LiveTable:
    names = {column.number: column.name for column in facts.columns}
    return LiveTable(
        schema=facts.schema,
        name=facts.name,
        oid=facts.oid,
        columns=tuple(
            Column(target.final(c.name), c.type, c.not_null, bool(c.generated), c.identity, c.expression)
            for c in target.facts.columns
        ),
        primary_key=tuple(target.final(names[number]) for key in facts.of_kind("p") for number in key.columns),
        sequences=tuple(
            OwnedSequence(s.column, s.schema, s.name, s.identity, s.increment, s.oid, s.type)
            for s in target.facts.sequences
        ),
        live_columns=tuple(names.values()),
        rows=facts.rows,
        bytes=facts.bytes,
        renamed=tuple((old, new) for old, new in target.renames if old in names.values()),
    )
