"""Reads one live table whole: everything that is its own."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import fields, replace
from typing import Any, LiteralString, TypeVar

import psycopg
from psycopg.rows import dict_row

from rebuilder.catalog.facts import (
    AclEntry,
    ColumnFacts,
    ConstraintFacts,
    IndexFacts,
    PolicyFacts,
    RuleFacts,
    SequenceFacts,
    StatisticsFacts,
    TableFacts,
    TriggerFacts,
)
from rebuilder.errors import DefinitionError
from rebuilder.sql import load

Fact = TypeVar("Fact")
Acls = dict[tuple[int, int], tuple[AclEntry, ...]]
"""Privileges by (object, column number); column 0 is the object itself."""

QUERIES = load("catalog")


def rows(connection: psycopg.Connection[Any], query: LiteralString, **parameters: Any) -> list[dict[str, Any]]:
    """The rows of a query of ours, whatever row factory the connection has."""
    with connection.cursor(row_factory=dict_row) as cursor:
        return cursor.execute(query, parameters).fetchall()


def resolve(connection: psycopg.Connection[Any], relations: Sequence[str]) -> list[int]:
    """OIDs of the relations, as the caller's search_path sees the names."""
    oids: list[int] = []
    for name in relations:
        try:
            with connection.transaction():
                oid = rows(connection, QUERIES["resolve"], name=name)[0]["oid"]
        except (psycopg.errors.InvalidName, psycopg.errors.SyntaxError, psycopg.errors.FeatureNotSupported) as exc:
            raise DefinitionError(
                f"{name!r} is no table name: {exc.diag.message_primary}.",
                hint='Write it as in SQL: schema.table, with quotes where SQL needs them ("My Schema"."My Table").',
                relation=name,
            ) from exc
        if oid is None:
            raise DefinitionError(
                f"There is no table {name} in database {connection.info.dbname}, as {connection.info.user} sees it.",
                hint="Correct the name in the projection's tables, qualify it with its schema, or create the table.",
                relation=name,
            )
        if oid in oids:
            raise DefinitionError(
                f"The projection names one table twice: {relations[oids.index(oid)]} and {name}.",
                hint="Name each table once.",
                relation=name,
            )
        oids.append(oid)
    return oids


def read_tables(connection: psycopg.Connection[Any], oids: Sequence[int]) -> tuple[TableFacts, ...]:
    """The tables in the order of ``oids``; to be called under an empty search_path."""
    found = {row["oid"]: row for row in rows(connection, QUERIES["tables"], oids=list(oids))}
    return tuple(_table(connection, found[oid]) for oid in oids)


def read_acls(connection: psycopg.Connection[Any], oids: Iterable[int]) -> Acls:
    """Privileges of these tables and sequences and of their columns."""
    found: dict[tuple[int, int], list[AclEntry]] = {}
    for row in rows(connection, QUERIES["acl"], oids=list(oids)):
        entry = (row["grantor"], row["grantee"], row["privilege"], row["grantable"])
        found.setdefault((row["oid"], row["number"]), []).append(entry)
    return {key: tuple(entries) for key, entries in found.items()}


def _table(connection: psycopg.Connection[Any], row: dict[str, Any]) -> TableFacts:
    oid: int = row["oid"]

    def ask(query: str, kind: type[Fact]) -> tuple[Fact, ...]:
        return tuple(fact(kind, found) for found in rows(connection, QUERIES[query], oid=oid))

    owned = rows(connection, QUERIES["sequences"], oid=oid)
    acls = read_acls(connection, [oid, *(sequence["oid"] for sequence in owned)])
    sequences = tuple(
        fact(SequenceFacts, {**found, "acl": None if found["no_acl"] else acls.get((found["oid"], 0), ())})
        for found in owned
    )
    columns = tuple(
        fact(ColumnFacts, {**found, "acl": acls.get((oid, found["number"]), ())})
        for found in rows(connection, QUERIES["columns"], oid=oid)
    )
    size = rows(connection, QUERIES["size"], oid=oid)[0]["bytes"]
    table = fact(TableFacts, {**row, "acl": None if row["no_acl"] else acls.get((oid, 0), ()), "bytes": size})
    return replace(
        table,
        columns=columns,
        constraints=ask("constraints", ConstraintFacts),
        indexes=ask("indexes", IndexFacts),
        statistics=ask("statistics", StatisticsFacts),
        triggers=ask("triggers", TriggerFacts),
        rules=ask("rules", RuleFacts),
        policies=ask("policies", PolicyFacts),
        sequences=sequences,
    )


def fact(kind: type[Fact], row: dict[str, Any]) -> Fact:
    wanted = {field.name for field in fields(kind)}  # type: ignore[arg-type]  # every fact is a dataclass
    return kind(**{name: _frozen(value) for name, value in row.items() if name in wanted})


def _frozen(value: Any) -> Any:
    return tuple(_frozen(item) for item in value) if isinstance(value, list) else value
