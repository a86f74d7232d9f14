"""Rebuilds that the store keeps account of: requested, moved on by compare-and-swap, proven (scenarios 29 to 60)."""

import uuid
from concurrent.futures import wait
from datetime import timedelta

import pytest

from rebuilder.domain.invalid import InvalidCheckpoint, InvalidSource, InvalidTransition
from rebuilder.domain.lifecycle import (
    EDGES,
    Cancel,
    Checkpoint,
    Complete,
    Fail,
    LogFingerprint,
    Progressed,
    Start,
    Transition,
)
from rebuilder.domain.ticket import Failure, Health, Stage
from rebuilder.engine.source import rotate_source
from rebuilder.errors import (
    DefinitionError,
    RebuildInProgress,
    RecordBusy,
    RecordConflict,
    RecordNotFound,
    RecordTerminal,
    SourceMoved,
    SourceRotated,
)
from rebuilder.store.projection_store import ProjectionStore
from tests.bank import append
from tests.fix_threads import wait_until
from tests.integration.lifecycle.steps import (
    NAME,
    adopt,
    asked,
    complete,
    cp,
    progressed,
    seen,
    source_of,
    started,
    step,
)

ROUNDS = 1000


# --- requests ---------------------------------------------------------------------------------------------------------


def test_a_rebuild_is_asked_for_with_a_reason(store):
    """29: live is built and nobody complained: no ticket."""
    adopt(store)
    with pytest.raises(RecordConflict, match="Nothing is asked"):
        store.request_rebuild(NAME, uuid.uuid4(), version=1)


def test_what_was_never_built_needs_no_reason(store):
    """The first build answers for itself."""
    ticket = store.request_rebuild(NAME, uuid.uuid4(), version=1)
    assert (ticket.stage, ticket.generation, ticket.revision, ticket.invalidation) == (Stage.REQUESTED, 1, 1, None)


def test_a_ticket_names_a_pending_request(store):
    """30: one that is not there, or of another projection, is a conflict."""
    adopt(store)
    store.invalidate(NAME, "operator_requested")
    other = store.invalidate("drinks", "operator_requested")
    for wrong in (uuid.uuid4(), other.id):
        with pytest.raises(RecordConflict, match="not pending"):
            store.request_rebuild(NAME, uuid.uuid4(), version=1, invalidation=wrong)


def test_a_ticket_is_for_the_log_as_it_is(store):
    """31 and 37: another incarnation, or a position that the log has not reached, is refused when it is asked for."""
    adopt(store)
    store.invalidate(NAME, "operator_requested")
    with pytest.raises(SourceRotated):
        store.request_rebuild(NAME, uuid.uuid4(), version=1, source=LogFingerprint(uuid.uuid4(), "count", 1, 1))
    with pytest.raises(InvalidSource, match="ends at 50"):
        store.request_rebuild(NAME, uuid.uuid4(), version=1, source=LogFingerprint(source_of(store), "count", 60, 60))


def test_a_request_may_be_repeated_whenever(store):
    """32, 35, 38: the same ticket is given back as it is now, also after its start; health is what it was."""
    adopt(store)
    source = seen(store)
    ticket = asked(store, source=source)
    again = {"version": 1, "invalidation": ticket.invalidation, "source": source}
    assert store.request_rebuild(NAME, ticket.id, **again) == ticket
    running = step(store, ticket, Start())
    assert store.request_rebuild(NAME, ticket.id, **again) == running
    store.invalidate(NAME, "source_changed")
    assert store.request_rebuild(NAME, ticket.id, version=1) == running
    assert store.status(NAME).health is Health.REBUILDING


@pytest.mark.parametrize("change", [{"version": 2}, {"invalidation": uuid.uuid4()},
                                    {"source": LogFingerprint(uuid.uuid4(), "count", 1, 1)}, {"projection": "drinks"}])
