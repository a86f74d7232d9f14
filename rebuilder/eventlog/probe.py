"""Trying a log's expressions and conditions on the server before a run depends on them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import sql

from rebuilder.errors import LogDefinitionError, MissingPrivilege, RefusedError
from rebuilder.eventlog.columns import ALIAS, fragment, render
from rebuilder.eventlog.relation import Table, grant_select

if TYPE_CHECKING:
    from rebuilder.eventlog.table_log import TableLog

_INTEGERS = ("int2", "int4", "int8")
_PAYLOADS = ("jsonb", "json", "bytea", "text", "varchar", "bpchar")
_TAKES = {
    "position": _INTEGERS, "stream_version": _INTEGERS, "schema_version": _INTEGERS,
    "data": _PAYLOADS, "metadata": _PAYLOADS, "recorded_at": ("timestamptz", "timestamp"),
}


def probe(definition: TableLog, connection: psycopg.Connection[Any], table: Table) -> dict[str, str]:
    """The type of each role's value. Whatever the server objects to is said with the part that it belongs to."""
    types: dict[str, str] = {}
    for part, what in _parts(definition):
        types[part] = _type(connection, table, part, what)
        takes = _TAKES.get(part)
        if takes and types[part] not in takes:
            value = getattr(definition.columns, part)
            raise LogDefinitionError(
                f"{table.label}: Columns({part}={str(value)!r}) is of type {types[part]}; {part} must be "
                f"{' or '.join(takes)}.",
                hint="name another column" if part == "position" else f'cast it: Columns({part}="{value}::{takes[0]}")',
                relation=table.label, role=part)
    _check_row_security(connection, definition, table)
    return types


def _parts(definition: TableLog) -> Iterator[tuple[str, sql.Composable]]:
    for role, value in definition.columns.items():
        yield role, render(value)
    for name in ("only", "archived"):
        condition = getattr(definition, name)
        if condition is not None:
            yield name, sql.SQL("CASE WHEN ({}) THEN true END").format(fragment(condition))


def _type(connection: psycopg.Connection[Any], table: Table, part: str, what: sql.Composable) -> str:
    try:
        with connection.transaction(force_rollback=True):
            cursor = connection.execute(_look(table, [what]), prepare=False)
            code = cursor.description[0].type_code if cursor.description else 0
    except psycopg.errors.InsufficientPrivilege as error:
        raise MissingPrivilege(
            f"This role may not read what {part} of the event log {table.label} needs: {error.diag.message_primary}.",
            hint=f"{grant_select(connection, table)}, and SELECT on the tables that {part} mentions",
            relation=table.label) from error
    except psycopg.ProgrammingError as error:
        said = f"{error.diag.message_primary}" + (f" ({error.diag.message_hint})" if error.diag.message_hint else "")
        raise LogDefinitionError(f"{table.label}: {part} of the event log does not work: {said}.",
                                 hint=f'mend it; it may call the log\'s row "{ALIAS}"', relation=table.label,
                                 role=part, sqlstate=error.sqlstate) from error
    known = connection.adapters.types.get(code)
    return known.name if known else f"type {code}"


def _check_row_security(connection: psycopg.Connection[Any], definition: TableLog, table: Table) -> None:
    """With row_security off the server refuses what it would filter, in views and subqueries too."""
    try:
        with connection.transaction(force_rollback=True):
            connection.execute("SET LOCAL row_security = off")
            connection.execute(_look(table, [what for _, what in _parts(definition)]), prepare=False)
    except psycopg.errors.InsufficientPrivilege as error:
        user = connection.info.user
        raise RefusedError(
            f"Row security hides events of {table.label} from this role: {error.diag.message_primary}.",
            hint=sql.SQL("ALTER ROLE {} BYPASSRLS, or run as a role that sees every row").format(
                sql.Identifier(user)).as_string(connection), relation=table.label) from error


def _look(table: Table, what: list[sql.Composable]) -> sql.Composed:
    return sql.SQL("SELECT {} FROM {} AS {} LIMIT 0").format(
        sql.SQL(", ").join(what), table.identifier, sql.Identifier(ALIAS))
