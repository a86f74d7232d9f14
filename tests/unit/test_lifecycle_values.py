"""Values of the lifecycle: each refuses what it can't be, where it is made, with an error of its own."""

import uuid
from datetime import UTC, datetime, timedelta

import pytest

from rebuilder.domain import lifecycle as values
from rebuilder.domain.invalid import InvalidCheckpoint, InvalidName, InvalidRequest, InvalidSource, InvalidTransition
from rebuilder.domain.lifecycle import (
    Checkpoint,
    Fail,
    Invalidation,
    LogFingerprint,
    RebuildTicket,
    SourcePosition,
    Start,
    StoredStatus,
    Transition,
)
from rebuilder.domain.ticket import Health, Reason, Stage
from rebuilder.errors import RecordCorrupt

NOW = datetime(2026, 1, 1, tzinfo=UTC)
LOG, OTHER = uuid.UUID(int=1), uuid.UUID(int=2)


def at(position, log=LOG):
    return SourcePosition(log, position)


def cp(position=10, events=4, rows=None, **overrides):
    return Checkpoint(**{"projection": "food", "generation": 1, "events": events, "rows": rows,
                         "source": None if position is None else at(position), **overrides})


@pytest.mark.parametrize("name", ["food_availability.v1", "a", "0-9", "x" * 128])
def test_a_name_is_of_a_small_alphabet(name):
    """What keys, file names and command lines can all carry (lifecycle scenarios 1 and 2)."""
    assert values.check_name(name) == name


@pytest.mark.parametrize("name", ["", "Uppercase", " a", "a ", "bad/slash", "x" * 129, "é", "a\n", None, 7])
def test_another_name_is_refused(name):
    """Empty, long, or with another character."""
    with pytest.raises(InvalidName):
        values.check_name(name)


@pytest.mark.parametrize("make, error", [
    (lambda: SourcePosition(uuid.UUID(int=0), 1), InvalidSource),
    (lambda: LogFingerprint(uuid.UUID(int=0), "count", 1, 1), InvalidSource),
    (lambda: Transition(uuid.UUID(int=0), 1, Start()), InvalidTransition),
    (lambda: Transition("1", 1, Start()), InvalidTransition),  # type: ignore[arg-type]
    (lambda: Invalidation(uuid.UUID(int=0), "food", 1, Reason.OPERATOR_REQUESTED, None, "Ada", NOW), InvalidRequest),
    (lambda: Transition(LOG, 0, Start()), InvalidTransition),
    (lambda: at(0), InvalidSource),
    (lambda: at(True), InvalidSource),
    (lambda: at(2**63), InvalidSource),
    (lambda: cp(events=2**63), InvalidCheckpoint),
    (lambda: cp(events=-1), InvalidCheckpoint),
    (lambda: cp(generation=0), InvalidCheckpoint),
    (lambda: cp(version=0), InvalidCheckpoint),
    (lambda: cp(rows=1.5), InvalidCheckpoint),
    (lambda: Fail("tired"), InvalidTransition),  # type: ignore[arg-type]
    (lambda: LogFingerprint(LOG, "md5", 1, 1, "x"), InvalidSource),  # type: ignore[arg-type]
    (lambda: LogFingerprint(LOG, "count", 1, 1, "x"), InvalidSource),
    (lambda: LogFingerprint(LOG, "sha256", 1, 1), InvalidSource),
    (lambda: LogFingerprint(LOG, "count", 0, 5), InvalidSource),
])
def test_a_value_that_can_not_be_is_refused(make, error):
    """Ids of zeros, revision and position 0, and numbers that no bigint holds: by the value's own error, before
    anything is written (scenarios 3, 4, 11; generations are numbers of a projection and not 32 bytes).
    """
    with pytest.raises(error):
        make()


def test_a_request_may_name_the_generation_it_replaces_again():
    """Scenario 6: a repair rebuilds the same recipe, so a request has no other generation to differ from; and its time
    is the server's (scenario 5), so none is given.
    """
    made = Invalidation(LOG, "food", 1, Reason.INTEGRITY_FAILURE, None, "Ada", NOW)
    assert made.pending
    with pytest.raises(RecordCorrupt):
        Invalidation(LOG, "food", 1, Reason.INTEGRITY_FAILURE, None, "Ada", NOW, answered_by=OTHER)


def test_a_digest_may_be_anything_and_an_empty_log_has_none():
    """Scenario 7: zeros are a digest too."""
    assert LogFingerprint(LOG, "sum64", 1, 9, "0" * 64).high_water == at(9)
    assert LogFingerprint(LOG, "count", 0, 0).high_water is None


@pytest.mark.parametrize("new, ok", [
    (cp(11, 5), True), (cp(), True), (cp(11, 5, rows=1), True),
    (cp(9), False), (cp(events=3), False), (cp(None), False), (cp(source=at(11, OTHER)), False),
    (cp(generation=2), False), (cp(projection="drinks"), False),
])
def test_a_checkpoint_advances_by_position_and_events(new, ok):
    """Scenarios 8 and 9; rows may fall, since read models delete rows, and times are the server's."""
    assert new.advances(cp(rows=3)) is ok


def test_none_to_some_advances():
    """The first event of a log."""
    assert cp(1).advances(cp(None, 0))
    assert cp(None).advances(cp(None))


def status(**overrides):
    return StoredStatus(**{"projection": "food", "generation": 1, "version": 1, "health": Health.READY,
                           "checkpoint": cp(), "active_rebuild": None, "pending_requests": 0, **overrides})


@pytest.mark.parametrize("overrides", [
    {"health": Health.REBUILDING}, {"active_rebuild": LOG}, {"checkpoint": cp(generation=2)},
    {"checkpoint": cp(projection="drinks")}, {"generation": -1}])
def test_a_status_that_contradicts_itself_is_corrupt(overrides):
    """Scenario 10: rebuilding without a ticket, ready with one, a checkpoint of something else."""
    assert status().health is Health.READY
    with pytest.raises(RecordCorrupt):
        status(**overrides)


def ticket(**overrides):
    return RebuildTicket(**{"id": LOG, "projection": "food", "generation": 1, "version": 1, "revision": 3,
                            "stage": Stage.RUNNING, "requested_at": NOW, "updated_at": NOW,
                            "source": LogFingerprint(LOG, "count", 1, 1), **overrides})


@pytest.mark.parametrize("overrides", [
    {"updated_at": NOW - timedelta(seconds=1)},
    {"stage": Stage.REQUESTED},
    {"revision": 1},
    {"stage": Stage.REQUESTED, "revision": 1, "checkpoint": cp()},
    {"stage": Stage.COMPLETED},
    {"failure": "worker_lost"},
    {"stage": Stage.FAILED},
    {"checkpoint": cp(generation=2)},
    {"checkpoint": cp(projection="drinks")},
    {"checkpoint": cp(source=at(1, OTHER))},
    {"checkpoint": cp(updated_at=NOW + timedelta(seconds=1))},
    {"revision": 0},
    {"id": uuid.UUID(int=0)},
])
def test_a_ticket_that_can_not_be_is_corrupt(overrides):
    """Scenario 61, each malformed shape; 56: a checkpoint later than its ticket can't be stored, times being one."""
    assert ticket().open
    with pytest.raises(RecordCorrupt):
        ticket(**overrides)


def test_values_are_frozen():
    """What was checked once stays right."""
    with pytest.raises(AttributeError):
        cp().events = 5
