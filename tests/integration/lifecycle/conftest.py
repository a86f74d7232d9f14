"""A bank, its rebuilder, and the lifecycle store over it."""

import pytest

from tests.bank import append_many, make_rebuilder, make_schema


@pytest.fixture
def db(dsn, connect):
    """A bank with 50 events, nothing built."""
    connection = connect(autocommit=True)
    make_schema(connection)
    append_many(connection, 50)
    return connection


@pytest.fixture
def rebuilder(dsn, db):
    return make_rebuilder(dsn, settings={"lock_timeout_ms": 300})


@pytest.fixture
def store(rebuilder):
    with rebuilder.store() as opened:
        yield opened
