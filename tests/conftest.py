"""What every test stands on. Fixtures live by subject in fix_*.py; this file lists them."""

import os

# A shell's own settings must not change a result, neither here nor in the subprocesses of the acceptance tests.
# REBUILDER_TEST_… is the tests' own and stays: the workers of xdist read it too.
for _name in list(os.environ):
    if _name.startswith(("DATABASE_URL", "PG", "REBUILDER_")) and not _name.startswith("REBUILDER_TEST_"):
        del os.environ[_name]

pytest_plugins = (
    "tests.fix_server",
    "tests.fix_db",
    "tests.fix_threads",
    "tests.fix_proxy",
    "tests.fix_cli",
    "tests.fix_random",
    "pytester",  # the fixtures are tested too
)
