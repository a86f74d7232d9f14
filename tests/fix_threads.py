"""Things that happen at the same time: threads whose errors surface, and moments to wait for."""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import ExitStack
from typing import Any, ParamSpec, Protocol, TypeVar

import psycopg
import pytest

P = ParamSpec("P")
T = TypeVar("T")


class Spawn(Protocol):
    """`spawn(function, *arguments, **keywords)`: run it in a thread; the future has its result or its error."""

    def __call__(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]: ...


@pytest.fixture
def afterwards() -> Iterator[ExitStack]:
    """What is cleared away last: databases, roles and servers, when the test's connections and threads have ended.

    Pytest tears fixtures down in the reverse of the order in which a test happens to name them; this fixes it.
    """
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def spawn(afterwards: ExitStack) -> Iterator[Spawn]:
    """Run functions in threads. Each is waited for at the end of the test; an error that no one took fails it."""
    # Daemons, and not a pool: a thread that hangs fails its test, and must not hold up the end of the run as well.
    started: list[tuple[Future[Any], threading.Thread]] = []

    def start(function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        future: Future[T] = _Watched()

        def run() -> None:
            try:
                result = function(*args, **kwargs)
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(result)

        thread = threading.Thread(target=run, name=getattr(function, "__name__", "spawned"), daemon=True)
        started.append((future, thread))
        thread.start()
        return future

    yield start
    _, hanging = wait([future for future, _ in started], timeout=30)
    assert not hanging, f"{len(hanging)} thread(s) did not end: {[t.name for f, t in started if f in hanging]}"
    for future, thread in started:
        thread.join()
        if not future.asked:  # type: ignore[attr-defined]
            future.result()


class _Watched(Future[T]):
    """A future that knows whether the test has taken its outcome."""

    asked = False

    def result(self, timeout: float | None = None) -> T:
        outcome = super().result(timeout)
        self.asked = True
        return outcome

    def exception(self, timeout: float | None = None) -> BaseException | None:
        outcome = super().exception(timeout)
        self.asked = True
        return outcome


def wait_until(
    predicate: Callable[[], T], timeout: float = 10.0, what: str | None = None, interval: float = 0.005
) -> T:
    """Ask until the answer is true, and return it; fail when it has not been within `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while True:
        answer = predicate()
        if answer:
            return answer
        if time.monotonic() > deadline:
            subject = what or getattr(predicate, "__name__", "the predicate")
            pytest.fail(f"waited {timeout:g} s in vain for {subject}; the last answer was {answer!r}")
        time.sleep(interval)


def wait_for_lock(watcher: psycopg.Connection[Any], pid: int, timeout: float = 10.0) -> list[int]:
    """Wait until backend `pid` waits for a lock; who is in its way. `watcher` is in autocommit."""

    def blockers() -> list[int]:
        row = watcher.execute("SELECT pg_blocking_pids(%s)", [pid]).fetchone()
        assert row is not None
        return list(row[0])

    return wait_until(blockers, timeout, f"backend {pid} to wait for a lock")


def wait_for_backend(watcher: psycopg.Connection[Any], application_name: str, timeout: float = 10.0) -> int:
    """Wait until a backend of that application name (a LIKE pattern) is there; its pid."""

    def backend() -> int:
        row = watcher.execute(
            "SELECT pid FROM pg_stat_activity WHERE application_name LIKE %s AND datname = current_database()",
            [application_name],
        ).fetchone()
        return 0 if row is None else int(row[0])

    return wait_until(backend, timeout, f"a backend called {application_name}")
