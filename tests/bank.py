"""A small bank: an event table, a read model of balances, its handlers, and the same read model computed by SQL.

Every event is an upsert that counts itself in `changes`, so one that is lost or applied twice is seen in its row; the
owner is whoever was named last, so a wrong order is seen too.
"""

from typing import Any

import psycopg
from psycopg import sql
from psycopg.rows import dict_row
from psycopg.types.json import Jsonb

from rebuilder import Columns, Event, Projection, Rebuilder, Registry, Settings, SqlHandlers, TableLog, Target
from tests.fix_threads import wait_until

Connection = psycopg.Connection[Any]

EVENTS = """
CREATE TABLE events (
    id bigserial PRIMARY KEY,
    stream text NOT NULL,
    category text NOT NULL DEFAULT 'account',
    type text NOT NULL,
    schema_version int NOT NULL DEFAULT 1,
    data jsonb NOT NULL DEFAULT '{}',
    recorded_at timestamptz NOT NULL DEFAULT now()
);
"""
BALANCES = """
CREATE TABLE account_balance (
    id text PRIMARY KEY,
    owner text,
    balance bigint NOT NULL,
    changes int NOT NULL
);
"""
COLUMNS = {"position": "id", "stream": "stream", "category": "category", "type": "type",
           "schema_version": "schema_version", "data": "data", "recorded_at": "recorded_at"}

TRUTH = """
WITH closed AS (
    SELECT stream, max(id) AS at FROM {events} WHERE category = 'account' AND type = 'AccountClosed' GROUP BY stream
)
SELECT e.stream AS id,
       (array_agg(e.data ->> 'owner' ORDER BY e.id DESC) FILTER (WHERE e.data ? 'owner'))[1] AS owner,
       coalesce(sum((e.data ->> 'amount')::bigint * CASE e.type WHEN 'Withdrawn' THEN -1 ELSE 1 END), 0)::bigint
           AS balance,
       count(*)::int AS changes
FROM {events} e LEFT JOIN closed c ON c.stream = e.stream
WHERE e.category = 'account' AND e.type = ANY ('{{AccountOpened,OwnerRenamed,Deposited,Withdrawn}}')
  AND e.id > coalesce(c.at, 0)
GROUP BY e.stream
"""


def make_handlers() -> SqlHandlers:
    """Handlers that write `account_balance` by its unqualified name."""
    handlers = SqlHandlers()

    @handlers.on("AccountOpened", "OwnerRenamed")
    def named(event: Event, target: Target) -> None:
        target.execute("INSERT INTO account_balance AS b (id, owner, balance, changes) VALUES (%s, %s, 0, 1)"
                       " ON CONFLICT (id) DO UPDATE SET owner = excluded.owner, changes = b.changes + 1",
                       (event.stream, event.data["owner"]))

    @handlers.on("Deposited", "Withdrawn")
    def moved(event: Event, target: Target) -> None:
        amount = event.data["amount"] if event.type == "Deposited" else -event.data["amount"]
        target.execute("INSERT INTO account_balance AS b (id, balance, changes) VALUES (%s, %s, 1)"
                       " ON CONFLICT (id) DO UPDATE"
                       " SET balance = b.balance + excluded.balance, changes = b.changes + 1",
                       (event.stream, amount))

    @handlers.on("AccountClosed")
    def closed(event: Event, target: Target) -> None:
        target.execute("DELETE FROM account_balance WHERE id = %s", (event.stream,))

    return handlers


def make_projection(name: str = "account_balance", **overrides: Any) -> Projection:
    """The read model; any field of `Projection` may be another."""
    given: dict[str, Any] = {"version": 1, "tables": ["account_balance"], "categories": ["account"]}
    if "handlers" not in overrides:
        given["handlers"] = make_handlers()
    return Projection(name, **{**given, **overrides})


def make_log(**overrides: Any) -> TableLog:
    """The event log; `columns` is merged into the usual ones, None leaves a role out."""
    columns = {**COLUMNS, **overrides.pop("columns", {})}
    relation = overrides.pop("relation", "events")
    return TableLog(relation, columns=Columns(**{k: v for k, v in columns.items() if v is not None}), **overrides)


def make_rebuilder(dsn: Any, *projections: Projection, log: TableLog | None = None,
                   settings: dict[str, Any] | None = None, **overrides: Any) -> Rebuilder:
    """The application: with the projection above if none is given."""
    registry = Registry(*projections) if projections else Registry(make_projection())
    return Rebuilder(dsn, log=log or make_log(), registry=registry, settings=Settings(**(settings or {})), **overrides)


