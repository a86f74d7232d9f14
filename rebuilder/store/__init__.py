"""The bookkeeping. What an application may use of it is here: the lifecycle store and the values it takes."""

from rebuilder.domain.archive import IndexCheckpoint, Manifest, Shard, ShardCheckpoint
from rebuilder.domain.documents import Document, InventoryQuery, Page, Place, Row, Snapshot
from rebuilder.domain.lifecycle import (
    Cancel,
    Checkpoint,
    Complete,
    Fail,
    Invalidation,
    LogFingerprint,
    Progressed,
    RebuildTicket,
    SourcePosition,
    Start,
    StoredStatus,
    Transition,
)
from rebuilder.domain.ticket import Failure
from rebuilder.store.documents import Building, Live
from rebuilder.store.projection_store import ProjectionStore
from rebuilder.store.status_json import decode_status, encode_status

__all__ = [
    "Building",
    "Cancel",
    "Checkpoint",
    "Complete",
    "Document",
    "Fail",
    "Failure",
    "IndexCheckpoint",
    "Invalidation",
    "InventoryQuery",
    "Live",
    "LogFingerprint",
    "Manifest",
    "Page",
    "Place",
    "Progressed",
    "ProjectionStore",
    "RebuildTicket",
    "Row",
    "Shard",
    "ShardCheckpoint",
    "Snapshot",
    "SourcePosition",
    "Start",
    "StoredStatus",
    "Transition",
    "decode_status",
    "encode_status",
]
