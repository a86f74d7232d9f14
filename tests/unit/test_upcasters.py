"""Chains of upcasters: what is refused when they are defined, and what they do to an event."""

import pytest

from rebuilder import Event, UpcastContext, Upcasters
from rebuilder.errors import DefinitionError, UpcasterError
from tests.bank import make_projection

CONTEXT = UpcastContext("blue", lambda statement, params=None: None)


def event(version, data="v1"):
    return Event(1, "a", "Opened", data, schema_version=version)


def step(name):
    return lambda data, context: f"{data} {name}"


def chain(*versions, current=None):
    upcasters = Upcasters(current)
    for version in versions:
        upcasters.on("Opened", from_version=version)(step(f"to {version + 1}"))
    return upcasters


@pytest.mark.parametrize("version, data, lifted", [
    (1, "v1", "v1 to 2 to 3"), (2, "v2", "v2 to 3"), (None, "v1", "v1 to 2 to 3"), (0, "v1", "v1 to 2 to 3"),
])
def test_an_event_is_lifted_step_by_step(version, data, lifted):
    """From the version it was stored with up to the current one; without a version it counts as version 1."""
    after = chain(1, 2).lift(event(version, data), CONTEXT)
    assert (after.data, after.schema_version) == (lifted, 3)
    assert (after.position, after.stream, after.type) == (1, "a", "Opened")


@pytest.mark.parametrize("version", [3, 4])
def test_a_current_event_stays_the_same_object(version):
    """What is current, or comes from the future, costs nothing."""
    given = event(version)
    assert chain(1, 2).lift(given, CONTEXT) is given


def test_a_type_without_upcasters_stays_the_same_object():
    """Upcasters of one type leave the others alone."""
    given = Event(1, "a", "Closed", None, schema_version=1)
    upcasters = chain(1)
    assert upcasters.lift(given, CONTEXT) is given
    assert (upcasters.current("Closed"), upcasters.current("Opened")) == (1, 2)
    assert upcasters.types == ("Opened",)


def test_the_stored_event_is_not_changed():
    """Lifting makes a new event: the stored one may be lifted again for another projection."""
    given = event(1)
    assert chain(1).lift(given, CONTEXT) is not given
    assert (given.data, given.schema_version) == ("v1", 1)


def test_an_upcaster_knows_the_tenant_and_may_ask():
    """The context has what the log knows besides the data, and a look into the database."""
    upcasters = Upcasters()
    upcasters.on("Opened", from_version=1)(lambda data, context: (context.tenant, context.fetch_one("?", [data])))
    context = UpcastContext("blue", lambda statement, params=None: (statement, params))
    assert upcasters.lift(event(1, 7), context).data == ("blue", ("?", [7]))


# --- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("versions, current, missing", [
    ((1, 3), None, "2"), ((1, 4), None, "2, 3"), ((1,), {"Opened": 4}, "2, 3"), ((2,), {"Opened": 4}, "3"),
])
def test_a_hole_is_found_when_the_projection_is_defined(versions, current, missing):
    """A chain with a missing step is refused before any event is read, in a quarantined run too (scenario 111)."""
    with pytest.raises(UpcasterError, match=f"no step from version {missing}"):
        make_projection(upcasters=chain(*versions, current=current))


def test_a_chain_may_begin_late():
    """Versions that no event has any more need no step; an event that has one all the same is an error by name."""
    upcasters = chain(2)
    upcasters.check()
    assert upcasters.lift(event(2), CONTEXT).data == "v1 to 3"
    with pytest.raises(UpcasterError, match="No upcaster of 'Opened' from version 1"):
        upcasters.lift(event(1), CONTEXT)


def test_a_step_past_the_declared_version_is_refused():
    """The declared current version is the last there is (scenario 111)."""
    with pytest.raises(UpcasterError, match="past the declared current version 2"):
        chain(1, 2, current={"Opened": 2})


def test_two_steps_from_one_version_are_refused():
    """Which of the two would run? (scenario 111)"""
    with pytest.raises(UpcasterError, match="two upcasters from version 1"):
        chain(1, 1)


@pytest.mark.parametrize("version", [0, -1, 1.5, True, "1", None])
def test_a_version_is_a_whole_number_from_one(version):
    """Anything else is refused, as a step and as a declaration (scenario 111)."""
    with pytest.raises(UpcasterError, match="whole number from 1"):
        Upcasters().on("Opened", from_version=version)
    with pytest.raises(UpcasterError, match="whole number from 1"):
        Upcasters({"Opened": version})


def test_a_mistake_in_a_chain_is_a_mistake_of_the_definition():
    """So that it ends with the exit code of a definition error."""
    assert issubclass(UpcasterError, DefinitionError)
    assert UpcasterError.exit_code == 2
