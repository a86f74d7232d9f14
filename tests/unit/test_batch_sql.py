"""BatchSql: where the relation `batch` goes in a statement, and what is refused."""

import pytest

from rebuilder import BatchSql, DefinitionError, Projection, Upcasters
from rebuilder.domain.batch_sql import split

BATCH = "batch AS (SELECT 1)"


@pytest.mark.parametrize("statement, expected", [
    ("INSERT INTO t SELECT * FROM batch", f"WITH {BATCH} INSERT INTO t SELECT * FROM batch"),
    ("WITH a AS (SELECT 2) DELETE FROM t", f"WITH {BATCH},  a AS (SELECT 2) DELETE FROM t"),
    ("with recursive a AS (SELECT 2) SELECT 1", f"with recursive {BATCH},  a AS (SELECT 2) SELECT 1"),
    ("  -- WITH b\n /* WITH /* nested */ c */ WITH/**/RECURSIVE a AS (SELECT 2) SELECT 1",
     f"  -- WITH b\n /* WITH /* nested */ c */ WITH/**/RECURSIVE {BATCH},  a AS (SELECT 2) SELECT 1"),
    ("WITH recursive_a AS (SELECT 2) SELECT 1", f"WITH {BATCH},  recursive_a AS (SELECT 2) SELECT 1"),
    ("/* WITH */ UPDATE t SET a = 1 FROM batch", f"/* WITH */ WITH {BATCH}  UPDATE t SET a = 1 FROM batch"),
])
def test_the_relation_goes_first(statement, expected):
    """Before other CTEs, behind comments that only look like them."""
    head, rest = split(statement)
    assert (head + BATCH + rest).replace("  ", " ") == expected.replace("  ", " ")


@pytest.mark.parametrize("statement", ["TRUNCATE t", "COMMIT", "CREATE TABLE t ()", "", "-- nothing", "/* open",
                                       "(SELECT 1)", "WITHOUT a AS (SELECT 1) SELECT 1"])
def test_what_can_not_have_a_cte_is_refused_when_it_is_defined(statement):
    with pytest.raises(DefinitionError, match="must be one of INSERT"):
        BatchSql(statement, types=["A"])


def test_types_are_a_list_without_repetition():
    with pytest.raises(DefinitionError, match="must be a list"):
        BatchSql("SELECT 1", types="Deposited")
    with pytest.raises(DefinitionError, match="twice"):
        BatchSql("SELECT 1", types=["A", "A"])
    with pytest.raises(DefinitionError, match="one or more statements"):
        BatchSql(types=["A"])


def test_python_upcasters_of_the_same_types_are_refused():
    """The server would see the old data; upcasters of other types harm nobody."""
    upcasters = Upcasters()
    upcasters.on("A", from_version=1)(lambda data, _context: data)
    with pytest.raises(DefinitionError, match="A has upcasters in Python"):
        Projection("p", version=1, tables=["t"], handlers=BatchSql("SELECT 1", types=["A"]), upcasters=upcasters)
    assert Projection("p", version=1, tables=["t"], handlers=BatchSql("SELECT 1", types=["B"]), upcasters=upcasters)
