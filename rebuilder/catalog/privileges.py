"""What the role may not do: better told before the replay than found under the fence."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import psycopg
from psycopg import sql

from rebuilder.catalog.blueprint import Verdict
from rebuilder.catalog.dependents import Dependents
from rebuilder.catalog.facts import TableFacts, written
from rebuilder.catalog.grants import foreign_grantors
from rebuilder.catalog.obstacles import refuse
from rebuilder.catalog.reader import QUERIES, rows
from rebuilder.catalog.session import Session
from rebuilder.sql.ddl import raw


def missing_privileges(
    connection: psycopg.Connection[Any], tables: Sequence[TableFacts], dependents: Dependents, session: Session
) -> Iterator[Verdict]:
    """A refusal for every object that the role may not treat as the swap must, with the GRANT that helps."""
    yield from _outsiders(connection, tables)
    if session.superuser:
        return
    yield from _owners(connection, tables, dependents, session)
    yield from _grantors(connection, tables, session)
    yield from _schemas(connection, tables, session)
    yield from _functions(connection, tables, dependents, session)
    yield from _locks(connection, tables[0], dependents, session)


def _owned(tables: Sequence[TableFacts], dependents: Dependents) -> Iterator[tuple[TableFacts, str, str, str]]:
    """(table, kind, name, owner) of all that only an owner may alter."""
    for table in tables:
        yield table, "table", table.label, table.owner
        for sequence in table.sequences:
            yield table, "sequence", f"{sequence.schema}.{sequence.name}", sequence.owner
    first = tables[0]
    for view in dependents.locked_views:
        yield first, "view", f"{view.schema}.{view.name}", view.owner
    for function in dependents.functions:
        yield first, "function", f"{function.schema}.{function.name}", function.owner
    for policy in dependents.policies:
        yield first, "policy", f"{policy.name} on {policy.schema}.{policy.table_name}", policy.owner
    for key in dependents.referencing:
        yield first, "foreign-key", f"{key.name} on {key.schema}.{key.table_name}", key.owner
    for publication in dependents.publications:
        yield first, "publication", publication.name, publication.owner


def _owners(
    connection: psycopg.Connection[Any], tables: Sequence[TableFacts], dependents: Dependents, session: Session
) -> Iterator[Verdict]:
    objects = list(_owned(tables, dependents))
    known = rows(connection, QUERIES["memberships"], roles=[owner for *_, owner in objects])
    ours = {row["role"] for row in known if row["owner_rights"]}
    for table, kind, name, owner in objects:
        if owner not in ours:
            reason = f"{session.user} may not alter it: it belongs to {owner}"
            yield refuse(table, kind, name, reason, _grant(connection, session, sql.Identifier(owner)))


def _grantors(connection: psycopg.Connection[Any], tables: Sequence[TableFacts], session: Session) -> Iterator[Verdict]:
    grantors = {grantor: table for table in tables for grantor in foreign_grantors(table)}
    query = "settable_memberships" if session.memberships_without_set else "memberships"
    ours = {row["role"] for row in rows(connection, QUERIES[query], roles=list(grantors)) if row["may_become"]}
    for grantor, table in grantors.items():
        if grantor not in ours:
            reason = f"{session.user} can't grant in the name of {grantor}"
            yield refuse(table, "grant", f"by {grantor}", reason, _grant(connection, session, sql.Identifier(grantor)))


def _outsiders(connection: psycopg.Connection[Any], tables: Sequence[TableFacts]) -> Iterator[Verdict]:
    """Grantors who can't name the table any more, so that nobody can grant in their name."""
    for table in tables:
        for grantor in sorted(foreign_grantors(table)):
            if not rows(connection, QUERIES["schema_usage"], role=grantor, schema=table.schema)[0]["usage"]:
                reason = f"{grantor} has no USAGE on the schema, so its grants could not be given again"
                hint = f"GRANT USAGE ON SCHEMA {written(table.schema)} TO {written(grantor)}"
                yield refuse(table, "grant", f"by {grantor}", reason, hint)


def _schemas(connection: psycopg.Connection[Any], tables: Sequence[TableFacts], session: Session) -> Iterator[Verdict]:
    for table in {table.schema: table for table in tables}.values():
        right = rows(connection, QUERIES["schema_right"], schema=table.schema)[0]
        if not right["may_create"]:
            reason = f"{session.user} may not create tables in it, so the shadow could not move there"
            hint = _grant(connection, session, sql.SQL("CREATE ON SCHEMA {}").format(sql.Identifier(table.schema)))
            yield refuse(table, "schema", table.schema, reason, hint)


def _functions(
    connection: psycopg.Connection[Any], tables: Sequence[TableFacts], dependents: Dependents, session: Session
) -> Iterator[Verdict]:
    for table in tables:
        for trigger in table.triggers:
            if not trigger.executable:
                reason = f"{session.user} may not execute its function, so it could not make the trigger again"
                right = sql.Composed([sql.SQL("EXECUTE ON FUNCTION "), raw(trigger.function)])
                name = f"{trigger.name} on {table.label}"
                yield refuse(table, "trigger", name, reason, _grant(connection, session, right))
    for function in dependents.functions:
        if function.superusers:
            reason = "it is LEAKPROOF or has a SUPPORT function: only a superuser may replace it"
            hint = f"Rebuild as a superuser, or ALTER FUNCTION {written(function.schema, function.name)} NOT LEAKPROOF."
            yield refuse(
                tables[0], "function", f"{function.schema}.{function.name}({function.arguments})", reason, hint
            )


def _locks(
    connection: psycopg.Connection[Any], table: TableFacts, dependents: Dependents, session: Session
) -> Iterator[Verdict]:
    for relation in dependents.reads:
        if not (relation.writable if relation.rule else relation.readable):
            name = sql.Identifier(relation.schema, relation.name)
            right = sql.SQL("INSERT ON {}" if relation.rule else "SELECT ON {}").format(name)
            reason = f"texts to be rebound mention it, and {session.user} may not lock it"
            label = f"{relation.schema}.{relation.name}"
            yield refuse(table, "relation", label, reason, _grant(connection, session, right))
    for referred in dependents.referred:
        if not (referred.referable and referred.lockable):
            label, name = f"{referred.schema}.{referred.name}", sql.Identifier(referred.schema, referred.name)
            reason = f"{table.label} refers to it, and {session.user} may not lock it or refer to it"
            right = sql.SQL("REFERENCES, UPDATE ON {}").format(name)
            yield refuse(table, "table", label, reason, _grant(connection, session, right))


def _grant(connection: psycopg.Connection[Any], session: Session, what: sql.Composable) -> str:
    """The statement that mends it, to be executed as it stands."""
    return sql.SQL("GRANT {} TO {}").format(what, sql.Identifier(session.user)).as_string(connection)
