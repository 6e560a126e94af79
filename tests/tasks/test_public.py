"""What is said of examples before a run: public ones that are not, or none, or no arrays."""

from collections import UserDict
from html import escape
from pathlib import Path

import pytest
import torch

import fedpriv as fp
from fedpriv.privacy.statement.coverage import coverage_of
from fedpriv.privacy.statement.statement import run_statement
from fedpriv.report.export import export_run
from fedpriv.runs.document import read_document
from fedpriv.runs.progress import announce
from tests.tasks.people import USERS, accepted, experiment, person, task


def noticed(folder, *, secure=False, **changes):
    prepared = accepted(folder, task(**changes), secure=secure)
    assert {*prepared.cautions} <= {*announce(prepared)[1]}
    return prepared.cautions


def mixed():
    x, y = person(99)
    x[:2], y[:2] = person(3)[0][4:], person(3)[1][4:]
    return torch.from_numpy(x).float(), torch.from_numpy(y)


class TestRostered:
    @pytest.mark.parametrize(
        ("public", "said"), [(person(3), "6 of 6 public"), (mixed(), "2 of 6 public")]
    )
    def test_public_examples_that_are_somebodys(self, tmp_path, public, said):
        [line] = noticed(tmp_path / "run", public=public)
        assert line.startswith(said) and "rostered users" in line
        document = read_document(tmp_path / "run")
        equal = "figures on public examples, some of which equal rostered users'"
        assert coverage_of(document).not_covered == (equal,)

    def test_those_that_are_equal_by_chance_are_declared(self, tmp_path):
        """Nothing is marked then; the statement of a simulation says what was declared."""
        assert noticed(tmp_path / "a", public=mixed(), equal_by_chance=True) == ()
        document = read_document(tmp_path / "a")
        assert document["corpus"]["equal_by_chance"] == 2
        assert coverage_of(document).not_covered == ()
        for name, public, said in (("b", mixed(), True), ("c", person(99), False)):
            made = experiment(task(public=public, equal_by_chance=True))
            fp.run(made, rounds=1, out=tmp_path / name)
            statement = " ".join(str(run_statement(tmp_path / name)).split())
            assert ("declared to be by chance" in statement) == said

    def test_values_on_them_are_not_called_released(self, tmp_path):
        """By the run's description and its exported card."""
        label = "some equal rostered users', not covered by ε"
        for name, public, said in (("a", person(3), label), ("b", person(99), "released")):
            run = fp.run(experiment(task(public=public)), rounds=1, out=tmp_path / name)
            export_run(tmp_path / name, tmp_path / f"{name}-model")
            card = (tmp_path / f"{name}-model" / "README.md").read_text("utf-8")
            (line,) = [line for line in str(run).splitlines() if "public" in line and "%" in line]
            assert said in line and (label in line) == (name == "a")
            assert f"({said})" in card and (label in card) == (name == "a")
            page = Path(run.report()).read_text("utf-8")
            assert f"public users: {escape(said)}" in page and (escape(label) in page) == (
                name == "a"
            )

    @pytest.mark.slow
    def test_others(self, tmp_path):
        x, y = person(3)
        assert noticed(tmp_path / "a") == ()
        assert noticed(tmp_path / "b", public=(x, 1 - y)) == ()
        read = UserDict(USERS)  # may read files, and is not looked through
        assert noticed(tmp_path / "c", users=read, public=person(3)) == ()

    def test_a_secure_run_does_not_look(self, tmp_path):
        assert noticed(tmp_path / "run", secure=True, public=person(3)) == ()
        assert "public_of_rostered" not in read_document(tmp_path / "run")["corpus"]


@pytest.mark.slow
@pytest.mark.parametrize("test", [None, person(98)])
def test_no_public_examples(tmp_path, test):
    [line] = noticed(tmp_path / "run", public=None, test=test)
    assert "no accuracy is released" in line
