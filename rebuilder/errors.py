"""Every error of rebuilder.

::

    RebuilderError
    ├── DefinitionError          the application's definitions are wrong        exit 2
    │   ├── DuplicateDefinition
    │   ├── UnknownProjection
    │   ├── UpcasterError
    │   ├── LogDefinitionError
    │   └── InvalidValue
    ├── RefusedError             the run must not start, or must not cut over   exit 3
    │   ├── PreflightRefused
    │   ├── GuardTripped
    │   ├── MissingPrivilege
    │   ├── UnsupportedServer
    │   ├── NotInstalled
    │   ├── RecipeOutdated
    │   ├── ReadOnlyStore
    │   ├── SourceRotated
    │   └── ArchiveRefused
    ├── NotNow                   repeat later, nothing is wrong                 exit 4
    │   ├── RebuildInProgress
    │   ├── FenceNotAcquired
    │   ├── HorizonBlocked
    │   ├── CannotCatchUp
    │   ├── DeadlineExceeded
    │   ├── CutOverDuringTransaction
    │   ├── RecordBusy
    │   └── SourceMoved
    ├── RebuildError             the run failed, live is as it was              exit 1
    │   ├── HandlerFailed
    │   ├── TooManyDeadLetters
    │   ├── WroteOutsideShadow
    │   ├── LiveChanged
    │   ├── LogChanged
    │   ├── ConnectionLost
    │   ├── WorkerLost
    │   └── HookVetoed
    ├── RebuildCancelled         somebody asked for the end of the run          exit 7
    ├── OutcomeUnknown           the COMMIT's reply was lost                    exit 8
    └── StoreError               the bookkeeping is missing or damaged          exit 1
        ├── RecordNotFound
        ├── RecordConflict
        ├── RecordTerminal
        ├── RecordCorrupt
        ├── SpaceInsufficient
        └── StoreClosed

Those of InvalidValue, one for each kind of value, are in ``rebuilder.domain.invalid``.

A class's docstring is its default message; leaves carry fields and a ``hint``, which says what to do next.
"""

from __future__ import annotations

import inspect
from typing import Any, ClassVar


class RebuilderError(Exception):
    """rebuilder could not do what it was asked for."""

    code: ClassVar[str] = "error"
    exit_code: ClassVar[int] = 1

    def __init__(self, message: str | None = None, *, hint: str | None = None, **fields: Any) -> None:
        self.message = message or inspect.cleandoc(type(self).__doc__ or "")
        self.hint = hint
        self.fields = fields
        super().__init__(self.message)

    def __str__(self) -> str:
        return f"{self.message}\n  next: {self.hint}" if self.hint else self.message

    def __reduce__(self) -> tuple[Any, ...]:
        # Errors cross process borders (workers): keep message, hint and fields.
        return _rebuild, (type(self), self.message, self.hint, self.fields)

    def __getattr__(self, name: str) -> Any:
        fields = self.__dict__.get("fields", {})
        if name in fields:
            return fields[name]
        raise AttributeError(name)

    def to_json(self) -> dict[str, Any]:
        """The error as an object of strings, numbers, lists and objects, for ``--json``."""
        return {"error": self.code, "message": self.message, "hint": self.hint, **self.fields}


def _rebuild(kind: type[RebuilderError], message: str, hint: str | None, fields: dict[str, Any]) -> RebuilderError:
    return kind(message, hint=hint, **fields)


class DefinitionError(RebuilderError):
    """A definition of the application is wrong."""

    code = "definition"
    exit_code = 2


class DuplicateDefinition(DefinitionError):
    """Two definitions claim the same thing."""

    code = "duplicate-definition"


class UnknownProjection(DefinitionError):
    """No projection of that name is registered."""

    code = "unknown-projection"


class UpcasterError(DefinitionError):
    """A chain of upcasters has a hole, a duplicate, or a step that goes nowhere."""

    code = "upcaster"


class LogDefinitionError(DefinitionError):
    """The event log is not what its definition says."""

    code = "log-definition"


class InvalidValue(DefinitionError):
    """A value is not one that the store takes."""

    code = "invalid-value"


class RefusedError(RebuilderError):
    """The run was refused; live serves what it served before."""

    code = "refused"
    exit_code = 3


