"""Applies events through SqlHandlers: statements are queued in psycopg's pipeline mode, errors traced to their event.

Pipeline mode: https://www.postgresql.org/docs/current/libpq-pipeline-mode.html
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import sql

from rebuilder import errors
from rebuilder.domain.event import Event
from rebuilder.domain.upcasters import FetchOne, UpcastContext
from rebuilder.engine.applier import InShadow
from rebuilder.errors import DefinitionError
from rebuilder.eventlog import DecodeError
from rebuilder.store.sessions import first_line

if TYPE_CHECKING:
    from rebuilder.domain.projection import Projection, SqlHandlers
    from rebuilder.eventlog import OpenLog, RawEvent
    from rebuilder.store.sessions import Connection


class EventFailed(Exception):
    """An event could not be applied: which, at what (handler, upcaster, decode), and why. Internal to the engine."""

    def __init__(self, raw: RawEvent, cause: str, error: BaseException, *, among: Sequence[RawEvent] = ()) -> None:
        super().__init__(f"{cause} failed at position {raw.position}")
        self.among = among if len(among) > 1 else ()
        """The events of which one failed, where it is not known which: ``raw`` is only their first then."""
        self.raw = raw
        self.cause = cause
        self.error = error


# Only a statement of its own can end a transaction: a procedure or a DO block that tries fails (2D000).
_ENDS = re.compile(r"(?:\s|;|--[^\n]*\n|/\*.*?\*/)*(?:COMMIT|END|ABORT|PREPARE\s+TRANSACTION"
                   r"|ROLLBACK(?!\s+(?:(?:WORK|TRANSACTION)\s+)?TO))\b", re.IGNORECASE | re.DOTALL)


def checked(statement: Any, connection: Connection) -> Any:
    """The statement; stops a handler that would end the transaction: what it did next would be outside, and in live."""
    if isinstance(statement, sql.Composable):
        statement = statement.as_string(connection)
    text = statement.decode("utf-8", "replace") if isinstance(statement, bytes) else statement
    if isinstance(text, str) and (found := _ENDS.match(text)):
        raise errors.WroteOutsideShadow(
            f"A handler would have ended the transaction ({found[0].split()[-1].upper()}).",
            hint="handlers write rows; they must not end transactions")
    return statement


class SqlTarget:
    """Where handlers write in a rebuild: queued statements on the main connection, remembered with their event."""

    def __init__(self, connection: Connection, tables: Mapping[str, sql.Identifier]) -> None:
        self._connection = connection
        self._tables = tables
        # One cursor per statement of a batch, used again by the next: it knows how its parameters are adapted, and
        # one that is still without a result tells which statement failed.
        self._cursors: list[psycopg.Cursor[Any]] = []
        self._queued: list[RawEvent | None] = []
        self.raw: RawEvent | None = None

    def execute(self, statement: Any, params: Any = None) -> None:
        """Queue a statement. There is no row count: it has not run yet when this returns."""
        statement = checked(statement, self._connection)
        place = len(self._queued)
        if place == len(self._cursors):
            self._cursors.append(self._connection.cursor())
        self._queued.append(self.raw)
        self._cursors[place].execute(statement, params)

    def fetch_one(self, statement: Any, params: Any = None) -> tuple[Any, ...] | None:
        """Run a statement, and all queued before it; its first row."""
        self.execute(statement, params)
        return self._last().fetchone()

    def fetch_all(self, statement: Any, params: Any = None) -> list[tuple[Any, ...]]:
        """Run a statement, and all queued before it; its rows."""
        self.execute(statement, params)
        return self._last().fetchall()

    def table(self, name: str) -> sql.Identifier:
        """The qualified name of a declared table where it stands now."""
        if name not in self._tables:
            raise DefinitionError(f"target.table({name!r}): the projection does not declare that table.",
                                  hint=f"declared: {', '.join(sorted(self._tables))}")
        return self._tables[name]

    def _last(self) -> psycopg.Cursor[Any]:
        return self._cursors[len(self._queued) - 1]

    def forget(self) -> None:
        """A batch begins or ends."""
        self._queued.clear()
        self.raw = None

    def culprit(self) -> RawEvent | None:
        """The event whose statement was the first without a result: what failed, in a pipeline."""
        pairs = zip(self._cursors, self._queued, strict=False)
        return next((raw for cursor, raw in pairs if cursor.pgresult is None), None)


Lift = Callable[["RawEvent"], Event]


def lifter(log: OpenLog, projection: Projection, fetch_one: FetchOne) -> Lift:
    """The function that decodes a raw event and lifts it to its current schema version."""
    upcasters = projection.upcasters
    make = log.lazy_decoder()
    if upcasters is None:
        return make

    def lift(raw: RawEvent) -> Event:
        event = make(raw)
        try:
            return upcasters.lift(event, UpcastContext(event.tenant, fetch_one))
        except DecodeError:
            raise
        except Exception as error:
            raise EventFailed(raw, "upcaster", error) from error

    return lift


class SqlApplier(InShadow):
    """Applies events through SqlHandlers."""

    def __init__(self, handlers: SqlHandlers, connection: Connection, tables: Mapping[str, sql.Identifier], lift: Lift,
                 *, page: int) -> None:
        super().__init__(connection, page)
        self._handlers = handlers
        self._target = SqlTarget(connection, tables)
        self._lift = lift

    def apply(self, events: Sequence[RawEvent]) -> None:
        """Apply events in order, as one pipeline. Raises :class:`EventFailed`, the transaction then being aborted."""
        target, lift, handler = self._target, self._lift, self._handlers.handler
        target.forget()
        try:
            with self.connection.pipeline():
                for raw in events:
                    target.raw = raw
                    event = lift(raw)
                    handler(raw.type)(event, target)
        except (EventFailed, errors.WroteOutsideShadow):  # an error of the program is no poison
            raise
        except psycopg.Error as error:
            culprit = target.culprit() or target.raw
            if culprit is None:
                raise
            raise EventFailed(culprit, "handler", error) from error
        except Exception as error:
            if target.raw is None:
                raise
            raise EventFailed(target.raw, cause_of(error), error) from error
        finally:
            target.forget()


def cause_of(error: BaseException) -> str:
    """What failed when a handler raised: its event is decoded when it looks at the data."""
    return "decode" if isinstance(error, DecodeError) else "handler"


def describe(raw: RawEvent) -> str:
    """An event for people, without its data."""
    return f"event {raw.position} ({raw.type}, stream {raw.stream})"


def handler_failed(failure: EventFailed, projection: Projection) -> errors.HandlerFailed:
    """The error of a run that an event stopped."""
    raw, error = failure.raw, failure.error
    state = error.sqlstate if isinstance(error, psycopg.Error) else None
    text = error_text(error)
    where = describe(raw)
    if failure.among:
        where = f"one of {len(failure.among)} events from position {raw.position} to {failure.among[-1].position}"
    what = {"decode": "The log's decoder", "upcaster": "An upcaster", "handler": "The handler"}[failure.cause]
    return errors.HandlerFailed(
        f"{what} of projection {projection.name!r} failed on {where}: {type(error).__name__}: {text}. "
        "Live is as it was.",
        hint="mend the handler and repeat, or set such events aside: --quarantine",
        projection=projection.name, position=raw.position, type=raw.type, stream=raw.stream, cause=failure.cause,
        error_class=type(error).__name__, **({"sqlstate": state} if state else {}))


def error_text(error: BaseException) -> str:
    """The first line of what an error says; what quotes rows (the server's DETAIL) stays out."""
    if isinstance(error, psycopg.Error) and error.diag.message_primary:
        return first_line(error)
    if isinstance(error, errors.RebuilderError):
        return error.message.rstrip(".")
    return (str(error).splitlines() or [""])[0][:500].rstrip(".")
