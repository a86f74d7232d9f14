"""The bank's read model by each kind of handlers; importable, since workers import it too."""

from typing import Any

from rebuilder import Event, Fold

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