class PreflightRefused(RefusedError):
    """Something hangs off the live table that cannot be kept."""

    code = "preflight"


class GuardTripped(RefusedError):
    """A guard stopped the run before the cut-over."""

    code = "guard"


class MissingPrivilege(RefusedError):
    """The role lacks a privilege that the run needs."""

    code = "privilege"


class UnsupportedServer(RefusedError):
    """The server is not one that rebuilder can work on."""

    code = "server"


class NotInstalled(RefusedError):
    """The bookkeeping schema is not installed."""

    code = "not-installed"


class RecipeOutdated(RefusedError):
    """Live was built with a later version of the projection than this code has."""

    code = "recipe-outdated"


class ReadOnlyStore(RefusedError):
    """The store was opened read-only."""

    code = "read-only"


class SourceRotated(RefusedError):
    """The event log is another incarnation than the one that was read."""

    code = "source-rotated"


class ArchiveRefused(RefusedError):
    """An archive of the event log is not what its manifest says."""

    code = "archive"


class NotNow(RebuilderError):
    """Not now; the same call may succeed later."""

    code = "not-now"
    exit_code = 4


class RebuildInProgress(NotNow):
    """Another rebuild of this projection is running."""

    code = "in-progress"


class FenceNotAcquired(NotNow):
    """The fence could not be acquired within its budget."""

    code = "fence"


class HorizonBlocked(NotNow):
    """A transaction holds the horizon: what lies below it may still become visible."""

    code = "horizon"


class CannotCatchUp(NotNow):
    """The log grows faster than the replay."""

    code = "cannot-catch-up"


class DeadlineExceeded(NotNow):
    """The deadline of the run has passed."""

    code = "deadline"


class CutOverDuringTransaction(NotNow):
    """A cut-over came after this transaction's snapshot: repeat the transaction (as after SQLSTATE 40001)."""

    code = "cut-over-during-transaction"
    sqlstate: ClassVar[str] = "40001"


class RecordBusy(NotNow):
    """Somebody else holds the record."""

    code = "busy"


class SourceMoved(NotNow):
    """The event log has events that the checkpoint does not cover."""

    code = "source-moved"


class RebuildError(RebuilderError):
    """The rebuild failed; live is as it was."""

    code = "failed"


class HandlerFailed(RebuildError):
    """A handler or an upcaster failed on an event."""

    code = "handler"


class TooManyDeadLetters(RebuildError):
    """More events were set aside than the run allows."""

    code = "too-many-dead-letters"


class WroteOutsideShadow(RebuildError):
    """A handler wrote to a table that the projection does not declare."""

    code = "wrote-outside-shadow"


class LiveChanged(RebuildError):
    """The live table's definition changed during the run."""

    code = "live-changed"


class LogChanged(RebuildError):
    """The event log did not stay append-only during the run."""

    code = "log-changed"


class ConnectionLost(RebuildError):
    """A connection to the server was lost."""

    code = "connection-lost"


class WorkerLost(RebuildError):
    """A worker process ended without its result."""

    code = "worker-lost"


class HookVetoed(RebuildError):
    """A hook stopped the run."""

    code = "hook"


class RebuildCancelled(RebuilderError):
    """The rebuild was cancelled; live is as it was."""

    code = "cancelled"
    exit_code = 7


class OutcomeUnknown(RebuilderError):
    """The connection was lost during COMMIT and the outcome could not be asked for."""

    code = "outcome-unknown"
    exit_code = 8


class StoreError(RebuilderError):
    """The bookkeeping in the database is missing, damaged, or was changed by somebody else."""

    code = "store"


class RecordNotFound(StoreError):
    """There is no such record."""

    code = "not-found"


class RecordConflict(StoreError):
    """The record is another one than the caller thinks."""

    code = "conflict"


class RecordTerminal(StoreError):
    """The ticket is finished."""

    code = "terminal"


class RecordCorrupt(StoreError):
    """A record is damaged."""

    code = "corrupt"


class SpaceInsufficient(StoreError):
    """The server has no room left."""

    code = "space"


class StoreClosed(StoreError):
    """The store is closed."""

    code = "closed"
