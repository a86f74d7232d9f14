"""The locks that the swap needs, in the order in which writers take them (spec: hazards R1)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import LiteralString

from psycopg import sql

from rebuilder.catalog.blueprint import FenceLock, LockKind, Statement
from rebuilder.catalog.dependents import Dependents, ReadRelation
from rebuilder.catalog.facts import TableFacts
from rebuilder.sql import ddl


def locks(tables: Sequence[TableFacts], dependents: Dependents) -> tuple[FenceLock, ...]:
    """Every lock outside the work schemas, each once, under the strongest mode it is needed in."""
    lives = sorted(tables, key=lambda t: (t.schema, t.name))
    found: dict[int, FenceLock] = {}

    def add(some: Iterable[FenceLock]) -> None:
        for lock in some:
            found.setdefault(lock.oid, lock)

    exclusive = {
        *(p.table for p in dependents.policies),
        *(f.table for f in dependents.referencing),
        *(r.oid for r in dependents.referred),
        *(t.oid for t in tables),
    }
    add(_table("policy-table", p.schema, p.table_name, p.table) for p in dependents.policies)
    add(_read(relation) for relation in dependents.reads if relation.oid not in exclusive)
    add(
        FenceLock(LockKind.VIEW, "view", f"{v.schema}.{v.name}", v.oid, ddl.owner_to("VIEW", v.identifier, v.owner))
        for v in dependents.locked_views
    )
    add(_table("referencing", f.schema, f.table_name, f.table) for f in dependents.referencing)
    add(_table("live", t.schema, t.name, t.oid) for t in lives)
    add(
        FenceLock(
            LockKind.SEQUENCE,
            "sequence",
            f"{s.schema}.{s.name}",
            s.oid,
            ddl.owner_to("SEQUENCE", sql.Identifier(s.schema, s.name), s.owner),
        )
        for t in lives
        for s in t.sequences
    )
    add(_table("referred", r.schema, r.name, r.oid) for r in dependents.referred)
    return tuple(found.values())


def _table(role: str, schema: str, name: str, oid: int) -> FenceLock:
    return _lock(LockKind.TABLE, role, schema, name, oid, "LOCK TABLE {} IN ACCESS EXCLUSIVE MODE")


def _read(relation: ReadRelation) -> FenceLock:
    role, schema, name = "read", relation.schema, relation.name
    if relation.kind in "mf":  # LOCK TABLE refuses them; parsing the name is what takes the lock
        take: Statement = sql.SQL("SELECT FROM {} WHERE false").format(relation.identifier)
        return FenceLock(LockKind.TABLE_SHARE, role, f"{schema}.{name}", relation.oid, take)
    if relation.rule and relation.kind != "v":
        # CREATE RULE parses its action, and that locks what the action writes (ROW EXCLUSIVE).
        mode: LiteralString = "LOCK TABLE ONLY {} IN ROW EXCLUSIVE MODE"
        return _lock(LockKind.TABLE_SHARE, role, schema, name, relation.oid, mode)
    only: LiteralString = (
        "LOCK TABLE {} IN ACCESS SHARE MODE" if relation.kind == "v" else ("LOCK TABLE ONLY {} IN ACCESS SHARE MODE")
    )
    return _lock(LockKind.TABLE_SHARE, role, schema, name, relation.oid, only)


def _lock(kind: LockKind, role: str, schema: str, name: str, oid: int, text: LiteralString) -> FenceLock:
    identifier = sql.Identifier(schema, name)
    return FenceLock(
        kind,
        role,
        f"{schema}.{name}",
        oid,
        sql.SQL(text).format(identifier),
        sql.SQL(text + " NOWAIT").format(identifier),
    )