def test_a_known_ticket_with_other_content_is_a_conflict(store, change):
    """34: two callers drew one number, or one has changed its mind."""
    adopt(store)
    ticket = asked(store)
    given = {"projection": NAME, "version": 1, **change}
    with pytest.raises(RecordConflict, match="other content"):
        store.request_rebuild(given.pop("projection"), ticket.id, **given)


def test_one_projection_has_one_open_ticket(store):
    """33: the second is told which; 36: none begins in another stage, since a ticket is made here and not given."""
    adopt(store)
    ticket = asked(store)
    store.invalidate(NAME, "operator_requested")
    with pytest.raises(RecordConflict) as caught:
        store.request_rebuild(NAME, uuid.uuid4(), version=1)
    assert caught.value.ticket == str(ticket.id)


# --- the stages ------------------------------------------------------------------------------------------------------


def in_stage(store, stage):
    """A ticket that got there by legal steps."""
    adopt(store)
    ticket = asked(store)
    if stage is Stage.REQUESTED:
        return ticket
    if stage is Stage.FAILED:
        return step(store, ticket, Fail(Failure.WORKER_LOST))
    if stage is Stage.CANCELLED:
        return step(store, ticket, Cancel())
    ticket = step(store, ticket, Start())
    return complete(store, ticket) if stage is Stage.COMPLETED else ticket


STEPS = {
    Start: lambda store, ticket: Start(),
    Progressed: lambda store, ticket: Progressed(cp(store, 20, generation=ticket.generation)),
    Complete: lambda store, ticket: Complete(cp(store, 50, generation=ticket.generation), seen(store)),
    Fail: lambda store, ticket: Fail(Failure.HANDLER_REJECTED),
    Cancel: lambda store, ticket: Cancel(),
}


@pytest.mark.parametrize("stage", list(Stage))
@pytest.mark.parametrize("kind", list(STEPS), ids=lambda kind: kind.__name__)
def test_the_tickets_state_machine(store, stage, kind):
    """39 to 41, 48, 54, 55: every edge is walked, and every pair that is none is refused and changes nothing: finished
    ones as terminal, whatever is asked of them, the others as no edge. (docs/lifecycle.md draws it.)
    """
    ticket = in_stage(store, stage)
    wanted = EDGES.get((stage, kind))
    if wanted is None:
        error = InvalidTransition if ticket.open else RecordTerminal
        with pytest.raises(error):
            step(store, ticket, STEPS[kind](store, ticket))
        assert store.rebuild(ticket.id) == ticket
        return
    moved = step(store, ticket, STEPS[kind](store, ticket))
    assert (moved.stage, moved.revision) == (wanted, ticket.revision + 1)
    assert store.rebuild(ticket.id) == moved


def test_a_step_by_who_has_not_seen_the_last_one_is_a_conflict(store):
    """40, 42: a stale revision changes nothing."""
    adopt(store)
    ticket = started(store)
    moved = progressed(store, ticket, 20)
    with pytest.raises(RecordConflict, match="revision 3"):
        step(store, ticket, Fail(Failure.WORKER_LOST))
    with pytest.raises(RecordConflict):
        step(store, ticket, Start(), revision=7)
    assert store.rebuild(ticket.id) == moved


def test_an_unknown_ticket_is_not_found(store):
    """43: and not a conflict; looking it up gives None."""
    with pytest.raises(RecordNotFound):
        store.transition_rebuild(Transition(uuid.uuid4(), 1, Start()))
    assert store.rebuild(uuid.uuid4()) is None


@pytest.mark.parametrize("kind", list(STEPS), ids=lambda kind: kind.__name__)
def test_a_step_whose_reply_was_lost_may_be_repeated(store, kind):
    """The same step by the same revision gives the ticket back: no conflict, no damage, and no second step."""
    ticket = in_stage(store, Stage.REQUESTED if kind is Start else Stage.RUNNING)
    given = STEPS[kind](store, ticket)
    moved = step(store, ticket, given)
    assert step(store, ticket, given) == moved
    if kind is Fail:
        with pytest.raises(RecordTerminal):
            step(store, ticket, Fail(Failure.INTEGRITY_FAILURE))


