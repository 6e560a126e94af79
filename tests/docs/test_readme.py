"""The README is short, its Python prints what stands below it, and its links are few and exist."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "README.md").read_text("utf-8")


def test_it_is_short():
    assert len(TEXT.splitlines()) <= 120


def test_its_links_are_few_and_exist():
    found = re.findall(r"(!?)\[[^\]]*\]\(([^)]+)\)", TEXT)
    assert sum(not image for image, _ in found) <= 9
    assert [link for _, link in found if not (ROOT / link.partition("#")[0]).exists()] == []


@pytest.mark.slow
def test_its_python_prints_what_stands_below_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDPRIV_CACHE", str(tmp_path / "cache"))
    [code] = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    printed = re.findall(r"```text\n(.*?)```", TEXT, re.DOTALL)[-1].splitlines()
    with contextlib.redirect_stdout(io.StringIO()) as out:
        exec(compile(code, "README.md", "exec"), {})
    found = out.getvalue().splitlines()
    assert found[1:] == printed[1:]
    # Public training is in float32: other processors may end a few examples apart.
    accuracy = [float(re.search(r"[\d.]+", lines[0])[0]) for lines in (found, printed)]
    assert abs(accuracy[0] - accuracy[1]) <= 2.0
