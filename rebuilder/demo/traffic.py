"""Writers and readers in processes of their own: beside a busy rebuild, a thread would measure Python's own lock.

``python -m rebuilder.demo.traffic`` is such a process. It reads its orders, a line of JSON, from stdin, says when it is
at work, goes on until stdin ends (so it never outlives the demo) and writes its tally.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import Literal, Self

import msgspec
import psycopg

from rebuilder.demo import bank
from rebuilder.demo.measure import Tally
from rebuilder.demo.readers import Reader
from rebuilder.demo.writers import Writer
from rebuilder.errors import RebuildError

AT_WORK = b"at work\n"
Role = Literal["writer", "reader"]


@dataclass(frozen=True, slots=True)
class Orders:
    """What a process of the traffic is to do."""

    role: Role
    conninfo: str
    threads: int
    accounts: int
    seed: int


class Traffic:
    """A process of writers or of readers, seen from the demo."""

    def __init__(self, orders: Orders) -> None:
        self.orders = orders

    def __enter__(self) -> Self:
        # A session of its own: Ctrl-C is for the demo, which then ends this process in order.
        self._process = subprocess.Popen(  # noqa: S603 (a module of ours, by this interpreter)
            [sys.executable, "-m", __spec__.name], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            start_new_session=True)
        assert self._process.stdin is not None
        self._process.stdin.write(msgspec.json.encode(self.orders) + b"\n")
        self._process.stdin.flush()
        return self

    def wait_until_at_work(self) -> None:
        """Wait until all threads are connected."""
        assert self._process.stdout is not None
        if self._process.stdout.readline() != AT_WORK:
            raise self._failed()

    def end(self) -> Tally:
        """Stop, and take the tally."""
        output, _ = self._process.communicate(timeout=60)  # closes its stdin
        if self._process.returncode:
            raise self._failed()
        return msgspec.json.decode(output, type=Tally)

    def _failed(self) -> RebuildError:
        return RebuildError(f"The demo's {self.orders.role}s ended with {self._process.wait(60)}; see above.")

    def __exit__(self, _kind: type[BaseException] | None, _error: BaseException | None,
                 _trace: TracebackType | None) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.communicate()


def work(orders: Orders, at_work: Callable[[], None], wait: Callable[[], object]) -> Tally:
    """Do as ordered until ``wait`` returns."""
    end = threading.Event()
    with ExitStack() as stack:
        actors = [_actor(orders, number, stack) for number in range(1, orders.threads + 1)]
        pool = stack.enter_context(ThreadPoolExecutor(orders.threads))
        stack.callback(end.set)  # before the pool waits for its threads
        running = [pool.submit(actor.run, end) for actor in actors]
        at_work()
        wait()
        end.set()
        return sum((future.result() for future in running), Tally())


def _actor(orders: Orders, number: int, stack: ExitStack) -> Writer | Reader:
    connection: psycopg.Connection[tuple[object, ...]] = stack.enter_context(
        psycopg.connect(orders.conninfo, application_name=f"bank: {orders.role} {number}",
                        autocommit=orders.role == "reader"))
    if orders.role == "reader":
        return Reader(connection, number=number, accounts=orders.accounts, seed=orders.seed)
    return Writer(bank.application(orders.conninfo), connection, number=number, of=orders.threads,
                  accounts=orders.accounts, seed=orders.seed)


def main() -> None:
    """The process."""
    orders = msgspec.json.decode(sys.stdin.buffer.readline(), type=Orders)

    def at_work() -> None:
        sys.stdout.buffer.write(AT_WORK)
        sys.stdout.buffer.flush()

    tally = work(orders, at_work, sys.stdin.buffer.read)
    sys.stdout.buffer.write(msgspec.json.encode(tally))


if __name__ == "__main__":
    main()
