"""Rebuild a read model from its event log while the application keeps reading and writing, and cut over atomically."""

from rebuilder.app import Rebuilder
from rebuilder.domain.batch_sql import BatchSql
from rebuilder.domain.document_projection import DocumentProjection
from rebuilder.domain.event import Event, StreamId
from rebuilder.domain.fold import Fold
from rebuilder.domain.lifecycle import Invalidation
from rebuilder.domain.observation import Observation, Observer
from rebuilder.domain.projection import ExternalCheckpoint, Projection, SqlHandlers, Target
from rebuilder.domain.quarantine import Quarantine
from rebuilder.domain.registry import Registry
from rebuilder.domain.report import Drift, DriftSample, Owed, RebuildReport, VerifyReport
from rebuilder.domain.ticket import Health, Phase, Progress, Reason, Stage, Ticket
from rebuilder.domain.upcasters import UpcastContext, Upcasters
from rebuilder.engine.pending import Pending
from rebuilder.engine.stop import StopToken
from rebuilder.errors import (
    DefinitionError,
    NotNow,
    OutcomeUnknown,
    RebuildCancelled,
    RebuilderError,
    RebuildError,
    RefusedError,
    StoreError,
)
from rebuilder.eventlog import Columns, Expression, TableLog
from rebuilder.settings import Settings
from rebuilder.store.projection_store import ProjectionStore

__all__ = [
    "BatchSql",
    "Columns",
    "DefinitionError",
    "DocumentProjection",
    "Drift",
    "DriftSample",
    "Event",
    "Expression",
    "ExternalCheckpoint",
    "Fold",
    "Health",
    "Invalidation",
    "NotNow",
    "Observation",
    "Observer",
    "OutcomeUnknown",
    "Owed",
    "Pending",
    "Phase",
    "Progress",
    "Projection",
    "ProjectionStore",
    "Quarantine",
    "Reason",
    "RebuildCancelled",
    "RebuildError",
    "RebuildReport",
    "Rebuilder",
    "RebuilderError",
    "RefusedError",
    "Registry",
    "Settings",
    "SqlHandlers",
    "Stage",
    "StopToken",
    "StoreError",
    "StreamId",
    "TableLog",
    "Target",
    "Ticket",
    "UpcastContext",
    "Upcasters",
    "VerifyReport",
]
