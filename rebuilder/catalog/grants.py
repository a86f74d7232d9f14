"""Grants, each by its own grantor, in an order in which they can be given."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby
from typing import LiteralString

from psycopg import sql

from rebuilder.catalog.blueprint import Statement
from rebuilder.catalog.facts import AclEntry, TableFacts
from rebuilder.catalog.session import Session
from rebuilder.sql.ddl import Name, raw


@dataclass(frozen=True, slots=True)
class Grant:
    """One privilege on the object, or on one column of it."""

    grantor: str
    grantee: str
    privilege: str
    option: bool
    column: str = ""


def table_grants(facts: TableFacts, name: sql.Identifier, session: Session) -> list[Statement]:
    """Make the privileges of a table just created those of live."""
    grants = _grants(facts.acl or ())
    for column in facts.columns:
        grants += _grants(column.acl, column.name)
    return _statements(
        "TABLE", name, facts.owner, grants, session, session.table_privileges, granted=facts.acl is not None
    )


def sequence_grants(
    acl: tuple[AclEntry, ...] | None, owner: str, name: sql.Identifier, session: Session
) -> list[Statement]:
    """The same for an identity sequence."""
    return _statements(
        "SEQUENCE", name, owner, _grants(acl or ()), session, session.sequence_privileges, granted=acl is not None
    )


def foreign_grantors(facts: TableFacts) -> set[str]:
    """Roles other than the owner in whose name something was granted."""
    acls = [facts.acl or (), *(c.acl for c in facts.columns), *(s.acl or () for s in facts.sequences if s.identity)]
    return {grantor for acl in acls for grantor, _, _, _ in acl} - {facts.owner}


def orphaned(facts: TableFacts) -> list[Grant]:
    """Grants whose grantor holds no grant option any more: they can't be given again."""
    grants = _grants(facts.acl or ())
    for column in facts.columns:
        grants += _grants(column.acl, column.name)
    return _in_order(facts.owner, grants)[1]


def _statements(
    kind: LiteralString,
    name: sql.Identifier,
    owner: str,
    grants: list[Grant],
    session: Session,
    everything: tuple[str, ...],
    *,
    granted: bool,
) -> list[Statement]:
    target = sql.SQL(kind + " {}").format(name)
    statements: list[Statement] = []
    # Default privileges gave these to the shadow when it was made; live may have nothing of the kind.
    if session.default_grantees:
        who = sql.SQL(", ").join(map(_role, session.default_grantees))
        statements.append(sql.SQL("REVOKE ALL ON {} FROM {}").format(target, who))
    own = [g for g in grants if g.grantor == g.grantee == owner and not g.column]
    if granted and sorted(g.privilege for g in own if not g.option) != sorted(everything):
        statements.append(sql.SQL("REVOKE ALL ON {} FROM {}").format(target, _role(owner)))
    else:
        if session.default_grantees:
            statements.append(sql.SQL("GRANT ALL ON {} TO {}").format(target, _role(owner)))
        grants = [g for g in grants if g not in own]
    for key, group in groupby(_in_order(owner, grants)[0], key=lambda g: (g.grantor, g.grantee, g.option, g.column)):
        grantor, grantee, option, column = key
        cells = sql.SQL(" ({})").format(sql.Identifier(column)) if column else sql.SQL("")
        privileges = sql.SQL(", ").join(sql.Composed([raw(g.privilege), cells]) for g in group)
        grant = sql.SQL("GRANT {} ON {} TO {}").format(privileges, target, _role(grantee))
        if option:
            grant = sql.Composed([grant, sql.SQL(" WITH GRANT OPTION")])
        if grantor == owner:
            statements.append(grant)
        else:
            become = sql.SQL("SET LOCAL ROLE {}").format(sql.Identifier(grantor))
            statements += [become, grant, session.back]
    return statements


def _grants(acl: Iterable[AclEntry], column: str = "") -> list[Grant]:
    return [Grant(grantor, grantee, privilege, option, column) for grantor, grantee, privilege, option in acl]


def _role(name: str) -> Name:
    return sql.Identifier(name) if name else sql.SQL("PUBLIC")


def _in_order(owner: str, grants: list[Grant]) -> tuple[list[Grant], list[Grant]]:
    """Those that can be given, each after the grant option it rests on; and those that rest on none."""
    ordered: list[Grant] = []
    pending = sorted(grants, key=lambda g: (g.grantor != owner, g.grantor, g.grantee, g.option, g.column, g.privilege))
    options: set[tuple[str, str, str]] = set()
    while True:
        ready = [
            g
            for g in pending
            if g.grantor == owner
            or (g.grantor, g.privilege, "") in options
            or (g.grantor, g.privilege, g.column) in options
        ]
        if not ready:
            return ordered, pending
        ordered += ready
        options |= {(g.grantee, g.privilege, g.column) for g in ready if g.option}
        pending = [g for g in pending if g not in ready]
