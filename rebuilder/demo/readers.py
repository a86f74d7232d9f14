"""Readers of the bank, in each way whose snapshot may be older than the lock it waits for."""

from __future__ import annotations

import random
import threading
import time
from typing import Any

import psycopg

from rebuilder.demo.measure import Tally

PACE = 0.008
"""Seconds between two reads of a reader: shorter than a fence, so that every fence is met."""
THINK = (0.05, 0.15)

_COUNT = "SELECT count(*), sum(balance) FROM account"


class Reader:
    """One reader, in autocommit. It knows how many accounts can't be missing: a read of fewer is a wrong one."""

    def __init__(self, connection: psycopg.Connection[Any], *, number: int, accounts: int, seed: int) -> None:
        self.connection = connection
        self.random = random.Random(f"{seed} reader {number}")
        # Open from the start to the end, and not among those that the damaged read model lacks.
        self.known = [row[0] for row in connection.execute("SELECT id FROM account WHERE id <= %s", (accounts,))]
        self.tally = Tally()
        self._thought = 0.0

    def run(self, end: threading.Event) -> Tally:
        """Read until the end."""
        while not end.wait(self.random.expovariate(1 / PACE)):
            began, self._thought = time.monotonic(), 0.0
            try:
                self._read()
            except psycopg.Error as error:
                self.tally.fail(error)
                if self.connection.closed:
                    break  # counted; the proof fails by it
            self.tally.waits.append((began, time.monotonic() - began - self._thought))
        return self.tally

    def _read(self) -> None:
        kind = self.random.random()
        if kind < 0.60:
            self._check(self._count(_COUNT))
        elif kind < 0.80:
            self._row()
        elif kind < 0.88:
            self._check(self._count("SELECT accounts, total FROM bank_total()"))
        elif kind < 0.96:
            self._copy()
        else:
            self._repeatable()

    def _count(self, statement: Any) -> int:
        row = self.connection.execute(statement).fetchone()
        assert row is not None
        return int(row[0])

    def _check(self, accounts: int) -> None:
        if accounts == 0:
            self.tally.empty += 1
        elif accounts < len(self.known):
            self.tally.short += 1

    def _row(self) -> None:
        found = self.connection.execute("SELECT balance FROM account WHERE id = %s",
                                        (self.random.choice(self.known),)).fetchone()
        if found is None:
            self.tally.empty += 1

    def _copy(self) -> None:
        with self.connection.cursor().copy("COPY account TO STDOUT") as copy:
            self._check(sum(1 for _ in copy.rows()))

    def _repeatable(self) -> None:
        """A snapshot from before, held for a while; then live, which may have been swapped meanwhile; and again."""
        with self.connection.transaction():
            self.connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            self.connection.execute("SELECT FROM bank_event LIMIT 1")
            self._think()
            first = self._count(_COUNT)
            self._check(first)
            self._think()
            if self._count(_COUNT) != first:
                self.tally.unsteady += 1

    def _think(self) -> None:
        began = time.monotonic()
        time.sleep(self.random.uniform(*THINK))
        self._thought += time.monotonic() - began
