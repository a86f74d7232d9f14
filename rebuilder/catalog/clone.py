"""The shadow: statements that make a table like live in a work schema.

Names are final from the start, since the shadow has a schema of its own; only the table may have another name for a
while (a fresh copy of the freeze), so ``create`` makes nothing whose name belongs to the schema.
"""

from __future__ import annotations

from collections.abc import Iterable

from psycopg import sql

from rebuilder.catalog.blueprint import LiveTable, OwnedSequence, Schemas, Statement
from rebuilder.catalog.facts import ColumnFacts, ConstraintFacts, IndexFacts, SequenceFacts, StatisticsFacts, TableFacts
from rebuilder.catalog.sequences import create_stand_in, stand_in
from rebuilder.sql import ddl


def create(table: LiveTable, facts: TableFacts, work: Schemas, name: str) -> list[Statement]:
    """The bare table: what must be there before the first row."""
    shadow = sql.Identifier(work[table.schema], name)
    statements = [
        create_stand_in(table, sequence, work, sequence_options(fact)) for sequence, fact in serials(table, facts)
    ]
    # Constraints that live does not hold for all its rows come with the swap: the replay may bring such rows again.
    kept = [c for c in facts.of_kind("c", "n") if c.validated or not c.enforced]
    body = [
        *(_column(table, facts, column, work) for column in facts.columns),
        *(ddl.constraint(c.name, c.definition) for c in kept),
    ]
    storage_options = [*ddl.options(facts.options), *ddl.options(facts.toast_options, "toast.")]
    statements.append(ddl.default_tablespace(facts.tablespace))
    statements.append(
        ddl.create_table(
            shadow,
            body,
            unlogged=facts.persistence == "u",
            access_method=facts.access_method,
            storage_options=storage_options,
        )
    )
    for column in facts.columns:
        # Before the load: storage set afterwards leaves what is there as it is (pg_repack#94).
        if column.storage != column.type_storage:
            statements.append(ddl.set_storage(shadow, column.name, column.storage))
        if column.statistics_target is not None:
            statements.append(ddl.set_statistics(shadow, column.name, column.statistics_target))
        if column.options:
            action = sql.SQL("SET ({})").format(sql.SQL(", ").join(ddl.options(column.options)))
            statements.append(ddl.alter_column(shadow, column.name, action))
    return statements


def keys(table: LiveTable, facts: TableFacts, work: Schemas) -> list[Statement]:
    """Identity and everything an upsert may name: primary key, unique and exclusion constraints, unique indexes."""
    schema = work[table.schema]
    shadow = sql.Identifier(schema, table.name)
    statements = []
    for sequence, fact in _pairs(table, facts):
        if sequence.identity:
            statements += _identity(table, facts, sequence, fact, work)
    constraints = {c.name: c for c in facts.of_kind("p", "u", "x")}
    for index in facts.indexes:
        constraint = constraints.get(index.constraint or "")
        if constraint is not None and (constraint.kind == "x" or constraint.overlaps):
            statements += _exclusion(shadow, index, constraint, schema)
        elif index.unique:
            statements += _index(shadow, index)
            if constraint is not None:
                statements.append(
                    ddl.add_constraint_using_index(
                        shadow,
                        constraint.name,
                        primary=constraint.kind == "p",
                        deferrable=constraint.deferrable,
                        deferred=constraint.deferred,
                    )
                )
    return statements


