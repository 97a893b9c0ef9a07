"""What the harness learns of its own process, and what it asks for."""

from __future__ import annotations

import resource

import pytest

from stress.harness import process

INFINITE = resource.RLIM_INFINITY


@pytest.mark.parametrize(
    ("limits", "wanted", "asked", "allowed"),
    [
        ((1024, 4096), 1000, [], 1000),
        ((1024, 4096), 1024, [], 1024),
        ((1024, 4096), 1025, [(1025, 4096)], 1025),
        ((1024, 4096), 9000, [(4096, 4096)], 4096),
        ((1024, INFINITE), 9000, [(9000, INFINITE)], 9000),
        ((INFINITE, INFINITE), 9000, [], 9000),
        ((1024, 1024), 1025, [], 1024),
    ],
)
def test_open_files_are_allowed_as_far_as_the_process_may_decide(limits, wanted, asked, allowed, monkeypatch):
    calls = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits)
    monkeypatch.setattr(resource, "setrlimit", lambda _, new: calls.append(new))
    assert process.allow_open_files(wanted) == allowed
    assert calls == asked


def test_the_process_has_used_time_and_memory():
    assert process.cpu_seconds() > 0
    assert process.peak_rss_mib() > 10


def test_without_proc_there_is_no_figure_for_anonymous_memory(monkeypatch):
    def refuse(*_args, **_settings):
        raise FileNotFoundError

    monkeypatch.setattr("builtins.open", refuse)
    assert process.anonymous_mib() is None
