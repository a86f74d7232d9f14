"""The swap: live to the retired schema, shadow to its place, dependents rebound.

All of it runs under the fence and waits for nothing. What is made after the move is the server's own text, word for
word, since names mean then what they meant when it was printed; only what the shadow wore before was retargeted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import LiteralString

from psycopg import sql

from rebuilder.catalog.blueprint import LiveTable, OwedStatement, Schemas, Statement
from rebuilder.catalog.clone import serials, shadow_statistics_name
from rebuilder.catalog.dependents import Dependents, Publication
from rebuilder.catalog.facts import ConstraintFacts, PolicyFacts, TableFacts
from rebuilder.catalog.grants import sequence_grants, table_grants
from rebuilder.catalog.sequences import stand_in
from rebuilder.catalog.session import Session
from rebuilder.catalog.shape import Target
from rebuilder.sql import ddl

Swapped = Sequence[tuple[LiveTable, TableFacts, Target]]
"""Each table with what it is and what it is to be."""

_COMMANDS: dict[str, LiteralString] = {"*": "ALL", "r": "SELECT", "a": "INSERT", "w": "UPDATE", "d": "DELETE"}
_STATES: dict[str, LiteralString] = {"D": "DISABLE", "R": "ENABLE REPLICA", "A": "ENABLE ALWAYS"}


def swap(
    tables: Swapped, dependents: Dependents, session: Session, work: Schemas, retired: Schemas, *, keys_owed: bool
) -> list[Statement]:
    """The statements, in order; ``keys_owed`` leaves live's own foreign keys for after the commit."""
    # Texts are qualified for an empty search_path; the caller's own could put something before pg_catalog.
    statements: list[Statement] = [sql.SQL("SET LOCAL search_path = ''")]
    statements += _untie(tables, dependents, keys_owed=keys_owed)
    for table, _, target in tables:
        statements += target.to_live_names(sql.Identifier(work[table.schema], table.name))
        statements += _prepare_shadow(table, target.facts, session, work)
    for table, live, _ in tables:
        statements += _retire(table, live, retired)
    for table, _, target in tables:
        statements += _publish(table, target.facts, work)
    for table, _, target in tables:
        statements += _grant(table, target.facts, session)
        statements += _behaviour(table, target.facts)
    for table, _, target in tables:
        for constraint in () if keys_owed else target.facts.of_kind("f"):
            statements += add_key(table.identifier, constraint)
    statements += _rebind(dependents)
    for table, _, target in tables:
        statements += target.to_final_names(table.identifier)
    return statements


def owed(tables: Swapped, dependents: Dependents, retired: Schemas, *, keys_owed: bool) -> list[OwedStatement]:
    """What is left for transactions of its own: keys to add (if they were put off) and keys to validate."""
    left: list[OwedStatement] = []
    for table, live, target in tables:
        if keys_owed:
            left += _owed_keys(table, live, target, retired)
        for constraint in target.facts.of_kind("f"):
            if constraint.validated and constraint.enforced:
                validate = ddl.validate_constraint(table.identifier, constraint.name)
                left.append(OwedStatement("validate-constraint", f"{constraint.name} on {table.label}", validate))
    for key in dependents.referencing:
        if key.validated and key.enforced:
            validate = ddl.validate_constraint(key.identifier, key.name)
            label = f"{key.name} on {key.schema}.{key.table_name}"
            left.append(OwedStatement("validate-constraint", label, validate))
    return left


def _owed_keys(table: LiveTable, live: TableFacts, target: Target, retired: Schemas) -> list[OwedStatement]:
    old = sql.Identifier(retired[table.schema], table.name)
    left = [
        OwedStatement("drop-retired-constraint", f"{c.name} on {table.label}", ddl.drop_constraint(old, c.name))
        for c in live.of_kind("f")
    ]
    for constraint in target.facts.of_kind("f"):
        label = f"{constraint.name} on {table.label}"
        for statement in target.under_live_names(table.identifier, add_key(table.identifier, constraint)):
            left.append(OwedStatement("add-constraint", label, statement))  # noqa: PERF401
    return left


def add_key(table: sql.Identifier, constraint: ConstraintFacts) -> list[Statement]:
    """A foreign key without a look at the rows."""
    definition = not_valid(constraint.definition, validated=constraint.validated, enforced=constraint.enforced)
    return [
        ddl.add_constraint(table, constraint.name, definition),
        *ddl.comment("CONSTRAINT", ddl.on_table(constraint.name, table), constraint.comment),
    ]


def not_valid(definition: str, *, validated: bool, enforced: bool) -> str:
    """The server prints NOT VALID only for keys that are not valid now."""
    return f"{definition} NOT VALID" if validated and enforced else definition