def test_times_are_the_servers_and_never_run_back(store, db):
    """44, 58: no caller gives one; a clock that was set back does not make a step impossible or a ticket unreadable."""
    adopt(store)
    ticket = started(store)
    db.execute("UPDATE rebuilder.rebuild_ticket SET updated_at = updated_at + interval '1 hour'")
    moved = progressed(store, ticket, 20)
    assert moved.updated_at - ticket.updated_at >= timedelta(hours=1)
    assert moved.checkpoint.updated_at == moved.updated_at
    assert step(store, moved, Fail(Failure.WORKER_LOST)).stage is Stage.FAILED


def test_a_checkpoint_is_of_what_the_ticket_builds(store):
    """45: another generation, another projection, another log."""
    adopt(store)
    ticket = started(store)
    wrong = [cp(store, 20, generation=ticket.generation + 1), cp(store, 20, generation=ticket.generation, name="other")]
    for each in wrong:
        with pytest.raises(RecordConflict):
            step(store, ticket, Progressed(each))
    assert store.rebuild(ticket.id) == ticket


def test_a_rebuild_never_goes_back(store):
    """46: neither position nor events; rows may."""
    adopt(store)
    ticket = progressed(store, started(store), 20)
    for position, events in ((19, 20), (20, 19)):
        with pytest.raises(InvalidCheckpoint):
            step(store, ticket, Progressed(cp(store, position, events, generation=ticket.generation)))


def test_live_is_as_it_was_while_it_is_rebuilt(store):
    """47: generation, version and checkpoint of before."""
    before = adopt(store)
    progressed(store, started(store, version=2), 20)
    status = store.status(NAME)
    assert (status.health, status.generation, status.version, status.checkpoint) == (
        Health.REBUILDING, 1, 1, before)


# --- completion ------------------------------------------------------------------------------------------------------


def test_completing_flips_generation_version_checkpoint_and_health_at_once(store):
    """48: and answers the request; the ticket says which log it saw."""
    adopt(store)
    ticket = complete(store, started(store, version=2), rows=7)
    status = store.status(NAME)
    assert (status.health, status.generation, status.version, status.active_rebuild, status.pending_requests) == (
        Health.READY, 2, 2, None, 0)
    assert (status.checkpoint.source.position, status.checkpoint.events, status.checkpoint.rows) == (50, 50, 7)
    assert ticket.source == seen(store)
    assert store.invalidation(NAME, 2).answered_by == ticket.id


def test_a_log_that_went_on_is_read_on(store, db):
    """49: the ticket runs on, unchanged, and completes when it has caught up; 67: nothing failed."""
    adopt(store)
    ticket, before = started(store), seen(store)
    append(db, "account-1", "Deposited", {"amount": 1})
    with pytest.raises(SourceMoved, match="51"):
        complete(store, ticket, before)
    assert store.rebuild(ticket.id) == ticket
    assert complete(store, ticket).stage is Stage.COMPLETED


def test_a_rotated_log_completes_nothing(store, db, rebuilder):
    """50: whatever its positions say."""
    adopt(store)
    ticket, before = started(store), seen(store)
    rotate_source(db, rebuilder._books, "public.events", "restored")
    with pytest.raises(SourceRotated):
        complete(store, ticket, before)
    with pytest.raises(RecordConflict):  # nor with the new log's fingerprint under the old ticket
        complete(store, ticket)
    assert step(store, ticket, Fail(Failure.SOURCE_CHANGED)).stage is Stage.FAILED


def test_an_empty_log_completes(store, db):
    """51: no position, no event."""
    db.execute("TRUNCATE events")
    ticket = step(store, store.request_rebuild(NAME, uuid.uuid4(), version=1), Start())
    assert complete(store, ticket).stage is Stage.COMPLETED
    assert store.status(NAME).checkpoint.source is None


