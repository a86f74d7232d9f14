"""One run: its connections, what it knows, and how it is watched and stopped."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal
from uuid import UUID

import psycopg

from rebuilder import errors
from rebuilder.domain.observation import Observation, Observer
from rebuilder.domain.ticket import Phase, Progress, Reason
from rebuilder.engine.stop import StopToken
from rebuilder.store.ledger import Bookkeeping, Ledger
from rebuilder.store.sessions import Connection, Server, connect, prove_same_server

if TYPE_CHECKING:
    from rebuilder.catalog import CatalogBlueprint
    from rebuilder.domain.projection import Projection
    from rebuilder.domain.quarantine import Quarantine
    from rebuilder.domain.registry import Registry
    from rebuilder.engine.together import Pass
    from rebuilder.eventlog import OpenLog, Selection, TableLog
    from rebuilder.settings import Settings


Hook = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What a caller asks of one rebuild."""

    reason: Reason = Reason.OPERATOR_REQUESTED
    note: str | None = None
    quarantine: Quarantine | None = None
    allow: frozenset[str] = frozenset()
    retire: Literal["keep", "drop"] = "keep"
    max_rate: float | None = None
    wait: float = 0.0
    deadline: float | None = None
    blockers: Literal["report", "cancel", "terminate"] = "report"
    blockers_after: float = 60.0
    workers: int | Executor = 1


@dataclass(slots=True)
class Seam:
    """Pause and crash points of the tests; private."""

    points: dict[str, Callable[[Run], None]] = field(default_factory=dict)

    def reach(self, name: str, run: Run) -> None:
        """Run what a test has put here."""
        if name in self.points:
            self.points[name](run)


