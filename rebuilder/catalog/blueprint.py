"""What is known of a projection's live tables, and what follows for shadow, fence and swap.

A blueprint is read before the run and never touches a lock that it keeps. It is data: the engine executes its
statements, ``plan`` prints the same ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from psycopg import sql

Statement = sql.SQL | sql.Composed
Schemas = Mapping[str, str]
"""Live schema name to the name of the schema that stands in for it (work or retired)."""


class Outcome(StrEnum):
    """What happens to an object that hangs off a live table."""

    CARRY = "carry"
    REBIND = "rebind"
    REFUSE = "refuse"
    LOSS = "loss"  # goes with a column that the new shape drops; needs allow="loss:OBJECT"


@dataclass(frozen=True, slots=True)
class Verdict:
    """One object, what becomes of it and why. ``name`` is what ``allow="loss:NAME"`` takes."""

    outcome: Outcome
    kind: str
    name: str
    table: str
    reason: str = ""
    hint: str = ""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the target shape, in order."""

    name: str
    type: str  # qualified SQL text
    not_null: bool
    generated: bool
    identity: str = ""  # "", "a" (always) or "d" (by default)
    default: str | None = None  # qualified SQL text


@dataclass(frozen=True, slots=True)
class OwnedSequence:
    """A sequence behind a column: identity, or serial (owned, or only used by a default)."""

    column: str
    schema: str
    name: str
    identity: bool
    increment: int
    oid: int = 0
    type: str = "bigint"


@dataclass(frozen=True, slots=True)
class LiveTable:
    """One live table as it is and as it is to be."""

    schema: str
    name: str
    oid: int
    columns: tuple[Column, ...]
    primary_key: tuple[str, ...]
    sequences: tuple[OwnedSequence, ...]
    live_columns: tuple[str, ...] = ()  # names in live; differs from ``columns`` only with a new shape
    renamed: tuple[tuple[str, str], ...] = ()  # (name in live, name in the new shape)
    rows: float = 0.0  # the planner's estimate
    bytes: int = 0  # heap, toast and indexes

    @property
    def identifier(self) -> sql.Identifier:
        """The live table's qualified name."""
        return sql.Identifier(self.schema, self.name)

    @property
    def label(self) -> str:
        """``schema.name`` for people."""
        return f"{self.schema}.{self.name}"

    @property
    def stored(self) -> tuple[str, ...]:
        """Names of the columns that a COPY may write: all but the generated ones."""
        return tuple(c.name for c in self.columns if not c.generated)


class LockKind(StrEnum):
    """How a lock of the fence is taken."""

    TABLE = "table"  # LOCK TABLE ... IN ACCESS EXCLUSIVE MODE
    TABLE_SHARE = "table-share"  # LOCK TABLE ... IN ACCESS SHARE MODE
    VIEW = "view"  # ALTER VIEW ... OWNER TO its owner: LOCK TABLE would lock all tables in the view
    SEQUENCE = "sequence"  # ALTER SEQUENCE ... OWNER TO its owner: LOCK TABLE refuses sequences


@dataclass(frozen=True, slots=True)
class FenceLock:
    """One lock of the fence: what, how, why, and the statement that takes it (without timeout or NOWAIT).

    ``nowait`` is the same statement that fails at once; for views and sequences there is none (None) and the engine
    uses a lock_timeout of 1 ms instead. ``role``: policy-table, read, view, referencing, live, sequence, referred.
    """

    kind: LockKind
    role: str
    label: str
    oid: int
    take: Statement
    nowait: Statement | None = None


@dataclass(frozen=True, slots=True)
class OwedStatement:
    """Something to do after the commit, in a transaction of its own."""

    kind: str  # validate-constraint, drop-retired, ...
    label: str
    statement: Statement


class Blueprint(Protocol):
    """Everything the engine asks of the catalog. ``work`` and ``retired`` map live schema names to stand-ins."""

    tables: tuple[LiveTable, ...]
    verdicts: tuple[Verdict, ...]
    fingerprint: str
    closure: frozenset[str]
    grants: str
    parts: Mapping[str, tuple[str, ...]]  # the fingerprint part by part, to name what changed
    locks: tuple[FenceLock, ...]

    def create(self, table: LiveTable, work: Schemas, name: str) -> list[Statement]:
        """Create the bare table ``name`` in the work schema: columns, defaults, NOT NULL, checks, storage, options."""

    def keys(self, table: LiveTable, work: Schemas) -> list[Statement]:
        """Identity, primary key, unique and exclusion constraints of the shadow, under their final names."""

    def indexes(self, table: LiveTable, work: Schemas) -> list[Statement]:
        """The other indexes and extended statistics of the shadow, under their final names."""

    def dress(self, table: LiveTable, work: Schemas) -> list[Statement]:
        """What else the shadow can wear before the fence without a lock outside the work schema."""

    def swap(self, work: Schemas, retired: Schemas, *, keys_owed: bool = False) -> list[Statement]:
        """Under the fence: live to the retired schema, shadow to its place, dependents rebound; in order.

        ``keys_owed`` leaves live's own foreign keys to ``owed``, so that the locks of role "referred" are not needed.
        """

    def owed(self, retired: Schemas, *, keys_owed: bool = False) -> list[OwedStatement]:
        """What is left to do after the commit (keys to validate)."""
