"""What can be asked of a projection, and what an observer (a bar, logs, metrics) is told of a run."""

import pytest

from rebuilder import Health, SqlHandlers
from rebuilder.errors import HandlerFailed
from tests.bank import append, append_many, make_projection, make_rebuilder, make_schema


@pytest.fixture
def db(connect):
    connection = connect(autocommit=True)
    make_schema(connection)
    return connection


def status(rebuilder):
    (found,) = rebuilder.status()
    return found


class Metrics:
    """What a metrics exporter would keep: how often each thing happened, by projection."""

    def __init__(self):
        self.seen = []

    def __call__(self, observation):
        self.seen.append(observation)

    def of(self, kind):
        return [seen for seen in self.seen if seen.kind == kind]


def test_a_projection_that_was_never_built_is_listed_as_such(dsn, db):
    """Status names projections that have no state yet, with their categories; afterwards health and time
    (scenario 11).
    """
    rebuilder = make_rebuilder(dsn)
    before = status(rebuilder)
    assert (before.projection, before.health, before.generation) == ("account_balance", Health.NEVER_BUILT, 0)
    assert (before.rebuilt_at, before.position, before.version, before.recipe_version) == (None, None, None, 1)
    assert before.categories == ("account",)
    rebuilder.rebuild("account_balance")
    after = status(rebuilder)
    assert (after.health, after.generation, after.version) == (Health.READY, 1, 1)
    assert after.rebuilt_at is not None


def test_lag_is_what_a_follower_has_not_applied(dsn, db):
    """High-water mark and lag grow with the log and a rebuild brings the lag to 0 (scenario 12)."""
    rebuilder = make_rebuilder(dsn, make_projection(feeding="async"))
    empty = status(rebuilder)
    assert (empty.high_water_mark, empty.lag) == (0, 0)
    for _ in range(3):
        append(db, "a", "Deposited", {"amount": 1})
    append(db, "a", "Forgotten")  # nobody subscribes to it: it moves the mark and no lag
    behind = status(rebuilder)
    assert (behind.high_water_mark, behind.position, behind.lag) == (4, None, 3)
    rebuilder.rebuild("account_balance")
    built = status(rebuilder)
    assert (built.high_water_mark, built.position, built.lag) == (4, 4, 0)


def test_an_inline_projection_never_lags(dsn, db):
    """Live that is fed in the appending transaction has no lag, however long ago its rebuild was (scenario 12)."""
    rebuilder = make_rebuilder(dsn)
    rebuilder.rebuild("account_balance")
    append(db, "a", "Deposited", {"amount": 1}, live=rebuilder)
    assert (status(rebuilder).lag, status(rebuilder).high_water_mark) == (0, 1)


def test_completion_is_told_once(dsn, db):
    """An observer hears once that the projection is rebuilt and of how many events; the report has the duration
    (scenario 13).
    """
    append(db, "a", "Deposited", {"amount": 1})
    append(db, "a", "Deposited", {"amount": 1})
    metrics = Metrics()
    report = make_rebuilder(dsn, observer=metrics).rebuild("account_balance")
    (completed,) = metrics.of("completed")
    assert (completed.projection, completed.events_done) == ("account_balance", 2)
    assert completed.ticket == report.ticket
    assert report.seconds["total"] > 0


def test_an_observer_can_keep_the_metrics_of_a_success(dsn, db):
    """Outcome, events, phases with their times, fence and attempts can all be had from one run (scenario 14)."""
    for _ in range(3):
        append(db, "a", "Deposited", {"amount": 1})
    metrics = Metrics()
    report = make_rebuilder(dsn, observer=metrics).rebuild("account_balance")
    assert {seen.projection for seen in metrics.seen} == {"account_balance"}
    assert [str(seen.phase) for seen in metrics.of("phase")][:3] == ["lock state", "build shadow", "catch up"]
    assert str(metrics.of("phase")[-1].phase) == "finalize"
    assert [seen.events_done for seen in metrics.of("progress")][-1] == 3
    assert (metrics.of("failed"), len(metrics.of("completed"))) == ([], 1)
    phases = {str(seen.phase) for seen in metrics.of("phase")}
    # The last phase's time is not over when the report is made, and the fence is told as waited for and held.
    assert phases - {"fence", "finalize"} <= set(report.seconds)
    assert 0 <= report.fence_held_seconds <= report.seconds["total"]


def test_progress_has_a_rate_and_an_eta(dsn, db):
    """On a longer log every batch is told, with what is done of what there is, at what rate (scenario 14)."""
    append_many(db, 12_000, accounts=500)
    metrics = Metrics()
    make_rebuilder(dsn, observer=metrics).rebuild("account_balance")
    done = [seen.events_done for seen in metrics.of("progress")]
    assert done == sorted(done)
    assert done[-1] == 12_000
    last = metrics.of("progress")[-1]
    assert last.events_total == 12_000
    assert last.rate > 0
    assert last.eta == 0


def test_an_observer_can_keep_the_metrics_of_a_failure(dsn, db):
    """A run that failed is told once as failed, with its projection, and never as completed (scenario 15)."""
    handlers = SqlHandlers()
    handlers.on("Deposited")(lambda event, target: 1 / 0)
    append(db, "a", "Deposited", {"amount": 1})
    metrics = Metrics()
    with pytest.raises(HandlerFailed):
        make_rebuilder(dsn, make_projection(handlers=handlers), observer=metrics).rebuild("account_balance")
    (failed,) = metrics.of("failed")
    assert (failed.projection, str(failed.phase)) == ("account_balance", "catch up")
    assert "ZeroDivisionError" in failed.message
    assert metrics.of("completed") == []


def test_an_observer_that_raises_harms_nobody(dsn, db):
    """A broken exporter is dropped with a warning in the report; the others hear on (scenarios 13 to 15)."""
    append(db, "a", "Deposited", {"amount": 1})
    metrics, calls = Metrics(), []

    def broken(observation):
        calls.append(observation)
        raise RuntimeError("the exporter is down")

    report = make_rebuilder(dsn, observer=broken).rebuild("account_balance", observer=metrics)
    assert len(calls) == 1
    assert len(metrics.of("completed")) == 1
    assert any("RuntimeError" in warning for warning in report.warnings)