def test_the_first_question_makes_the_logs_incarnation(store):
    """52: it is never missing, so that a first rebuild works as any other."""
    assert seen(store).events == 50


@pytest.mark.parametrize("position, events", [(49, 49), (50, 49), (49, 50), (None, 0)])
def test_a_rebuild_that_did_not_read_to_the_end_does_not_complete(store, position, events):
    """53: position and count are those of the fenced log; upstream takes any."""
    adopt(store)
    ticket, source = started(store), seen(store)
    with pytest.raises(SourceMoved):
        step(store, ticket, Complete(cp(store, position, events, generation=ticket.generation), source))
    assert store.status(NAME).generation == 1


@pytest.mark.parametrize("tier", ["sum64", "sha256"])
def test_an_edit_of_the_log_is_seen_by_a_deeper_fingerprint(store, db, tier):
    """68: count and maximum are the same; what the rebuild read is not what is there."""
    adopt(store)
    ticket, shallow, deep = started(store), seen(store), seen(store, tier)
    db.execute("""UPDATE events SET data = '{"amount": 1000000}' WHERE id = 12""")
    assert seen(store) == shallow
    with pytest.raises(SourceMoved):
        complete(store, ticket, deep)
    assert complete(store, ticket, seen(store, tier)).source.tier == tier


def test_a_writer_in_between_is_waited_for_or_told(store, db, connect):
    """An open append might commit behind the count: the fence waits for it, and gives up as busy; nothing changed."""
    adopt(store)
    ticket, writer = started(store), connect()
    writer.execute("SELECT 1")  # a transaction that stays open
    append(writer, "account-1", "Deposited", {"amount": 1})
    with pytest.raises(RecordBusy):
        complete(store, ticket)
    assert store.rebuild(ticket.id) == ticket
    writer.rollback()
    assert complete(store, ticket).stage is Stage.COMPLETED


def test_without_the_log_nothing_is_proven(store, dsn):
    """A store that was opened by hand can do all the rest."""
    adopt(store)
    ticket, source = started(store), seen(store)
    with ProjectionStore(dsn) as blind, pytest.raises(DefinitionError, match="without the event log"):
        at = Checkpoint(NAME, ticket.generation, source.high_water, source.events)
        step(blind, ticket, Complete(at, source))


@pytest.mark.parametrize("kind", [Fail(Failure.HANDLER_REJECTED), Cancel()])
def test_after_a_failure_health_is_what_it_was_before(store, kind):
    """54: invalidated stays invalidated; the checkpoint and the reason stay with the ticket."""
    adopt(store)
    ticket = step(store, progressed(store, started(store), 20), kind)
    assert (ticket.checkpoint.source.position, ticket.failure is not None) == (20, True)
    status = store.status(NAME)
    assert (status.health, status.generation, status.pending_requests) == (Health.INVALIDATED, 1, 1)


def test_there_is_always_a_way_on(store):
    """26, 57, 60, 64: a fresh ticket after any failure, also for the recipe that live has, forward and back."""
    adopt(store)
    step(store, started(store, version=2), Fail(Failure.INTEGRITY_FAILURE))
    for version, generation in ((2, 3), (1, 4), (2, 5)):
        done = complete(store, started(store, version=version))
        assert (done.generation, store.status(NAME).version) == (generation, version)


# --- beside the engine -----------------------------------------------------------------------------------------------


def test_a_requested_ticket_is_taken_up_by_the_engine(store, rebuilder):
    """One bookkeeping: who asks through the store is served by the next rebuild."""
    ticket = store.request_rebuild("account_balance", uuid.uuid4(), version=1)
    report = rebuilder.rebuild("account_balance")
    assert (report.ticket, report.generation) == (str(ticket.id), ticket.generation)
    found = store.rebuild(ticket.id)
    assert (found.stage, found.driver, found.source.position) == (Stage.COMPLETED, "engine", 50)
    assert store.status("account_balance").health is Health.READY


