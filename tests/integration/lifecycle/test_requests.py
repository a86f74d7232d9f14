"""Requests: declared stale by whom and why, pending until a rebuild that began later is done."""

import uuid

import psycopg
import pytest

from rebuilder import Health, Reason
from rebuilder.domain.invalid import InvalidName, InvalidRequest
from rebuilder.errors import HandlerFailed, UnknownProjection
from tests.bank import append, append_many, make_handlers, make_projection, make_rebuilder, make_schema

NAME = "account_balance"


@pytest.fixture
def db(dsn, connect):
    connection = connect(autocommit=True)
    make_schema(connection)
    append_many(connection, 50)
    return connection


def health(rebuilder):
    return rebuilder.status(NAME)[0].health


def poisoned():
    handlers = make_handlers()

    @handlers.on("Poison")
    def poison(event, target):
        raise ValueError("poison")

    return make_projection(handlers=handlers)


def test_a_request_makes_it_pending_until_the_next_rebuild(dsn, db):
    """Live keeps serving; the request names the generation it declares stale, who asked, why, and since when."""
    rebuilder = make_rebuilder(dsn)
    rebuilder.rebuild(NAME)
    assert rebuilder.pending() == []
    asked = rebuilder.invalidate(NAME, Reason.SOURCE_CHANGED, note="events 3 to 5 were corrected", actor="Ada")
    assert (asked.generation, asked.reason, asked.note, asked.actor, asked.pending) == (
        1, Reason.SOURCE_CHANGED, "events 3 to 5 were corrected", "Ada", True)
    (status,) = rebuilder.status(NAME)
    assert (status.health, status.generation) == (Health.INVALIDATED, 1)
    assert status.pending is not None
    assert status.pending.requests == (asked,)
    report = rebuilder.rebuild(NAME)
    assert (health(rebuilder), rebuilder.pending()) == (Health.READY, [])
    answered = db.execute("SELECT answered_by::text FROM rebuilder.invalidation").fetchall()
    assert answered == [(report.ticket,)]


def test_each_request_is_a_fresh_one(dsn, db):
    """The same reason again, another reason, an actor of its own: nothing conflicts, and one rebuild answers all."""
    rebuilder = make_rebuilder(dsn)
    rebuilder.rebuild(NAME)
    asked = [rebuilder.invalidate(NAME, reason) for reason in
             (Reason.OPERATOR_REQUESTED, Reason.OPERATOR_REQUESTED, Reason.RECIPE_CHANGED)]
    assert len({each.id for each in asked}) == 3
    assert rebuilder.pending()[0].reason is Reason.RECIPE_CHANGED
    assert rebuilder.rebuild(NAME).generation == 2
    assert rebuilder.pending() == []


def test_a_projection_that_was_never_built_can_be_asked_for(dsn, db):
    """It stays never_built, which says more, and the first rebuild answers the request."""
    rebuilder = make_rebuilder(dsn)
    assert rebuilder.invalidate(NAME, "operator_requested").generation == 0
    assert health(rebuilder) is Health.NEVER_BUILT
    assert len(rebuilder.pending()[0].requests) == 1
    rebuilder.rebuild(NAME)
    assert rebuilder.pending() == []


def test_a_request_during_a_rebuild_neither_waits_for_it_nor_is_answered_by_it(dsn, db):
    """The run holds the state row for as long as it takes; what it replayed may be what the request complains of."""
    rebuilder = make_rebuilder(dsn)
    rebuilder.rebuild(NAME)
    before = rebuilder.invalidate(NAME, Reason.SOURCE_CHANGED)
    during = []
    rebuilder._seam.points["freeze"] = lambda run: during.append(rebuilder.invalidate(NAME, Reason.SOURCE_CHANGED))
    report = rebuilder.rebuild(NAME)
    assert health(rebuilder) is Health.INVALIDATED
    assert rebuilder.pending()[0].requests == (during[0],)
    assert db.execute("SELECT answered_by::text FROM rebuilder.invalidation WHERE invalidation = %s",
                      (before.id,)).fetchone() == (report.ticket,)
    del rebuilder._seam.points["freeze"]
    rebuilder.rebuild(NAME)
    assert health(rebuilder) is Health.READY


@pytest.mark.parametrize("how", ["asked before", "reason of the run"])
def test_a_failed_repair_of_a_damaged_read_model_does_not_make_it_ready(dsn, db, how):
    """Neither where somebody asked for it, nor where the run itself was the first to say so."""
    good, bad = make_rebuilder(dsn), make_rebuilder(dsn, poisoned())
    good.rebuild(NAME)
    if how == "asked before":
        good.invalidate(NAME, Reason.INTEGRITY_FAILURE)
    append(db, "account-1", "Poison")
    with pytest.raises(HandlerFailed):
        bad.rebuild(NAME, reason=Reason.INTEGRITY_FAILURE)
    (status,) = good.status(NAME)
    assert status.health is Health.INVALIDATED
    assert status.last_failure is not None
    with pytest.raises(HandlerFailed):  # again: still not, and no second request beside the first
        bad.rebuild(NAME, reason=Reason.INTEGRITY_FAILURE)
    assert [each.reason for each in good.pending()[0].requests] == [Reason.INTEGRITY_FAILURE]
    good.rebuild(NAME)
    assert health(good) is Health.READY


def test_a_failed_rebuild_that_nobody_doubted_leaves_it_ready(dsn, db):
    """Health after a failure is what it was before; the failure is told beside it."""
    good, bad = make_rebuilder(dsn), make_rebuilder(dsn, poisoned())
    good.rebuild(NAME)
    append(db, "account-1", "Poison")
    with pytest.raises(HandlerFailed):
        bad.rebuild(NAME)
    assert health(good) is Health.READY
    assert good.status(NAME)[0].last_failure is not None


