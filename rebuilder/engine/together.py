"""Several projections rebuilt beside each other, whose bulk is read in one pass.

Each has a run, a transaction and a fence of its own, and fails alone. Only the pages of the first round are shared:
when every run has settled its horizon, a reader reads what any of them subscribes to, up to the lowest of their
horizons, and hands each its share; what lies between there and its own horizon each reads by itself.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rebuilder import errors
from rebuilder.engine.rebuild import rebuild
from rebuilder.eventlog import Selection
from rebuilder.store.sessions import connect, prove_same_server, translated

if TYPE_CHECKING:
    from rebuilder.domain.projection import Projection
    from rebuilder.domain.report import RebuildReport
    from rebuilder.engine.run import Run
    from rebuilder.engine.stop import StopToken
    from rebuilder.eventlog import Key, OpenLog, RawEvent

_LOOK = 0.1
_AHEAD = 2
_END = None


@dataclass(slots=True)
class _Member:
    """A run that takes part in the pass."""

    run: Run
    upto: int
    pages: queue.Queue[Any] = field(default_factory=lambda: queue.Queue(_AHEAD))
    left: bool = False

    def share(self, page: list[RawEvent]) -> list[RawEvent]:
        """What of a page the run subscribes to."""
        types, categories = set(self.run.selection.types), set(self.run.selection.categories)
        return [raw for raw in page if raw.type in types and (not categories or raw.category in categories)]

    def give(self, what: Any) -> None:
        """Hand over a page, the end, or an error, as soon as there is room for it."""
        while not self.left:
            try:
                self.pages.put(what, timeout=_LOOK)
            except queue.Full:
                continue
            return


class Pass:
    """One pass over the log, for as many runs as begin together."""

    def __init__(self, expected: int) -> None:
        self._changed = threading.Condition()
        self._expected = expected
        self._members: list[_Member] = []
        self._absent: list[Run] = []
        self._reader: threading.Thread | None = None

    def without(self, run: Run) -> None:
        """A run does not come, or goes: nobody waits for it."""
        with self._changed:
            mine = [member for member in self._members if member.run is run]
            for member in mine:
                member.left = True
            if not mine and run not in self._absent:
                self._absent.append(run)
                self._begin_if_all_are_here()

    def pages(self, run: Run, upto: int) -> Iterator[list[RawEvent]]:
        """A run's share of the pass, which begins when all are here; ``upto`` is its settled horizon."""
        member = _Member(run, upto)
        with self._changed:
            self._members.append(member)
            self._begin_if_all_are_here()
        try:
            while (page := self._next(member)) is not _END:
                if isinstance(page, BaseException):
                    raise page
                yield page
        finally:
            member.left = True

    def _next(self, member: _Member) -> Any:
        while True:
            try:
                return member.pages.get(timeout=_LOOK)
            except queue.Empty:
                member.run.check()

    def _begin_if_all_are_here(self) -> None:
        if self._reader is None and self._members and len(self._members) + len(self._absent) >= self._expected:
            self._reader = threading.Thread(target=self._read, name="rebuilder pass", daemon=True)
            self._reader.start()

    def _read(self) -> None:
        try:
            last: Any = _END
            for page in self._union():
                for member in self._members:
                    if shared := member.share(page):
                        member.give(shared)
                if all(member.left for member in self._members):
                    return
        except BaseException as error:
            last = error
        for member in self._members:
            member.give(last)

    def _union(self) -> Iterator[list[RawEvent]]:
        """The pages of all that any run subscribes to, by a connection of the pass's own: a run may end first."""
        first = self._members[0].run
        selections = [member.run.selection for member in self._members]
        categories = {name for one in selections for name in one.categories}
        union = Selection(tuple(sorted({name for one in selections for name in one.types})),
                          tuple(sorted(categories)) if all(one.categories for one in selections) else ())
        upto, limit = min(member.upto for member in self._members), first.settings.fold_page
        log: OpenLog = first.log
        connection = connect(first.conninfo, role="pass", autocommit=True)
        try:
            prove_same_server(connection, first.server)
            after: Key | None = None
            while True:
                with translated("reading the event log"):
                    page = log.page(connection, union, after=after, upto=upto, limit=limit)
                if page:
                    yield page
                if len(page) < limit:
                    return
                after = page[-1].key
        finally:
            connection.close()


def rebuild_in_levels(projections: Sequence[Projection], make_run: Callable[[Projection], Run],
                      stop: StopToken) -> dict[str, RebuildReport | errors.RebuilderError]:
    """Rebuild them, each after those it depends on, and beside each other where none does."""
    ended: dict[str, RebuildReport | errors.RebuilderError] = {}
    left = {one.name: one for one in projections}
    while left:
        level = [one for one in left.values() if not left.keys() & set(one.depends_on)]
        runs = []
        for one in level:
            del left[one.name]
            failed = [name for name in one.depends_on if isinstance(ended.get(name), errors.RebuilderError)]
            if failed:
                ended[one.name] = errors.RebuildError(
                    f"{one.name!r} was not rebuilt: it depends on {', '.join(failed)}, which failed. Live is as it "
                    "was.",
                    hint="see the error of the other one", projection=one.name)
            else:
                runs.append(make_run(one))
        ended.update(_beside(runs, stop))
    return {one.name: ended[one.name] for one in projections}


def _beside(runs: list[Run], stop: StopToken) -> dict[str, RebuildReport | errors.RebuilderError]:
    together = Pass(len(runs))

    def one(run: Run) -> RebuildReport | errors.RebuilderError:
        run.together = together
        try:
            return rebuild(run)
        except errors.RebuilderError as error:
            return error
        finally:
            together.without(run)

    with ThreadPoolExecutor(max(1, len(runs)), thread_name_prefix="rebuilder") as pool:
        futures = {run.projection.name: pool.submit(one, run) for run in runs}
        try:
            return {name: future.result() for name, future in futures.items()}
        except BaseException:
            stop.request("interrupted")  # leaving waits for the others
            raise