def test_a_rebuild_of_the_store_is_in_the_engines_way_and_not_abandoned(store, rebuilder):
    """Its state row is free, which for a run of the engine would mean that its process is gone."""
    ticket = started(store, "account_balance")
    with pytest.raises(RebuildInProgress, match=str(ticket.id)):
        rebuilder.rebuild("account_balance")
    assert rebuilder.cleanup() == []
    assert store.rebuild(ticket.id) == ticket
    step(store, ticket, Cancel())
    assert rebuilder.rebuild("account_balance").generation == 2


def test_a_running_engine_is_in_the_stores_way(store, rebuilder):
    """Its ticket is seen, not stepped; a request beside it is written at once."""
    seen_there = []

    def look(run):
        (open_one,) = store.open_rebuilds()
        seen_there.append((open_one.driver, store.status("account_balance").health))
        with pytest.raises(RecordConflict, match="carried out by the engine"):
            step(store, open_one, Fail(Failure.WORKER_LOST))
        with pytest.raises((RecordConflict, RecordBusy)):
            store.request_rebuild("account_balance", uuid.uuid4(), version=1)
        store.invalidate("account_balance", "source_changed")

    rebuilder._seam.points["freeze"] = look
    rebuilder.rebuild("account_balance")
    assert seen_there == [("engine", Health.REBUILDING)]
    assert store.status("account_balance").health is Health.INVALIDATED


def test_silent_rebuilds_are_listed(store, db):
    """A worker that is gone is seen by its silence, and anybody may end its ticket; what comes later may not."""
    adopt(store)
    ticket = started(store)
    assert store.open_rebuilds(silent=60) == []
    db.execute("UPDATE rebuilder.rebuild_ticket SET requested_at = requested_at - interval '2 minutes',"
               " updated_at = updated_at - interval '2 minutes'")
    (found,) = store.open_rebuilds(silent=60)
    assert found.id == ticket.id
    ended = step(store, found, Fail(Failure.WORKER_LOST))
    assert ended.failure == "worker_lost"
    with pytest.raises(RecordTerminal):
        progressed(store, ticket, 20)


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_of_two_workers_with_one_revision_exactly_one_wins_a_thousand_times(store, rebuilder, spawn):
    """59: compare-and-swap by revision: never both, never neither."""
    adopt(store)
    ticket = started(store)
    workers = [store, rebuilder.store()]

    def attempt(worker, revision, position):
        try:
            return step(worker, ticket, Progressed(cp(store, 10, position, generation=ticket.generation)), revision)
        except RecordConflict:
            return None

    source_of(store)
    for round_ in range(ROUNDS):
        revision = 2 + round_
        both = [spawn(attempt, worker, revision, 10 + 2 * round_ + n) for n, worker in enumerate(workers)]
        wait(both)
        assert sum(each.result() is not None for each in both) == 1, round_
    assert store.rebuild(ticket.id).revision == 2 + ROUNDS
    workers[1].close()


def test_two_requests_at_once_make_one_ticket(store, rebuilder, spawn, connect):
    """The partial unique index decides, whatever both have read before."""
    adopt(store)
    store.invalidate(NAME, "operator_requested")
    gate, watcher = connect(), connect(autocommit=True)
    gate.execute("SELECT FROM rebuilder.projection_state FOR UPDATE")

    def attempt(worker):
        with worker:
            try:
                return worker.request_rebuild(NAME, uuid.uuid4(), version=1)
            except (RecordConflict, RecordBusy) as error:
                return error

    both = [spawn(attempt, ProjectionStore(rebuilder.conninfo, log=store.log)) for _ in range(2)]
    wait_until(lambda: watcher.execute(
        "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND application_name = 'rebuilder:store'"
        " AND datname = current_database()").fetchone()[0] == 2, what="both to wait")
    gate.rollback()
    outcomes = [each.result(20) for each in both]
    assert sorted(isinstance(each, Exception) for each in outcomes) == [False, True]
    assert len(store.open_rebuilds()) == 1
