"""The bank's read model by each kind of handlers; importable, since workers import it too."""

from typing import Any

from rebuilder import BatchSql, Event, Fold

Row = dict[str, Any]


def make_fold() -> Fold:
    """The bank's balances as a fold keyed by stream."""
    fold = Fold()

    def existing(row: Row | None, event: Event) -> Row:
        return row or {"id": event.stream, "owner": None, "balance": 0, "changes": 0}

    @fold.on("AccountOpened", "OwnerRenamed")
    def named(row: Row | None, event: Event) -> Row:
        row = existing(row, event)
        row["owner"] = event.data["owner"]
        row["changes"] += 1
        return row

    @fold.on("Deposited", "Withdrawn")
    def moved(row: Row | None, event: Event) -> Row:
        row = existing(row, event)
        row["balance"] += event.data["amount"] if event.type == "Deposited" else -event.data["amount"]
        row["changes"] += 1
        return row

    @fold.on("AccountClosed")
    def closed(_row: Row | None, _event: Event) -> None:
        return None

    return fold


TYPES = ["AccountOpened", "OwnerRenamed", "Deposited", "Withdrawn", "AccountClosed"]
DELETED = "DELETE FROM account_balance WHERE id IN (SELECT stream FROM batch WHERE type = 'AccountClosed')"
UPSERTED = """
-- only what follows the last time that an account was closed
WITH closed AS (SELECT stream, max(position) AS at FROM batch WHERE type = 'AccountClosed' GROUP BY stream)
INSERT INTO account_balance AS b (id, owner, balance, changes)
SELECT e.stream, (array_agg(e.data ->> 'owner' ORDER BY e.position DESC) FILTER (WHERE e.data ? 'owner'))[1],
       coalesce(sum((e.data ->> 'amount')::bigint * CASE e.type WHEN 'Withdrawn' THEN -1 ELSE 1 END), 0), count(*)
FROM batch e LEFT JOIN closed c ON c.stream = e.stream
WHERE e.type <> 'AccountClosed' AND e.position > coalesce(c.at, 0)
GROUP BY e.stream
ON CONFLICT (id) DO UPDATE SET owner = coalesce(excluded.owner, b.owner), balance = b.balance + excluded.balance,
                               changes = b.changes + excluded.changes
"""


def make_batch() -> BatchSql:
    """The bank's balances by statements over many events at once."""
    return BatchSql(DELETED, UPSERTED, types=TYPES)
