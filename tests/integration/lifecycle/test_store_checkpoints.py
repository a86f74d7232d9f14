"""Checkpoints and requests of the store: what follows what, and what clears nothing (lifecycle scenarios 12 to 28)."""

import uuid

import pytest

from rebuilder.domain.invalid import InvalidCheckpoint
from rebuilder.domain.lifecycle import Checkpoint, SourcePosition
from rebuilder.domain.ticket import Health, Reason
from rebuilder.engine.source import rotate_source
from rebuilder.errors import RecordConflict, SourceRotated
from tests.bank import append
from tests.integration.lifecycle.steps import NAME, adopt, asked, cp, source_of, started


def test_the_first_checkpoint_says_that_live_is_there(store):
    """12: nobody built it here; generation and version are what it says."""
    assert store.status(NAME) is None
    made = store.checkpoint(cp(store, 10, generation=3, version=2))
    status = store.status(NAME)
    assert (status.health, status.generation, status.version, status.checkpoint) == (Health.READY, 3, 2, made)
    assert made.updated_at is not None


def test_a_checkpoint_goes_forward_and_may_be_repeated(store):
    """13: the same again is fine, further is written."""
    first = adopt(store)
    assert store.checkpoint(cp(store, 10)).source == first.source
    assert store.checkpoint(cp(store, 20)).source.position == 20


@pytest.mark.parametrize("position, events", [(9, 10), (10, 9), (None, 10)])
def test_a_checkpoint_never_runs_backwards(store, position, events):
    """14 and 17: an earlier position, fewer events, no position: refused, and what was there stays."""
    before = adopt(store)
    with pytest.raises(InvalidCheckpoint, match="backwards"):
        store.checkpoint(cp(store, position, events))
    assert store.status(NAME).checkpoint == before


def test_rows_may_fall(store):
    """14: what upstream calls a regression is a read model that deletes rows."""
    adopt(store)
    store.checkpoint(cp(store, 11, rows=9))
    assert store.checkpoint(cp(store, 12, rows=3)).rows == 3


def test_a_checkpoint_of_another_generation_is_a_conflict(store):
    """15: whoever writes it works on something that is not live."""
    adopt(store)
    with pytest.raises(RecordConflict, match="generation 1"):
        store.checkpoint(cp(store, 20, generation=2))


def test_a_checkpoint_in_another_incarnation_of_the_log_is_refused(store, db, rebuilder):
    """16: its positions mean other events, so that they can't be compared."""
    adopt(store)
    rotate_source(db, rebuilder._books, "public.events", "restored")
    with pytest.raises(InvalidCheckpoint, match="backwards"):
        store.checkpoint(cp(store, 20))
    with pytest.raises(SourceRotated):
        store.checkpoint(Checkpoint(NAME, 1, SourcePosition(uuid.uuid4(), 20), 20))


def test_a_checkpoint_does_not_clear_an_invalidation(store):
    """18: upstream reports ready again, and the request is undone without anybody having decided so."""
    before = adopt(store)
    store.invalidate(NAME, Reason.INTEGRITY_FAILURE)
    with pytest.raises(RecordConflict, match="invalidated"):
        store.checkpoint(cp(store, 20))
    status = store.status(NAME)
    assert (status.health, status.checkpoint, status.pending_requests) == (Health.INVALIDATED, before, 1)


def test_a_checkpoint_beside_a_rebuild_leaves_its_ticket_alone(store):
    """19: upstream orphans the ticket. A follower goes on in the live generation, and the rebuild in its own."""
    adopt(store)
    ticket = started(store)
    assert store.checkpoint(cp(store, 20)).source.position == 20
    status = store.status(NAME)
    assert (status.health, status.active_rebuild) == (Health.REBUILDING, ticket.id)
    assert store.rebuild(ticket.id) == ticket


def test_a_checkpoint_beyond_the_log_is_refused(store, db):
    """20: what was read is recorded, not what was allowed; the next event makes it true."""
    with pytest.raises(InvalidCheckpoint, match="ends at 50"):
        store.checkpoint(cp(store, 51))
    append(db, "account-1", "Deposited", {"amount": 1})
    assert store.checkpoint(cp(store, 51)).source.position == 51


def test_an_unknown_projection_can_be_invalidated(store):
    """21: it is never built, and somebody wants it."""
    made = store.invalidate(NAME, "operator_requested", note="new", actor="Ada")
    assert (made.generation, made.actor) == (0, "Ada")
    assert (store.status(NAME).health, store.status(NAME).pending_requests) == (Health.NEVER_BUILT, 1)


def test_a_request_may_insist_on_the_generation_it_means(store):
    """22: another is live by now, so the complaint may be out of date."""
    adopt(store)
    assert store.invalidate(NAME, "integrity_failure", generation=1).generation == 1
    with pytest.raises(RecordConflict, match="generation 1"):
        store.invalidate(NAME, "integrity_failure", generation=2)
    assert store.status(NAME).pending_requests == 1


def test_an_invalidated_projection_keeps_its_checkpoint(store):
    """23: live goes on serving what it serves."""
    before = adopt(store)
    store.invalidate(NAME, "operator_requested")
    assert (store.status(NAME).health, store.status(NAME).checkpoint) == (Health.INVALIDATED, before)


def test_requests_do_not_exclude_each_other(store):
    """24, 25, 26: again, with another reason, after a failed rebuild: each is a request of its own."""
    adopt(store)
    made = [store.invalidate(NAME, reason) for reason in ("operator_requested", "operator_requested", "recipe_changed")]
    assert len({each.id for each in made}) == 3
    assert [each.id for each in store.invalidations(NAME)] == [each.id for each in reversed(made)]


def test_a_request_beside_a_rebuild_leaves_its_ticket_alone(store):
    """27: upstream orphans the ticket; here the request waits for the rebuild after it."""
    adopt(store)
    ticket = started(store)
    store.invalidate(NAME, "source_changed")
    assert (store.status(NAME).health, store.status(NAME).active_rebuild) == (Health.REBUILDING, ticket.id)


def test_a_generation_is_named_by_its_request(store):
    """28: what it was built for, while it is being built too; None for one that nobody asked for."""
    adopt(store)
    ticket = asked(store)
    found = store.invalidation(NAME, ticket.generation)
    assert found is not None
    assert found.id == ticket.invalidation
    assert store.invalidation(NAME, 1) is None


def test_a_log_has_one_incarnation_until_it_is_rotated(store, db, rebuilder):
    """Two rotations at once, or a second question, do not make two active ones."""
    first = source_of(store)
    assert source_of(store) == first
    second = rotate_source(db, rebuilder._books, "public.events", "restored")
    assert source_of(store) == second != first
    rows = db.execute("SELECT count(*) FILTER (WHERE retired_at IS NULL), count(*) FROM rebuilder.source_generation")
    assert rows.fetchone() == (1, 2)
