"""A pytest plugin: one test, many seeds, each a test of its own that can be replayed by its seed.

::

    @pytest.mark.fleet_seeds(50)
    def test_nothing_is_lost(fleet_seed: int) -> None:
        simulate(my_protocol, seed=fleet_seed)

runs with the seeds 0 to 49. A failure names its seed; ``pytest --fleet-seed 17`` runs every such test with that one.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Final

import pytest

DEFAULT_SEEDS: Final = 10
"""Of a test that takes ``fleet_seed`` and is not marked."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--fleet-seed``."""
    parser.getgroup("peerfleet").addoption(
        "--fleet-seed",
        type=int,
        metavar="N",
        help="run tests that take fleet_seed with this seed only: what a failure's replay line says",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Declare the marker."""
    config.addinivalue_line("markers", "fleet_seeds(count): run with the seeds 0 to count - 1, in fleet_seed")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make one test for each seed."""
    marker = metafunc.definition.get_closest_marker("fleet_seeds")
    if "fleet_seed" not in metafunc.fixturenames:
        if marker is not None:
            raise pytest.UsageError(f"{metafunc.definition.nodeid} is marked fleet_seeds: let it take fleet_seed")
        return
    count = DEFAULT_SEEDS
    if marker is not None:
        if marker.kwargs or len(marker.args) != 1 or type(marker.args[0]) is not int or marker.args[0] < 1:
            raise pytest.UsageError(f"{metafunc.definition.nodeid}: write fleet_seeds(count) with a count of 1 or more")
        count = marker.args[0]
    only: int | None = metafunc.config.getoption("fleet_seed")
    seeds = range(count) if only is None else [only]
    metafunc.parametrize("fleet_seed", seeds, ids=[f"seed-{seed}" for seed in seeds])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Say at a failure how to replay it."""
    report = yield
    seed = getattr(getattr(item, "callspec", None), "params", {}).get("fleet_seed")
    if report.failed and seed is not None:
        name = item.nodeid.partition("[")[0]
        report.sections.append(("replay", f"python -m pytest '{name}' --fleet-seed {seed}"))
    return report
