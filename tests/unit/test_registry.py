"""A registry is a closed set of projections without contradictions."""

import pytest

from rebuilder import Projection, Registry, SqlHandlers
from rebuilder.errors import DefinitionError, DuplicateDefinition, UnknownProjection


def projection(name, *tables, **overrides):
    return Projection(name, version=1, tables=tables or [name], handlers=SqlHandlers(), **overrides)


def test_projections_are_found_by_name():
    """In the order in which they were given."""
    first, second = projection("b"), projection("a")
    registry = Registry(first, second)
    assert registry.get("a") is second
    assert list(registry) == [first, second]
    assert len(registry) == 2


def test_two_projections_of_one_name_are_refused():
    """Which of them would a rebuild rebuild?"""
    with pytest.raises(DuplicateDefinition, match="Two projections are called 'a'"):
        Registry(projection("a", "x"), projection("a", "y"))


@pytest.mark.parametrize("first, second", [("x", "x"), ("public.x", "x"), ("x", "public.x"), ("shop.x", "shop.x")])
def test_two_projections_on_one_table_are_refused(first, second):
    """The rebuild of one would drop the other's rows, also when the table is written in two ways."""
    with pytest.raises(DuplicateDefinition, match="filled by two projections, 'a' and 'b'") as caught:
        Registry(projection("a", first), projection("b", "other", second))
    assert caught.value.table == second


def test_tables_of_one_name_in_two_schemas_are_two():
    """Nothing is refused that is not the same table."""
    assert len(Registry(projection("a", "x"), projection("b", "shop.x"))) == 2


@pytest.mark.parametrize("asked, offered", [
    ("acount_balance", "'account_balance'"), ("account", "'account_balance'"), ("balances", "'account_balance'"),
])
def test_an_unknown_name_is_answered_with_the_closest(asked, offered):
    """A typo is told what was meant, and all there is (field case B68)."""
    registry = Registry(projection("account_balance"), projection("zoo"))
    with pytest.raises(UnknownProjection, match="Registered: account_balance, zoo") as caught:
        registry.get(asked)
    assert offered in caught.value.hint
    assert caught.value.known == ["account_balance", "zoo"]


def test_nothing_like_it_is_offered_when_nothing_is():
    """No guess is better than a wild one; without any projection that is said."""
    with pytest.raises(UnknownProjection) as caught:
        Registry(projection("account_balance")).get("xyz")
    assert caught.value.hint is None
    with pytest.raises(UnknownProjection, match="Registered: none"):
        Registry().get("account_balance")


def test_dependencies_come_first():
    """Whatever order they were given in."""
    registry = Registry(projection("c", depends_on=["b", "a"]), projection("b", depends_on=["a"]), projection("a"))
    assert [each.name for each in registry.in_order()] == ["a", "b", "c"]


@pytest.mark.parametrize("others, path", [
    ([("a", ["a"])], "a -> a"), ([("a", ["b"]), ("b", ["a"])], "a -> b -> a"),
    ([("x", ["a"]), ("a", ["b"]), ("b", ["c"]), ("c", ["a"])], "x -> a -> b -> c -> a"),
])
def test_a_circle_of_dependencies_is_refused(others, path):
    """Nothing could be rebuilt first; the circle is shown."""
    with pytest.raises(DefinitionError, match=f"in a circle: {path}"):
        Registry(*(projection(name, depends_on=needs) for name, needs in others))


def test_a_dependency_that_is_not_registered_is_refused():
    """A typo in depends_on is not an order."""
    with pytest.raises(DefinitionError, match="depends on 'b', which is not registered"):
        Registry(projection("a", depends_on=["b"]))