def _untie(tables: Swapped, dependents: Dependents, *, keys_owed: bool) -> list[Statement]:
    """Take off live what must not stay on the retired table, or would move with it."""
    statements = [ddl.drop_constraint(key.identifier, key.name) for key in dependents.referencing]
    seen: set[int] = set()
    for table, live, target in tables:
        if not keys_owed:  # a retired table's own key would go on refusing deletes in the referred table
            statements += [ddl.drop_constraint(table.identifier, c.name) for c in live.of_kind("f")]
        for sequence, fact in serials(table, target.facts):
            if fact.used:
                statements.append(ddl.alter_column(table.identifier, sequence.column, "DROP DEFAULT"))
            if fact.owned and sequence.oid not in seen:
                seen.add(sequence.oid)
                name = sql.Identifier(sequence.schema, sequence.name)
                statements.append(sql.SQL("ALTER SEQUENCE {} OWNED BY NONE").format(name))
    for publication in dependents.publications:
        action = sql.SQL("ALTER PUBLICATION {} DROP TABLE {}")
        statements.append(action.format(sql.Identifier(publication.name), publication.identifier))
    return statements


def _prepare_shadow(table: LiveTable, facts: TableFacts, session: Session, work: Schemas) -> list[Statement]:
    shadow = sql.Identifier(work[table.schema], table.name)
    statements: list[Statement] = []
    drawing = {sequence.column for sequence, fact in serials(table, facts) if fact.used}
    for column in facts.columns:
        if column.name in drawing and column.expression is not None:
            action = sql.Composed([sql.SQL("SET DEFAULT "), ddl.raw(column.expression)])
            statements.append(ddl.alter_column(shadow, column.name, action))
    if facts.owner != session.user:
        # The new owner must be able to own something in the work schema.
        schema, owner = sql.Identifier(work[table.schema]), sql.Identifier(facts.owner)
        statements.append(sql.SQL("GRANT USAGE, CREATE ON SCHEMA {} TO {}").format(schema, owner))
        statements.append(ddl.owner_to("TABLE", shadow, facts.owner))
    return statements


def _retire(table: LiveTable, facts: TableFacts, retired: Schemas) -> list[Statement]:
    statements: list[Statement] = []
    for statistic in facts.statistics:
        name = sql.Identifier(statistic.schema, statistic.name)
        final = shadow_statistics_name(facts, statistic)
        if final != statistic.name:
            statements.append(sql.SQL("ALTER STATISTICS {} RENAME TO {}").format(name, sql.Identifier(final)))
            name = sql.Identifier(statistic.schema, final)
        statements.append(ddl.set_schema("STATISTICS", name, retired[table.schema]))
    statements.append(ddl.set_schema("TABLE", table.identifier, retired[table.schema]))
    return statements


def _publish(table: LiveTable, facts: TableFacts, work: Schemas) -> list[Statement]:
    statements = [ddl.set_schema("TABLE", sql.Identifier(work[table.schema], table.name), table.schema)]
    for statistic in facts.statistics:
        shadow_name = shadow_statistics_name(facts, statistic)
        shadow = sql.Identifier(work[table.schema], shadow_name)
        statements.append(ddl.set_schema("STATISTICS", shadow, statistic.schema))
        if shadow_name != statistic.name:
            moved = sql.Identifier(statistic.schema, shadow_name)
            statements.append(sql.SQL("ALTER STATISTICS {} RENAME TO {}").format(moved, sql.Identifier(statistic.name)))
        statements.append(ddl.owner_to("STATISTICS", sql.Identifier(statistic.schema, statistic.name), statistic.owner))
    for sequence, fact in serials(table, facts):
        statements.append(sql.SQL("DROP SEQUENCE IF EXISTS {}").format(stand_in(table, sequence, work)))
        if fact.owned:
            column = sql.Identifier(table.schema, table.name, sequence.column)
            name = sql.Identifier(sequence.schema, sequence.name)
            statements.append(sql.SQL("ALTER SEQUENCE {} OWNED BY {}").format(name, column))
    return statements


def _grant(table: LiveTable, facts: TableFacts, session: Session) -> list[Statement]:
    statements = table_grants(facts, table.identifier, session)
    for fact in facts.sequences:
        if fact.identity:
            statements += sequence_grants(fact.acl, facts.owner, sql.Identifier(fact.schema, fact.name), session)
    return statements


