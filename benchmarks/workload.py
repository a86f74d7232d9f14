"""One read model of account events by each kind of handlers; importable, since workers import it.

Every event is one update of one row, as in a ledger: nothing is ignored, and nothing is cheap to skip.
"""

from __future__ import annotations

from typing import Any

from rebuilder import BatchSql, Event, Fold, Projection, SqlHandlers, Target
from tests.bank import Connection

TYPES = ["Deposited", "Withdrawn"]
NAME = "account_balance"
HAND_WRITTEN = """
INSERT INTO {} (id, balance, changes)
SELECT stream, sum((data->>'amount')::bigint * CASE type WHEN 'Withdrawn' THEN -1 ELSE 1 END), count(*)
FROM events WHERE type IN ('Deposited', 'Withdrawn') AND category = 'account' GROUP BY stream
"""
UPSERT = ("INSERT INTO account_balance AS b (id, balance, changes) VALUES (%s, %s, 1)"
          " ON CONFLICT (id) DO UPDATE SET balance = b.balance + excluded.balance, changes = b.changes + 1")

handlers = SqlHandlers()


@handlers.on(*TYPES)
def written(event: Event, target: Target) -> None:
    amount = event.data["amount"]
    target.execute(UPSERT, (event.stream, amount if event.type == "Deposited" else -amount))


fold = Fold()


@fold.on(*TYPES)
def folded(row: dict[str, Any] | None, event: Event) -> dict[str, Any]:
    if row is None:
        row = {"balance": 0, "changes": 0}
    amount = event.data["amount"]
    row["balance"] += amount if event.type == "Deposited" else -amount
    row["changes"] += 1
    return row


batch = BatchSql(
    "INSERT INTO account_balance AS b (id, balance, changes)"
    " SELECT stream, sum((data->>'amount')::bigint * CASE type WHEN 'Withdrawn' THEN -1 ELSE 1 END), count(*)"
    " FROM batch GROUP BY stream ON CONFLICT (id) DO UPDATE"
    " SET balance = b.balance + excluded.balance, changes = b.changes + excluded.changes", types=TYPES)

KINDS = {"sql": handlers, "fold": fold, "batch": batch}


def projection(kind: str) -> Projection:
    return Projection(NAME, version=1, tables=[NAME], categories=["account"], handlers=KINDS[kind])


def fill(db: Connection, events: int, accounts: int) -> None:
    """Append events whose accounts come in no order."""
    db.execute(
        "INSERT INTO events (stream, type, data)"
        " SELECT 'account-' || (n::bigint * 7919 %% %(accounts)s),"
        "        CASE WHEN n %% 7 = 0 THEN 'Withdrawn' ELSE 'Deposited' END, jsonb_build_object('amount', n %% 100 + 1)"
        " FROM generate_series(0, %(events)s - 1) AS n ORDER BY n", {"events": events, "accounts": accounts})
