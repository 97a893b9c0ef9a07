"""Exploring finds each mutant within 500 seeds, and its smallest replay fails in the same way and through it alone."""

from __future__ import annotations

import json
import shlex
from typing import TYPE_CHECKING

import pytest

from stress import explore
from stress.content_swarm import SCENARIO
from stress.harness.options import EXIT_FAILED, invoke
from stress.harness.trial import Trial, trial
from tests.sim.mutants.apply import applied
from tests.sim.mutants.table import MUTANTS, Mutant

if TYPE_CHECKING:
    from pathlib import Path

SEEDS = 500
SHRINK_TRIALS = 8


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_exploring_finds_it_and_makes_it_small(mutant: Mutant, tmp_path: Path) -> None:
    options = ["--seeds", str(SEEDS), "--max-failures", "1", "--shrink", "--shrink-trials", str(SHRINK_TRIALS)]
    with applied(mutant):
        command = [*options, "--jobs", "1", "--quiet", "--out", str(tmp_path / "out"), *mutant.exploration()]
        assert invoke(explore.COMMAND, command) == EXIT_FAILED
        report = json.loads((tmp_path / "out" / "report.json").read_text(encoding="utf-8"))
        (group,), (smallest,) = report["groups"], report["smallest"]
        assert mutant.finds in group["failure"]
        assert replayed(smallest["replay"]).failure == group["failure"]
    for replay in (group["replay"], smallest["replay"]):
        assert replayed(replay).verdict == "PASS", "it is the mutant's alone"


def replayed(replay: str) -> Trial:
    """What becomes of the run that a line of ``stress.explore`` starts."""
    return trial(SCENARIO, shlex.split(replay)[3:])


def test_a_mutant_is_gone_when_its_block_ends() -> None:
    from fleet.net.redial import Redials

    (mutant,) = (mutant for mutant in MUTANTS if mutant.name == "not-redialled")
    before = Redials.down.__code__
    with applied(mutant):
        assert Redials.down.__code__ is not before
    assert Redials.down.__code__ is before
