"""Opening a log: every mistake and every hazard that can be seen is named here, before the first event is read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import sql

from rebuilder.errors import RefusedError
from rebuilder.eventlog import relation, sequence
from rebuilder.eventlog.columns import fragment, is_plain, render
from rebuilder.eventlog.looking import looking
from rebuilder.eventlog.open_log import OpenLog
from rebuilder.eventlog.probe import probe
from rebuilder.eventlog.relation import Source, Table
from rebuilder.eventlog.sequence import PositionSequence
from rebuilder.eventlog.statements import Statements, native, output
from rebuilder.sql import load

if TYPE_CHECKING:
    from rebuilder.eventlog.table_log import TableLog

_SQL = load("eventlog")
_TEXT = ("text", "varchar")


def open_log(definition: TableLog, connection: psycopg.Connection[Any]) -> OpenLog:
    """Resolve and check a log."""
    with looking(connection):
        table = relation.resolve(connection, definition.relation)
        bases = relation.base_tables(connection, table)
        relation.check_columns(connection, table, definition.columns)
        types = probe(definition, connection, table)
        source, position_sequence = _origin(definition, connection, table, bases)
        by_tenant = _by_tenant(definition, connection, source)
        log = OpenLog(
            definition=definition, decoders=definition.decoders(), relation=table,
            roots=tuple(base.oid for base in bases), source=source,
            sequence=position_sequence,
            statements=_statements(definition, connection, table, source, types, by_tenant=by_tenant))
        _check_positions(log, connection)
    return log


def _origin(definition: TableLog, connection: psycopg.Connection[Any], table: Table,
            bases: tuple[Table, ...]) -> tuple[Source, PositionSequence | None]:
    """Where positions come from: a column, and a sequence that can be relied on."""
    named = sequence.named(connection, definition.sequence) if definition.sequence else None
    source = relation.source_of(connection, table, definition.columns.position, bases)
    if source is None and named is not None:
        source = relation.source_by_sequence(connection, named, bases)
    if source is None:
        raise RefusedError(
            f"The event log {table.label} is a view that does not simply show one table's column as its position, so "
            "the index and the sequence behind it can't be found.",
            hint="name the sequence that one column of its tables draws from with TableLog(sequence=…), or name the "
                 "table itself", relation=table.label)
    if definition.completeness == "count":
        return source, None
    return source, sequence.find(connection, source, named)


def _by_tenant(definition: TableLog, connection: psycopg.Connection[Any], source: Source) -> bool:
    """Whether the keyset is (position, tenant); refused if no unique index makes positions a keyset at all."""
    keys = [columns for _, unique, partial, _, columns in _indexes(connection, source.table)
            if unique and not partial]
    tenant = definition.columns.tenant
    alone = [source.column] in keys
    if not alone and not (tenant is not None and is_plain(tenant) and [source.column, tenant] in keys):
        raise RefusedError(
            f"No unique index makes {source.table.label}.{source.column} a key: events with the same position would be "
            "read twice or not at all.",
            hint=sql.SQL("CREATE UNIQUE INDEX CONCURRENTLY ON {} ({})").format(
                source.table.identifier, sql.Identifier(source.column)).as_string(connection)
            + "; where each tenant counts for itself, on (position, tenant), in that order, with Columns(tenant=…)",
            column=f"{source.table.label}.{source.column}")
    nullable = [] if source.not_null else [source.column]
    if not alone and tenant is not None:
        found = connection.execute(_SQL["column_names"], {"oid": source.table.oid}).fetchall()
        nullable += [name for name, not_null, _ in found if name == tenant and not not_null]
    if nullable:
        raise RefusedError(
            f"{source.table.label}.{nullable[0]} may be NULL: a row without it has no place in the log.",
            hint=sql.SQL("ALTER TABLE {} ALTER COLUMN {} SET NOT NULL").format(
                source.table.identifier, sql.Identifier(nullable[0])).as_string(connection),
            column=f"{source.table.label}.{nullable[0]}")
    return not alone


def _indexes(connection: psycopg.Connection[Any], table: Table) -> list[tuple[Any, ...]]:
    return connection.execute(_SQL["indexes"], {"oid": table.oid}).fetchall()


def _statements(definition: TableLog, connection: psycopg.Connection[Any], table: Table, source: Source,
                types: dict[str, str], *, by_tenant: bool) -> Statements:
    rendered: dict[str, sql.Composable] = {role: render(value) for role, value in definition.columns.items()}
    as_text: dict[str, sql.Composable] = {role: sql.SQL("{}::text").format(rendered[role])
               for role in ("stream", "type", "category", "tenant") if role in rendered}
    # UTF-8 whatever the client's encoding; and bytes are what the driver loads fastest.
    payloads: dict[str, sql.Composable] = {role: sql.SQL("convert_to({}::text, 'UTF8')").format(rendered[role])
                for role in ("data", "metadata") if role in rendered and types[role] != "bytea"}
    comparable: dict[str, sql.Composable] = {role: rendered[role] if types[role] in _TEXT else as_text[role]
                  for role in ("type", "category") if role in rendered}
    filters = [] if definition.only is None else [sql.SQL("({})").format(fragment(definition.only))]
    archived = None if definition.archived is None or definition.replay_archived else fragment(definition.archived)
    if archived is not None:
        # NULL is not archived: an event is left out only where the condition says so.
        filters.append(sql.SQL("({}) IS NOT TRUE").format(archived))
    return Statements(
        relation=table.identifier, output=output({**rendered, **as_text, **payloads}),
        native=native(rendered), tenant=rendered.get("tenant"), position=rendered["position"],
        order=sql.SQL(", ").join([rendered["position"], *([rendered["tenant"]] if by_tenant else [])]),
        by_tenant=by_tenant, filters=tuple(filters), comparable=comparable,
        indexed=_indexed(definition, connection, table, source, types),
        archived=archived, stream=tuple(as_text[r] for r in ("tenant", "category", "stream") if r in as_text))


def _indexed(definition: TableLog, connection: psycopg.Connection[Any], table: Table, source: Source,
             types: dict[str, str]) -> frozenset[str]:
    """Which of type and category have an index that goes on with the position."""
    if table.oid != source.table.oid:
        return frozenset()
    values = dict(definition.columns.items())
    leading = {columns[0] for _, _, partial, method, columns in _indexes(connection, source.table)
               if method == "btree" and not partial and columns[1:2] == [source.column]}
    return frozenset(role for role in ("type", "category")
                     if role in values and is_plain(values[role]) and values[role] in leading and types[role] in _TEXT)


def _check_positions(log: OpenLog, connection: psycopg.Connection[Any]) -> None:
    # The highest first, the sequence second: what is visible was drawn before.
    highest = log.max_position(connection)
    if log.complete and log.sequence is not None:
        sequence.check_ahead(connection, log.sequence, highest)
    row = connection.execute(log.statements.lowest(), prepare=False).fetchone()
    if row and row[0] is not None and row[0] < 1:
        raise RefusedError(f"The event log {log.label} has position {row[0]}; positions begin at 1.",
                           hint="move these events to positions above 0, or leave them out with a view",
                           relation=log.label)
