"""Which column of an event table holds what."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields

from psycopg import sql

from rebuilder.errors import LogDefinitionError

ALIAS = "event"
"""How expressions and conditions of a log refer to its row."""

_PLAIN = re.compile(r"[^\W\d][\w$]*")


class Expression(str):
    """A value of ``Columns`` that is SQL even where it looks like a plain name: ``Expression("current_user")``."""

    __slots__ = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """A value is a column's name, exactly as the catalog has it, or an SQL expression over the row.

    Text that is shaped like a name (``aggregate_id``) is one, and must exist; anything else (``payload->>'kind'``,
    ``"Odd name"``) is an expression, as is an ``Expression``. Expressions may call the row ``event``:
    ``to_jsonb(event)`` gives all of it as data.

    ``position`` must be a plain integer column. ``stream``, ``type``, ``category`` and ``tenant`` of any type are read
    as text; versions are integers; ``recorded_at`` is a timestamp; ``data`` and ``metadata`` are JSON, text or bytes.
    """

    position: str
    stream: str
    type: str
    data: str
    category: str | None = None
    tenant: str | None = None
    stream_version: str | None = None
    schema_version: str | None = None
    metadata: str | None = None
    recorded_at: str | None = None

    def __post_init__(self) -> None:
        for role, value in self.items():
            if not str(value).strip():
                raise LogDefinitionError(f"Columns({role}={value!r}) must be a column's name or an SQL expression.",
                                         role=role)
        if not is_plain(self.position):
            raise LogDefinitionError(
                f"Columns(position={str(self.position)!r}) must be a plain column: the log is paged by its index.",
                hint="name the integer column that orders the whole log", role="position")

    def items(self) -> Iterator[tuple[str, str]]:
        """The roles that are given, with their values."""
        for item in fields(self):
            value = getattr(self, item.name)
            if value is not None:
                yield item.name, value


def is_plain(value: str) -> bool:
    """Whether a value of ``Columns`` is a column's name (and not an expression)."""
    return not isinstance(value, Expression) and _PLAIN.fullmatch(value) is not None


def render(value: str) -> sql.Composable:
    """A value of ``Columns`` as SQL over the row."""
    return sql.Identifier(ALIAS, value) if is_plain(value) else sql.SQL("({})").format(fragment(value))


def fragment(text: str) -> sql.Composable:
    """An expression or condition of the application as SQL."""
    # The application's own definition is trusted as its code is: this is where it becomes SQL. It is run without
    # parameters, so that % is itself; the newline ends a trailing comment.
    return sql.SQL(text + "\n")


Rendered = Mapping[str, sql.Composable]
"""Role to SQL, for the roles that a log has."""
