"""Folds on a cluster of Dask's distributed, here of processes on this machine."""

import warnings

import pytest

from rebuilder.errors import WorkerLost
from tests import folds
from tests.bank import (
    append_many,
    assert_equal_to_replay,
    make_projection,
    make_rebuilder,
    make_schema,
    rows_of,
)

pytestmark = pytest.mark.filterwarnings("ignore")  # distributed's own, of ports and garbage collection


@pytest.fixture(scope="module")
def client():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from distributed import Client, LocalCluster

        with (LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None) as cluster,
              Client(cluster) as client):
            yield client


@pytest.fixture
def db(connect, dsn):
    connection = connect(dsn, autocommit=True)
    make_schema(connection)
    return connection


def test_a_cluster_folds_the_bulk(db, dsn, client):
    """`Client.get_executor()` is an executor like any other."""
    append_many(db, 2000, accounts=60)
    rebuilder = make_rebuilder(dsn, make_projection(handlers=folds.balances), settings={"fold_parts": 4})
    report = rebuilder.rebuild("account_balance", workers=client.get_executor())
    assert report.events_applied == 2000
    assert_equal_to_replay(db)


def test_a_killed_worker_fails_the_run_and_live_is_as_it_was(db, dsn, client):
    """The cluster tries elsewhere and gives up; what it says of that is in the error."""
    append_many(db, 300, accounts=10)
    rebuilder = make_rebuilder(dsn, make_projection(handlers=folds.deadly), settings={"fold_parts": 1})
    with pytest.raises(WorkerLost, match="KilledWorker"):
        rebuilder.rebuild("account_balance", workers=client.get_executor())
    assert rows_of(db) == []
