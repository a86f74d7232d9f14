"""What an application may import. A name that goes breaks somebody; one that comes is kept for long."""

import rebuilder

PUBLIC = [
    "BatchSql", "Columns", "DefinitionError", "DocumentProjection", "Drift", "DriftSample", "Event", "Expression",
    "ExternalCheckpoint", "Fold", "Health", "Invalidation", "NotNow", "Observation", "Observer", "OutcomeUnknown",
    "Owed", "Pending", "Phase", "Progress", "Projection", "ProjectionStore", "Quarantine", "Reason",
    "RebuildCancelled", "RebuildError", "RebuildReport", "Rebuilder", "RebuilderError", "RefusedError", "Registry",
    "Settings", "SqlHandlers", "Stage", "StopToken", "StoreError", "StreamId", "TableLog", "Target", "Ticket",
    "UpcastContext", "Upcasters", "VerifyReport",
]
METHODS = [
    "archive", "cancel", "cleanup", "doctor", "follow", "guard", "install", "install_sql", "invalidate", "pending",
    "plan", "project", "rebuild", "rebuild_many", "refresh", "rotate_log", "run_pending", "status", "store",
    "tickets", "verify", "verify_log",
]


def test_the_public_names_are_these():
    """All of them, sorted."""
    assert rebuilder.__all__ == PUBLIC
    assert sorted(rebuilder.__all__) == rebuilder.__all__


def test_every_public_name_is_there_and_says_what_it_is():
    """Importing each works, and none is without a docstring but the plain alias."""
    for name in rebuilder.__all__:
        found = getattr(rebuilder, name)
        assert name == "Observer" or found.__doc__, name


def test_the_front_door_has_these_methods():
    """Each with a docstring."""
    door = rebuilder.Rebuilder
    public = {name for name in vars(door) if not name.startswith("_")}
    assert sorted(public) == METHODS
    assert all(getattr(door, name).__doc__ for name in public)
