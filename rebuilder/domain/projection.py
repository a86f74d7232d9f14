"""Projections: the recipes that turn events into a read model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Literal, Protocol

from rebuilder.domain.batch_sql import BatchSql
from rebuilder.domain.event import Event
from rebuilder.domain.fold import Fold
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
Handlers = SqlHandlers | BatchSql | Fold | Sequence[Fold]
"""The kinds of handlers: a projection has one of them."""


@dataclass(frozen=True)
class Projection:
    """A recipe: which events fill which tables, and how.

    ``version`` is a whole number from 1 that grows with every change of the recipe. ``tables`` are the tables that
    the handlers write; all are rebuilt and swapped together. ``handlers`` are of one kind: a ``SqlHandlers``, or one
    ``Fold`` for each table, or a ``BatchSql``. ``categories`` restricts the events (none: all).
    ``order="stream"`` declares that the handlers need events in order only within a stream; folds keyed by stream are
    known to. ``feeding`` says who
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
    handlers: Handlers
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
        if isinstance(self.handlers, list | tuple) and self.handlers:
            object.__setattr__(self, "handlers", tuple(self.handlers))
        if isinstance(self.handlers, Fold):
            object.__setattr__(self, "handlers", (self.handlers,))
        if self.folds:
            self._check_folds()
        elif not isinstance(self.handlers, SqlHandlers | BatchSql):
            raise DefinitionError(f"Projection {self.name!r}: handlers is a {type(self.handlers).__name__}; it must "
                                  "be a SqlHandlers, a Fold, a list of Folds, or a BatchSql.")
        if isinstance(self.handlers, BatchSql) and self.upcasters is not None:
            self._check_batch(self.handlers, self.upcasters)
        if self.order not in {None, "stream"}:
            raise DefinitionError(f'Projection {self.name!r}: order is {self.order!r}; it is "stream" or None.')
        if not isinstance(self.feeding, ExternalCheckpoint) and self.feeding not in {"inline", "async", "own"}:
            raise DefinitionError(f'Projection {self.name!r}: feeding is {self.feeding!r}; it is "inline", "async", '
                                  '"own" or an ExternalCheckpoint.')

    def _check_batch(self, handlers: BatchSql, upcasters: Upcasters) -> None:
        both = sorted(set(handlers.types) & set(upcasters.types))
        if both:
            raise DefinitionError(
                f"Projection {self.name!r}: {', '.join(both)} has upcasters in Python, but BatchSql is run by the "
                "server, which would see the old data.",
                hint="lift the data in the statement (CASE schema_version …), or use a Fold", types=both)

    def _check_folds(self) -> None:
        filled = [self.fold_table(fold) for fold in self.folds]
        for table in filled:
            if table not in self.tables:
                raise DefinitionError(f"Projection {self.name!r}: a Fold fills {table}, which is none of its tables.",
                                      hint="name the table in tables=[...]")
            if filled.count(table) > 1:
                raise DuplicateDefinition(f"Projection {self.name!r}: two Folds fill {table}.",
                                          hint="make them one: each may have several functions per event type")
        empty = [table for table in self.tables if table not in filled]
        if empty:
            raise DefinitionError(f"Projection {self.name!r}: no Fold fills {', '.join(empty)}.",
                                  hint="add a Fold for it, or leave it out of tables=[...]")
        if self.order is None and all(fold.keyed_by_stream for fold in self.folds):
            object.__setattr__(self, "order", "stream")

    @property
    def folds(self) -> tuple[Fold, ...]:
        """The folds, if that is the kind of its handlers."""
        handlers = self.handlers
        if isinstance(handlers, tuple) and all(isinstance(fold, Fold) for fold in handlers):
            return handlers
        return ()

    def fold_table(self, fold: Fold) -> str:
        """The table that a fold fills, as the projection names it."""
        if fold.table is not None:
            return fold.table
        if len(self.tables) > 1:
            raise DefinitionError(f"Projection {self.name!r} has {len(self.tables)} tables; a Fold must say which of "
                                  "them it fills.", hint='write Fold("account_balance")')
        return self.tables[0]

    @property
    def types(self) -> tuple[str, ...]:
        """The event types it subscribes to, sorted."""
        if isinstance(self.handlers, SqlHandlers | BatchSql):
            return self.handlers.types
        return tuple(sorted({name for fold in self.folds for name in fold.types}))

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
