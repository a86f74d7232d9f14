"""Which tables stand behind the name that a log was given."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

import psycopg
from psycopg import sql

from rebuilder.errors import LogDefinitionError, MissingPrivilege, RefusedError
from rebuilder.eventlog.columns import ALIAS, Columns, is_plain
from rebuilder.sql import load

_SQL = load("eventlog")
_KINDS = {"S": "a sequence", "i": "an index", "I": "an index", "c": "a composite type", "t": "a toast table"}


@dataclass(frozen=True, slots=True)
class Table:
    """A relation of the catalog."""

    oid: int
    schema: str
    name: str
    kind: str

    @property
    def label(self) -> str:
        """``schema.name`` for people."""
        return f"{self.schema}.{self.name}"

    @property
    def identifier(self) -> sql.Identifier:
        """The qualified name in SQL."""
        return sql.Identifier(self.schema, self.name)


@dataclass(frozen=True, slots=True)
class Source:
    """The table and column that positions really come from."""

    table: Table
    column: str
    not_null: bool


def resolve(connection: psycopg.Connection[Any], name: str) -> Table:
    """The relation of a log by its name, written as in SQL (``events``, ``sales.events``, ``"Events"``)."""
    row = None
    for spelling in (name, sql.Identifier(*name.split(".", 1)).as_string(connection)):
        try:
            row = connection.execute(_SQL["relation"], {"name": spelling}).fetchone()
        except psycopg.errors.InsufficientPrivilege as error:
            schema = name.split(".", 1)[0]
            raise MissingPrivilege(f"This role may not look into schema {schema}, where the event log {name} is.",
                                   hint=f"GRANT USAGE ON SCHEMA {schema} TO {connection.info.user}") from error
        except (psycopg.errors.InvalidName, psycopg.errors.SyntaxError, psycopg.errors.FeatureNotSupported):
            continue  # not SQL as it stands; the next spelling quotes it
        if row:
            break
    if row is None:
        names = sorted({r[0] for r in connection.execute(_SQL["relation_names"], {}).fetchall()})
        raise LogDefinitionError(f"The event log {name!r} does not exist{on_database(connection)}.",
                                 hint=closest(name, names, "relation"), relation=name)
    oid, schema, relname, kind, persistence = row
    table = Table(oid, schema, relname, kind)
    if persistence == "t":
        raise LogDefinitionError(f"The event log {table.label} is a temporary table, which one session alone can see.",
                                 relation=name)
    if kind in _KINDS:
        raise LogDefinitionError(f"The event log {table.label} is {_KINDS[kind]}, not a table.", relation=name)
    return table


def base_tables(connection: psycopg.Connection[Any], relation: Table) -> tuple[Table, ...]:
    """The tables that a log reads: itself, or through a view all that it reads; partitions are listed elsewhere."""
    tables = tuple(Table(*row) for row in connection.execute(_SQL["base_tables"], {"oid": relation.oid}).fetchall())
    below = connection.execute(_SQL["tables_below"], {"roots": [table.oid for table in tables]}).fetchall()
    for _, schema, name, kind, partition, *_ in below:
        if kind == "f":
            raise RefusedError(
                f"The event log {relation.label} reads the foreign table {schema}.{name}: who is appending to it, and "
                "so how far it is complete, can't be known here.",
                hint="run the rebuild where the events are stored, or replicate them into an ordinary table",
                relation=relation.label)
        if kind == "m":
            raise RefusedError(
                f"The event log {relation.label} reads the materialized view {schema}.{name}, which is only as new as "
                "its last refresh.", hint="name the table that it is made from", relation=relation.label)
        if not partition and all(schema != t.schema or name != t.name for t in tables):
            raise RefusedError(
                f"Table {schema}.{name} inherits from the event log {relation.label}: no index makes a position unique "
                "over both.", hint="make it a partition, or name a table without children", relation=relation.label)
    return tables


def check_columns(connection: psycopg.Connection[Any], relation: Table, columns: Columns) -> None:
    """Every plain value of ``Columns`` must be a column that this role may read."""
    found = connection.execute(_SQL["column_names"], {"oid": relation.oid}).fetchall()
    readable = {name: may_read for name, _, may_read in found}
    for role, value in columns.items():
        if is_plain(value) and value not in readable:
            raise LogDefinitionError(
                f"The event log {relation.label} has no column {value!r} (Columns({role}={value!r})).",
                hint=closest(value, readable, "column"), relation=relation.label, column=value, role=role)
    if any(is_plain(value) and not readable[value] for _, value in columns.items()):
        raise MissingPrivilege(f"This role may not read the event log {relation.label}.",
                               hint=grant_select(connection, relation), relation=relation.label)


def source_of(connection: psycopg.Connection[Any], relation: Table, column: str,
              bases: tuple[Table, ...]) -> Source | None:
    """Where positions come from: the column itself, or the one that a simple view shows; None if it can't be told."""
    if relation.kind != "v":
        return _source(connection, relation, column)
    row = connection.execute(_SQL["simple_view_column"], {"oid": relation.oid, "column": column}).fetchone()
    if not row or not row[0] or len(bases) != 1:
        return None
    # The planner has resolved the view's column; its answer is compared with each column's name, not parsed.
    plan = connection.execute(
        sql.SQL("EXPLAIN (VERBOSE, FORMAT JSON) SELECT {column} FROM {relation} AS {alias}").format(
            column=sql.Identifier(ALIAS, column), relation=relation.identifier, alias=sql.Identifier(ALIAS))
    ).fetchone()
    node = plan[0][0]["Plan"] if plan else {}
    while "Output" not in node and node.get("Plans"):
        node = node["Plans"][0]  # an Append over partitions shows nothing itself
    found = connection.execute(_SQL["column_in_plan"], {
        "oid": bases[0].oid, "output": node.get("Output", [""])[0]}).fetchone()
    return _source(connection, bases[0], found[0]) if found else None


def _source(connection: psycopg.Connection[Any], table: Table, column: str) -> Source:
    found = connection.execute(_SQL["column_names"], {"oid": table.oid}).fetchall()
    return Source(table, column, {name: not_null for name, not_null, _ in found}[column])


def source_by_sequence(connection: psycopg.Connection[Any], sequence: int, bases: tuple[Table, ...]) -> Source | None:
    """The one column of a view's tables that draws from a sequence."""
    rows = connection.execute(_SQL["sequence_columns"],
                              {"sequence": sequence, "tables": [table.oid for table in bases]}).fetchall()
    if len(rows) != 1:
        return None
    table = next(table for table in bases if table.oid == rows[0][0])
    return _source(connection, table, rows[0][1])


def grant_select(connection: psycopg.Connection[Any], relation: Table) -> str:
    """The statement that lets this role read a relation."""
    return sql.SQL("GRANT SELECT ON {} TO {}").format(
        relation.identifier, sql.Identifier(connection.info.user)).as_string(connection)


def closest(name: str, names: Iterable[str], kind: str) -> str:
    """A hint that offers the closest names."""
    names = list(names)
    close = get_close_matches(name, names, n=3, cutoff=0.5)
    if close:
        return f"did you mean {' or '.join(close)}?"
    listed = ", ".join(names[:12]) or "none"
    return f"name a {kind} that exists; there is {listed}{', …' if len(names) > 12 else ''}"


def on_database(connection: psycopg.Connection[Any]) -> str:
    """`` in database X``, for messages."""
    return f" in database {connection.info.dbname}"
