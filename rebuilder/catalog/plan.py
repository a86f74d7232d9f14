"""Reads the blueprint of a projection's live tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
import sqlalchemy

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
from rebuilder.catalog.dependents import Dependents, read_dependents
from rebuilder.catalog.facts import TableFacts
from rebuilder.catalog.fence import locks
from rebuilder.catalog.fingerprint import closure_of, fingerprint_of, quiet, read_grants, read_parts
from rebuilder.catalog.reader import QUERIES, read_tables, resolve, rows
from rebuilder.catalog.session import Session, read_session
from rebuilder.catalog.verdicts import judge


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
    dependents: Dependents
    session: Session

    def create(self, table: LiveTable, work: Schemas, name: str) -> list[Statement]:
        return clone.create(table, self.facts[table.oid], work, name)

    def keys(self, table: LiveTable, work: Schemas) -> list[Statement]:
        return clone.keys(table, self.facts[table.oid], work)

    def indexes(self, table: LiveTable, work: Schemas) -> list[Statement]:
        return clone.indexes(table, self.facts[table.oid], work)

    def dress(self, table: LiveTable, work: Schemas) -> list[Statement]:
        return clone.dress(table, self.facts[table.oid], work)

    def swap(self, work: Schemas, retired: Schemas, *, keys_owed: bool = False) -> list[Statement]:
        return swap.swap(self._pairs, self.dependents, self.session, work, retired, keys_owed=keys_owed)

    def owed(self, retired: Schemas, *, keys_owed: bool = False) -> list[OwedStatement]:
        return swap.owed(self._pairs, self.dependents, retired, keys_owed=keys_owed)

    @property
    def _pairs(self) -> list[tuple[LiveTable, TableFacts]]:
        return [(table, self.facts[table.oid]) for table in self.tables]


def read_blueprint(
    connection: psycopg.Connection[Any],
    relations: Sequence[str],
    *,
    shape: Mapping[str, sqlalchemy.Table] | None = None,
    run_id: str,
) -> CatalogBlueprint:
    """What the tables are and what follows; see the package's docstring."""
    with connection.transaction(force_rollback=True):
        oids = resolve(connection, relations)
        with quiet(connection):
            rows(connection, QUERIES["impatient"])
            session = read_session(connection)
            tables = read_tables(connection, oids)
            dependents = read_dependents(connection, tables, publication_filters=session.publication_filters)
            parts, grants = read_parts(connection, oids), read_grants(connection, oids)
            verdicts = judge(connection, tables, dependents, session)
    return CatalogBlueprint(
        tables=tuple(_live(facts) for facts in tables),
        verdicts=verdicts,
        fingerprint=fingerprint_of(parts, grants),
        closure=closure_of(dependents.found),
        grants=grants,
        parts=parts,
        locks=locks(tables, dependents),
        run_id=run_id,
        facts={facts.oid: facts for facts in tables},
        dependents=dependents,
        session=session,
    )


def _live(facts: TableFacts) -> LiveTable:
    names = {column.number: column.name for column in facts.columns}
    keys = facts.of_kind("p")
    return LiveTable(
        schema=facts.schema,
        name=facts.name,
        oid=facts.oid,
        columns=tuple(
            Column(c.name, c.type, c.not_null, bool(c.generated), c.identity, c.expression) for c in facts.columns
        ),
        primary_key=tuple(names[number] for key in keys for number in key.columns),
        sequences=tuple(
            OwnedSequence(s.column, s.schema, s.name, s.identity, s.increment, s.oid, s.type) for s in facts.sequences
        ),
        live_columns=tuple(names.values()),
        rows=facts.rows,
        bytes=facts.bytes,
    )
