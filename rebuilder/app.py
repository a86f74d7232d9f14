"""The front door."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Executor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from uuid import UUID

from rebuilder.domain.document_projection import DocumentProjection, Refreshed
from rebuilder.domain.event import Event
from rebuilder.domain.lifecycle import Invalidation
from rebuilder.domain.observation import Observer
from rebuilder.domain.projection import Projection
from rebuilder.domain.quarantine import Quarantine
from rebuilder.domain.registry import Registry
from rebuilder.domain.report import RebuildReport, VerifyReport
from rebuilder.domain.ticket import Reason, Ticket
from rebuilder.engine import guards
from rebuilder.engine.archive import ArchiveReport, read_archive, write_archive
from rebuilder.engine.cleanup import Cleaned, cleanup
from rebuilder.engine.deep import LogReport, verify_log
from rebuilder.engine.doctor import Finding, examine
from rebuilder.engine.documents import Refresh, check_limits
from rebuilder.engine.follow import Followed, Follower
from rebuilder.engine.live import guard, project
from rebuilder.engine.pending import Pending, Ran, find_pending, run_pending
from rebuilder.engine.plan import Plan, make_plan
from rebuilder.engine.rebuild import rebuild
from rebuilder.engine.run import Hook, Options, Run, Seam
from rebuilder.engine.source import Source, rotate_source
from rebuilder.engine.status import ProjectionStatus, request_cancel, status_of
from rebuilder.engine.stop import StopToken
from rebuilder.engine.together import rebuild_in_levels
from rebuilder.engine.verify import verify
from rebuilder.errors import DefinitionError, RebuilderError
from rebuilder.eventlog import TableLog
from rebuilder.settings import Settings
from rebuilder.store.conninfo import conninfo_of
from rebuilder.store.install import install, install_sql
from rebuilder.store.ledger import Bookkeeping
from rebuilder.store.projection_store import ProjectionStore
from rebuilder.store.requests import invalidate
from rebuilder.store.sessions import connect

if TYPE_CHECKING:
    import sqlalchemy
    from psycopg_pool import ConnectionPool

_HOOKS = ("before_fence", "after_cutover")


class Rebuilder:
    """An application's projections over its event log, and what can be done with them.

    ``connection`` is a libpq conninfo or URL, a psycopg ``ConnectionPool`` or a SQLAlchemy ``Engine``; the last two
    only lend their conninfo, since the engine opens connections of its own. ``observer`` is told of progress and can't
    harm. ``hooks`` maps ``before_fence`` and ``after_cutover`` to functions of the ticket; one that raises in
    ``before_fence`` stops the run.

    Methods raise :class:`~rebuilder.errors.RebuilderError` and its children, which carry fields and a ``hint``.
    """

    def __init__(self, connection: str | ConnectionPool[Any] | sqlalchemy.Engine, *, log: TableLog, registry: Registry,
                 settings: Settings | None = None, observer: Observer | None = None,
                 hooks: Mapping[str, Hook] | None = None) -> None:
        unknown = set(hooks or {}) - set(_HOOKS)
        if unknown:
            raise DefinitionError(f"No hook is called {', '.join(sorted(unknown))}.", hint=f"there are {_HOOKS}")
        self.conninfo = conninfo_of(connection)
        self.log = log
        self.registry = registry
        self.settings = settings or Settings()
        self.observer = observer
        self.hooks = dict(hooks or {})
        self._seam = Seam()
        self._books = Bookkeeping(self.settings)

    def install(self, *, work_schemas: int = 0, to: str | None = None) -> None:
        """Make or migrate the bookkeeping schema, and ready-made schemas for a role that may not create its own."""
        install(self.conninfo, self.settings, work_schemas=work_schemas, to=to)

    def install_sql(self) -> str:
        """The statements of :meth:`install`, for somebody else to run."""
        return install_sql(self.settings)

    def rebuild(self, name: str, *, reason: Reason | str = Reason.OPERATOR_REQUESTED, note: str | None = None,
                quarantine: Quarantine | bool = False, allow: Collection[str] = (),
                retire: Literal["keep", "drop"] = "keep", max_rate: float | None = None, wait: float = 0,
                deadline: float | None = None, stop: StopToken | None = None,
                blockers: Literal["report", "cancel", "terminate"] = "report",
                blockers_after: float = 60.0, workers: int | Executor = 1, from_archive: str | Path | None = None,
                observer: Observer | None = None) -> RebuildReport:
        """Rebuild a projection and cut over; live is as it was if this raises anything but ``OutcomeUnknown``.

        ``allow`` names guards (``shrink``, ``null-column``, ``ghost-rows``, ``downgrade``, ``long-transaction``) and
        losses (``loss:OBJECT``). ``max_rate`` is events a second; ``wait`` seconds to wait for another run of the same
        projection, ``deadline`` seconds for the whole. ``retire="drop"`` drops the old table right after the commit;
        by default it is kept until the next rebuild or ``settings.retain_hours``. ``blockers`` says what may be done,
        after ``blockers_after`` seconds, to sessions in front of the fence. ``workers`` are how many processes fold the
        bulk (of Folds keyed by stream), or an executor that runs them anywhere. ``from_archive`` is a folder that
        :meth:`archive` wrote: its part of the log is read from there, the rest from the table.
        """
        options = Options(reason=Reason(_one_of("reason", reason, Reason)), note=note,
                          quarantine=_quarantine(quarantine), allow=_allowed(allow),
                          retire=_one_of("retire", retire, ("keep", "drop")),
                          max_rate=_positive("max_rate", max_rate), wait=max(0.0, wait),
                          deadline=_positive("deadline", deadline),
                          blockers=_one_of("blockers", blockers, ("report", "cancel", "terminate")),
                          blockers_after=blockers_after, workers=_workers(workers))
        run = self._run(self.registry.get(name), options, stop, observer)
        if from_archive is not None:
            with self.store() as store:
                read_archive(run, store, Path(from_archive))
        return rebuild(run)

    def rebuild_many(self, *names: str, reason: Reason | str = Reason.OPERATOR_REQUESTED, note: str | None = None,
                     quarantine: Quarantine | bool = False, allow: Collection[str] = (),
                     retire: Literal["keep", "drop"] = "keep", stop: StopToken | None = None,
                     observer: Observer | None = None) -> dict[str, RebuildReport | RebuilderError]:
        """Rebuild several projections beside each other (none named: all), reading the bulk of the log once.

        Each cuts over by itself and fails alone: the result has its report or its error. Those that depend on others
        come after them, and are not rebuilt where one of these failed. The observer is called by several threads.
        """
        options = Options(reason=Reason(_one_of("reason", reason, Reason)), note=note,
                          quarantine=_quarantine(quarantine), allow=_allowed(allow),
                          retire=_one_of("retire", retire, ("keep", "drop")))
        wanted = [self.registry.get(name) for name in names] or list(self.registry)
        stop = stop or StopToken()
        return rebuild_in_levels(wanted, lambda one: self._run(one, options, stop, observer), stop)

    def archive(self, folder: str | Path, *, shard_events: int = 100_000,
                stop: StopToken | None = None) -> ArchiveReport:
        """Write the closed part of the log as immutable Parquet files; again, it adds what has come since."""
        return write_archive(self.conninfo, self.log, self.settings, Path(folder), shard_events=shard_events,
                             stop=stop or StopToken())

    def plan(self, name: str, *, allow: Collection[str] = ()) -> Plan:
        """What a rebuild would do: verdicts, statements, locks in order, price, who would be in the way now."""
        return make_plan(self._run(self.registry.get(name), Options(allow=_allowed(allow)), None, None))

    def verify(self, name: str, *, stop: StopToken | None = None, observer: Observer | None = None) -> VerifyReport:
        """Replay the log beside live, compare, and roll back: log, live and checkpoint as of one instant."""
        return verify(self._run(self.registry.get(name), Options(), stop, observer))

    def verify_log(self, *, stop: StopToken | None = None) -> LogReport:
        """Hash the log's closed segments anew and compare them with what was stored; then store those that are new.

        It finds an old event that was edited in place, to within a thousand positions.
        """
        return verify_log(self.conninfo, self.log, self.settings, stop or StopToken())

    def rotate_log(self, reason: str) -> UUID:
        """Say that the log was restored or rewritten: its positions may mean other events from now on.

        Every read model that was built from it is pending, and no rebuild that is running completes.
        """
        with connect(self.conninfo, role="rotate log", autocommit=True) as connection:
            self._books.check_installed(connection)
            return rotate_source(connection, self._books, self.log.open(connection).label, reason)

    def status(self, name: str | None = None) -> list[ProjectionStatus]:
        """How each projection (or one) is: health, position, lag, the running ticket, what is owed."""
        projections = [self.registry.get(name)] if name is not None else list(self.registry)
        with connect(self.conninfo, role="status", autocommit=True) as connection:
            return status_of(connection, self._books, projections, self.log)

    def tickets(self, name: str | None = None, *, limit: int = 20) -> list[Ticket]:
        """The last rebuilds, newest first."""
        with connect(self.conninfo, role="tickets", autocommit=True) as connection:
            self._books.check_installed(connection)
            return self._books.tickets(connection, name, limit=limit)

    def follow(self, name: str, *, stop: StopToken | None = None, once: bool = False, poll: float = 1.0,
               channel: str | None = "rebuilder", told: Callable[[Followed], None] | None = None) -> Followed:
        """Feed live of an async projection, exactly once, until ``stop`` is requested (``once``: up to what is there).

        It may run in several processes and beside a rebuild, whose fence alone holds it. ``channel`` is listened to, so
        that an application that notifies when it appends need not wait for the ``poll`` (seconds). ``told`` is called
        after each batch.
        """
        follower = Follower(self.conninfo, self.registry.get(name), log=self.log, settings=self.settings,
                            stop=stop or StopToken(), channel=channel, poll=poll, told=told)
        return follower.run(once=once)

    def refresh(self, projection: DocumentProjection, *, batch: int = 1000, max_batches: int | None = None,
                stop: StopToken | None = None) -> Refreshed:
        """Bring documents up to date: incrementally, or by a rebuild beside live where the recipe is newer or a request
        is pending. ``max_batches`` ends it early; the next call goes on, after a crash too.
        """
        check_limits(batch, max_batches)
        with self.store() as store, connect(self.conninfo, role="documents", autocommit=True) as reader:
            source = Source(self.log.open(reader), self._books)
            return Refresh(store, projection, source, reader, batch, stop or StopToken()).run(max_batches)

    def store(self, *, read_only: bool = False) -> ProjectionStore:
        """The lifecycle store over this log: statuses, tickets, documents, snapshots, manifests. Close it after use."""
        with connect(self.conninfo, role="store", autocommit=True) as connection:
            self._books.check_installed(connection)
            source = Source(self.log.open(connection), self._books)
        return ProjectionStore(self.conninfo, self.settings, log=source, read_only=read_only)

    def invalidate(self, name: str, reason: Reason | str, *, note: str | None = None,
                   actor: str | None = None) -> Invalidation:
        """Declare a read model stale: append a request, which the next rebuild that begins answers.

        It waits for no rebuild that is running, and that one does not answer it. ``actor`` is the role by default.
        """
        with connect(self.conninfo, role="invalidate", autocommit=True) as connection:
            self._books.check_installed(connection)
            return invalidate(connection, self._books, self.registry.get(name).name, reason, note=note, actor=actor)

    def pending(self) -> list[Pending]:
        """The projections that wait to be rebuilt, each after those it depends on: asked for, or with a new recipe."""
        with connect(self.conninfo, role="pending", autocommit=True) as connection:
            self._books.check_installed(connection)
            return find_pending(connection, self._books, self.registry.in_order())

    def run_pending(self, **options: Any) -> list[Ran]:
        """Rebuild what is pending, in the order of the dependencies, with the options of :meth:`rebuild`.

        One that fails is told in the result and keeps back those that depend on it.
        """
        return run_pending(self.pending(), list(self.registry), lambda each: self.rebuild(
            each.projection, **{"reason": each.reason, **options}))

    def cancel(self, ticket: UUID | str) -> bool:
        """Ask a running rebuild to stop, and cancel its running statement; False if that ticket is not running."""
        return request_cancel(self.conninfo, self._books, UUID(str(ticket)))

    def cleanup(self, name: str | None = None, *, all_kept: bool = False) -> list[Cleaned]:
        """Settle what is owed, close abandoned tickets, drop retired tables whose time has come (``all_kept``: all)."""
        return cleanup(self.conninfo, self.settings, name, all_kept=all_kept)

    def doctor(self) -> list[Finding]:
        """Look for what would stop a rebuild, with the exact GRANTs that are missing."""
        return examine(self.conninfo, self.settings, self.log, self.registry)

    def project(self, connection: Any, *events: Event) -> None:
        """Apply events to the live tables inside the caller's own transaction (feeding ``inline``).

        ``connection`` is a psycopg or SQLAlchemy connection, or a SQLAlchemy Session. Raises
        :class:`~rebuilder.errors.RecipeOutdated` if live was built with a later version of a projection, and
        :class:`~rebuilder.errors.CutOverDuringTransaction` (repeat the transaction) above READ COMMITTED.
        """
        project(connection, events, self.registry, self._books, self.log)

    def guard(self, connection: Any, *names: str) -> None:
        """For feeding ``own``: hold the live tables against a cut-over and check version and snapshot, as
        :meth:`project` does, before the application writes the rows itself.
        """
        chosen = [self.registry.get(name) for name in names] if names else [
            p for p in self.registry if p.feeding_name == "own"]
        guard(connection, chosen, self._books)

    def _run(self, projection: Projection, options: Options, stop: StopToken | None,
             observer: Observer | None) -> Run:
        observers = tuple(o for o in (self.observer, observer) if o is not None)
        return Run(self.conninfo, projection, log=self.log, registry=self.registry, settings=self.settings,
                   options=options, stop=stop or StopToken(), observers=observers, seam=self._seam, hooks=self.hooks)


def _quarantine(given: Quarantine | bool) -> Quarantine | None:
    if isinstance(given, bool):
        return Quarantine() if given else None
    return given


def _allowed(names: Collection[str]) -> frozenset[str]:
    if isinstance(names, str):
        names = [names]
    for name in names:
        if name not in guards.NAMES and not name.startswith("loss:"):
            raise DefinitionError(f"There is no guard {name!r} to allow.",
                                  hint=f"guards are {', '.join(guards.NAMES)} and loss:OBJECT")
    return frozenset(names)


def _one_of(name: str, value: Any, words: Iterable[str]) -> Any:
    known = [str(word) for word in words]
    if value not in known:
        raise DefinitionError(f"{name} is {value!r}; it must be one of {', '.join(known)}.",
                              hint=f"leave {name} out for the default")
    return value


def _workers(given: int | Executor) -> int | Executor:
    if not isinstance(given, Executor) and (type(given) is not int or given < 1):
        raise DefinitionError(f"workers is {given!r}; it must be a whole number from 1, or an Executor.")
    return given


def _positive(name: str, value: float | None) -> float | None:
    if value is not None and value <= 0:
        raise DefinitionError(f"{name} is {value}; it must be above 0.", hint=f"leave {name} out for no limit")
    return value

