"""A projection is checked when it is defined."""

import pytest

from rebuilder import ExternalCheckpoint, Projection, SqlHandlers
from rebuilder.errors import DefinitionError, DuplicateDefinition

EXTERNAL = ExternalCheckpoint(lock="SELECT 1", advance="SELECT %s")


def projection(name="a", **overrides):
    return Projection(name, **{"version": 1, "tables": ["t"], "handlers": SqlHandlers(), **overrides})


@pytest.mark.parametrize("wrong, why", [
    ({"name": ""}, "needs a name"),
    ({"version": 0}, "whole number from 1"),
    ({"version": -5}, "whole number from 1"),
    ({"version": 1.0}, "whole number from 1"),
    ({"version": True}, "whole number from 1"),
    ({"version": "1"}, "whole number from 1"),
    ({"tables": []}, "no table, so there is nothing to rebuild"),
    ({"tables": "t"}, "tables is a text"),
    ({"tables": ["t", "u", "t"]}, "names a table twice"),
    ({"categories": "account"}, "categories is a text"),
    ({"depends_on": "b"}, "depends_on is a text"),
    ({"not_compared": "note"}, "not_compared is a text"),
    ({"handlers": {"Opened": print}}, "must be a SqlHandlers"),
    ({"handlers": None}, "must be a SqlHandlers"),
    ({"order": "position"}, "order is 'position'"),
    ({"feeding": "outbox"}, "feeding is 'outbox'"),
    ({"feeding": None}, "feeding is None"),
    ({"stream_columns": {"u": "id"}}, "stream_columns names u"),
    ({"shape": {"u": object()}}, "shape names u"),
])
def test_a_definition_that_can_not_work_is_refused(wrong, why):
    """Before any connection is made, with the projection's name."""
    with pytest.raises(DefinitionError, match=why) as caught:
        projection(**{"name": "a", **wrong})
    assert caught.value.exit_code == 2


def test_a_text_where_a_list_belongs_says_how_to_write_it():
    """`tables="account_balance"` would be fifteen tables of one letter."""
    with pytest.raises(DefinitionError) as caught:
        projection(tables="account_balance")
    assert caught.value.hint == "write tables=['account_balance']"


def test_subscribing_to_nothing_is_legal():
    """Its rebuild empties the table, which the guard `shrink` watches over."""
    assert projection().types == ()


@pytest.mark.parametrize("feeding, name, followed", [
    ("inline", "inline", False), ("own", "own", False), ("async", "async", True), (EXTERNAL, "external", True),
])
def test_feeding_says_whether_a_follower_writes_live(feeding, name, followed):
    """A followed projection must not be drained beyond the horizon."""
    made = projection(feeding=feeding)
    assert (made.feeding_name, made.followed) == (name, followed)


def test_a_definition_can_not_be_changed_afterwards():
    """Lists are taken as they were given: a run reads them while the application goes on."""
    tables = ["t"]
    made = projection(tables=tables)
    tables.append("u")
    assert made.tables == ("t",)
    with pytest.raises(AttributeError):
        made.version = 2


@pytest.mark.parametrize("named, compared", [
    ([], True), (["note"], False), (["t.note"], False), (["u.note"], True), (["t.other"], True),
])
def test_columns_are_left_out_of_the_comparison_by_name(named, compared):
    """With or without the table."""
    assert projection(tables=["t", "u"], not_compared=named).compares("t", "note") is compared


# --- handlers --------------------------------------------------------------------------------------------------------


def test_types_are_what_is_handled():
    """Sorted, so that the same recipe reads the log by the same statement."""
    handlers = SqlHandlers()

    @handlers.on("Renamed", "Opened")
    def named(event, target):
        return None

    handlers.on("Closed")(print)
    assert handlers.types == ("Closed", "Opened", "Renamed")
    assert handlers.handler("Opened") is named


def test_one_type_handled_twice_is_refused_by_both_names():
    """Which of the two would run?"""
    handlers = SqlHandlers()
    handlers.on("Opened")(test_types_are_what_is_handled)
    with pytest.raises(DuplicateDefinition, match="by test_types_are_what_is_handled and by test_one_type") as caught:
        handlers.on("Closed", "Opened")(test_one_type_handled_twice_is_refused_by_both_names)
    assert caught.value.type == "Opened"


@pytest.mark.parametrize("types", [(), ("",), (print,), (None,)])
def test_on_takes_names(types):
    """`@handlers.on` without parentheses hands the function over as a name."""
    with pytest.raises(DefinitionError, match="names of one or more event types"):
        SqlHandlers().on(*types)
