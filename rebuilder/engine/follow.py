"""The follower: feeds live of an async projection, batch by batch, up to a settled horizon, exactly once.

A batch is one transaction: the checkpoint's row is locked first, then live, as a rebuild's fence does too (the other
order would kill one of them); then the events behind the checkpoint are read, applied, and the checkpoint set. So
followers of one projection take turns, and after a swap the next batch goes on from where the rebuild has come to.
Nothing above the horizon is ever applied: what is still open there would be lost behind the checkpoint.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import sql

from rebuilder import errors
from rebuilder.domain.event import Event
from rebuilder.domain.projection import Projection
from rebuilder.engine.live import apply_to_live, hold
from rebuilder.engine.stop import StopToken
from rebuilder.eventlog import Horizon, OpenLog, Selection, TableLog
from rebuilder.settings import Settings
from rebuilder.store.ledger import Bookkeeping
from rebuilder.store.sessions import (
    Connection,
    Server,
    begin,
    connect,
    first_line,
    is_lost,
    is_transient,
    prove_same_server,
    translate,
    translated,
)

LOCK_WAIT_MS = 1000
_SLICE = 0.1
_LONGEST_PAUSE = 5.0


@dataclass(frozen=True, slots=True)
class Followed:
    """What a follower did: events applied, batches committed, and the position it has come to."""

    projection: str
    events: int
    batches: int
    position: int

    def to_json(self) -> dict[str, Any]:
        """As text and numbers."""
        return {"projection": self.projection, "events": self.events, "batches": self.batches,
                "position": self.position}


Told = Callable[[Followed], None]


class Follower:
    """One process's part in feeding a projection. :meth:`run` until it is asked to stop."""

    def __init__(self, conninfo: str, projection: Projection, *, log: TableLog, settings: Settings, stop: StopToken,
                 channel: str | None, poll: float, told: Told | None = None) -> None:
        if projection.feeding_name != "async":
            raise errors.DefinitionError(
                f'{projection.name!r} is not followed: its feeding is "{projection.feeding_name}".',
                hint='declare it with feeding="async"', projection=projection.name)
        self.conninfo = conninfo
        self.projection = projection
        self.definition = log
        self.settings = settings
        self.stop = stop
        self.channel = channel
        self.poll = poll
        self.told = told
        self.books = Bookkeeping(settings)
        self.selection = Selection(types=projection.types, categories=tuple(projection.categories))
        self.done = Followed(projection.name, 0, 0, 0)
        self.main: Connection
        self.reader: Connection
        self.listener: Connection | None = None
        self.server: Server
        self.log: OpenLog

    def run(self, *, once: bool = False) -> Followed:
        """Apply what comes until the token says stop; ``once``: until the horizon of now is reached.

        A lost connection, a lock that is not got and a deadlock are tried again. Raises
        :class:`~rebuilder.errors.HandlerFailed` for an event that can't be applied, and
        :class:`~rebuilder.errors.RecipeOutdated` when live was built with a later version.
        """
        failures = 0
        while not self.stop.requested:
            try:
                with ExitStack() as stack:
                    self._connect(stack)
                    failures = 0
                    self._follow(once=once)
                    return self.done
            except (errors.ConnectionLost, errors.NotNow):
                if once and failures >= 5:
                    raise
                failures += 1
                self.stop.wait(min(_LONGEST_PAUSE, 0.05 * 2**failures))
        return self.done

    def _connect(self, stack: ExitStack) -> None:
        name = self.projection.name[:20]
        self.reader = stack.enter_context(connect(self.conninfo, role=f"follow:{name}:reader", autocommit=True))
        with translated("connecting"):
            self.server = Server.of(self.reader)
        self.server.check()
        self.books.check_installed(self.reader)
        self.main = stack.enter_context(connect(self.conninfo, role=f"follow:{name}", autocommit=False))
        with translated("connecting"):
            prove_same_server(self.main, self.server)
            self.main.rollback()
        with translated("reading the event log's definition"):
            self.log = self.definition.open(self.reader)
        self.books.run(self.reader, "insert_state", projection=self.projection.name)
        self.books.run(self.reader, "insert_checkpoint", projection=self.projection.name)
        self.listener = None
        if self.channel is not None:
            self.listener = stack.enter_context(connect(self.conninfo, role=f"follow:{name}:listen", autocommit=True))
            with translated("listening for events"):
                self.listener.execute(sql.SQL("LISTEN {}").format(sql.Identifier(self.channel)))

    def _follow(self, *, once: bool) -> None:
        while not self.stop.requested:
            horizon = self._settled()
            if horizon is None:
                return
            more = True
            while more and not self.stop.requested:
                more = self._batch(horizon.position)
            if once:
                return
            self._wait()

    def _settled(self) -> Horizon | None:
        """A horizon below which nothing can become visible any more; None if asked to stop meanwhile."""
        with translated("taking the horizon of the log"):
            own = (self.reader.info.backend_pid, self.main.info.backend_pid)
            horizon = self.log.horizon(self.reader, own_pids=own)
            began = time.monotonic()
            while not horizon.settled(self.reader):
                if self.stop.wait(self.settings.horizon_poll if time.monotonic() - began < 1 else _SLICE):
                    return None
        return horizon

    def _batch(self, upto: int) -> bool:
        """Apply the next events up to a settled horizon, in one transaction; whether there may be more."""
        name = self.projection.name
        with self._transaction():
            row = self.books.run(self.main, "lock_checkpoint", projection=name).fetchone()
            position = int(row[0]) if row else 0
            tables = hold(self.main, self.projection, self.books)
            generation = self._generation(position, tables)
            if position >= upto:
                return False
            # Read after the lock: whoever held it has moved the checkpoint.
            with translated("reading the event log"):
                found = self.log.tail(self.reader, self.selection, above=position, limit=self.settings.batch)
            page = [raw for raw in found if raw.position <= upto]
            more = len(page) == self.settings.batch
            reached = page[-1].position if more else upto
            self._apply([self.log.decode(raw, replaying=False) for raw in page], tables)
            self.books.run(self.main, "follow_checkpoint", projection=name, position=reached, events=len(page),
                           generation=generation)
        self.done = Followed(name, self.done.events + len(page), self.done.batches + 1, reached)
        if page and self.told is not None:
            self.told(self.done)
        return more

    def _transaction(self) -> _Batch:
        return _Batch(self)

    def _generation(self, position: int, tables: dict[str, sql.Identifier]) -> int | None:
        """Live's generation. What was never built is fed from the first event on only if there is nothing in it."""
        row = self.books.run(self.main, "read_state", projection=self.projection.name).fetchone()
        generation = int(row[0]) if row else 0
        if generation == 0 and position == 0:
            for identifier in tables.values():
                statement = sql.SQL("SELECT EXISTS (SELECT FROM {})").format(identifier)
                if self.main.execute(statement).fetchone() == (True,):
                    raise errors.RefusedError(
                        f"{self.projection.name!r} was never rebuilt and its tables have rows, so nobody knows which "
                        "events are in them.", hint=f"rebuilder rebuild {self.projection.name}, then follow it",
                        projection=self.projection.name)
        return generation or None

    def _apply(self, events: Sequence[Event], tables: dict[str, sql.Identifier]) -> None:
        current: list[Event] = []

        def each() -> Iterator[Event]:
            for event in events:
                current[:] = [event]
                yield event

        try:
            apply_to_live(self.main, self.projection, events, each(), tables, self.books, self.definition)
        except (errors.RefusedError, errors.NotNow):
            raise
        except Exception as error:
            if is_lost(error, self.main) or is_transient(error):
                raise
            if not current:
                raise
            raise _failed(self.projection, current[0], error) from error

    def _wait(self) -> None:
        """Until somebody notifies, or it is time to look again."""
        end = time.monotonic() + self.poll
        while (left := end - time.monotonic()) > 0 and not self.stop.requested:
            if self.listener is None:
                self.stop.wait(min(left, _SLICE))
                continue
            with translated("listening for events"):
                for _ in self.listener.notifies(timeout=min(left, _SLICE), stop_after=1):
                    return


