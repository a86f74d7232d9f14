"""Folds: rows computed in memory from the events of their key."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from rebuilder.domain.event import Event
from rebuilder.errors import DefinitionError, DuplicateDefinition

Row = dict[str, Any]
"""A row of a read model by column."""
FoldFunction = Callable[[Row | None, Event], Row | None]
KeyFunction = Callable[[Event], Any]


@dataclass(frozen=True, slots=True)
class Registration:
    """A function for an event type, and the key of the row that it folds (None: the event's stream)."""

    function: FoldFunction
    key: KeyFunction | None = None


class Fold:
    """Functions ``(row, event) -> row`` that compute the rows of one table, each from the events of its key.

    ``row`` is None where there is none; a function that returns None deletes it. The row is the function's own copy.
    Its values have the types that psycopg loads from the table's columns, and must be given so; a column that no
    function gives is left to its default. ``table`` is the projection's only table by default. ``key_columns`` are the
    columns that the key fills, by default the table's primary key.
    """

    def __init__(self, table: str | None = None, key_columns: Sequence[str] | None = None) -> None:
        if isinstance(key_columns, str):
            raise DefinitionError(f"Fold(key_columns={key_columns!r}) is a text; it must be a list.",
                                  hint=f"write key_columns=[{key_columns!r}]")
        self.table = table
        self.key_columns = None if key_columns is None else tuple(key_columns)
        self._registrations: dict[str, list[Registration]] = {}

    def on(self, *types: str, key: KeyFunction | None = None) -> Callable[[FoldFunction], FoldFunction]:
        """Register the decorated ``(row, event)`` function for one or more event types.

        ``key`` makes the row's key from the event: a value, or a tuple where there are several key columns; without
        it the key is the event's stream. One type may be registered several times with different keys: a transfer
        changes two accounts. Raises :class:`~rebuilder.errors.DuplicateDefinition` for a second function of one type
        and key.
        """
        if not types or callable(types[0]) or not all(types):
            raise DefinitionError("on() takes the names of one or more event types.",
                                  hint='write it as @fold.on("AccountOpened")')

        def register(function: FoldFunction) -> FoldFunction:
            for name in types:
                there = self._registrations.setdefault(name, [])
                for other in there:
                    if other.key is key:
                        raise DuplicateDefinition(
                            f"Event type {name!r} is folded twice into one row: by {_name(other.function)} and by "
                            f"{_name(function)}.", hint="merge the two functions, or give one of them a key= of its "
                            "own", type=name)
                there.append(Registration(function, key))
            return function

        return register

    def __reduce__(self) -> Any:
        # Where it is defined, rather than what is in it: a worker imports the module, and functions may share names.
        for module, content in list(sys.modules.items()):
            for name, value in list(getattr(content, "__dict__", {}).items()):
                if value is self:
                    return _imported, (module, name)
        return super().__reduce__()

    @property
    def types(self) -> tuple[str, ...]:
        """The folded event types, sorted."""
        return tuple(sorted(self._registrations))

    def registrations(self, type_: str) -> tuple[Registration, ...]:
        """The functions for an event type, in the order of their registration; none for a type it does not fold."""
        return tuple(self._registrations.get(type_, ()))

    @property
    def keyed_by_stream(self) -> bool:
        """Whether each row depends on the events of one stream only."""
        return all(one.key is None for those in self._registrations.values() for one in those)


def _imported(module: str, name: str) -> Fold:
    fold = getattr(import_module(module), name)
    if not isinstance(fold, Fold):
        raise DefinitionError(f"{module}.{name} is a {type(fold).__name__} in this process; it must be a Fold.")
    return fold


def _name(function: Any) -> str:
    return getattr(function, "__qualname__", repr(function))
