"""What is compiled while installing, and in images: every kernel, by a name that there is."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NOT_COMPILED = {"__init__", "bits", "compiled"}


@pytest.mark.parametrize("file", ["Makefile", "server/Dockerfile"])
def test_every_kernel_is_compiled_beforehand(file):
    """An image is not built where one is missing."""
    there = {path.stem for path in (ROOT / "fedpriv" / "kernels").glob("*.py")} - NOT_COMPILED
    text = (ROOT / file).read_text("utf-8").replace("\\\n", " ")
    found = re.search(r'from fedpriv\.kernels import ([^"]+)"', text)
    assert found is not None
    assert {name.strip() for name in found[1].split(",")} == there
