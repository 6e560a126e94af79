"""Fixtures of the API's tests."""

import pytest

import fedpriv as fp
from tests.harness import toy_users


@pytest.fixture(scope="session")
def kept(tmp_path_factory: pytest.TempPathFactory) -> fp.Run:
    """A run that is kept; nobody changes its folder."""
    out = tmp_path_factory.mktemp("runs") / "dense"
    return fp.run(toy_users.NAME, out, progress=False)
