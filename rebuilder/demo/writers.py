"""Writers of the bank: each appends events and projects them in one transaction, some slowly, some in vain."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import psycopg
from psycopg import IsolationLevel
from psycopg.errors import UniqueViolation
from psycopg.rows import dict_row
from psycopg.types.json import Jsonb

from rebuilder.app import Rebuilder
from rebuilder.demo.measure import Tally
from rebuilder.errors import CutOverDuringTransaction, RebuilderError

PACE = 0.02
"""Seconds between two transactions of a writer: four of them append 200 a second."""
SLOW, ROLLED_BACK = 0.10, 0.05
THINK = (0.02, 0.2)

_APPEND = """
INSERT INTO bank_event (category, stream, version, type, payload)
SELECT %(category)s, %(stream)s, coalesce(max(version), 0) + 1, %(type)s, %(payload)s
FROM bank_event WHERE category = %(category)s AND stream = %(stream)s
RETURNING *
"""


class Draft(NamedTuple):
    """An event to append."""

    category: str
    stream: str
    type: str
    payload: dict[str, Any]


class Writer:
    """One writer.

    It shares a part of the accounts with the others and keeps the rest to itself. A slow transaction touches its own
    only: so a long wait is never one for another writer's row, and what is measured is the rebuild.
    """

    def __init__(self, application: Rebuilder, connection: psycopg.Connection[Any], *, number: int, of: int,
                 accounts: int, seed: int) -> None:
        self.application = application
        self.connection = connection
        self.random = random.Random(f"{seed} writer {number}")
        self.own = range(number, accounts + 1, of + 1)
        self.shared = range(of + 1, accounts + 1, of + 1)
        self.name = f"{seed}-{number}"
        self.opened: list[tuple[int, int]] = []
        self.tally = Tally()
        self._count = 0
        self._thought = 0.0

    def run(self, end: threading.Event) -> Tally:
        """Write until the end."""
        while not end.wait(self.random.expovariate(1 / PACE)):
            began, self._thought = time.monotonic(), 0.0
            try:
                self._write()
            except (psycopg.Error, RebuilderError) as error:
                self.tally.fail(error)
                if self.connection.closed:
                    break  # counted; the proof fails by it
            self.tally.waits.append((began, time.monotonic() - began - self._thought))
        return self.tally

    def _write(self) -> None:
        slow, undone = self.random.random() < SLOW, self.random.random() < ROLLED_BACK
        early = self.random.random() < 0.5
        drafts, commit = self._draft(self.own if slow or self.random.random() < 0.5 else self.shared)
        # A slow one may stop to think with an old snapshot, across a cut-over: it must hear of that, and repeat.
        self.connection.isolation_level = (
            IsolationLevel.REPEATABLE_READ if slow and self.random.random() < 0.3 else IsolationLevel.READ_COMMITTED)
        while True:
            try:
                self._transaction(drafts, think_early=slow and early, think_late=slow and not early, undo=undone)
                break
            except (UniqueViolation, CutOverDuringTransaction):
                # Another writer appended to the same stream first, or the cut-over came after the snapshot.
                self.tally.repeated += 1
        self.tally.slow += slow
        if undone:
            self.tally.rolled_back += 1
        else:
            self.tally.committed += 1
            self.tally.events += len(drafts)
            commit()

    def _transaction(self, drafts: list[Draft], *, think_early: bool, think_late: bool, undo: bool) -> None:
        with self.connection.transaction():
            events = [self.application.log.event(self._append(draft)) for draft in drafts]
            if think_early:  # the position is drawn, others commit later ones meanwhile
                self._think()
            self.application.project(self.connection, *events)
            if think_late:  # live is locked against the swap
                self._think()
            if undo:
                raise psycopg.Rollback

    def _append(self, draft: Draft) -> dict[str, Any]:
        row = self.connection.cursor(row_factory=dict_row).execute(
            _APPEND, draft._asdict() | {"payload": Jsonb(draft.payload)}).fetchone()
        assert row is not None
        return row

    def _think(self) -> None:
        began = time.monotonic()
        time.sleep(self.random.uniform(*THINK))
        self._thought += time.monotonic() - began

    def _draft(self, accounts: range) -> tuple[list[Draft], Callable[[], None]]:
        """What to append, and what to remember once it is committed."""
        kind, amount = self.random.random(), self.random.randrange(100, 5000)
        one, other = self.random.sample(accounts, 2)
        self._count += 1
        if kind < 0.08:
            return self._open(amount)
        if kind < 0.12 and self.opened:
            return self._close()
        if kind < 0.16:
            return [Draft("account", str(one), "OwnerChanged", {"owner": f"Heir {self.name}-{self._count}"})], _nothing
        if kind < 0.35:
            return [Draft("account", str(one), "Deposited", {"amount": amount})], _nothing
        if kind < 0.50:
            return [Draft("account", str(one), "Withdrawn", {"amount": amount})], _nothing
        transfer = {"from": one, "to": other, "amount": amount}
        return [Draft("transfer", f"{self.name}-{self._count}", "Transferred", transfer)], _nothing

    def _open(self, amount: int) -> tuple[list[Draft], Callable[[], None]]:
        row = self.connection.execute("SELECT nextval('account_number')").fetchone()
        assert row is not None
        self.connection.commit()
        account = int(row[0])
        return ([Draft("account", str(account), "AccountOpened", {"owner": f"Customer {account}"}),
                 Draft("account", str(account), "Deposited", {"amount": amount})],
                lambda: self.opened.append((account, amount)))

    def _close(self) -> tuple[list[Draft], Callable[[], None]]:
        account, amount = chosen = self.random.choice(self.opened)
        return ([Draft("account", str(account), "Withdrawn", {"amount": amount}),
                 Draft("account", str(account), "AccountClosed", {})],
                lambda: self.opened.remove(chosen))


def _nothing() -> None:
    """Nothing to remember."""