def make_schema(connection: Connection) -> None:
    """Create events and read model."""
    connection.execute(EVENTS + BALANCES)


def append(connection: Connection, stream: str, type_: str, data: dict[str, Any] | None = None, *,
           live: Rebuilder | None = None, **columns: Any) -> int:
    """Append an event, with its effect on live when `live` is given; its position.

    In the connection's open transaction, which stays open; without one, in a transaction of its own.
    """
    values = {"stream": stream, "type": type_, "data": Jsonb(data or {}), **columns}
    statement = sql.SQL("INSERT INTO events ({}) VALUES ({}) RETURNING *").format(
        sql.SQL(", ").join(map(sql.Identifier, values)), sql.SQL(", ").join(map(sql.Placeholder, values)))
    with connection.transaction():
        row = connection.cursor(row_factory=dict_row).execute(statement, values).fetchone()
        assert row is not None
        if live is not None:
            live.project(connection, live.log.event(row))
    return int(row["id"])


def append_many(connection: Connection, events: int, *, accounts: int = 10) -> None:
    """Append a mixture of all types, set-based: the first of each account opens it; nothing reaches live."""
    connection.execute(
        "INSERT INTO events (stream, type, data)"
        " SELECT 'account-' || n %% %(accounts)s,"
        "        CASE WHEN n < %(accounts)s THEN 'AccountOpened' WHEN n %% 97 = 0 THEN 'AccountClosed'"
        "             WHEN n %% 11 = 0 THEN 'OwnerRenamed' WHEN n %% 7 = 0 THEN 'Withdrawn' ELSE 'Deposited' END,"
        "        CASE WHEN n < %(accounts)s OR n %% 11 = 0 THEN jsonb_build_object('owner', 'owner ' || n)"
        "             ELSE jsonb_build_object('amount', n %% 100 + 1) END"
        " FROM generate_series(0, %(events)s - 1) AS n ORDER BY n", {"events": events, "accounts": accounts})


def replay_in_sql(connection: Connection, events: str = "events") -> list[tuple[Any, ...]]:
    """The rows that a replay of the whole log makes, computed by the server, in order of their id."""
    return connection.execute(TRUTH.format(events=events) + " ORDER BY 1").fetchall()


def rows_of(connection: Connection, table: str = "account_balance") -> list[tuple[Any, ...]]:
    """The rows of a read model, in order of their first column."""
    name = sql.Identifier(*table.split("."))
    return connection.execute(sql.SQL("SELECT * FROM {} ORDER BY 1").format(name)).fetchall()


def differences(connection: Connection, table: str = "account_balance") -> list[tuple[Any, ...]]:
    """Rows that only a replay of the whole log has ("lost", ...), and rows that only live has ("invented", ...)."""
    truth, name = TRUTH.format(events="events"), sql.Identifier(*table.split(".")).as_string(connection)
    columns = "id, owner, balance, changes"
    statement = (f"(SELECT 'lost' AS what, * FROM (({truth}) EXCEPT ALL SELECT {columns} FROM {name}) AS a)"
                 f" UNION ALL (SELECT 'invented', * FROM (SELECT {columns} FROM {name} EXCEPT ALL ({truth})) AS b)")
    return connection.execute(statement).fetchall()


def assert_equal_to_replay(connection: Connection, table: str = "account_balance") -> int:
    """Live is what a replay of the whole log makes: nothing lost, nothing applied twice; how many rows there are."""
    found = differences(connection, table)
    assert found == [], found
    row = connection.execute(sql.SQL("SELECT count(*) FROM {}").format(sql.Identifier(*table.split(".")))).fetchone()
    assert row is not None
    return int(row[0])


def correct(connection: Connection, statement: str, params: Any = ()) -> None:
    """Change events that are there already, and wait until the server's counters show it.

    The counters reach other sessions a while after the commit: a rebuild that begins before that would take the change
    for one made while it ran.
    """
    def counted() -> int:
        row = connection.execute("SELECT n_tup_upd + n_tup_del FROM pg_stat_all_tables"
                                 " WHERE relid = 'events'::regclass").fetchone()
        assert row is not None
        return int(row[0])

    before = counted()
    connection.execute(statement, params)
    if connection.info.server_version >= 150000:
        connection.execute("SELECT pg_stat_force_next_flush()")
    wait_until(lambda: counted() > before, what="the counters of the log")
