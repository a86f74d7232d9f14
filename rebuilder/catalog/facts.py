"""What the catalog says of one table, as it says it. Texts are the server's own, qualified, and never parsed."""

from __future__ import annotations

from dataclasses import dataclass, field

from psycopg import sql

AclEntry = tuple[str, str, str, bool]
"""(grantor, grantee, privilege, with grant option); an empty grantee is PUBLIC."""


def written(*names: str) -> str:
    """A name as SQL writes it."""
    return sql.Identifier(*names).as_string(None)


@dataclass(frozen=True, slots=True)
class ColumnFacts:
    """One column, in attnum order."""

    number: int
    name: str
    type: str
    type_oid: int
    collation: str | None  # only when it is not the type's own
    not_null: bool
    identity: str
    generated: str  # "", "s" (stored) or "v" (virtual, 18)
    expression: str | None  # default or generation expression
    storage: str
    type_storage: str
    compression: str
    statistics_target: int | None
    options: tuple[str, ...]
    comment: str | None
    acl: tuple[AclEntry, ...]


@dataclass(frozen=True, slots=True)
class ConstraintFacts:
    """One constraint. ``kind``: p, u, x, c, f, n (NOT NULL, has a row in 18) or t (of a constraint trigger)."""

    oid: int
    name: str
    kind: str
    definition: str
    validated: bool
    enforced: bool
    deferrable: bool
    deferred: bool
    overlaps: bool  # WITHOUT OVERLAPS or PERIOD, 18
    columns: tuple[int, ...]
    index: int
    table: int
    referred: int
    referred_columns: tuple[int, ...]
    comment: str | None


@dataclass(frozen=True, slots=True)
class IndexFacts:
    """One index. ``definition`` begins with ``head``, which names index and table."""

    oid: int
    name: str
    head: str
    definition: str
    unique: bool
    valid: bool
    clustered: bool
    replica_identity: bool
    constraint: str | None
    columns: tuple[int, ...]  # attnums of the table that it reads, expressions and predicate too
    options: tuple[str, ...]
    tablespace: str
    targets: tuple[tuple[int, int], ...]  # statistics targets by index column
    comment: str | None
    extensions: tuple[str, ...]  # DEPENDS ON EXTENSION


@dataclass(frozen=True, slots=True)
class StatisticsFacts:
    """One extended statistics object; ``definition`` begins with ``head`` and ends with ``tail``."""

    oid: int
    schema: str
    name: str
    head: str
    tail: str
    definition: str
    columns: tuple[int, ...]
    target: int | None
    owner: str
    comment: str | None


@dataclass(frozen=True, slots=True)
class TriggerFacts:
    """One trigger of the table; the enable state (O, D, R, A) is not in its definition."""

    name: str
    definition: str
    enabled: str
    columns: tuple[int, ...]
    referred: int  # FROM of a constraint trigger
    function: str
    executable: bool  # by the current role, which must be so to make the trigger again
    comment: str | None
    constraint_comment: str | None
    extensions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RuleFacts:
    """One rule of the table."""

    name: str
    definition: str
    enabled: str
    columns: tuple[int, ...]
    comment: str | None


@dataclass(frozen=True, slots=True)
class PolicyFacts:
    """One row security policy; an empty role is PUBLIC."""

    name: str
    command: str
    permissive: bool
    roles: tuple[str, ...]
    using: str | None
    check: str | None
    columns: tuple[int, ...]
    comment: str | None


@dataclass(frozen=True, slots=True)
class SequenceFacts:
    """A sequence behind a column. ``literal`` is how a default names it."""

    oid: int
    column: str
    schema: str
    name: str
    literal: str
    identity: bool
    owned: bool
    used: bool  # by the column's default
    type: str
    start: int
    increment: int
    minimum: int
    maximum: int
    cache: int
    cycle: bool
    persistence: str
    owner: str
    comment: str | None
    acl: tuple[AclEntry, ...] | None


@dataclass(frozen=True, slots=True)
class TableFacts:
    """One live table, whole."""

    oid: int
    schema: str
    name: str
    kind: str
    persistence: str
    owner: str
    access_method: str
    tablespace: str
    options: tuple[str, ...]
    toast_options: tuple[str, ...]
    of_type: str | None
    row_security: bool
    force_row_security: bool
    replica_identity: str
    row_type: int
    array_type: int
    comment: str | None
    acl: tuple[AclEntry, ...] | None  # None: never granted or revoked
    rows: float
    bytes: int
    columns: tuple[ColumnFacts, ...] = ()
    constraints: tuple[ConstraintFacts, ...] = ()
    indexes: tuple[IndexFacts, ...] = ()
    statistics: tuple[StatisticsFacts, ...] = ()
    triggers: tuple[TriggerFacts, ...] = ()
    rules: tuple[RuleFacts, ...] = ()
    policies: tuple[PolicyFacts, ...] = ()
    sequences: tuple[SequenceFacts, ...] = field(default=())

    @property
    def label(self) -> str:
        """``schema.name`` for people."""
        return f"{self.schema}.{self.name}"

    @property
    def written(self) -> str:
        """The same as SQL writes it, for commands in hints."""
        return written(self.schema, self.name)

    def of_kind(self, *kinds: str) -> tuple[ConstraintFacts, ...]:
        """The constraints of these kinds."""
        return tuple(c for c in self.constraints if c.kind in kinds)