class Run:
    """State of one run that its steps share. Not thread-safe but for :meth:`progress_now` and the stop token."""

    def __init__(self, conninfo: str, projection: Projection, *, log: TableLog, registry: Registry, settings: Settings,
                 options: Options, stop: StopToken, observers: tuple[Observer, ...] = (), seam: Seam | None = None,
                 hooks: dict[str, Hook] | None = None) -> None:
        self.conninfo = conninfo
        self.projection = projection
        self.definition = log
        self.registry = registry
        self.settings = settings
        self.options = options
        self.stop = stop
        self.observers = list(observers)
        self.hooks = hooks or {}
        self.seam = seam or Seam()
        self.books = Bookkeeping(settings)
        self.ticket = UUID(int=0)
        self.generation = 0
        self.answers: tuple[UUID, ...] = ()
        self.adopted = False
        self.source = UUID(int=0)
        self.digest: str | None = None
        self.phase = Phase.LOCK_STATE
        self.started = time.monotonic()
        self.seconds: dict[str, float] = {}
        self.warnings: list[str] = []
        self.events_done = 0
        self.events_total: int | None = None
        self.position: int | None = None
        self.rate: float | None = None
        self.attempts = 0
        self.blockers: tuple[dict[str, Any], ...] = ()
        self.longest_wait = 0.0
        self.held_back: list[Observation] | None = None
        self.random = random.Random()  # for jitter
        self._connections: list[tuple[str, Connection]] = []
        self._closers: list[Callable[[], None]] = []
        self._reader_lock = threading.Lock()
        # Filled by the steps.
        self.main: Connection
        self.reader: Connection
        self.ledger: Ledger
        self.server: Server
        self.blueprint: CatalogBlueprint
        self.log: OpenLog
        self.selection: Selection
        self.together: Pass | None = None
        self.committing = False
        self.keys_owed = False
        self.roles_in_way: frozenset[str] = frozenset()
        self.checkpoint_tables: frozenset[int] = frozenset()
        self.fence_began = self.started
        self.lost: errors.RebuilderError | None = None

    # Connections ------------------------------------------------------------------------------------------------

    def open(self, role: str, *, autocommit: bool) -> Connection:
        """A connection of the run's own, closed at its end; proven to be on main's server once there is a main."""
        ticket = str(self.ticket)[:8] if self.ticket.int else ""
        connection = connect(self.conninfo, role=role, ticket=ticket, autocommit=autocommit)
        self._connections.append((role, connection))
        if hasattr(self, "server"):
            prove_same_server(connection, self.server)
            connection.rollback()
        return connection

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """The reader, one user at a time (a page may be being loaded ahead); opened anew if it was lost, since it holds
        no state, and then proves its server again.
        """
        with self._reader_lock:
            if self.reader.closed or self.reader.broken:
                self.reader = self.open("reader", autocommit=True)
            yield self.reader

    @property
    def own_pids(self) -> tuple[int, ...]:
        """Backend pids of our own connections."""
        return tuple(c.info.backend_pid for _, c in self._connections if not c.closed)

    def connections(self, role: str) -> list[Connection]:
        """The open connections of a role."""
        return [c for name, c in list(self._connections) if name == role and not c.closed]

    def defer(self, closer: Callable[[], None]) -> None:
        """Run ``closer`` when the run ends, before the connections are closed."""
        self._closers.append(closer)

    def close(self) -> None:
        """Close everything that the run opened."""
        for closer in reversed(self._closers):
            closer()
        self._closers.clear()
        for _, connection in self._connections:
            connection.close()

    # Being watched ----------------------------------------------------------------------------------------------

    @contextmanager
    def step(self, phase: Phase) -> Iterator[None]:
        """A phase: timed, visible from outside, told to observers; a test may pause at its beginning."""
        began = time.monotonic()
        self.enter(phase)
        try:
            yield
        finally:
            key = str(phase)
            self.seconds[key] = self.seconds.get(key, 0.0) + time.monotonic() - began

    def enter(self, phase: Phase) -> None:
        """A phase begins; the one before it ends."""
        self.phase = phase
        self.observe("phase")
        self.seam.reach(str(phase), self)

    def observe(self, kind: str, message: str = "", **detail: Any) -> None:
        """Tell the observers; one that raises is reported and dropped. Under the fence, keep it for later."""
        seen = Observation(kind, self.projection.name, str(self.ticket), self.phase, message, self.events_done,
                           self.events_total, self.rate, self.eta, detail)
        if self.held_back is not None:
            self.held_back.append(seen)
        else:
            self._tell(seen)

    def deliver(self) -> None:
        """Deliver what was held back under the fence."""
        kept, self.held_back = self.held_back or [], None
        for seen in kept:
            self._tell(seen)

    def _tell(self, seen: Observation) -> None:
        for observer in list(self.observers):
            try:
                observer(seen)
            except Exception as error:
                self.observers.remove(observer)
                self.warn(f"An observer raised {type(error).__name__} and is not told any more.")

    def warn(self, message: str) -> None:
        """Something a person should read, in the report too."""
        if message not in self.warnings:
            self.warnings.append(message)
            self.observe("warning", message)

    @property
    def eta(self) -> float | None:
        """Seconds until the replay is through, once a rate and a total are known."""
        if not self.rate or self.events_total is None:
            return None
        return max(0.0, (self.events_total - self.events_done) / self.rate)

    def progress_now(self) -> Progress:
        """What the heartbeat writes."""
        return Progress(self.phase, self.events_done, self.events_total, self.rate, self.eta, self.attempts, 0.0,
                        self.blockers, position=self.position)

    def hook(self, name: str) -> None:
        """Call a hook with the ticket; one that raises stops the run (before the commit)."""
        if name not in self.hooks:
            return
        try:
            self.hooks[name](str(self.ticket))
        except Exception as error:
            raise errors.HookVetoed(
                f"Hook {name} of the rebuild of {self.projection.name!r} raised {type(error).__name__}: {error}.",
                hint="see what the hook wants, then repeat", hook=name) from error

    # Being stopped ----------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Raise if the run was cancelled, lost its second connection, or is past its deadline."""
        if self.lost is not None:
            raise self.lost
        if self.stop.requested:
            raise errors.RebuildCancelled(f"The rebuild of {self.projection.name!r} was cancelled ({self.stop.why}); "
                                          "live is as it was.", hint="start it again when you are ready")
        if self.options.deadline is not None and time.monotonic() - self.started > self.options.deadline:
            raise errors.DeadlineExceeded(
                f"The rebuild of {self.projection.name!r} passed its deadline of {self.options.deadline:g} s in phase "
                f"{self.phase}; live is as it was.", hint="raise the deadline, or repeat at a quieter time")

    def hear(self, connection: Connection | None = None) -> None:
        """Look whether somebody asked for the end elsewhere: the next heartbeat may come too late to say so."""
        if not self.generation or self.stop.requested:
            return
        if connection is not None:
            asked = self.books.run(connection, "cancel_requested", ticket=self.ticket).fetchone() == (True,)
        else:
            asked = self.ledger.cancel_requested(self.ticket)
        if asked:
            self.stop.request("rebuilder cancel")

    def pause(self, seconds: float) -> None:
        """Wait, but not through a request to stop."""
        self.stop.wait(seconds)
        self.check()

    def cancel_statement(self) -> None:
        """Cancel main's running statement, unless that is the COMMIT."""
        if not self.committing and hasattr(self, "main") and not self.main.closed:
            try:
                self.main.cancel_safe(timeout=5)
            except psycopg.Error as error:
                self.warn(f"The running statement could not be cancelled: {error}")
