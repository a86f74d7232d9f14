"""The bank: its log and read model, the recipe that fills it, a past of some length, and what is wrong with it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import psycopg

from rebuilder import (
    Columns,
    DefinitionError,
    Event,
    Projection,
    Rebuilder,
    Registry,
    SqlHandlers,
    TableLog,
    Target,
)

FEWEST_EVENTS = 1000
EVENTS_PER_ACCOUNT = 40
MOST_THREADS = 32
PROJECTION = "account"

SCHEMA = """
CREATE TABLE bank_event (
    position    bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    category    text NOT NULL,
    stream      text NOT NULL,
    version     integer NOT NULL,
    type        text NOT NULL,
    payload     jsonb NOT NULL,
    recorded_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    UNIQUE (category, stream, version)
);
CREATE SEQUENCE account_number AS integer;
CREATE TABLE account (
    id        integer PRIMARY KEY,
    owner     text NOT NULL,
    balance   bigint NOT NULL,
    movements integer NOT NULL
);
CREATE INDEX account_owner ON account (owner);
COMMENT ON TABLE account IS 'Filled from bank_event. Balances are in cents.';
-- A caller that waits for a lock inside it goes on with the snapshot it had before.
CREATE FUNCTION bank_total(OUT accounts bigint, OUT total numeric) STABLE LANGUAGE plpgsql AS
$$ BEGIN SELECT count(*), sum(balance) INTO accounts, total FROM account; END $$;
"""

# Chance by hashing and not by random(): a seed then means one past, whatever the server's plan is.
_PAST = """
WITH drawn AS (
    SELECT g,
           (hashint8extended(g, %(seed)s) & 9223372036854775807) AS a,
           (hashint8extended(g, %(seed)s + 1) & 9223372036854775807) AS b,
           (hashint8extended(g, %(seed)s + 2) & 9223372036854775807) AS c
    FROM generate_series(1, %(events)s::bigint) AS g
), told AS (
    SELECT g, b, c,
           CASE WHEN g <= %(accounts)s THEN 'AccountOpened'
                WHEN g <= 2 * %(accounts)s THEN 'Deposited'
                WHEN g > %(events)s - %(closed)s THEN 'AccountClosed'
                WHEN a %% 100 < 30 THEN 'Deposited'
                WHEN a %% 100 < 55 THEN 'Withdrawn'
                WHEN a %% 100 < 98 THEN 'Transferred'
                ELSE 'OwnerChanged' END AS type,
           CASE WHEN g <= 2 * %(accounts)s THEN 1 + (g - 1) %% %(accounts)s
                WHEN g > %(events)s - %(closed)s THEN %(accounts)s - (%(events)s - g)
                ELSE 1 + b %% %(accounts)s END AS account,
           CASE WHEN g <= 2 * %(accounts)s THEN 100000 + c %% 400000 ELSE 100 + c %% 4900 END AS amount
    FROM drawn
), placed AS (
    SELECT *, CASE type WHEN 'Transferred' THEN 'transfer' ELSE 'account' END AS category,
           CASE type WHEN 'Transferred' THEN 'past-' || g ELSE account::text END AS stream
    FROM told
)
INSERT INTO bank_event (position, category, stream, version, type, payload, recorded_at) OVERRIDING SYSTEM VALUE
SELECT g, category, stream, row_number() OVER (PARTITION BY category, stream ORDER BY g), type,
       CASE type
           WHEN 'AccountOpened' THEN jsonb_build_object('owner', 'Customer ' || account)
           WHEN 'OwnerChanged' THEN jsonb_build_object('owner', 'Heir ' || c %% 1000 || ' of customer ' || account)
           WHEN 'AccountClosed' THEN '{}'
           WHEN 'Transferred' THEN jsonb_build_object(
               'from', account, 'to', 1 + (account + c %% (%(accounts)s - 1)) %% %(accounts)s, 'amount', amount)
           ELSE jsonb_build_object('amount', amount) END,
       now() - interval '1 year' + g * interval '1 year' / %(events)s
