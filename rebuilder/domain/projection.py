"""Projections: the recipes that turn events into a read model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Literal, Protocol

from rebuilder.domain.event import Event
from rebuilder.domain.upcasters import Upcasters, is_version
from rebuilder.errors import DefinitionError, DuplicateDefinition


class Target(Protocol):
    """Where a handler writes: the shadow in a rebuild, the live table in ``project``."""

    def execute(self, statement: Any, params: Any = None) -> None:
        """Run a statement. It may be queued, so there is no row count; an error names the event later."""

    def fetch_one(self, statement: Any, params: Any = None) -> tuple[Any, ...] | None:
        """Run a statement now and return its first row."""

    def fetch_all(self, statement: Any, params: Any = None) -> list[tuple[Any, ...]]:
        """Run a statement now and return its rows."""

    def table(self, name: str) -> Any:
        """The qualified name of a declared table, as a ``psycopg.sql.Identifier``."""


Handler = Callable[[Event, Target], None]


class SqlHandlers:
    """One function per event type; each writes with SQL through the target it is given."""

    def __init__(self) -> None:
        self._handlers: dict[str, Handler] = {}

    def on(self, *types: str) -> Callable[[Handler], Handler]:
        """Register the decorated ``(event, target)`` function for one or more event types.

        Raises :class:`~rebuilder.errors.DuplicateDefinition` when a type has a handler already.
        """
        if not types or callable(types[0]) or not all(types):
            raise DefinitionError("on() takes the names of one or more event types.",
                                  hint='write it as @handlers.on("AccountOpened")')

        def register(handler: Handler) -> Handler:
            for name in types:
                if name in self._handlers:
                    raise DuplicateDefinition(
                        f"Event type {name!r} is handled twice: by {self._handlers[name].__qualname__} and by "
                        f"{handler.__qualname__}.", hint="merge the two functions, or split the projection in two",
                        type=name)
                self._handlers[name] = handler
            return handler

        return register

    @property
    def types(self) -> tuple[str, ...]:
        """The handled event types, sorted."""
        return tuple(sorted(self._handlers))

    def handler(self, type_: str) -> Handler:
        """The function for an event type."""
        return self._handlers[type_]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExternalCheckpoint:
    """Feeding by somebody else's follower: how to lock its checkpoint row, and how to set it to a position.

    ``lock`` is a statement without parameters (``SELECT ... FOR UPDATE``); ``advance`` takes one parameter, the
    position. Both run inside the fence, ``lock`` before any table is locked, as the follower itself does.
    """

    lock: str
    advance: str


Feeding = Literal["inline", "async", "own"] | ExternalCheckpoint


@dataclass(frozen=True)
class Projection:
    """A recipe: which events fill which tables, and how.

    ``version`` is a whole number from 1 that grows with every change of the recipe. ``tables`` are the tables that
    the handlers write; all are rebuilt and swapped together. ``categories`` restricts the events (none: all).
    ``order="stream"`` declares that the handlers need events in order only within a stream. ``feeding`` says who
    writes live between rebuilds. ``stream_columns`` maps a table to its column that holds the stream's key, for the
    guard ``ghost-rows``. ``not_compared`` names columns (``column`` or ``table.column``) that no replay reproduces.
    ``depends_on`` names projections that are rebuilt before this one. ``shape`` maps a table to a SQLAlchemy
    ``Table`` that the rebuild brings.

    Raises :class:`~rebuilder.errors.DefinitionError`.
    """

    name: str
    _: KW_ONLY
    version: int
    tables: Sequence[str]
    handlers: SqlHandlers
    categories: Sequence[str] = ()
    order: Literal["stream"] | None = None
    feeding: Feeding = "inline"
    stream_columns: Mapping[str, str] = field(default_factory=dict)
    not_compared: Sequence[str] = ()
    depends_on: Sequence[str] = ()
    upcasters: Upcasters | None = None
    shape: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("tables", "categories", "not_compared", "depends_on"):
            value = getattr(self, name)
            if isinstance(value, str):
                raise DefinitionError(f"Projection {self.name!r}: {name} is a text; it must be a list.",
                                      hint=f"write {name}=[{value!r}]")
            object.__setattr__(self, name, tuple(value))
        if not self.name:
            raise DefinitionError("A projection needs a name.")
        if not is_version(self.version):
            raise DefinitionError(f"Projection {self.name!r}: version is {self.version!r}; it must be a whole number "
                                  "from 1.")
        if not self.tables:
            raise DefinitionError(f"Projection {self.name!r} has no table, so there is nothing to rebuild.",
                                  hint="name the tables that its handlers write: tables=[...]")
        if len(set(self.tables)) != len(self.tables):
            raise DuplicateDefinition(f"Projection {self.name!r} names a table twice: {', '.join(self.tables)}.")
        self._check_kinds()
        for mapping in ("stream_columns", "shape"):
            unknown = set(getattr(self, mapping)) - set(self.tables)
            if unknown:
                raise DefinitionError(f"Projection {self.name!r}: {mapping} names {', '.join(sorted(unknown))}, which "
                                      "is none of its tables.")
        if self.upcasters is not None:
            self.upcasters.check()

    def _check_kinds(self) -> None:
        if not isinstance(self.handlers, SqlHandlers):
            raise DefinitionError(f"Projection {self.name!r}: handlers is a {type(self.handlers).__name__}; it must "
                                  "be a SqlHandlers.")
        if self.order not in {None, "stream"}:
            raise DefinitionError(f'Projection {self.name!r}: order is {self.order!r}; it is "stream" or None.')
        if not isinstance(self.feeding, ExternalCheckpoint) and self.feeding not in {"inline", "async", "own"}:
            raise DefinitionError(f'Projection {self.name!r}: feeding is {self.feeding!r}; it is "inline", "async", '
                                  '"own" or an ExternalCheckpoint.')

    @property
    def types(self) -> tuple[str, ...]:
        """The event types it subscribes to."""
        return self.handlers.types

    @property
    def feeding_name(self) -> str:
        """``inline``, ``async``, ``own`` or ``external``."""
        return "external" if isinstance(self.feeding, ExternalCheckpoint) else self.feeding

    @property
    def followed(self) -> bool:
        """Whether a follower with a checkpoint feeds live, so that nothing above the horizon may be applied."""
        return self.feeding_name in {"async", "external"}

    def compares(self, table: str, column: str) -> bool:
        """Whether a column takes part in the comparison of old and new rows."""
        return column not in self.not_compared and f"{table}.{column}" not in self.not_compared
