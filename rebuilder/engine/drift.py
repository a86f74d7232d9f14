"""Rows that differ between live and shadow, by primary key.

The whole comparison runs before the fence and keeps its candidates. Writers change both sides meanwhile: a candidate
whose two sides stand still between two looks is settled; the others, as many as writers touched, are looked at again
under the fence.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from psycopg import sql

from rebuilder.domain.report import Drift, DriftSample
from rebuilder.engine.run import Run
from rebuilder.engine.shadow import Shadow
from rebuilder.sql import drift as words
from rebuilder.store.sessions import Connection, translated

if TYPE_CHECKING:
    from rebuilder.catalog.blueprint import LiveTable

_SAVEPOINT = "SAVEPOINT rebuilder_look"
_BACK = "ROLLBACK TO SAVEPOINT rebuilder_look"
_RELEASE = "RELEASE SAVEPOINT rebuilder_look"


@dataclass(slots=True)
class Comparison:
    """One table's: how many rows each side has, which columns are filled, and what differs."""

    table: LiveTable
    live_rows: int = 0
    shadow_rows: int = 0
    filled: dict[str, tuple[int, int]] = field(default_factory=dict)
    settled: Drift = Drift()
    moving: list[tuple[str | None, ...]] = field(default_factory=list)
    drift: Drift = Drift()
