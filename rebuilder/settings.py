"""Every knob of a run, its default, and why it is that.

Times are seconds, sizes bytes, unless the name says otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rebuilder.errors import DefinitionError

ADVISORY_CLASS = 0x7265_6264
"""Class number of our transaction-level advisory locks (pg_locks.classid), so that they never meet an application's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What may be tuned; see each field."""

    schema: str = "rebuilder"
    """The bookkeeping schema."""
    scope: str = ""
    """Part of a projection's key in the bookkeeping, for schema-per-tenant installations."""
    batch: int = 1000
    """Events applied per batch: large enough that per-batch checks vanish, small enough that progress moves."""
    fence_budget: float | None = None
    """How long to try for the fence. None: the longer of ten minutes and the replay's own duration, since
    giving up throws away a replay that cost that much."""
    fence_hold: float = 1.0
    """Cap on the time inside the fence; past it the fence is given back and the run catches up again."""
    fence_poll: float = 0.01
    """Pause between NOWAIT attempts, which never queue and so stop nobody."""
    fence_nowait: float = 1.0
    """How long attempts are NOWAIT before one is queued."""
    fence_queue_ms: tuple[int, int] = (100, 500)
    """Shortest and longest queued attempt, milliseconds: readers queue behind it that long. In sum below
    deadlock_timeout, since longer ones get writers killed."""
    fence_rest: int = 1000
    """Events that may be left for the fence, if the measured rate says that they fit the hold."""
    catch_up_rounds: int = 10
    """Rounds in which the rest may fail to shrink before CannotCatchUp."""
    heartbeat: float = 2.0
    """Between two heartbeats of the ticket."""
    retain_hours: float = 24.0
    """How long a retired table is kept."""
    fold_memory: int = 256 * 1024 * 1024
    """Bytes of rows that folds keep in memory, as estimated; beyond it they are written to the shadow and loaded when
    they are touched again."""
    fold_page: int = 10_000
    """Events that a fold reads at once: it costs the server nothing to apply them."""
    fold_parts: int | None = None
    """Parts that workers divide the streams into. None: one for each worker. More of them need less memory each, and
    read the log as often."""
    batch_page: int = 20_000
    """Events per statement of BatchSql where they are given one by one (quarantine, tail of the log)."""
    batch_seconds: float = 10.0
    """How long a statement of BatchSql should take: ranges grow up to that, so that progress moves and a cancel is
    not far."""
    batch_work_mem: int = 256 * 1024 * 1024
    """work_mem of the main transaction of BatchSql: enough for its groups not to be spilled."""
    log_fingerprint: Literal["count", "sha256"] = "count"
    """What a rebuild proves of the log it read. ``count``: how many events, to which position. ``sha256``: a digest,
    too, of segments that are hashed once and stored, about 1.5 s for a million new events; ``verify --deep`` then finds
    an old event that was edited in place."""
    freeze_chunk: int = 16 * 1024 * 1024
    """Bytes per chunk of the freeze: what is in memory at once."""
    index_memory: int = 256 * 1024 * 1024
    """maintenance_work_mem of the freeze at least, in which indexes are built: as a rule their sort fits."""
    index_workers: int = 2
    """max_parallel_maintenance_workers of the freeze at least."""
    freeze_age: float = 30.0
    """A freeze is repeated before an attempt when it is older than this and than ten times what it cost."""
    drift_sample: int = 20
    """Rows shown per kind of drift; counts are exact whatever this is."""
    lock_timeout_ms: int = 2000
    """lock_timeout of the second connection: it must never wait for our own main transaction."""
    connect_timeout: int = 10
    outcome_wait: float = 30.0
    """How long to ask what became of a COMMIT whose reply was lost: a restart or a failover takes about that."""
    horizon_poll: float = 0.005
    """Pause between looks at the transactions below the horizon."""

    def __post_init__(self) -> None:
        if not self.schema:
            raise DefinitionError("settings.schema is ''; it must be the name of the bookkeeping schema.")
        for name, least in (("batch", 1), ("fence_hold", 0.01), ("fence_poll", 0.001), ("fence_nowait", 0),
                            ("heartbeat", 0.05), ("freeze_chunk", 4096), ("fold_memory", 0), ("fold_page", 1),
                            ("batch_page", 1), ("batch_seconds", 0.001), ("batch_work_mem", 65536),
                            ("index_memory", 1048576), ("index_workers", 0), ("freeze_age", 0), ("lock_timeout_ms", 1),
                            ("horizon_poll", 0.001), ("connect_timeout", 1), ("catch_up_rounds", 1), ("fence_rest", 0),
                            ("retain_hours", 0), ("drift_sample", 0)):
            value = getattr(self, name)
            if not value >= least:  # so that NaN is refused too
                raise DefinitionError(f"settings.{name} is {value}; it must be at least {least}.")
        if self.log_fingerprint not in {"count", "sha256"}:
            raise DefinitionError(f"settings.log_fingerprint is {self.log_fingerprint!r}; it must be count or sha256.")
        match self.fence_queue_ms:
            # PostgreSQL takes a lock_timeout of 0 for "wait for ever" (manual, runtime-config-client).
            case (shortest, longest) if 1 <= int(shortest) <= int(longest):
                pass
            case other:
                raise DefinitionError(f"settings.fence_queue_ms is {other}; it must be two whole numbers of "
                                      "milliseconds, the first at least 1 and at most the second.")
        if self.fence_budget is not None and not self.fence_budget > 0:
            raise DefinitionError(f"settings.fence_budget is {self.fence_budget}; it must be above 0.")