def test_a_newer_recipe_is_pending_and_an_older_one_is_not(dsn, db):
    """The older code's rebuild would be refused, so that it does not wait for one."""
    first, second = make_rebuilder(dsn), make_rebuilder(dsn, make_projection(version=2))
    assert [each.reason for each in first.pending()] == [Reason.RECIPE_CHANGED]  # never built
    first.rebuild(NAME)
    assert first.pending() == []
    assert [(each.version, each.recipe_version) for each in second.pending()] == [(1, 2)]
    second.rebuild(NAME)
    assert second.pending() == first.pending() == []


def test_a_recipe_that_changed_without_a_new_version_is_pending(dsn, db):
    """Another event type handled, and the version forgotten: what the recipe declares is compared too."""
    make_rebuilder(dsn).rebuild(NAME)
    (found,) = make_rebuilder(dsn, poisoned()).pending()
    assert (found.reason, found.version, found.recipe_version) == (Reason.RECIPE_CHANGED, 1, 1)
    assert make_rebuilder(dsn).pending() == []


def dependent_tables(db):
    db.execute("CREATE TABLE first (LIKE account_balance INCLUDING ALL);"
               "CREATE TABLE second (LIKE account_balance INCLUDING ALL);"
               "CREATE TABLE other (LIKE account_balance INCLUDING ALL)")


def plain(name, **overrides):
    from rebuilder import SqlHandlers
    handlers = SqlHandlers()

    @handlers.on("AccountOpened", "Poison")
    def opened(event, target):
        if event.type == "Poison" and name == "first":
            raise ValueError("poison")
        target.execute(f"INSERT INTO {name} (id, balance, changes) VALUES (%s, 0, 1) ON CONFLICT DO NOTHING",
                       (event.stream,))

    return make_projection(name, tables=[name], handlers=handlers, **overrides)


def test_pending_ones_are_rebuilt_in_the_order_of_their_dependencies(dsn, db):
    """However they were registered; a second call finds nothing to do."""
    dependent_tables(db)
    rebuilder = make_rebuilder(dsn, plain("second", depends_on=["first"]), plain("first"), plain("other"))
    ran = rebuilder.run_pending(note="deploy")
    assert [each.projection for each in ran] == ["first", "second", "other"]
    assert all(each.report is not None for each in ran)
    assert {each.note for each in rebuilder.tickets()} == {"deploy"}
    assert rebuilder.run_pending() == []


def test_one_that_fails_keeps_back_only_what_depends_on_it(dsn, db):
    """The rest of a deploy is done; the error is in the result and not swallowed."""
    dependent_tables(db)
    append(db, "account-1", "Poison")
    rebuilder = make_rebuilder(dsn, plain("second", depends_on=["first"]), plain("first"), plain("other"))
    first, second, other = rebuilder.run_pending()
    assert isinstance(first.error, HandlerFailed)
    assert (second.waits_for, second.report, second.error) == ("first", None, None)
    assert other.report is not None
    assert [each.projection for each in rebuilder.pending()] == ["first", "second"]


@pytest.mark.parametrize("statement", [
    "UPDATE rebuilder.invalidation SET note = 'x'", "UPDATE rebuilder.invalidation SET reason = 'recipe_changed'",
    "UPDATE rebuilder.invalidation SET answered_by = NULL, answered_at = NULL", "DELETE FROM rebuilder.invalidation",
    "TRUNCATE rebuilder.invalidation CASCADE"])
def test_a_request_is_never_changed(dsn, db, statement):
    """Whoever writes SQL: the history of requests is only appended to."""
    make_rebuilder(dsn).invalidate(NAME, Reason.OPERATOR_REQUESTED)
    with pytest.raises(psycopg.errors.IntegrityConstraintViolation):
        db.execute(statement)


def test_bad_requests_are_refused_where_they_are_made(dsn, db):
    """Reason, note and name each by an error that says what is wrong; nothing is written."""
    rebuilder = make_rebuilder(dsn, make_projection())
    with pytest.raises(InvalidRequest, match="must be one of"):
        rebuilder.invalidate(NAME, "because")
    for note in ("", "é" * 1001, "a\0b"):
        with pytest.raises(InvalidRequest, match="bytes"):
            rebuilder.invalidate(NAME, Reason.OPERATOR_REQUESTED, note=note)
    with pytest.raises(UnknownProjection):
        rebuilder.invalidate("account_balanse", Reason.OPERATOR_REQUESTED)
    with pytest.raises(InvalidName):
        make_rebuilder(dsn, make_projection("Account Balance")).invalidate("Account Balance", "operator_requested")
    assert db.execute("SELECT count(*) FROM rebuilder.invalidation").fetchone() == (0,)


def test_the_command_line_asks_lists_and_rebuilds(cli, db):
    """invalidate, pending, pending --run; the same as JSON."""
    assert cli("rebuild", NAME).code == 0
    asked = cli("invalidate", NAME, "--reason", "source_changed", "--note", "corrected", "--json")
    assert asked.code == 0
    assert uuid.UUID(asked.json["request"])
    listed = cli("pending", "--json")
    assert [(each["projection"], each["reason"]) for each in listed.json] == [(NAME, "source_changed")]
    assert "corrected" in cli("pending").stdout
    done = cli("pending", "--run")
    assert (done.code, "generation 2" in done.stdout) == (0, True)
    assert "Nothing is pending" in cli("pending").stdout
    assert cli("invalidate", NAME, "--reason", "because").code == 2
