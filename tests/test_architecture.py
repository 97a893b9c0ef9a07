"""What the layers may import: cores do no I/O, imports point down, and time and chance come in through ports."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted((ROOT / "fleet").rglob("*.py"))
}

CORES = (
    ["fleet.wire.*", "fleet.hlc", "fleet.metrics", "fleet.limits", "fleet.errors"]
    + [f"fleet.net.{name}" for name in ("hello", "authentication", "session", "redial", "tls_engine")]
    + [
        f"fleet.swarm.{name}"
        for name in (
            *("bitfield", "manifest", "picker", "source", "download", "offers", "upload", "piece_store"),
            *("effects", "manifest_search", "pens", "endgame", "refusals"),
        )
    ]
)
"""Sans-IO: bytes or messages and ``now`` go in, effects come out."""

BANNED_IN_CORES = {"trio", "os", "time", "random", "socket", "ssl", "threading", "secrets", "asyncio", "select"}

EXEMPT = {"fleet.environment", "fleet.sim.guard"}
"""The one that reads the machine's clock and chance, and the one that forbids them."""

LAYERS = [
    {"fleet.errors", "fleet.limits"},
    {"fleet.storage", "fleet.trace", "fleet.metrics", "fleet.identity"},
    {"fleet.environment", "fleet.hlc", "fleet.wire"},
    {"fleet.net"},
    {"fleet.swarm"},
    {"fleet.peer"},
    {"fleet.fleet"},
    {"fleet.sim"},
    {"fleet"},
]
"""From the bottom up: a module imports from its own package and from layers below its own."""


def is_core(module: str) -> bool:
    return any(module == core or (core.endswith(".*") and module.startswith(core[:-1])) for core in CORES)


def type_checking(node: ast.If) -> bool:
    return isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def at_run_time(node: ast.AST) -> Iterator[ast.AST]:
    """Every node beneath this one, without what only type checkers see."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and type_checking(child):
            for other in child.orelse:
                yield other
                yield from at_run_time(other)
            continue
        yield child
        yield from at_run_time(child)


def imports_of(tree: ast.AST) -> set[str]:
    """The modules that are imported at run time, at the top or inside a function; names where they may be modules."""
    found = set()
    for node in at_run_time(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            assert node.module is not None
            found.add(node.module)
            found |= {name for alias in node.names if (name := f"{node.module}.{alias.name}") in MODULES}
    return found


def tree_of(module: str) -> ast.Module:
    return ast.parse(MODULES[module].read_text(encoding="utf-8"))


def layer_of(module: str) -> tuple[int, str]:
    """The layer's number and the unit of it that this module belongs to."""
    parts = module.split(".")
    for depth in (2, 1):
        unit = ".".join(parts[:depth])
        for number, layer in enumerate(LAYERS):
            if unit in layer:
                return number, unit
    raise AssertionError(f"{module} belongs to no layer: add its package to LAYERS")


def trouble_with_layers(module: str, tree: ast.AST) -> list[str]:
    level, unit = layer_of(module)
    trouble = []
    for target in imports_of(tree):
        if target.partition(".")[0] in {"stress", "bench", "tests"}:
            trouble.append(target)
        elif target in MODULES and target != "fleet":
            other_level, other_unit = layer_of(target)
            if other_unit != unit and other_level >= level:
                trouble.append(target)
    return trouble


