"""What a SQLAlchemy Table says of its columns, keys and indexes, as the server understands it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import psycopg
import sqlalchemy
from psycopg import sql
from sqlalchemy.dialects import postgresql
from sqlalchemy.schema import AddConstraint, CreateIndex, ExecutableDDLElement

from rebuilder.catalog.blueprint import Statement, Verdict
from rebuilder.catalog.facts import ColumnFacts, TableFacts
from rebuilder.catalog.obstacles import refuse
from rebuilder.catalog.reader import QUERIES, rows
from rebuilder.errors import DefinitionError
from rebuilder.sql import ddl

# Another paramstyle than psycopg's, which would double every % in the text.
DIALECT = postgresql.dialect(paramstyle="named")  # type: ignore[no-untyped-call]

PREPARER = DIALECT.identifier_preparer


@dataclass(frozen=True, slots=True)
class Wanted:
    """One column of the shape. ``source`` is the live column that it continues, if there is one."""

    name: str
    source: str
    type: str
    type_oid: int
    type_storage: str
    collation: str | None
    nullable: bool
    default: str | None
    computed: str | None
    stored: bool
    comment: str | None

    def added(self, built: str, number: int) -> ColumnFacts:
        return ColumnFacts(
            number=number,
            name=built,
            type=self.type,
            type_oid=self.type_oid,
            collation=self.collation,
            not_null=not self.nullable,
            identity="",
            generated="" if self.computed is None else "s" if self.stored else "v",
            expression=self.default if self.computed is None else self.computed,
            storage=self.type_storage,
            type_storage=self.type_storage,
            compression="",
            statistics_target=None,
            options=(),
            comment=self.comment,
            acl=(),
        )

    def kept(self, live: ColumnFacts) -> ColumnFacts:
        """Live's column with what the shape says; what it does not mention is carried."""
        retyped = self.type != live.type
        column = replace(
            live,
            type=self.type,
            type_oid=self.type_oid,
            not_null=not self.nullable or bool(live.identity),
            collation=self.collation or (None if retyped else live.collation),
            comment=self.comment or live.comment,
        )
        if retyped:  # storage and compression are chosen for a type
            column = replace(column, storage=self.type_storage, type_storage=self.type_storage, compression="")
        if self.computed is not None:
            column = replace(column, generated="s" if self.stored else "v", expression=self.computed)
        elif self.default is not None:
            column = replace(column, generated="", expression=self.default)
        return column


def read_wanted(connection: psycopg.Connection[Any], table: sqlalchemy.Table) -> list[Wanted]:
    """The columns of the shape; to be called under the caller's search_path, by which types are found."""
    return [_wanted(connection, table, column) for column in table.columns]


def print_types(connection: psycopg.Connection[Any], wanted: Sequence[Wanted]) -> list[Wanted]:
    """The same with types as the catalog prints them; to be called under an empty search_path."""
    return [
        replace(want, **rows(connection, QUERIES["print_type"], oid=want.type_oid, modifier=int(want.type))[0])
        for want in wanted
    ]


def _wanted(connection: psycopg.Connection[Any], table: sqlalchemy.Table, column: sqlalchemy.Column[Any]) -> Wanted:
    if column.identity is not None:
        raise DefinitionError(
            f"The shape of {table.name} numbers column {column.name} itself (Identity).",
            hint="Leave Identity out: a column that live has keeps its own; a new key must come from the events.",
        )
    kind = copy.copy(column.type)
    collation = getattr(kind, "collation", None)
    if collation is not None:
        kind.collation = None  # type: ignore[attr-defined]  # it has one
    oid, modifier = _type(connection, table, column, kind.compile(dialect=DIALECT))
    compiler = DIALECT.ddl_compiler(DIALECT, None)  # type: ignore[arg-type]  # for its expressions only
    computed = (
        None
        if column.computed is None
        else str(compiler.sql_compiler.process(column.computed.sqltext, include_table=False, literal_binds=True))
    )
    return Wanted(
        name=column.name,
        source=str(column.info.get("renamed_from", column.name)),
        type=str(modifier),
        type_oid=oid,
        type_storage="",
        collation=None if collation is None else DIALECT.identifier_preparer.quote(collation),
        nullable=bool(column.nullable),
        default=None if computed is not None else compiler.get_column_default_string(column),
        computed=computed,
        stored=column.computed is None or column.computed.persisted is not False,
        comment=column.comment,
    )


