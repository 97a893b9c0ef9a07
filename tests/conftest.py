"""What all tests share: hypothesis draws the same examples in every run, so that a red test is red for everyone."""

from __future__ import annotations

import hypothesis

pytest_plugins = ["fleet.sim.pytest_plugin", "pytester"]

hypothesis.settings.register_profile("fleet", deadline=None, derandomize=True, max_examples=100)
# For a hunt: pytest --hypothesis-profile=explore
hypothesis.settings.register_profile("explore", deadline=None, max_examples=5_000)
hypothesis.settings.load_profile("fleet")
