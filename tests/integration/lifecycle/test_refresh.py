"""Documents as a read model: refreshed in steps that survive a crash (lifecycle scenarios 62 to 74)."""

import threading

import pytest

from rebuilder import Event, Fold
from rebuilder.domain.document_projection import DocumentProjection
from rebuilder.domain.documents import InventoryQuery
from rebuilder.domain.ticket import Health, Stage
from rebuilder.engine import documents
from rebuilder.errors import DefinitionError, HandlerFailed, RebuildInProgress, RecipeOutdated, SourceRotated
from tests.bank import append, append_many, replay_in_sql

NAME = "balances"


def balances(*, version=1, poison=True):
    """The bank's read model as a fold into documents; what it counts is as in `replay_in_sql`."""
    fold = Fold()

    @fold.on("AccountOpened", "OwnerRenamed", "Deposited", "Withdrawn")
    def changed(row, event: Event):
        row = row or {"owner": None, "balance": 0, "changes": 0}
        row["changes"] += 1
        if "owner" in event.data:
            row["owner"] = event.data["owner"]
        row["balance"] += event.data.get("amount", 0) * (-1 if event.type == "Withdrawn" else 1)
        return row

    @fold.on("AccountClosed")
    def closed(row, event: Event):
        return None

    if poison:
        @fold.on("Poison")
        def refused(row, event: Event):
            raise ValueError("poison")

    return DocumentProjection(NAME, version=version, fold=fold, categories=["account"])


def assert_equal(store, db):
    """Documents of the live generation are what a replay in SQL makes."""
    live = store.status(NAME).generation
    rows = [(row.key, row.document.value) for row in store.inventory(InventoryQuery(NAME, live)).rows]
    assert [(key, v["owner"], v["balance"], v["changes"]) for key, v in rows] == replay_in_sql(db)


def test_the_first_refresh_builds_and_the_next_go_on(rebuilder, store, db):
    """62, 63: a ticket for the build, none for what comes; exact each time; a read model's own rows may vanish (69)."""
    first = rebuilder.refresh(balances(), batch=20)
    assert (first.state, first.rebuilt, first.events, first.position) == ("complete", True, 50, 50)
    assert_equal(store, db)
    append_many(db, 100)
    append(db, "account-1", "AccountClosed")
    second = rebuilder.refresh(balances(), batch=20)
    assert (second.state, second.rebuilt, second.events, second.generation) == ("complete", False, 101, 1)
    assert_equal(store, db)
    assert rebuilder.refresh(balances()).events == 0
    assert len(rebuilder.tickets(NAME)) == 1


def test_a_newer_recipe_is_built_beside_live(rebuilder, store, db):
    """63: live serves the old generation until the flip; an older recipe is refused; a request has it built again."""
    rebuilder.refresh(balances())
    assert rebuilder.refresh(balances(version=2), batch=20, max_batches=1).state == "partial"
    assert (store.status(NAME).generation, store.status(NAME).health) == (1, Health.REBUILDING)
    assert_equal(store, db)
    done = rebuilder.refresh(balances(version=2))
    assert (done.state, done.generation) == ("complete", 2)
    assert_equal(store, db)
    with pytest.raises(RecipeOutdated):
        rebuilder.refresh(balances())
    store.invalidate(NAME, "integrity_failure")
    assert rebuilder.refresh(balances(version=2)).generation == 3


def test_so_many_batches_and_no_more(rebuilder, store, db):
    """65: partial, partial, complete; each call goes on from the ticket."""
    states = [rebuilder.refresh(balances(), batch=20, max_batches=1) for _ in range(4)]
    assert [each.state for each in states] == ["partial", "partial", "complete", "complete"]
    assert sum(each.events for each in states) == 50
    assert_equal(store, db)


def test_another_recipe_does_not_take_over_a_running_build(rebuilder, store):
    """66: it is told whose it is."""
    rebuilder.refresh(balances(), batch=20, max_batches=1)
    with pytest.raises(RebuildInProgress):
        rebuilder.refresh(balances(version=2))
    assert rebuilder.refresh(balances()).state == "complete"