def _type(
    connection: psycopg.Connection[Any], table: sqlalchemy.Table, column: sqlalchemy.Column[Any], text: str
) -> tuple[int, int]:
    """The server's idea of a type: OID and modifier of a NULL of it."""
    try:
        with connection.transaction():
            result = connection.execute(sql.Composed([sql.SQL("SELECT NULL::"), ddl.raw(text)])).pgresult
    except (psycopg.errors.UndefinedObject, psycopg.errors.InvalidParameterValue, psycopg.errors.SyntaxError) as exc:
        raise DefinitionError(
            f"Column {column.name} of the shape of {table.name} has the type {text}: {exc.diag.message_primary}.",
            hint="Create the type first, or qualify it with its schema.",
        ) from exc
    if result is None:
        raise DefinitionError(f"The server gave no type for {text}.")
    return result.ftype(0), result.fmod(0)


# --- keys and indexes that live has not ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Additions:
    """New unique constraints and indexes, as statements for a work schema."""

    keys: Callable[[str], list[Statement]]
    indexes: Callable[[str], list[Statement]]
    verdicts: list[Verdict]


def additions(live: TableFacts, table: sqlalchemy.Table, sources: Mapping[str, str]) -> Additions:
    """What the Table declares beyond live's own; ``sources`` maps its columns to live's."""
    numbers = {column.name: column.number for column in live.columns}
    verdicts: list[Verdict] = []

    def place(columns: Sequence[sqlalchemy.Column[Any]]) -> list[int]:
        return [numbers.get(sources[column.name], 0) for column in columns]

    known = {c.name for c in live.constraints} | {i.name for i in live.indexes}
    unique = [list(c.columns) for c in live.of_kind("u")] + [list(i.columns) for i in live.indexes if i.unique]
    foreign = [list(c.columns) for c in live.of_kind("f")]
    uniques: list[sqlalchemy.UniqueConstraint] = []
    for constraint in sorted(table.constraints, key=_order):
        if constraint.name in known or isinstance(constraint, sqlalchemy.PrimaryKeyConstraint):
            continue
        name = str(constraint.name or type(constraint).__name__)
        if isinstance(constraint, sqlalchemy.UniqueConstraint):
            if place(list(constraint.columns)) not in unique:
                uniques.append(constraint)
        elif isinstance(constraint, sqlalchemy.ForeignKeyConstraint):
            if place(list(constraint.columns)) not in foreign:
                reason = "the shape refers to another table where live does not"
                hint = "Leave it out of the shape and add it NOT VALID after the rebuild."
                verdicts.append(refuse(live, "foreign-key", name, reason, hint))
        else:
            reason = "live has no constraint of that name"
            hint = "Give it the name it has on live, or leave it out and add it after the rebuild."
            verdicts.append(refuse(live, "constraint", name, reason, hint))
    named = {PREPARER.unformat_identifiers(PREPARER.format_index(index))[0]: index for index in table.indexes}
    fresh = [named[name] for name in sorted(named) if name not in known]

    def keys(schema: str) -> list[Statement]:
        shadow = sql.Identifier(schema, live.name)
        statements = [_retargeted(AddConstraint(u), _ALTER, PREPARER.format_table(table), shadow) for u in uniques]
        return statements + [_index(index, table, shadow) for index in fresh if index.unique]

    def indexes(schema: str) -> list[Statement]:
        shadow = sql.Identifier(schema, live.name)
        return [_index(index, table, shadow) for index in fresh if not index.unique]

    return Additions(keys, indexes, verdicts)


def _order(constraint: sqlalchemy.Constraint) -> tuple[str, list[str]]:
    """A Table's constraints are a set; statements come in one order always."""
    columns = getattr(constraint, "columns", ())
    return str(constraint.name or ""), [column.name for column in columns]


_ALTER = "ALTER TABLE "


def _index(index: sqlalchemy.Index, table: sqlalchemy.Table, shadow: sql.Identifier) -> Statement:
    # Named and printed as for live: a copy of the Table in another schema would give it another name.
    before = f"CREATE {'UNIQUE ' if index.unique else ''}INDEX {PREPARER.format_index(index)} ON "
    return _retargeted(CreateIndex(index), before, PREPARER.format_table(table), shadow)


def _retargeted(element: ExecutableDDLElement, before: str, name: str, shadow: sql.Identifier) -> Statement:
    text = str(element.compile(dialect=DIALECT)).strip()
    return ddl.retarget(text, f"{before}{name} ", sql.Composed([ddl.raw(before), shadow, sql.SQL(" ")]))
