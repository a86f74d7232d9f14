"""Statements about tables: pure functions of names and of the server's own texts, to composables.

Nothing here talks to a server, so every statement can be printed before it is run.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import LiteralString

from psycopg import sql

Statement = sql.SQL | sql.Composed
Name = sql.Identifier | sql.SQL | sql.Composed

_STORAGE: dict[str, LiteralString] = {"p": "PLAIN", "e": "EXTERNAL", "m": "MAIN", "x": "EXTENDED"}
_COMPRESSION: dict[str, LiteralString] = {"p": "pglz", "l": "lz4"}
_IDENTITY: dict[str, LiteralString] = {"a": "ALWAYS", "d": "BY DEFAULT"}


def raw(text: str) -> sql.SQL:
    """Text that the server printed about its own catalog (pg_get_*def, format_type), to be given back to it.

    The one door for such text: it is as trusted as the catalog it came from, and never holds data or a name of ours.
    """
    return sql.SQL(text)


def retarget(definition: str, head: str, new_head: Statement) -> Statement:
    """A definition with its exact beginning replaced; a server that prints another one is a bug to be told of."""
    if not definition.startswith(head):
        raise ValueError(f"The server's definition does not begin with {head!r}: {definition!r}.")
    return sql.Composed([new_head, raw(definition[len(head) :])])


def identifiers(names: Iterable[str]) -> sql.Composed:
    return sql.SQL(", ").join(map(sql.Identifier, names))


def options(pairs: Iterable[str], prefix: LiteralString = "") -> list[sql.Composed]:
    """Options of a relation ("name=value") as they stand in ``WITH (…)``."""
    parts = []
    for pair in pairs:
        name, _, value = pair.partition("=")
        parts.append(sql.SQL(prefix + "{} = {}").format(sql.Identifier(name), sql.Literal(value)))
    return parts


def with_options(parts: Sequence[Statement]) -> Statement:
    return sql.SQL(" WITH ({})").format(sql.SQL(", ").join(parts)) if parts else sql.SQL("")


# --- tables ----------------------------------------------------------------------------------------------------------


def column(
    name: str,
    type_text: str,
    *,
    collation: str | None = None,
    compression: str = "",
    default: Statement | None = None,
    generated: str = "",
    not_null: bool = False,
) -> Statement:
    """A column as CREATE TABLE takes it."""
    parts: list[Name] = [sql.Identifier(name), raw(type_text)]
    if compression:
        parts.append(sql.SQL("COMPRESSION " + _COMPRESSION[compression]))
    if collation:
        parts.append(sql.Composed([sql.SQL("COLLATE "), raw(collation)]))
    if default is not None and generated:
        kind: LiteralString = "STORED" if generated == "s" else "VIRTUAL"
        parts.append(sql.SQL("GENERATED ALWAYS AS ({}) " + kind).format(default))
    elif default is not None:
        parts.append(sql.Composed([sql.SQL("DEFAULT "), default]))
    if not_null:
        parts.append(sql.SQL("NOT NULL"))
    return sql.SQL(" ").join(parts)


def constraint(name: str, definition: str) -> Statement:
    """A table constraint as CREATE TABLE and ADD take it."""
    return sql.Composed([sql.SQL("CONSTRAINT {} ").format(sql.Identifier(name)), raw(definition)])


def create_table(
    table: sql.Identifier,
    columns: Sequence[Statement],
    *,
    unlogged: bool,
    access_method: str,
    storage_options: Sequence[Statement],
) -> Statement:
    kind: LiteralString = "CREATE UNLOGGED TABLE {} (\n    {}\n)" if unlogged else "CREATE TABLE {} (\n    {}\n)"
    using = sql.SQL(" USING {}").format(sql.Identifier(access_method)) if access_method else sql.SQL("")
    body = sql.SQL(",\n    ").join(columns)
    return sql.Composed([sql.SQL(kind).format(table, body), using, with_options(storage_options)])


def default_tablespace(name: str) -> Statement:
    """Where the next objects go; also keeps the session's own setting out of the shadow (empty: the database's)."""
    return sql.SQL("SET LOCAL default_tablespace = {}").format(sql.Literal(name))


def alter_table(table: sql.Identifier, action: Statement | LiteralString) -> Statement:
    body = action if isinstance(action, sql.Composable) else sql.SQL(action)
    return sql.Composed([sql.SQL("ALTER TABLE {} ").format(table), body])


def alter_column(table: sql.Identifier, name: str, action: Statement | LiteralString) -> Statement:
    body = action if isinstance(action, sql.Composable) else sql.SQL(action)
    return alter_table(table, sql.Composed([sql.SQL("ALTER COLUMN {} ").format(sql.Identifier(name)), body]))


def set_storage(table: sql.Identifier, name: str, storage: str) -> Statement:
    return alter_column(table, name, "SET STORAGE " + _STORAGE[storage])


def set_statistics(table: sql.Identifier, name: str, target: int) -> Statement:
    return alter_column(table, name, sql.SQL("SET STATISTICS {}").format(sql.Literal(target)))


def add_constraint(table: sql.Identifier, name: str, definition: str) -> Statement:
    return alter_table(table, sql.Composed([sql.SQL("ADD "), constraint(name, definition)]))


def add_constraint_using_index(
    table: sql.Identifier, name: str, *, primary: bool, deferrable: bool, deferred: bool
) -> Statement:
    kind: LiteralString = "PRIMARY KEY" if primary else "UNIQUE"
    timing: LiteralString = " DEFERRABLE INITIALLY DEFERRED" if deferred else " DEFERRABLE" if deferrable else ""
    action = sql.SQL("ADD CONSTRAINT {} " + kind + " USING INDEX {}" + timing)
    return alter_table(table, action.format(sql.Identifier(name), sql.Identifier(name)))


def drop_constraint(table: sql.Identifier, name: str) -> Statement:
    return alter_table(table, sql.SQL("DROP CONSTRAINT {}").format(sql.Identifier(name)))


def validate_constraint(table: sql.Identifier, name: str) -> Statement:
    return alter_table(table, sql.SQL("VALIDATE CONSTRAINT {}").format(sql.Identifier(name)))


def set_schema(kind: LiteralString, name: sql.Identifier, schema: str) -> Statement:
    return sql.SQL("ALTER " + kind + " {} SET SCHEMA {}").format(name, sql.Identifier(schema))


def owner_to(kind: LiteralString, name: sql.Identifier, owner: str) -> Statement:
    return sql.SQL("ALTER " + kind + " {} OWNER TO {}").format(name, sql.Identifier(owner))


def comment(kind: LiteralString, name: Name, text: str | None) -> list[Statement]:
    """COMMENT ON, or nothing when there is none."""
    if text is None:
        return []
    return [sql.SQL("COMMENT ON " + kind + " {} IS {}").format(name, sql.Literal(text))]


def on_table(name: str, table: sql.Identifier) -> Statement:
    """``name ON table``: how constraints, triggers, rules and policies are named."""
    return sql.SQL("{} ON {}").format(sql.Identifier(name), table)


# --- sequences -------------------------------------------------------------------------------------------------------


def sequence_options(
    *, start: int, increment: int, minimum: int, maximum: int, cache: int, cycle: bool
) -> sql.Composed:
    literal = sql.Literal
    return sql.SQL("START WITH {} INCREMENT BY {} MINVALUE {} MAXVALUE {} CACHE {} {}").format(
        literal(start),
        literal(increment),
        literal(minimum),
        literal(maximum),
        literal(cache),
        sql.SQL("CYCLE" if cycle else "NO CYCLE"),
    )


def create_sequence(name: sql.Identifier, type_text: str, sequence: Statement) -> Statement:
    return sql.SQL("CREATE SEQUENCE IF NOT EXISTS {} AS {} {}").format(name, raw(type_text), sequence)


def add_identity(
    table: sql.Identifier, column_name: str, identity: str, name: sql.Identifier, sequence: Statement
) -> Statement:
    action = sql.SQL("ADD GENERATED " + _IDENTITY[identity] + " AS IDENTITY (SEQUENCE NAME {} {})")
    return alter_column(table, column_name, action.format(name, sequence))