def indexes(table: LiveTable, facts: TableFacts, work: Schemas) -> list[Statement]:
    """The other indexes, and extended statistics: all that ANALYZE should find."""
    schema = work[table.schema]
    shadow = sql.Identifier(schema, table.name)
    statements: list[Statement] = []
    for index in facts.indexes:
        if not index.unique and index.constraint is None:
            statements += _index(shadow, index)
        for number, target in index.targets:
            action = sql.SQL("ALTER INDEX {} ALTER COLUMN {} SET STATISTICS {}")
            name = sql.Identifier(schema, index.name)
            statements.append(action.format(name, sql.Literal(number), sql.Literal(target)))
    for statistic in facts.statistics:
        name = sql.Identifier(schema, shadow_statistics_name(facts, statistic))
        head = sql.SQL("CREATE STATISTICS {} ").format(name)
        tail = sql.SQL(" FROM {}").format(shadow)
        if not statistic.definition.endswith(statistic.tail):
            raise ValueError(f"{statistic.definition!r} does not end with {statistic.tail!r}.")
        body = statistic.definition[: -len(statistic.tail)]
        statements.append(sql.Composed([ddl.retarget(body, statistic.head, head), tail]))
        if statistic.target is not None:
            action = sql.SQL("ALTER STATISTICS {} SET STATISTICS {}")
            statements.append(action.format(name, sql.Literal(statistic.target)))
    return statements


def dress(table: LiveTable, facts: TableFacts, work: Schemas) -> list[Statement]:
    """Comments, replica identity, clustered mark: what needs neither a lock elsewhere nor to be there for the load."""
    schema = work[table.schema]
    shadow = sql.Identifier(schema, table.name)
    statements = ddl.comment("TABLE", shadow, facts.comment)
    for column in facts.columns:
        name = sql.Identifier(schema, table.name, column.name)
        statements += ddl.comment("COLUMN", name, column.comment)
    for constraint in facts.of_kind("p", "u", "x", "c", "n"):
        if constraint.kind not in "cn" or constraint.validated or not constraint.enforced:
            statements += ddl.comment("CONSTRAINT", ddl.on_table(constraint.name, shadow), constraint.comment)
    for index in facts.indexes:
        name = sql.Identifier(schema, index.name)
        statements += ddl.comment("INDEX", name, index.comment)
        for extension in index.extensions:
            action = sql.SQL("ALTER INDEX {} DEPENDS ON EXTENSION {}")
            statements.append(action.format(name, sql.Identifier(extension)))
        if index.clustered:
            statements.append(ddl.alter_table(shadow, sql.SQL("CLUSTER ON {}").format(sql.Identifier(index.name))))
    for statistic in facts.statistics:
        name = sql.Identifier(schema, shadow_statistics_name(facts, statistic))
        statements += ddl.comment("STATISTICS", name, statistic.comment)
    for sequence, fact in _pairs(table, facts):
        if sequence.identity:
            statements += ddl.comment("SEQUENCE", stand_in(table, sequence, work), fact.comment)
    statements += _replica_identity(facts, shadow)
    if facts.of_type is not None:
        statements.append(ddl.alter_table(shadow, sql.Composed([sql.SQL("OF "), ddl.raw(facts.of_type)])))
    return statements


def shadow_statistics_name(facts: TableFacts, statistic: StatisticsFacts) -> str:
    """Its final name, unless it comes from another schema, where the name need not be free here."""
    return statistic.name if statistic.schema == facts.schema else f"rebuilder_statistics_{statistic.oid}"


def serials(table: LiveTable, facts: TableFacts) -> Iterable[tuple[OwnedSequence, SequenceFacts]]:
    """Sequences that defaults of the table draw from, or that a column owns, other than identity."""
    return [pair for pair in _pairs(table, facts) if not pair[0].identity]


def sequence_options(fact: SequenceFacts) -> Statement:
    return ddl.sequence_options(
        start=fact.start,
        increment=fact.increment,
        minimum=fact.minimum,
        maximum=fact.maximum,
        cache=fact.cache,
        cycle=fact.cycle,
    )


def _pairs(table: LiveTable, facts: TableFacts) -> list[tuple[OwnedSequence, SequenceFacts]]:
    by_key = {(fact.column, fact.oid): fact for fact in facts.sequences}
    return [(sequence, by_key[sequence.column, sequence.oid]) for sequence in table.sequences]