FROM placed
"""

REPLAY = """
SELECT owner.id, owner.name AS owner, coalesce(moved.balance, 0) AS balance, coalesce(moved.movements, 0) AS movements
FROM (
    SELECT DISTINCT ON (stream) stream::integer AS id, payload ->> 'owner' AS name
    FROM bank_event WHERE type IN ('AccountOpened', 'OwnerChanged')
    ORDER BY stream, position DESC
) AS owner
LEFT JOIN (
    SELECT id, sum(amount)::bigint AS balance, count(*)::integer AS movements
    FROM (
        SELECT stream::integer, (payload ->> 'amount')::bigint FROM bank_event WHERE type = 'Deposited'
        UNION ALL
        SELECT stream::integer, -(payload ->> 'amount')::bigint FROM bank_event WHERE type = 'Withdrawn'
        UNION ALL
        SELECT (payload ->> 'from')::integer, -(payload ->> 'amount')::bigint FROM bank_event WHERE type = 'Transferred'
        UNION ALL
        SELECT (payload ->> 'to')::integer, (payload ->> 'amount')::bigint FROM bank_event WHERE type = 'Transferred'
    ) AS movement (id, amount)
    GROUP BY id
) AS moved ON moved.id = owner.id
WHERE NOT EXISTS (
    SELECT FROM bank_event AS closed WHERE closed.type = 'AccountClosed' AND closed.stream = owner.id::text
)
"""
"""The read model as the log has it: a second telling of the recipe, which shares nothing with the handlers."""

# What writers change is relative to these, so that the number of wrong rows stays what it is until the rebuild.
_WRONG = (
    # Fees were booked twice, the wrong way round.
    "UPDATE account SET balance = balance + 100 * (1 + id %% 9) WHERE id %% 50 = 7",
    # Accounts never arrived ...
    "DELETE FROM account WHERE id %% %(every)s = 3",
    # ... and some that were closed never left. They have events, so the guard ghost-rows has nothing against them.
    """INSERT INTO account SELECT stream::integer, payload ->> 'owner', 0, 0 FROM bank_event
       WHERE type = 'AccountOpened' AND stream::integer > %(accounts)s - %(kept)s""",
)

handlers = SqlHandlers()


@handlers.on("AccountOpened")
def opened(event: Event, target: Target) -> None:
    target.execute("INSERT INTO account (id, owner, balance, movements) VALUES (%s, %s, 0, 0)",
                   (int(event.stream), event.data["owner"]))


@handlers.on("OwnerChanged")
def owner_changed(event: Event, target: Target) -> None:
    target.execute("UPDATE account SET owner = %s WHERE id = %s", (event.data["owner"], int(event.stream)))


@handlers.on("Deposited")
def deposited(event: Event, target: Target) -> None:
    _move(target, int(event.stream), event.data["amount"])


@handlers.on("Withdrawn")
def withdrawn(event: Event, target: Target) -> None:
    _move(target, int(event.stream), -event.data["amount"])


@handlers.on("Transferred")
def transferred(event: Event, target: Target) -> None:
    amount = event.data["amount"]
    # In the order of the accounts: two transfers in opposite directions would deadlock otherwise.
    for account, change in sorted([(event.data["from"], -amount), (event.data["to"], amount)]):
        _move(target, account, change)


@handlers.on("AccountClosed")
def closed(event: Event, target: Target) -> None:
    target.execute("DELETE FROM account WHERE id = %s", (int(event.stream),))


def _move(target: Target, account: int, change: int) -> None:
    target.execute("UPDATE account SET balance = balance + %s, movements = movements + 1 WHERE id = %s",
                   (change, account))


def application(conninfo: str) -> Rebuilder:
    """The bank as an application would declare it."""
    log = TableLog("bank_event", columns=Columns(
        position="position", stream="stream", category="category", stream_version="version", type="type",
        data="payload", recorded_at="recorded_at"))
    return Rebuilder(conninfo, log=log, registry=Registry(Projection(
        PROJECTION, version=2, tables=["account"], categories=["account", "transfer"], handlers=handlers,
        stream_columns={"account": "id"})))


@dataclass(frozen=True, slots=True)
class Past:
    """What the bank starts with: accounts 1 to ``accounts``, of which the last ``closed`` are closed."""

    events: int
    accounts: int
    closed: int
    seed: int

    @property
    def open(self) -> int:
        """Accounts 1 to this one are open, and stay so."""
        return self.accounts - self.closed

    @classmethod
    def of(cls, events: int, seed: int) -> Past:
        """A past of so many events. Raises :class:`~rebuilder.errors.DefinitionError` if that is too short a tale."""
        if events < FEWEST_EVENTS:
            raise DefinitionError(f"The demo can't tell its tale in {events} events.",
                                  hint=f"give at least {FEWEST_EVENTS}: --events {FEWEST_EVENTS}")
        accounts = max(50, events // EVENTS_PER_ACCOUNT)
        return cls(events, accounts, max(4, accounts // 200), seed)


def found_bank(connection: psycopg.Connection[Any], past: Past) -> None:
    """Make the tables, the past, and the read model, and damage that. The connection is in autocommit."""
    numbers = {"events": past.events, "accounts": past.accounts, "closed": past.closed, "seed": past.seed,
               "every": max(20, past.accounts // 8), "kept": past.closed // 2}
    with connection.transaction():
        connection.execute(SCHEMA)
        connection.execute(_PAST, numbers)
        connection.execute("SELECT setval(pg_get_serial_sequence('bank_event', 'position'), %(events)s),"
                           " setval('account_number', %(accounts)s)", numbers)
        connection.execute("INSERT INTO account " + REPLAY)
        for statement in _WRONG:
            connection.execute(statement, numbers)
    connection.execute("VACUUM (ANALYZE) bank_event, account")
