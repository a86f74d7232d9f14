"""Nothing is lost in the swap: a schema with every kind of object is the same before and after."""

from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from rebuilder.catalog import current_closure, current_fingerprint, current_grants, read_blueprint
from rebuilder.catalog.sequences import stand_in
from tests.fix_db import Connect, Role
from tests.integration.swap_driver import everything, facts_of, held, opened, rebuild, schema_of

RELATIONS = ("account", '"My Schema"."Weird ""name"""')
SEQUENCES = (
    "public.account_numbers",
    "public.account_no_seq",
    "public.account_small_seq",
    "seqs.shared",
    '"My Schema"."Weird ""name""_line_seq"',
    '"My Schema"."Sequence ""of"" it"',
)


@pytest.fixture
def roles_of(role: Callable[..., Role]) -> dict[str, Role]:
    names = {name: role(hint=name) for name in ("owner", "reader", "grantor")}
    return {**names, "runner": role("SUPERUSER", hint="runner")}


@pytest.fixture
def world(bare_dsn: str, roles_of: dict[str, Role], server_version: int) -> str:
    """Everything at once; the DSN is the runner's."""
    with psycopg.connect(bare_dsn, autocommit=True) as connection:
        connection.execute(everything(server_version // 10_000, {name: role.name for name, role in roles_of.items()}))
    return roles_of["runner"].dsn(bare_dsn)


def positions(dsn: str) -> dict[str, tuple[int, bool]]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        return {
            name: connection.execute(f"SELECT last_value, is_called FROM {name}").fetchone() or (0, False)
            for name in SEQUENCES
        }


def content(dsn: str) -> dict[str, list[Any]]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("SET row_security = off")
        return {name: connection.execute(f"SELECT * FROM {name} ORDER BY 1").fetchall() for name in RELATIONS}


def test_three_rebuilds_in_a_row_change_nothing(world: str, pg_dump: Callable[..., str]) -> None:
    before = schema_of(pg_dump(world, "--schema-only"))
    facts, where, rows = facts_of(world, RELATIONS), positions(world), content(world)
    for run in ("1", "2", "3"):
        rebuild(world, RELATIONS, run)
        assert schema_of(pg_dump(world, "--schema-only")) == before
        assert facts_of(world, RELATIONS) == facts
        assert positions(world) == where
        assert content(world) == rows


def test_the_next_value_after_is_the_next_value_before(world: str, connect: Connect) -> None:
    where = positions(world)
    with connect(world) as connection:
        before = [connection.execute("SELECT nextval(%s)", [name]).fetchone() for name in SEQUENCES]
        for name, position in where.items():  # nextval is not undone by a rollback
            connection.execute("SELECT setval(%s, %s, %s)", [name, *position])
    rebuild(world, RELATIONS)
    with connect(world) as connection:
        assert [connection.execute("SELECT nextval(%s)", [name]).fetchone() for name in SEQUENCES] == before


def test_the_swap_takes_no_lock_that_the_fence_has_not(world: str) -> None:
    with opened(world, RELATIONS) as swap:
        swap.build()
        for table in swap.blueprint.tables:
            swap.replay(table)
        swap.freeze()
        ours = set(held(swap.main))
        lives = {lock.oid for lock in swap.blueprint.locks}
        assert not ours & lives, "the run held a lock outside its work schemas before the fence"
        swap.fence()
        before = held(swap.main)
        swap.swap()
        after = held(swap.main)
        stronger = {oid: mode for oid, mode in after.items() if mode > before.get(oid, -1)}
        names = swap.main.execute("SELECT array_agg(o::oid::regclass) FROM unnest(%s::bigint[]) o", [list(stronger)])
        assert not stronger, names.fetchone()


def test_reading_the_blueprint_keeps_no_lock(world: str, connect: Connect) -> None:
    connection = connect(world, autocommit=True)
    read_blueprint(connection, RELATIONS, run_id="1")
    assert not held(connection)


def test_the_questions_under_the_fence_take_no_lock(world: str, connect: Connect) -> None:
    with opened(world, RELATIONS) as swap:
        current_fingerprint(swap.main, swap.blueprint)
        current_closure(swap.main, swap.blueprint)
        current_grants(swap.main, swap.blueprint)
        assert not held(swap.main)


def test_keys_that_are_owed_end_as_they_were(world: str, pg_dump: Callable[..., str]) -> None:
    before = schema_of(pg_dump(world, "--schema-only"))
    rebuild(world, RELATIONS, keys_owed=True)
    assert schema_of(pg_dump(world, "--schema-only")) == before


def test_a_rolled_back_swap_leaves_everything(world: str, pg_dump: Callable[..., str]) -> None:
    before, where = pg_dump(world, "--schema-only").split("\n"), positions(world)
    with opened(world, RELATIONS) as swap:
        swap.build()
        for table in swap.blueprint.tables:
            swap.replay(table)
        swap.freeze()
        # The replay draws from sequences of its own, further than live ever did.
        for table in swap.blueprint.tables:
            for sequence in table.sequences:
                name = stand_in(table, sequence, swap.work).as_string(None)
                swap.main.execute("SELECT nextval(%s) FROM generate_series(1, 300)", [name])
        swap.fence()
        swap.swap()
        swap.main.rollback()
    after = pg_dump(world, "--schema-only").split("\n")
    assert [line for line in after if not line.startswith("\\")] == [x for x in before if not x.startswith("\\")]
    assert positions(world) == where