def chance_and_clock(tree: ast.AST) -> list[str]:
    """Uses of the process's clock and of its sources of chance, however they were imported.

    A parameter's default is none: that is what a port looks like that a caller may fill otherwise.
    """
    names: dict[str, str] = {}
    found = []
    ports = {
        default
        for node in ast.walk(tree)
        if isinstance(node, ast.arguments)
        for default in [*node.defaults, *node.kw_defaults]
    }
    for node in at_run_time(tree):
        if isinstance(node, ast.Import):
            names |= {alias.asname or alias.name.partition(".")[0]: alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    for node in at_run_time(tree):
        if node in ports:
            continue
        name = ""
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            name = f"{names.get(node.value.id, '')}.{node.attr}"
        elif isinstance(node, ast.Name):
            name = names.get(node.id, "")
        module, _, member = name.rpartition(".")
        if (
            name in {"time.time", "time.time_ns", "os.urandom", "os.getrandom"}
            or (module == "random" and member != "Random")
            or module in {"secrets", "uuid"}
            or name in {"datetime.datetime.now", "datetime.datetime.utcnow"}
        ):
            found.append(name)
    return found


@pytest.mark.parametrize("module", [module for module in MODULES if is_core(module)])
def test_cores_do_no_io(module: str) -> None:
    assert not {name.partition(".")[0] for name in imports_of(tree_of(module))} & BANNED_IN_CORES


def test_no_core_is_forgotten() -> None:
    assert all(core.endswith(".*") or core in MODULES for core in CORES)
    assert {"fleet.wire.cbor", "fleet.wire.frame", "fleet.wire.messages"} <= set(filter(is_core, MODULES))


@pytest.mark.parametrize("module", [module for module in MODULES if is_core(module)])
def test_cores_reach_io_through_nobody_else(module: str) -> None:
    """What a core imports of this project is a core too, or does no I/O when it is imported."""
    allowed = {
        "fleet",
        "fleet.identity",
        "fleet.identity.channel_cert",
        "fleet.identity.exchange",
        "fleet.identity.keys",
        "fleet.net",
        "fleet.swarm",
        "fleet.wire",
    }
    targets = {name for name in imports_of(tree_of(module)) if name in MODULES}
    assert {target for target in targets if not is_core(target)} <= allowed


@pytest.mark.parametrize("module", MODULES)
def test_imports_point_down(module: str) -> None:
    assert trouble_with_layers(module, tree_of(module)) == []


@pytest.mark.parametrize("module", [module for module in MODULES if module not in EXEMPT])
def test_time_and_chance_come_in_through_the_environment(module: str) -> None:
    assert chance_and_clock(tree_of(module)) == []


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import time\ntime.time()", ["time.time"]),
        ("from time import time as now\nnow()", ["time.time"]),
        ("import os\nf = os.urandom", ["os.urandom"]),
        ("import random as r\nr.shuffle(x)", ["random.shuffle"]),
        ("from random import choice\nchoice(x)", ["random.choice"]),
        ("import secrets\nsecrets.token_bytes(1)", ["secrets.token_bytes"]),
        ("import time\ndef f(now=time.time()): ...", ["time.time"]),
        ("import time\ndef f(clock=time.time): ...", []),
        ("import random\nrandom.Random(1).random()", []),
        ("import time\ntime.monotonic()", []),
        ("def f(random):\n    random.shuffle(x)", []),
        ("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import random\n    random.random()", []),
    ],
)
def test_the_search_finds_what_it_should(source: str, found: list[str]) -> None:
    assert chance_and_clock(ast.parse(source)) == found


@pytest.mark.parametrize(
    ("module", "source", "trouble"),
    [
        ("fleet.wire.frame", "import fleet.net.link", ["fleet.net.link"]),
        ("fleet.wire.frame", "def f():\n    from fleet.swarm import picker", ["fleet.swarm.picker", "fleet.swarm"]),
        (
            "fleet.wire.frame",
            "if TYPE_CHECKING:\n    import fleet.peer\nelse:\n    import fleet.fleet",
            ["fleet.fleet"],
        ),
        ("fleet.identity.keys", "import fleet.storage", ["fleet.storage"]),
        ("fleet.peer", "import stress.harness", ["stress.harness"]),
        ("fleet.peer", "from bench import timing", ["bench"]),
        ("fleet.peer", "from fleet.swarm.transfer import Transfer", []),
        ("fleet.swarm.picker", "from fleet.swarm.source import Source", []),
    ],
)
def test_the_layers_refuse_what_they_should(module: str, source: str, trouble: list[str]) -> None:
    assert sorted(trouble_with_layers(module, ast.parse(source))) == sorted(trouble)