class _Batch:
    """The transaction of a batch: what a role's settings would do to it is overridden, an error rolls it back."""

    def __init__(self, follower: Follower) -> None:
        self.follower = follower

    def __enter__(self) -> None:
        with translated("beginning a batch"):
            # A lock that a fence holds is waited for in turns, so that a request to stop is heard.
            begin(self.follower.main, self.follower.server, lock_timeout_ms=LOCK_WAIT_MS)

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        main = self.follower.main
        if error is None:
            with translated("committing a batch"):
                main.commit()
            return
        with suppress(psycopg.Error):
            main.rollback()
        if isinstance(error, psycopg.Error):
            raise _again(error) from error


def _again(error: psycopg.Error) -> errors.RebuilderError:
    found = translate(error, "feeding live")
    if is_transient(error) and not isinstance(found, errors.ConnectionLost | errors.NotNow):
        return errors.NotNow(found.message, hint="it is tried again", sqlstate=error.sqlstate)
    return found


def _failed(projection: Projection, event: Event, error: Exception) -> errors.HandlerFailed:
    state = error.sqlstate if isinstance(error, psycopg.Error) else None
    text = first_line(error) if isinstance(error, psycopg.Error) else (str(error).splitlines() or [""])[0][:500]
    return errors.HandlerFailed(
        f"The handler of {projection.name!r} failed on event {event.position} ({event.type}, stream {event.stream}): "
        f"{type(error).__name__}: {text.rstrip('.')}. The follower stands before it; what it applied stays.",
        hint="mend the handler and follow again, or rebuild with --quarantine, which sets the event aside",
        projection=projection.name, position=event.position, type=event.type, stream=event.stream,
        error_class=type(error).__name__, **({"sqlstate": state} if state else {}))
