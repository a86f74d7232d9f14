"""Chance that can be repeated: one seed for the run, printed in its header."""

import os
import random

import hypothesis
import pytest

seed_key = pytest.StashKey[int]()

# No deadline: an example makes databases. print_blob: what failed in CI can be repeated at a desk.
hypothesis.settings.register_profile("rebuilder", deadline=None, print_blob=True)
hypothesis.settings.load_profile("rebuilder")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("rebuilder").addoption(
        "--seed",
        type=int,
        default=os.environ.get("REBUILDER_TEST_SEED"),
        help="of everything random in this run; by default a new one, printed in the header [REBUILDER_TEST_SEED]",
    )


def pytest_configure(config: pytest.Config) -> None:
    worker = getattr(config, "workerinput", None)
    if worker is not None:
        config.stash[seed_key] = worker["rebuilder_seed"]
    elif config.option.seed is not None:
        config.stash[seed_key] = int(config.option.seed)
    else:
        config.stash[seed_key] = random.SystemRandom().randrange(2**32)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: object) -> None:
    node.workerinput["rebuilder_seed"] = node.config.stash[seed_key]  # type: ignore[attr-defined]


def pytest_report_header(config: pytest.Config) -> str:
    return f"seed: {config.stash[seed_key]} (--seed repeats it)"


@pytest.fixture
def seed(request: pytest.FixtureRequest, pytestconfig: pytest.Config) -> str:
    """This test's own: the run's, and the test's name, so that it does not depend on which tests ran before."""
    return f"{pytestconfig.stash[seed_key]}:{request.node.nodeid}"


@pytest.fixture
def rng(seed: str) -> random.Random:
    """A generator of this test's own."""
    return random.Random(seed)
