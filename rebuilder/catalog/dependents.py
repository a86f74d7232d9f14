"""What hangs off the live tables and belongs to others: views, functions, policies, foreign keys, publications.

Found by pg_depend, database-wide. What is not known here is refused by name, never guessed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import sql

from rebuilder.catalog.facts import TableFacts
from rebuilder.catalog.reader import QUERIES, fact, rows

MOVING = [
    "oid", "relacl", "relpages", "reltuples", "relallvisible", "relallfrozen", "relfilenode", "relfrozenxid",
    "relminmxid", "reltoastrelid", "relhasindex", "relhasrules", "relhastriggers", "relhassubclass", "relchecks",
]  # fmt: skip
"""Columns of pg_class that VACUUM, ANALYZE, REINDEX or a neighbour change while the definition stays (or that are
compared apart, as grants are)."""


@dataclass(frozen=True, slots=True)
class Dependent:
    """One object that depends on a live table. ``subject`` is what it belongs to (a view rather than its rule)."""

    oid: int
    subject: int
    live: int
    via: str  # table, type, index, constraint, identity
    category: str
    kind: str
    identity: str
    columns: tuple[int, ...]
    state: str

    @property
    def mark(self) -> str:
        """The dependent and a digest of its definition."""
        return f"{self.kind} {self.identity} [{self.state[:16]}]"


@dataclass(frozen=True, slots=True)
class View:
    """A view of the first level."""

    oid: int
    schema: str
    name: str
    owner: str
    persistence: str
    definition: str
    options: tuple[str, ...]
    types: tuple[int, ...]

    @property
    def identifier(self) -> sql.Identifier:
        return sql.Identifier(self.schema, self.name)


@dataclass(frozen=True, slots=True)
class LockedView:
    """A view that the fence locks: of the first level, or between one of those and live."""

    oid: int
    schema: str
    name: str
    owner: str

    @property
    def identifier(self) -> sql.Identifier:
        return sql.Identifier(self.schema, self.name)


@dataclass(frozen=True, slots=True)
class Function:
    """A function or procedure that depends on a live table."""

    oid: int
    schema: str
    name: str
    arguments: str
    owner: str
    volatility: str
    atomic: bool
    superusers: bool  # LEAKPROOF or with a SUPPORT function: only a superuser may replace it
    definition: str | None
    types: tuple[int, ...]  # of arguments and result


@dataclass(frozen=True, slots=True)
class OtherPolicy:
    """A policy of another table that mentions a live one."""

    oid: int
    name: str
    table: int
    schema: str
    table_name: str
    owner: str
    using: str | None
    check: str | None

    @property
    def identifier(self) -> sql.Identifier:
        return sql.Identifier(self.schema, self.table_name)


@dataclass(frozen=True, slots=True)
class Referencing:
    """A foreign key of another table that refers to a live one."""

    oid: int
    name: str
    definition: str
    validated: bool
    enforced: bool
    referred: int
    referred_columns: tuple[int, ...]
    table: int
    schema: str
    table_name: str
    table_kind: str
    owner: str
    comment: str | None

    @property
    def identifier(self) -> sql.Identifier:
        return sql.Identifier(self.schema, self.table_name)


@dataclass(frozen=True, slots=True)
class Publication:
    """A live table's place in a publication that lists it."""

    oid: int
    name: str
    owner: str
    table: int
    schema: str
    table_name: str
    filter: str | None
    columns: tuple[str, ...] | None

    @property
    def identifier(self) -> sql.Identifier:
        return sql.Identifier(self.schema, self.table_name)


@dataclass(frozen=True, slots=True)
class ReadRelation:
    """Another relation that a text of ours mentions."""

    oid: int
    schema: str
    name: str
    kind: str
    rule: bool  # mentioned by a rule of live, which may write it
    readable: bool
    writable: bool

    @property
    def identifier(self) -> sql.Identifier:
        return sql.Identifier(self.schema, self.name)


@dataclass(frozen=True, slots=True)
class Referred:
    """A table outside the projection that a live table refers to."""

    oid: int
    schema: str
    name: str
    kind: str
    referable: bool
    lockable: bool

    @property
    def identifier(self) -> sql.Identifier:
        return sql.Identifier(self.schema, self.name)


@dataclass(frozen=True, slots=True)
class Dependents:
    """All of them."""

    found: tuple[Dependent, ...]
    views: tuple[View, ...]
    locked_views: tuple[LockedView, ...]  # outermost first
    functions: tuple[Function, ...]
    policies: tuple[OtherPolicy, ...]
    referencing: tuple[Referencing, ...]
    publications: tuple[Publication, ...]
    reads: tuple[ReadRelation, ...]
    referred: tuple[Referred, ...]


def find(connection: psycopg.Connection[Any], oids: Iterable[int]) -> tuple[Dependent, ...]:
    """The first level of pg_depend around the tables; takes no lock on any of them."""
    found = rows(connection, QUERIES["dependents"], oids=list(oids), moving=MOVING)
    return tuple(fact(Dependent, row) for row in found)


def read_dependents(
    connection: psycopg.Connection[Any], tables: Sequence[TableFacts], *, publication_filters: bool
) -> Dependents:
    """Dependents with their definitions; to be called under an empty search_path."""
    lives = [table.oid for table in tables]
    found = find(connection, lives)

    def subjects(category: str) -> list[int]:
        return sorted({d.subject for d in found if d.category == category})

    view_rules = [d.oid for d in found if d.category == "view"]
    functions, policies = subjects("function"), subjects("policy")
    own = rows(connection, QUERIES["own_texts"], oids=lives)[0]
    reads = rows(
        connection,
        QUERIES["read_by"],
        views=view_rules,
        functions=functions,
        policies=[*policies, *own["policies"]],
        rules=own["rules"],
        triggers=own["triggers"],
    )
    referred = {c.referred for table in tables for c in table.of_kind("f")} - set(lives)
    # LOCK TABLE would go through a view that reads live to live itself, too early: those are locked as views are.
    above = rows(connection, QUERIES["above"], oids=lives)
    named = {*subjects("view"), *(row["oid"] for row in reads)}
    elsewhere = {row["oid"] for row in reads} - {*lives, *(row["oid"] for row in above)}
    listing = QUERIES["filtered_publications" if publication_filters else "publications"]
    return Dependents(
        found=found,
        views=tuple(fact(View, row) for row in rows(connection, QUERIES["views"], oids=subjects("view"))),
        locked_views=tuple(fact(LockedView, row) for row in above if row["oid"] in named),
        functions=tuple(fact(Function, row) for row in rows(connection, QUERIES["functions"], oids=functions)),
        policies=tuple(fact(OtherPolicy, row) for row in rows(connection, QUERIES["other_policies"], oids=policies)),
        referencing=tuple(
            fact(Referencing, row) for row in rows(connection, QUERIES["referencing"], oids=subjects("foreign-key"))
        ),
        publications=tuple(fact(Publication, row) for row in rows(connection, listing, oids=lives)),
        reads=tuple(fact(ReadRelation, row) for row in reads if row["oid"] in elsewhere),
        referred=tuple(fact(Referred, row) for row in rows(connection, QUERIES["referred"], oids=sorted(referred))),
    )
