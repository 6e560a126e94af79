"""What statements and reports ask of an experiment's options are options that there are."""

import re
from pathlib import Path

import pytest

from fedpriv.experiments.experiment import classes
from fedpriv.experiments.options import entries
from fedpriv.experiments.tasks import EncodedTagPredictionTask, NextWordsTask

FEDPRIV = Path(__file__).parents[3] / "fedpriv"
PACKAGES = [FEDPRIV / name for name in ("privacy", "report", "studies", "cli", "runs")]
ASKED = re.compile(r"options(?:\[|\.get\()[\"']([\w.]+)[\"']")
FILES = sorted(
    file
    for package in PACKAGES
    for file in package.rglob("*")
    if file.suffix in (".py", ".md", ".html") and ASKED.search(file.read_text("utf-8"))
)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_every_option_that_is_asked_for_is_one(file):
    """A renamed option cannot take a sentence out of a statement."""
    tasks = (EncodedTagPredictionTask, NextWordsTask)
    known = {one.path for made in classes().values() for one in entries(made)}
    known |= {one.path for task in tasks for one in entries(task, prefix="task.")}
    own = {"method"}
    assert {*ASKED.findall(file.read_text("utf-8"))} <= known | own
