"""A verdict for every object that hangs off a live table: carried, rebound, or refused with the way out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import psycopg

from rebuilder.catalog.blueprint import Outcome, Verdict
from rebuilder.catalog.dependents import Dependent, Dependents, Function, Referencing, View
from rebuilder.catalog.facts import TableFacts
from rebuilder.catalog.obstacles import obstacle_verdict, own_refusals, read_obstacles, refuse
from rebuilder.catalog.privileges import missing_privileges
from rebuilder.catalog.session import Session

# category: (kind, reason, hint)
REFUSED = {
    "matview": (
        "materialized view",
        "it can't be rebound, only dropped and filled again",
        "Drop it and make it again after the rebuild, or make it a view.",
    ),
    "rule": (
        "rule",
        "it mentions live from another table's writes, and one that waits on the fence would write the old table",
        "Make it a trigger that names the table in its function's body.",
    ),
    "column": (
        "column",
        "its type is the table's row type, which belongs to the old table",
        "Change the column's type, or drop it and add it again after the rebuild.",
    ),
    "relation": ("relation", "it depends on a part of live that is replaced", "Drop it for the time of the rebuild."),
    "default": (
        "default",
        "a default of another table names live by its OID",
        "Write the name as text in the default (… ::text::regclass), or drop the default.",
    ),
    "constraint": (
        "constraint",
        "a constraint names live or its row type by OID",
        "Drop it and add it again after the rebuild.",
    ),
    "other": ("object", "it depends on live in a way that can't be rebound", "Drop it and make it again afterwards."),
}


def judge(
    connection: psycopg.Connection[Any],
    tables: Sequence[TableFacts],
    dependents: Dependents,
    session: Session,
) -> tuple[Verdict, ...]:
    """Every verdict; refusals first."""
    by_oid = {table.oid: table for table in tables}
    found = [
        *own_refusals(tables),
        *(obstacle_verdict(by_oid[o.live], o) for o in read_obstacles(connection, by_oid, dependents, session)),
        # Children are told of among the obstacles, with both names in the hint.
        *(
            dependent_verdict(by_oid[d.live], d, dependents, session)
            for d in dependents.found
            if d.category != "inheritance"
        ),
        *missing_privileges(connection, tables, dependents, session),
        *(verdict for table in tables for verdict in _carried(table)),
    ]
    return combine(found)


def combine(*groups: Iterable[Verdict]) -> tuple[Verdict, ...]:
    """Verdicts in the order in which people want to read them; what is lost or refused is not also carried."""
    unique = dict.fromkeys(verdict for group in groups for verdict in group)
    graver = {(v.kind, v.name, v.table) for v in unique if v.outcome in (Outcome.REFUSE, Outcome.LOSS)}
    kept = [v for v in unique if v.outcome in (Outcome.REFUSE, Outcome.LOSS) or (v.kind, v.name, v.table) not in graver]
    order = {Outcome.REFUSE: 0, Outcome.LOSS: 1, Outcome.REBIND: 2, Outcome.CARRY: 3}
    return tuple(sorted(kept, key=lambda v: (order[v.outcome], v.table, v.kind, v.name)))


def dependent_verdict(table: TableFacts, dependent: Dependent, dependents: Dependents, session: Session) -> Verdict:
    """What becomes of one dependent, if live keeps its shape."""
    match dependent.category:
        case "view":
            return _view(table, next(v for v in dependents.views if v.oid == dependent.subject))
        case "function":
            return _function(table, dependent, next(f for f in dependents.functions if f.oid == dependent.subject))
        case "policy":
            policy = next(p for p in dependents.policies if p.oid == dependent.subject)
            return _rebind(table, "policy", f"{policy.name} on {policy.schema}.{policy.table_name}", "by ALTER POLICY")
        case "foreign-key":
            return _key(table, next(f for f in dependents.referencing if f.oid == dependent.subject), session)
        case "publication":
            publication = next(p for p in dependents.publications if p.oid == dependent.subject)
            return _rebind(table, "publication", publication.name, "dropped and added with its filter and columns")
        case category:
            kind, reason, hint = REFUSED[category]
            return refuse(table, kind, dependent.identity, reason, hint)


def _rebind(table: TableFacts, kind: str, name: str, reason: str) -> Verdict:
    return Verdict(Outcome.REBIND, kind, name, table.label, reason)


def _view(table: TableFacts, view: View) -> Verdict:
    name = f"{view.schema}.{view.name}"
    if view.persistence == "t":
        hint = "Close that session (or drop the view), then repeat."
        return refuse(table, "view", name, "it is a temporary view of another session", hint)
    if {table.row_type, table.array_type} & set(view.types):
        reason = "it shows whole rows of live; its column's type would change with the table"
        return refuse(table, "view", name, reason, "List the columns in the view, or use row_to_json(…).")
    return _rebind(table, "view", name, "by CREATE OR REPLACE VIEW with its options")


def _function(table: TableFacts, dependent: Dependent, function: Function) -> Verdict:
    name = f"{function.schema}.{function.name}({function.arguments})"
    if not function.atomic or {table.row_type, table.array_type} & set(function.types):
        reason = "it takes or returns rows of live, whose type belongs to the old table"
        hint = "Return TABLE (…) or SETOF record, take the key instead of the row, or drop it for the rebuild."
        return refuse(table, "function", name, reason, hint)
    if function.volatility == "v":
        reason = "it is volatile with a BEGIN ATOMIC body: a call that waits on the fence would write the old table"
        hint = "Declare it STABLE if it only reads, or give it a string body (AS $$ … $$)."
        return refuse(table, "function", name, reason, hint)
    if dependent.via == "identity":
        reason = "it names the sequence of an identity column, which is replaced with the table"
        return refuse(table, "function", name, reason, "Give it a string body (AS $$ … $$).")
    return _rebind(table, "function", name, "by CREATE OR REPLACE FUNCTION")


def _key(table: TableFacts, key: Referencing, session: Session) -> Verdict:
    name = f"{key.name} on {key.schema}.{key.table_name}"
    if key.table_kind == "p" and not session.keys_on_partitioned_not_valid:
        reason = "the key of a partitioned table can't be added NOT VALID before PostgreSQL 18"
        return refuse(table, "foreign-key", name, reason, "Drop it and add it again after the rebuild.")
    return _rebind(table, "foreign-key", name, "added NOT VALID in the swap, validated after the commit")


def _carried(table: TableFacts) -> Iterator[Verdict]:
    def carry(kind: str, name: str, reason: str = "") -> Verdict:
        return Verdict(Outcome.CARRY, kind, name, table.label, reason)

    here = f"on {table.label}"
    yield carry("table", table.label, "columns, defaults, options, owner, comments")
    for constraint in table.of_kind("p", "u", "x", "c", "n"):
        late = "" if constraint.validated or not constraint.enforced else "NOT VALID, added in the swap"
        yield carry("constraint", f"{constraint.name} {here}", late)
    for key in table.of_kind("f"):
        yield carry("foreign-key", f"{key.name} {here}", "NOT VALID in the swap, validated after the commit")
    yield from (carry("index", f"{table.schema}.{index.name}") for index in table.indexes if index.constraint is None)
    yield from (carry("statistics", f"{statistic.schema}.{statistic.name}") for statistic in table.statistics)
    for trigger in table.triggers:
        yield carry("trigger", f"{trigger.name} {here}", "added in the swap: not fired by the replay")
    for rule in table.rules:
        yield carry("rule", f"{rule.name} {here}", "added in the swap: not applied to the replay")
    yield from (carry("policy", f"{policy.name} {here}") for policy in table.policies)
    for sequence in table.sequences:
        kind = "identity" if sequence.identity else "sequence"
        yield carry(kind, f"{sequence.schema}.{sequence.name}", "keeps its position")
    if table.acl or any(column.acl for column in table.columns):
        yield carry("grants", table.label)