def test_an_event_that_is_refused_fails_the_ticket_and_wedges_nothing(rebuilder, store, db):
    """64: live as it was, again and again, until the fold is mended."""
    rebuilder.refresh(balances())
    store.invalidate(NAME, "operator_requested")
    append(db, "account-1", "Poison")
    for _ in range(2):
        with pytest.raises(HandlerFailed) as caught:
            rebuilder.refresh(balances(), batch=20)
        assert caught.value.position == 51
        assert (store.status(NAME).generation, store.status(NAME).health) == (1, Health.INVALIDATED)
    assert {each.stage for each in rebuilder.tickets(NAME, limit=2)} == {Stage.FAILED}
    assert rebuilder.refresh(balances(poison=False)).generation == 4
    assert_equal(store, db)


def test_events_that_come_meanwhile_are_caught_up_with(rebuilder, store, db, spawn, connect):
    """67: upstream fails the rebuild for each of them; a busy log would never be done."""
    over = threading.Event()

    def writer():
        connection = connect(autocommit=True)
        while not over.wait(0.002):
            append(connection, "account-1", "Deposited", {"amount": 1})

    writing = spawn(writer)
    for version in (1, 2, 3):
        assert rebuilder.refresh(balances(version=version), batch=20).state == "complete"
    over.set()
    writing.result(10)
    rebuilder.refresh(balances(version=3))
    assert_equal(store, db)


def test_a_log_that_was_rotated_fails_the_build(rebuilder, store, db):
    """50, 68: the next refresh begins with the log as it is now."""
    rebuilder.refresh(balances(), batch=20, max_batches=1)
    rebuilder.rotate_log("restored")
    with pytest.raises(SourceRotated):
        rebuilder.refresh(balances(), batch=20)
    assert rebuilder.refresh(balances(), batch=20).state == "complete"
    assert_equal(store, db)


@pytest.mark.parametrize("limits", [{"batch": 0}, {"batch": True}, {"max_batches": 0}])
def test_limits_that_are_none_are_refused(rebuilder, limits):
    """70, 74: no largest ones are needed, since nothing grows with the log."""
    with pytest.raises(DefinitionError):
        rebuilder.refresh(balances(), **limits)


class Crash(BaseException):
    pass


@pytest.mark.parametrize("place", ["_resume", "_apply", "_finish", "_drain"])
@pytest.mark.parametrize("after", [False, True])
def test_a_crash_at_any_boundary_is_resumed(rebuilder, store, db, monkeypatch, place, after):
    """71, 72: invalidated, requested, started, a batch, the last one: the next refresh goes on, live's bytes intact."""
    rebuilder.refresh(balances())
    store.invalidate(NAME, "operator_requested")
    append_many(db, 10)
    original = getattr(documents.Refresh, place)

    def crashing(self, *arguments):
        if after:
            original(self, *arguments)
        raise Crash

    monkeypatch.setattr(documents.Refresh, place, crashing)
    with pytest.raises(Crash):
        rebuilder.refresh(balances(), batch=20)
    assert_live = store.document(NAME, "account-1")
    assert assert_live is not None
    monkeypatch.undo()
    done = rebuilder.refresh(balances(), batch=20)
    assert (done.state, store.status(NAME).health) == ("complete", Health.READY)
    assert_equal(store, db)
    assert done.generation == 2


def test_two_refreshes_at_once_make_one_build(rebuilder, store, db, spawn):
    """Compare-and-swap: one may be told to look again; the documents are exact, and nothing is applied twice."""
    append_many(db, 200)
    both = [spawn(rebuilder.refresh, balances(), batch=5) for _ in range(2)]
    outcomes = [each.exception(60) for each in both]
    assert any(outcome is None for outcome in outcomes), outcomes
    rebuilder.refresh(balances())
    assert_equal(store, db)
