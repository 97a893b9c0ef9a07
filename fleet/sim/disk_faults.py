"""How the simulated disk fails and how slow it is: what it is given to do so."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, TypeAlias, get_args

from fleet.errors import LocalMisuse

__all__ = ["Fault", "Operation", "Speed", "struck"]

Operation: TypeAlias = Literal[
    "open", "size", "allocate", "read", "write", "truncate", "sync", "remove", "exists", "names"
]


@dataclass(frozen=True, slots=True)
class Fault:
    """Fail ``operation`` on files whose name ends in ``suffix``, after ``skip`` that succeed, ``times`` times or, if
    that is None, from then on.

    A failing write leaves its first ``partial`` bytes behind. A failing sync loses what it should have written, unless
    ``loses`` is false. ``File.version`` counts as "size".
    """

    operation: Operation
    suffix: str = ""
    skip: int = 0
    times: int | None = 1
    partial: int = 0
    loses: bool = True
    reason: str = "input/output error"

    def __post_init__(self) -> None:
        if self.operation not in get_args(Operation):
            raise LocalMisuse(f"{self.operation!r} is nothing a disk does: use {', '.join(get_args(Operation))}")
        if self.skip < 0 or self.partial < 0 or (self.times is not None and self.times < 1):
            raise LocalMisuse("a fault has no negative skip or partial, and strikes at least once")


@dataclass(frozen=True, slots=True)
class Speed:
    """How long operations take, in virtual seconds. The bytes themselves take no time when their rate is None."""

    operation_seconds: float = 0.0
    sync_seconds: float = 0.0
    bytes_per_second: float | None = None

    def __post_init__(self) -> None:
        rate = self.bytes_per_second
        if not (self.operation_seconds >= 0 and self.sync_seconds >= 0 and (rate is None or rate > 0)):
            raise LocalMisuse("a disk takes no negative time, and moves more than 0 bytes a second")


def struck(faults: list[Fault], operation: Operation, file: str) -> Fault | None:
    """The first of ``faults`` that this operation meets, if any; each is counted down as it is met, and used up."""
    for index, fault in enumerate(faults):
        if fault.operation != operation or not file.endswith(fault.suffix):
            continue
        if fault.skip:
            faults[index] = replace(fault, skip=fault.skip - 1)
            continue
        if fault.times is not None:
            faults[index : index + 1] = [replace(fault, times=fault.times - 1)] if fault.times > 1 else []
        return fault
    return None
