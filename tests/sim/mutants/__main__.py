"""Explore with a mutant: ``python -m tests.sim.mutants NAME [options of stress.explore]``. No name lists them."""

from __future__ import annotations

import sys

import click

from stress import explore
from stress.harness.options import invoke
from tests.sim.mutants.apply import applied
from tests.sim.mutants.table import MUTANTS


def main(argv: list[str]) -> int:
    """Explore with the mutant that the first argument names."""
    chosen = next((mutant for mutant in MUTANTS if argv and mutant.name == argv[0]), None)
    if chosen is None:
        click.echo("\n".join(f"{mutant.name:22}{mutant.what}" for mutant in MUTANTS))
        return 0 if not argv else 3
    with applied(chosen):
        return invoke(explore.COMMAND, [*argv[1:], *chosen.exploration()])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
