"""Fixtures of all tests."""

import os
from pathlib import Path

import pytest
from hypothesis import settings

# Derandomised: the suite gives the same answer every time. No test is timed.
settings.register_profile(
    "fedpriv", deadline=None, derandomize=True, database=None, max_examples=25
)
settings.load_profile("fedpriv")


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real corpora: FEDPRIV_SHARED_DATA, or shared/data beside the checkout."""
    named = os.environ.get("FEDPRIV_SHARED_DATA")
    beside = Path(__file__).resolve().parents[2] / "shared" / "data"
    folder = Path(named) if named else beside
    if not folder.is_dir():
        pytest.skip(f"no real corpora: {folder} is absent (set FEDPRIV_SHARED_DATA)")
    return folder
