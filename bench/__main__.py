"""``python -m bench [FAMILY]``: each family prints the ceiling and the product, measured in the same run."""

from __future__ import annotations

import sys

import click

from bench.sim import sim
from bench.swarm import swarm
from fleet.errors import FleetError
from stress.harness.options import EXIT_INTERRUPTED, misuse


@click.group(invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.pass_context
def bench(context: click.Context) -> None:
    """Micro-benchmarks of the hot paths. Without a family, all of them run.

    Every figure stands beside its ceiling from the same run: rates of different runs do not compare.
    """
    if context.invoked_subcommand is None:
        for family in FAMILIES:
            context.invoke(family)


FAMILIES = (swarm, sim)
for _family in FAMILIES:
    bench.add_command(_family)


def main() -> int:
    """Run, and return the exit code: 0, 1 a gate failed, 3 bad arguments, 130 interrupted."""
    try:
        result = bench.main(prog_name="python -m bench", standalone_mode=False)
    except click.ClickException as error:
        return misuse(f"{error.format_message()}: python -m bench --help lists what it takes")
    except click.Abort:
        return EXIT_INTERRUPTED
    except FleetError as error:
        return misuse(str(error))
    return int(result or 0)


if __name__ == "__main__":
    sys.exit(main())
