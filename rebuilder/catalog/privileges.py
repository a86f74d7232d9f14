"""What the role may not do: better told before the replay than found under the fence."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import psycopg

from rebuilder.catalog.blueprint import Verdict
from rebuilder.catalog.dependents import Dependents
from rebuilder.catalog.facts import TableFacts
from rebuilder.catalog.grants import foreign_grantors
from rebuilder.catalog.obstacles import refuse
from rebuilder.catalog.reader import QUERIES, rows
from rebuilder.catalog.session import Session


def missing_privileges(
    connection: psycopg.Connection[Any], tables: Sequence[TableFacts], dependents: Dependents, session: Session
) -> Iterator[Verdict]:
    """What the role lacks: better told before the replay than found under the fence."""
    if session.superuser:
        return
    owners: dict[str, list[tuple[TableFacts, str, str]]] = {}
    first = tables[0]
    for table in tables:
        owners.setdefault(table.owner, []).append((table, "table", table.label))
        for sequence in table.sequences:
            owners.setdefault(sequence.owner, []).append((table, "sequence", f"{sequence.schema}.{sequence.name}"))
    for view in dependents.views:
        owners.setdefault(view.owner, []).append((first, "view", f"{view.schema}.{view.name}"))
    for function in dependents.functions:
        owners.setdefault(function.owner, []).append((first, "function", f"{function.schema}.{function.name}"))
    for policy in dependents.policies:
        owners.setdefault(policy.owner, []).append(
            (first, "policy", f"{policy.name} on {policy.schema}.{policy.table_name}")
        )
    for key in dependents.referencing:
        owners.setdefault(key.owner, []).append((first, "foreign-key", f"{key.name} on {key.schema}.{key.table_name}"))
    for publication in dependents.publications:
        owners.setdefault(publication.owner, []).append((first, "publication", publication.name))
    grantors = {grantor: table for table in tables for grantor in foreign_grantors(table)}
    known = rows(connection, QUERIES["memberships"], roles=[*owners, *grantors])
    rights = {row["role"]: row for row in known}
    for owner, objects in owners.items():
        if owner not in rights or not rights[owner]["owner_rights"]:
            for table, kind, name in objects:
                reason = f"{session.user} may not alter it: it belongs to {owner}"
                yield refuse(table, kind, name, reason, f"GRANT {owner} TO {session.user}.")
    for grantor, table in grantors.items():
        if grantor not in rights or not rights[grantor]["member"]:
            reason = f"{session.user} can't grant in the name of {grantor}"
            yield refuse(table, "grant", f"by {grantor}", reason, f"GRANT {grantor} TO {session.user}.")
    for row in rows(
        connection, QUERIES["schema_rights"], schemas=list({t.schema for t in tables}), roles=list(grantors)
    ):
        table = next(t for t in tables if t.schema == row["schema"])
        if not row["may_create"]:
            reason = f"{session.user} may not create tables in it, so the shadow could not move there"
            hint = f"GRANT CREATE ON SCHEMA {row['schema']} TO {session.user}."
            yield refuse(table, "schema", row["schema"], reason, hint)
    for relation in dependents.reads:
        if not (relation.writable if relation.rule else relation.readable):
            name = f"{relation.schema}.{relation.name}"
            right = "INSERT" if relation.rule else "SELECT"
            reason = f"texts to be rebound mention it, and {session.user} may not lock it"
            yield refuse(first, "relation", name, reason, f"GRANT {right} ON {name} TO {session.user}.")
    for referred in dependents.referred:
        name = f"{referred.schema}.{referred.name}"
        if not (referred.referable and referred.lockable):
            reason = f"live refers to it, and {session.user} may not lock it or refer to it"
            yield refuse(first, "table", name, reason, f"GRANT REFERENCES, UPDATE ON {name} TO {session.user}.")