def _behaviour(table: LiveTable, facts: TableFacts) -> list[Statement]:
    """What acts on writes, so that it never acted on the replay: late checks, triggers, rules, row security."""
    live = table.identifier
    statements: list[Statement] = []
    for constraint in facts.of_kind("c", "n"):
        if not constraint.validated and constraint.enforced:
            statements.append(ddl.add_constraint(live, constraint.name, constraint.definition))
            statements += ddl.comment("CONSTRAINT", ddl.on_table(constraint.name, live), constraint.comment)
    for trigger in facts.triggers:
        statements.append(ddl.raw(trigger.definition))
        statements += _state(live, "TRIGGER", trigger.name, trigger.enabled)
        statements += ddl.comment("TRIGGER", ddl.on_table(trigger.name, live), trigger.comment)
        statements += ddl.comment("CONSTRAINT", ddl.on_table(trigger.name, live), trigger.constraint_comment)
        for extension in trigger.extensions:
            action = sql.SQL("ALTER TRIGGER {} DEPENDS ON EXTENSION {}")
            statements.append(action.format(ddl.on_table(trigger.name, live), sql.Identifier(extension)))
    for rule in facts.rules:
        statements.append(ddl.raw(rule.definition))
        statements += _state(live, "RULE", rule.name, rule.enabled)
        statements += ddl.comment("RULE", ddl.on_table(rule.name, live), rule.comment)
    for policy in facts.policies:
        statements.append(_policy(live, policy))
        statements += ddl.comment("POLICY", ddl.on_table(policy.name, live), policy.comment)
    if facts.row_security:
        statements.append(ddl.alter_table(live, "ENABLE ROW LEVEL SECURITY"))
    if facts.force_row_security:
        statements.append(ddl.alter_table(live, "FORCE ROW LEVEL SECURITY"))
    return statements


def _state(table: sql.Identifier, kind: LiteralString, name: str, enabled: str) -> list[Statement]:
    if enabled == "O":
        return []
    action = sql.SQL(_STATES[enabled] + " " + kind + " {}").format(sql.Identifier(name))
    return [ddl.alter_table(table, action)]


def _policy(table: sql.Identifier, policy: PolicyFacts) -> Statement:
    kind: LiteralString = "PERMISSIVE" if policy.permissive else "RESTRICTIVE"
    roles = sql.SQL(", ").join(sql.Identifier(role) if role else sql.SQL("PUBLIC") for role in policy.roles)
    head = sql.SQL("CREATE POLICY {} ON {} AS " + kind + " FOR " + _COMMANDS[policy.command] + " TO {}")
    return sql.Composed(
        [head.format(sql.Identifier(policy.name), table, roles), *policy_clauses(policy.using, policy.check)]
    )


def policy_clauses(using: str | None, check: str | None) -> list[Statement]:
    clauses: list[Statement] = []
    if using is not None:
        clauses.append(sql.Composed([sql.SQL(" USING ("), ddl.raw(using), sql.SQL(")")]))
    if check is not None:
        clauses.append(sql.Composed([sql.SQL(" WITH CHECK ("), ddl.raw(check), sql.SQL(")")]))
    return clauses


def _rebind(dependents: Dependents) -> list[Statement]:
    """Give what other people's objects say of live to the server once more: it means the new table now."""
    statements: list[Statement] = []
    for key in dependents.referencing:
        definition = not_valid(key.definition, validated=key.validated, enforced=key.enforced)
        statements.append(ddl.add_constraint(key.identifier, key.name, definition))
        statements += ddl.comment("CONSTRAINT", ddl.on_table(key.name, key.identifier), key.comment)
    for view in dependents.views:
        # Options that are not restated are lost, security_barrier and security_invoker among them.
        head = sql.SQL("CREATE OR REPLACE VIEW {}{} AS ").format(
            view.identifier, ddl.with_options(ddl.options(view.options))
        )
        statements.append(sql.Composed([head, ddl.raw(view.definition)]))
    statements += [ddl.raw(function.definition) for function in dependents.functions if function.definition]
    for policy in dependents.policies:
        head = sql.SQL("ALTER POLICY {} ON {}").format(sql.Identifier(policy.name), policy.identifier)
        statements.append(sql.Composed([head, *policy_clauses(policy.using, policy.check)]))
    return statements + [_publication(publication) for publication in dependents.publications]


def _publication(publication: Publication) -> Statement:
    cells: Statement = sql.SQL("")
    if publication.columns is not None:
        cells = sql.SQL(" ({})").format(ddl.identifiers(publication.columns))
    where: Statement = sql.SQL("")
    if publication.filter is not None:
        where = sql.Composed([sql.SQL(" WHERE ("), ddl.raw(publication.filter), sql.SQL(")")])
    head = sql.SQL("ALTER PUBLICATION {} ADD TABLE {}").format(sql.Identifier(publication.name), publication.identifier)
    return sql.Composed([head, cells, where])
