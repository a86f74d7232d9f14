"""The lifecycle store, whole: statuses, requests, rebuilds, documents, snapshots, manifests."""

from __future__ import annotations

from rebuilder.store.manifests import Manifests


class ProjectionStore(Manifests):
    """The bookkeeping of projections as an application may read and write it: the engine's own, seen from outside.

    ``Rebuilder.store()`` makes one that knows the event log. Each operation is one transaction; ``transaction()`` makes
    several one. Values check themselves, writes are compare-and-swap, repeats of what was done are fine, times are the
    server's. Errors: ``RecordNotFound``, ``RecordConflict``, ``RecordTerminal``, ``RecordBusy`` (repeat),
    ``RecordCorrupt``, ``SpaceInsufficient``, ``StoreClosed``, ``ReadOnlyStore``, and ``InvalidValue`` for values.
    """
