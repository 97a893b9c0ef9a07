"""The pytest plugin, run on tests of a user's: seeds, replays, and the example's bug."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "find_a_bug.py"
ARGS = ("-p", "fleet.sim.pytest_plugin", "-p", "no:cacheprovider")


def test_a_marked_test_runs_with_each_seed(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("""
        import pytest
        @pytest.mark.fleet_seeds(5)
        def test_it(fleet_seed):
            assert fleet_seed != 3
    """)
    result = pytester.runpytest_inprocess(*ARGS)
    result.assert_outcomes(passed=4, failed=1)
    result.stdout.re_match_lines([r".*python -m pytest '.*test_it' --fleet-seed 3"])
    pytester.runpytest_inprocess(*ARGS, "--fleet-seed", "3").assert_outcomes(failed=1)
    pytester.runpytest_inprocess(*ARGS, "--fleet-seed", "77").assert_outcomes(passed=1)


@pytest.mark.parametrize("marker", ["fleet_seeds(0)", "fleet_seeds()", "fleet_seeds('3')", "fleet_seeds(count=3)"])
def test_a_marker_that_makes_no_sense(pytester: pytest.Pytester, marker: str) -> None:
    pytester.makepyfile(f"import pytest\n@pytest.mark.{marker}\ndef test_it(fleet_seed): pass")
    result = pytester.runpytest_inprocess(*ARGS)
    assert result.ret != 0
    assert "fleet_seeds(count)" in result.stdout.str() + result.stderr.str()


def test_a_marked_test_that_takes_no_seed(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("import pytest\n@pytest.mark.fleet_seeds(3)\ndef test_it(): pass")
    result = pytester.runpytest_inprocess(*ARGS)
    assert result.ret != 0
    assert "let it take fleet_seed" in result.stdout.str() + result.stderr.str()


def test_the_example_finds_its_bug_and_the_replay_fails_again(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_example=EXAMPLE.read_text(encoding="utf-8"))
    result = pytester.runpytest_inprocess(*ARGS)
    outcomes = result.parseoutcomes()
    assert outcomes["passed"] > 0
    assert outcomes["failed"] > 0
    found = re.search(r"--fleet-seed (\d+)", result.stdout.str())
    assert found is not None
    pytester.runpytest_inprocess(*ARGS, "--fleet-seed", found[1]).assert_outcomes(failed=1)
