"""What one long transaction costs others, in numbers; and the guard ``long-transaction``."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from rebuilder.engine.guards import trip
from rebuilder.engine.run import Run
from rebuilder.sql import load
from rebuilder.store.sessions import translated

_QUERIES = load("queries")
_WAL_PER_EVENT = 400
"""Bytes of WAL per applied event: a row version, its index entries, and the copy of the freeze."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """Numbers for the plan. Bytes are bytes, seconds seconds; ``estimated_seconds`` comes from the last rebuild."""

    events: int
    estimated_seconds: float | None
    live_bytes: int
    peak_bytes: int
    wal_bytes: int
    connections: int
    logical_slots: int
    slot_limit_bytes: int | None
    replicas: int
    xid_age: int
    guarded_consumers: tuple[str, ...]
    wal_level: str
    synchronous_standbys: str
    indexing_concurrently: tuple[str, ...]
    freeze_age_seconds: float

    def to_json(self) -> dict[str, Any]:
        """The fields as an object."""
        return asdict(self)


def price_of(run: Run) -> Price:
    """Ask the server what a rebuild would cost now."""
    with translated("pricing the rebuild"):
        totals = run.log.totals(run.reader, run.selection) if run.selection.types else None
        with run.ledger.using() as connection:
            row = connection.execute(_QUERIES["price"], {"log": list(run.log.roots)}).fetchone()
            pace = run.books.run(connection, "last_pace", projection=run.projection.name).fetchone()
    assert row is not None
    events = totals.events if totals else 0
    live = sum(table.bytes for table in run.blueprint.tables)
    seconds = events / pace[0] if pace and pace[0] else None
    return Price(events=events, estimated_seconds=seconds, live_bytes=live, peak_bytes=3 * live,
                 wal_bytes=2 * live + _WAL_PER_EVENT * events, connections=3, logical_slots=row[0],
                 slot_limit_bytes=row[1], replicas=row[2], xid_age=row[3], guarded_consumers=tuple(row[4]),
                 wal_level=row[5], synchronous_standbys=row[6], indexing_concurrently=tuple(row[7]),
                 freeze_age_seconds=run.settings.freeze_age)


def check_price(run: Run) -> None:
    """Refuse what one long transaction would break, unless ``long-transaction`` is allowed."""
    with translated("pricing the rebuild"), run.ledger.using() as connection:
        row = connection.execute(_QUERIES["price"], {"log": list(run.log.roots)}).fetchone()
    assert row is not None
    slots, limit, guarded = row[0], row[1], row[4]
    if guarded:
        trip(run, "long-transaction", f"the log's own consumers read up to the oldest running transaction "
             f"({', '.join(guarded)}), so they would see nothing new until the rebuild ends.",
             "rebuild at a quiet time", columns=list(guarded))
    estimate = 2 * sum(table.bytes for table in run.blueprint.tables) + _WAL_PER_EVENT * row[8]
    if slots and limit is not None and estimate > limit:
        trip(run, "long-transaction", f"the rebuild writes about {estimate // 2**20} MB of WAL, which {slots} "
             f"replication slots must keep, and max_slot_wal_keep_size is {limit // 2**20} MB: they would be lost.",
             "raise max_slot_wal_keep_size", estimate=estimate, limit=limit)
