"""Batch SQL: statements over the relation ``batch``, which holds many events at once."""

from __future__ import annotations

import re
from collections.abc import Sequence

from rebuilder.errors import DefinitionError, DuplicateDefinition

BATCH_COLUMNS = ("position", "tenant", "category", "stream", "stream_version", "type", "schema_version", "data",
                 "metadata", "recorded_at")
"""What the relation ``batch`` has: the log's columns, ``stream``, ``type``, ``category`` and ``tenant`` as text."""

_VERBS = ("INSERT", "UPDATE", "DELETE", "MERGE", "SELECT")
_WORD = re.compile(r"[A-Za-z_]+")
_BLANK = re.compile(r"(?:\s+|--[^\n]*(?:\n|\Z))+")
_IN_COMMENT = re.compile(r"/\*|\*/")


class BatchSql:
    """SQL statements over the relation ``batch``, run in order for every range of events.

    They are set-based, which makes this the fastest kind; each statement sees all events of a range, so what holds
    inside a range is the order of the statements, not that of the events: aggregate ``ORDER BY position``. ``batch``
    has the columns ``position, tenant, category, stream, stream_version, type, schema_version, data, metadata,
    recorded_at``. A range is as large as the engine likes, from one event to the whole log, so a statement must give
    the same rows however the events are cut: ``INSERT … SELECT … FROM batch GROUP BY … ON CONFLICT … DO UPDATE``.
    """

    def __init__(self, *statements: str, types: Sequence[str]) -> None:
        if isinstance(types, str):
            raise DefinitionError(f"BatchSql(types={types!r}) is a text; it must be a list.",
                                  hint=f"write types=[{types!r}]")
        if not statements:
            raise DefinitionError("BatchSql() takes one or more statements.",
                                  hint='write BatchSql("INSERT INTO … SELECT … FROM batch …", types=[...])')
        if len(set(types)) != len(types):
            raise DuplicateDefinition(f"BatchSql(types=…) names a type twice: {', '.join(types)}.")
        self.statements = tuple(statements)
        self.types = tuple(sorted(types))
        for statement in statements:
            split(statement)


def split(statement: str) -> tuple[str, str]:
    """A statement in two, between which the relation ``batch`` goes as its first CTE.

    The first part ends in WITH or WITH RECURSIVE, or is what stands before a statement that has no WITH; the second
    is the rest, a comma before it where it begins with other CTEs. Raises
    :class:`~rebuilder.errors.DefinitionError` for what can't have a CTE.
    """
    start = _skip(statement, 0)
    word = _word(statement, start)
    if word != "WITH":
        if word not in _VERBS:
            raise DefinitionError(f"A statement of BatchSql begins with {word or statement[start:start + 20]!r}; it "
                                  f"must be one of {', '.join(_VERBS)}, or begin with WITH.",
                                  hint="DDL and the like do not belong into a projection")
        return statement[:start] + "WITH ", " " + statement[start:]
    end = start + len("WITH")
    after = _skip(statement, end)
    if _word(statement, after) == "RECURSIVE":
        end = after + len("RECURSIVE")
    return statement[:end] + " ", ", " + statement[end:]


def _word(text: str, start: int) -> str:
    found = _WORD.match(text, start)
    return found[0].upper() if found else ""


def _skip(text: str, at: int) -> int:
    """Where the next word begins: behind blanks and comments (those in /* */ may be nested)."""
    while True:
        if found := _BLANK.match(text, at):
            at = found.end()
        if not text.startswith("/*", at):
            return at
        depth, at = 1, at + 2
        while depth:
            mark = _IN_COMMENT.search(text, at)
            if mark is None:
                return len(text)
            depth += 1 if mark[0] == "/*" else -1
            at = mark.end()