def _column(table: LiveTable, facts: TableFacts, column: ColumnFacts, work: Schemas) -> Statement:
    named = any(c.kind == "n" and column.number in c.columns for c in facts.constraints)
    return ddl.column(
        column.name,
        column.type,
        collation=column.collation,
        compression=column.compression,
        default=_default(table, facts, column, work),
        generated=column.generated,
        not_null=column.not_null and not named,
    )


def _default(table: LiveTable, facts: TableFacts, column: ColumnFacts, work: Schemas) -> Statement | None:
    """The default, drawing from the stand-ins: the server prints a sequence as one literal, which is replaced whole."""
    if column.expression is None:
        return None
    parts: list[str | Statement] = [column.expression]
    for sequence, fact in serials(table, facts):
        if sequence.column != column.name or not fact.used:
            continue
        if fact.literal not in column.expression:
            raise ValueError(f"The default of {facts.label}.{column.name} does not name {fact.literal}.")
        name = stand_in(table, sequence, work).as_string(None)
        literal = sql.SQL("{}::regclass").format(sql.Literal(name))
        parts = [piece for part in parts for piece in _split(part, fact.literal, literal)]
    return sql.Composed([ddl.raw(part) if isinstance(part, str) else part for part in parts])


def _split(part: str | Statement, literal: str, replacement: Statement) -> list[str | Statement]:
    if not isinstance(part, str):
        return [part]
    pieces: list[str | Statement] = []
    for piece in part.split(literal):
        pieces += [piece, replacement]
    return pieces[:-1]


def _identity(
    table: LiveTable, facts: TableFacts, sequence: OwnedSequence, fact: SequenceFacts, work: Schemas
) -> list[Statement]:
    shadow = sql.Identifier(work[table.schema], table.name)
    column = next(c for c in facts.columns if c.name == sequence.column)
    name = stand_in(table, sequence, work)
    statements = [ddl.add_identity(shadow, column.name, column.identity, name, sequence_options(fact))]
    if fact.persistence and fact.persistence != facts.persistence:
        logging = sql.SQL("SET UNLOGGED" if fact.persistence == "u" else "SET LOGGED")
        statements.append(sql.SQL("ALTER SEQUENCE {} {}").format(name, logging))
    return statements


def _index(shadow: sql.Identifier, index: IndexFacts) -> list[Statement]:
    kind = sql.SQL("CREATE UNIQUE INDEX {} ON {} " if index.unique else "CREATE INDEX {} ON {} ")
    head = kind.format(sql.Identifier(index.name), shadow)
    # pg_get_indexdef never prints the tablespace, and its place is in the middle of the text.
    return [ddl.default_tablespace(index.tablespace), ddl.retarget(index.definition, index.head, head)]


def _exclusion(shadow: sql.Identifier, index: IndexFacts, constraint: ConstraintFacts, schema: str) -> list[Statement]:
    statements = [
        ddl.default_tablespace(index.tablespace),
        ddl.add_constraint(shadow, constraint.name, constraint.definition),
    ]
    if index.options:  # pg_get_constraintdef leaves them out
        action = sql.SQL("ALTER INDEX {} SET ({})")
        options = sql.SQL(", ").join(ddl.options(index.options))
        statements.append(action.format(sql.Identifier(schema, index.name), options))
    return statements


def _replica_identity(facts: TableFacts, shadow: sql.Identifier) -> list[Statement]:
    match facts.replica_identity:
        case "f":
            return [ddl.alter_table(shadow, "REPLICA IDENTITY FULL")]
        case "n":
            return [ddl.alter_table(shadow, "REPLICA IDENTITY NOTHING")]
        case "i":
            index = next(i.name for i in facts.indexes if i.replica_identity)
            return [ddl.alter_table(shadow, sql.SQL("REPLICA IDENTITY USING INDEX {}").format(sql.Identifier(index)))]
        case _:
            return []
