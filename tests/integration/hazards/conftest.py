"""A bank in which live is what the log says, watched from a connection of the test's own."""

import pytest

from tests import bank
from tests.integration.hazards.schedule import open_accounts


@pytest.fixture
def watcher(connect, dsn):
    """An autocommit connection; log and read model are there and agree."""
    connection = connect(autocommit=True, application_name="watcher")
    bank.make_schema(connection)
    open_accounts(connection, bank.make_rebuilder(dsn))
    return connection
