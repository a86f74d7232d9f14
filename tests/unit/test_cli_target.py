"""Which database a command works on, and which sources disagree."""

import pytest

from rebuilder.cli.target import disagreement, refuse_disagreement, targets
from rebuilder.errors import DefinitionError

BANK = "postgresql://clerk@db1:5433/bank"


@pytest.fixture
def environment(monkeypatch):
    def set_(**values):
        for name, value in values.items():
            monkeypatch.setenv(name, value)

    return set_


def test_the_first_source_wins(environment):
    environment(REBUILDER_DSN="dbname=two", DATABASE_URL="dbname=four", PGDATABASE="five")
    assert [each.source for each in targets("dbname=one", "dbname=three")] == [
        "--dsn", "REBUILDER_DSN", "the application", "DATABASE_URL", "PGDATABASE"]
    assert targets(None, "dbname=three")[0].database == "two"


def test_what_is_empty_is_no_source(environment):
    environment(REBUILDER_DSN="", DATABASE_URL="")
    (found,) = targets("", "")
    assert found.source == "libpq's defaults"
    assert found.conninfo == ""


def test_the_target_is_told_without_the_password():
    (found,) = targets("postgresql://clerk:swordfish@db1:5433/bank", None)
    assert found.describe() == "database 'bank' on db1, port 5433, as 'clerk' (from --dsn)"


def test_libpq_fills_in_what_a_dsn_leaves_out(environment):
    environment(PGHOST="db1", PGPORT="5433", PGUSER="clerk")
    found = targets("dbname=bank", None)
    assert (found[0].host, found[0].port, found[0].user) == ("db1", "5433", "clerk")
    assert disagreement(found) is None


def test_the_name_of_the_user_is_the_default_database(environment):
    environment(PGUSER="clerk")
    assert targets("host=db1", None)[0].database == "clerk"


@pytest.mark.parametrize("other", [
    "host=db1 port=5433 dbname=bank user=boss", "postgresql+psycopg://boss:x@db1:5433/bank",
    "postgresql://db1:5433/bank?application_name=x",
])
def test_the_same_database_in_other_words_is_no_disagreement(environment, other):
    environment(DATABASE_URL=other)
    refuse_disagreement(targets(BANK, None))


def test_loopback_has_several_names(environment):
    environment(DATABASE_URL="postgresql://127.0.0.1/bank")
    refuse_disagreement(targets("postgresql://localhost/bank", "postgresql://[::1]/bank"))


@pytest.mark.parametrize("other, part", [
    ("postgresql://db2:5433/bank", "host"), ("postgresql://db1:5432/bank", "port"),
    ("postgresql://db1:5433/shop", "database"),
])
def test_sources_that_disagree_are_named_with_what_they_say(environment, other, part):
    environment(DATABASE_URL=other)
    with pytest.raises(DefinitionError) as caught:
        refuse_disagreement(targets(None, BANK))
    assert "the application says host db1, port 5433, database bank" in caught.value.message
    assert "DATABASE_URL says" in caught.value.message
    assert part in caught.value.hint
    assert (caught.value.sources, caught.value.differ) == (["the application", "DATABASE_URL"], [part])


def test_the_environment_of_libpq_disagrees_only_in_what_it_names(environment):
    environment(PGHOST="db1")
    refuse_disagreement(targets(BANK, None))
    environment(PGDATABASE="shop")
    with pytest.raises(DefinitionError, match="PGHOST, PGDATABASE says host db1, database shop"):
        refuse_disagreement(targets(BANK, None))


def test_a_service_is_compared_by_its_name(environment):
    environment(DATABASE_URL="service=bank")
    refuse_disagreement(targets("service=bank", None))
    with pytest.raises(DefinitionError):
        refuse_disagreement(targets(BANK, None))


def test_a_dsn_that_libpq_refuses_is_not_repeated():
    with pytest.raises(DefinitionError, match="The DSN is not one") as caught:
        targets("postgresql://clerk:swordfish@[half/bank", None)
    seen = caught.value
    assert seen.message.startswith("--dsn: ")
    assert "swordfish" not in str(seen)
    assert seen.__cause__ is None
    assert seen.__suppress_context__
