"""The least a role needs, and what it is told when something of it is missing: the exact statement that mends it."""

import pytest

from rebuilder.errors import MissingPrivilege, NotInstalled, RefusedError
from tests import bank
from tests.integration.control.watch import nothing_left, photo

LEAST = """
GRANT CREATE ON DATABASE {database} TO {role};
GRANT USAGE ON SCHEMA rebuilder TO {role};
GRANT SELECT, INSERT, UPDATE ON ALL TABLES IN SCHEMA rebuilder TO {role};
GRANT USAGE, CREATE ON SCHEMA public TO {role};
GRANT SELECT ON events TO {role};
GRANT SELECT ON SEQUENCE events_id_seq TO {role};
ALTER TABLE account_balance OWNER TO {role};
"""

# What is taken away, and what the error must name.
MISSING = {
    "create schemas": ("REVOKE CREATE ON DATABASE {database} FROM {role}", "database"),
    "use the bookkeeping": ("REVOKE USAGE ON SCHEMA rebuilder FROM {role}", "rebuilder"),
    "write the state": ("REVOKE UPDATE ON rebuilder.projection_state FROM {role}", "projection_state"),
    "write tickets": ("REVOKE INSERT ON rebuilder.rebuild_ticket FROM {role}", "rebuild_ticket"),
    "write progress": ("REVOKE UPDATE ON rebuilder.ticket_progress FROM {role}", "ticket_progress"),
    "read what is owed": ("REVOKE SELECT ON rebuilder.owed FROM {role}", "owed"),
    "read the log": ("REVOKE SELECT ON events FROM {role}", "events"),
    "read the log's sequence": ("REVOKE SELECT ON SEQUENCE events_id_seq FROM {role}", "events_id_seq"),
    "put the shadow in place": ("REVOKE CREATE ON SCHEMA public FROM PUBLIC, {role}", "public"),
    "alter live": ("ALTER TABLE account_balance OWNER TO {keeper}", "account_balance"),
}


@pytest.fixture
def least(db, dsn, role):
    """(DSN of a role with the least privileges, its name, a function that runs statements about it as superuser)."""
    clerk, keeper = role(hint="clerk"), role(hint="keeper")

    def run(statements):
        db.execute(statements.format(role=clerk.name, keeper=keeper.name, database=f'"{db.info.dbname}"'))

    run(LEAST)
    return clerk.dsn(dsn), run


def test_the_least_privileges_are_enough(db, least):
    """CREATE on the database, the bookkeeping, the log to read, the tables to own: no superuser, no replication."""
    target, _ = least
    rebuilder = bank.make_rebuilder(target)
    for generation in (1, 2):
        report = rebuilder.rebuild("account_balance")
        assert (report.generation, report.owed) == (generation, ())
        assert bank.assert_equal_to_replay(db) == 5
    assert rebuilder.verify("account_balance").drift.total == 0
    assert rebuilder.plan("account_balance").refused == ()
    assert [cleaned.done for cleaned in rebuilder.cleanup(all_kept=True)] == [True]
    assert {finding.level for finding in rebuilder.doctor()} <= {"ok", "warning"}


@pytest.mark.parametrize("what", MISSING)
def test_a_missing_privilege_is_named_and_doctor_prints_what_mends_it(db, least, what):
    """The run is refused before live is touched; the statement that doctor prints, executed as it stands, is enough."""
    target, run = least
    statement, named = MISSING[what]
    run(statement)
    rebuilder, before = bank.make_rebuilder(target), photo(db)
    with pytest.raises(RefusedError) as caught:
        rebuilder.rebuild("account_balance")
    assert (caught.value.exit_code, caught.value.code) == (3, "privilege")
    assert isinstance(caught.value, MissingPrivilege)
    assert named in str(caught.value)
    assert caught.value.hint
    nothing_left(db)
    assert photo(db) == before
    problems = [finding for finding in rebuilder.doctor() if finding.level == "problem"]
    grants = [finding.command for finding in problems if finding.command and finding.command.startswith("GRANT ")]
    assert grants
    for grant in grants:
        db.execute(grant)
    assert [finding for finding in rebuilder.doctor() if finding.level == "problem"] == []
    assert rebuilder.rebuild("account_balance").owed == ()
    assert bank.assert_equal_to_replay(db) == 5


def test_who_may_not_install_is_told_and_who_has_not_installed_too(connect, bare_dsn, role):
    """Without the bookkeeping: how to get it. Without the right to make it: which right."""
    clerk = role()
    db = connect(bare_dsn, autocommit=True)
    bank.make_schema(db)
    rebuilder = bank.make_rebuilder(clerk.dsn(bare_dsn))
    with pytest.raises(NotInstalled, match="rebuilder install"):
        rebuilder.rebuild("account_balance")
    with pytest.raises(MissingPrivilege) as caught:
        rebuilder.install()
    assert caught.value.hint
    problem = next(finding for finding in rebuilder.doctor() if "create schemas" in finding.message)
    db.execute(problem.command)
    rebuilder.install()
    assert rebuilder.tickets() == []
