"""Reading without keeping a lock."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg.pq import TransactionStatus

from rebuilder.sql import load

_SQL = load("eventlog")


@contextmanager
def looking(connection: psycopg.Connection[Any]) -> Iterator[None]:
    """What is read inside keeps no lock, whatever the connection's transaction does later.

    A lock kept to the end of a long transaction makes DDL on the log queue behind it, and every appender behind that.
    In autocommit nothing is kept anyway; else the reads happen in a savepoint that is rolled back and released, which
    leaves no lock and draws no transaction id.
    """
    if connection.autocommit and connection.info.transaction_status == TransactionStatus.IDLE:
        yield
        return
    with connection.transaction(force_rollback=True):
        yield


@contextmanager
def reading(connection: psycopg.Connection[Any]) -> Iterator[None]:
    """As ``looking``, for statements over the events themselves: see the query ``reading`` for what it sets and why."""
    with connection.transaction(force_rollback=True):
        connection.execute(_SQL["reading"])
        yield
