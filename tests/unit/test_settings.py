"""Every knob is checked when it is set, and not when a run comes to need it."""

from dataclasses import fields

import pytest

from rebuilder import Quarantine, Settings
from rebuilder.errors import DefinitionError


def test_the_defaults_are_valid():
    """And each field says what it is for."""
    assert Settings() == Settings()
    assert {field.name for field in fields(Settings)} >= {"batch", "fence_budget", "fence_hold", "retain_hours"}


@pytest.mark.parametrize("name", [
    "batch", "fence_hold", "fence_poll", "heartbeat", "freeze_chunk", "lock_timeout_ms", "catch_up_rounds",
    "fence_budget", "horizon_poll",
])
@pytest.mark.parametrize("value", [0, -5, float("nan")])
def test_times_and_sizes_are_above_zero(name, value):
    """0 would mean "wait for ever" to the server, or never to advance; -5 nothing at all (scenarios 40 and 41)."""
    with pytest.raises(DefinitionError, match=f"settings.{name} is") as caught:
        Settings(**{name: value})
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("value", [(0, 500), (-5, 500), (0.5, 500), (500, 100), (100,), (1, 2, 3), 100, None])
def test_the_queued_attempt_has_two_bounds(value):
    """Half a millisecond becomes 0 when it is cut to a whole number, which the server takes for "wait for ever"
    (scenarios 40 and 41).
    """
    with pytest.raises(DefinitionError, match=r"settings\.fence_queue_ms is"):
        Settings(fence_queue_ms=value)


@pytest.mark.parametrize("name", ["fence_nowait", "fence_rest", "retain_hours", "drift_sample", "freeze_age"])
def test_what_may_be_nothing_may_not_be_less(name):
    """0 turns it off; -5 is a mistake."""
    assert getattr(Settings(**{name: 0}), name) == 0
    with pytest.raises(DefinitionError, match=f"settings.{name} is -5"):
        Settings(**{name: -5})


def test_the_bookkeeping_schema_has_a_name():
    """An empty one would be found out by the server, as a syntax error."""
    with pytest.raises(DefinitionError, match=r"settings\.schema is ''"):
        Settings(schema="")


def test_settings_can_not_be_changed_afterwards():
    """A run reads them from several threads."""
    with pytest.raises(AttributeError):
        Settings().batch = 5


@pytest.mark.parametrize("wrong, why", [
    ({"policy": "batch"}, "policy='batch'"), ({"max_dead_letters": 0}, "at least 1"),
])
def test_a_quarantine_is_checked_too(wrong, why):
    """Before a run begins."""
    with pytest.raises(DefinitionError, match=why):
        Quarantine(**wrong)
