"""Published test vectors. They are read from where they lie and not copied into the project."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

_REPOSITORY = Path(__file__).resolve().parents[2]


def vector_path(name: str) -> Path:
    """The path of the vector file ``name``, in ``FLEET_VECTORS`` or in ``../shared/vectors`` beside the repository.

    Where it is absent the test is skipped; with ``CI`` set it fails, as nobody reads the skips of an automatic run.
    """
    folder = Path(os.environ.get("FLEET_VECTORS") or _REPOSITORY.parent / "shared" / "vectors")
    path = folder / name
    if not path.is_file():
        reason = f"no test vectors at {path}: set FLEET_VECTORS to the folder that holds {name}"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    return path
