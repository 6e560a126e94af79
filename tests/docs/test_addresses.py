"""Names that the documentation and the changelog give exist."""

from __future__ import annotations

import dataclasses
import importlib
import re
from pathlib import Path

import pytest

from tests.docs import shell_blocks

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *shell_blocks.PAGES]
DOTTED = re.compile(r"(?<![\w/.-])(?:fedpriv|fp)(?:\.[A-Za-z_]\w*)+")
#: Stands for any module, where it is told why no name of the API is that of a room.
ANY = "fedpriv.x"


def is_module(name: str) -> bool:
    path = ROOT.joinpath(*name.split("."))
    return path.with_suffix(".py").is_file() or (path / "__init__.py").is_file()


def exists(name: str) -> bool:
    """Whether a dotted name is a module, or an attribute (a field too) of something in one."""
    parts = re.sub(r"^fp\b", "fedpriv", name).split(".")
    if name.startswith("fp."):
        number = 1
    else:
        number = max(n for n in range(1, len(parts) + 1) if is_module(".".join(parts[:n])))
    found = importlib.import_module(".".join(parts[:number]))
    for part in parts[number:]:
        if dataclasses.is_dataclass(found) and part in {f.name for f in dataclasses.fields(found)}:
            return part == parts[-1]
        if not hasattr(found, part):
            return False
        found = getattr(found, part)
    return True


def named(text: str) -> set[str]:
    # The names of files end like attributes: fedpriv.egg, run.sh.
    return {name for name in DOTTED.findall(text) if not name.endswith((".py", ".md"))} - {ANY}


def test_what_a_page_names_exists(subtests):
    for page in PAGES:
        with subtests.test(page=page):
            assert [
                name for name in sorted(named(page.read_text("utf-8"))) if not exists(name)
            ] == []


GONE = "fedpriv.privacy.numbers fedpriv.rng.Keys fedpriv.rng.Key.folds fp.runner fp.Run.no"
THERE = "fedpriv.rng fedpriv.rng.Key.fold fedpriv.sums.PartialSum.granularity fp.run"


@pytest.mark.parametrize("name", f"{GONE} {THERE}".split())
def test_a_name_that_is_gone_is_seen(name):
    assert exists(name) == (name in THERE)
