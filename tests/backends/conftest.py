"""Fixtures of the engine's tests: one Ray for each module that needs it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = str(Path(__file__).parent)


@pytest.fixture(scope="session")
def staff():
    """The worker contexts of the tests, under a name that workers find too."""
    if HERE not in sys.path:
        sys.path.append(HERE)
    import staff

    return staff


@pytest.fixture(scope="module")
def ray(staff) -> Iterator:
    """A running Ray of eight logical GPUs, whose workers find `staff`."""
    from fedpriv.backends.ray.cluster import Cluster
    from fedpriv.backends.resources import Request

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", HERE)
        with Cluster(Request(workers=4, logical_gpus=4)) as cluster:
            cluster.start(1 << 20)
            yield cluster
