"""Runs our code with one line changed, in this process and in those that it forks, and puts it back."""

from __future__ import annotations
import __future__

import importlib
import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from types import CodeType, FunctionType, ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.sim.mutants.table import Mutant


def mutated_source(mutant: Mutant, source: str) -> str:
    """The module's text with the one change; fails unless ``old`` stands there once."""
    assert source.count(mutant.old) == 1, f"{mutant.name}: its line stands {source.count(mutant.old)} times"
    return source.replace(mutant.old, mutant.new)


def _codes(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _codes(constant)


def _functions(owner: ModuleType | type, module: str) -> Iterator[FunctionType]:
    for value in vars(owner).values():
        plain = value.__func__ if isinstance(value, classmethod | staticmethod) else value
        plain = plain.fget if isinstance(plain, property) else plain
        if isinstance(plain, FunctionType) and plain.__module__ == module:
            yield plain
        elif isinstance(plain, type) and plain.__module__ == module:
            yield from _functions(plain, module)


def _does(code: CodeType) -> tuple[object, ...]:
    """What it does, wherever it stands."""
    return code.co_code, code.co_names, [each for each in code.co_consts if not isinstance(each, CodeType)]


def _compiled(source: str, module: ModuleType) -> dict[str, CodeType]:
    """By qualified name. Compiled here for both texts: a test runner may have rewritten what was imported."""
    whole = compile(source, module.__file__ or "", "exec", __future__.annotations.compiler_flag)
    return {code.co_qualname: code for code in _codes(whole)}


@contextmanager
def applied(mutant: Mutant) -> Iterator[None]:
    """The mutant lives while the block runs."""
    module = importlib.import_module(mutant.module)
    source = inspect.getsource(module)
    before, after = _compiled(source, module), _compiled(mutated_source(mutant, source), module)
    different = [name for name, code in after.items() if _does(before[name]) != _does(code)]
    assert len(different) == 1, f"{mutant.name} changes {different}, not one function"
    (function,) = (each for each in _functions(module, mutant.module) if each.__qualname__ == different[0])
    sound = function.__code__
    function.__code__ = after[different[0]]
    try:
        yield
    finally:
        function.__code__ = sound
