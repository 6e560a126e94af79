"""What is listed: tables and figures as values, and studies that are functions of options."""

import pytest

from simulations.reproduction.command import _reproduced, find_reproductions
from simulations.reproduction.items import Study, Table
from simulations.reproduction.study import publish
from tests.harness.refusals import refuses
from tests.simulations.reproduction.tiny_tables import figure, row, table


def test_a_table_with_points_is_a_figure():
    assert (table(row("a")).kind, figure(row("a")).kind) == ("table", "figure")


class TestStudy:
    @pytest.fixture
    def calls(self):
        return []

    @pytest.fixture
    def study(self, calls):
        def run(*, seeds=5, out=None, folds=2, rates=(1.0,), tiny=False, kind="a"):
            calls.append({"seeds": seeds, "folds": folds, "rates": rates, "kind": kind})

        return Study(
            name="paper-figure9", title="Figure 9", run=run, minutes=(10, 1),
            options={"kind": "b"}, reduced={"seeds": 1, "tiny": True},
        )  # fmt: skip

    def test_what_is_given_goes_over_its_own_and_over_what_makes_it_small(self, study, calls):
        study.call({"seeds": None, "corpus": "c"})
        study.call({"seeds": 3}, ("folds=4", "rates=2", "kind=c"))
        study.call({"seeds": 3}, ("rates=0.5,4",), reduced=True)
        study.call({"seeds": None}, reduced=True)
        assert calls == [
            {"seeds": 5, "folds": 2, "rates": (1.0,), "kind": "b"},
            {"seeds": 3, "folds": 4, "rates": (2,), "kind": "c"},
            {"seeds": 3, "folds": 2, "rates": (0.5, 4), "kind": "b"},
            {"seeds": 1, "folds": 2, "rates": (1.0,), "kind": "b"},
        ]

    @pytest.mark.parametrize("setting", ["fold=3", "folds=many", "seeds=3", "folds"])
    def test_what_is_refused(self, study, calls, setting):
        with refuses(ValueError, setting, "folds"):
            study.call({"seeds": 3, "out": None}, (setting,))
        assert not calls

    def test_a_setting_without_a_default_has_to_be_given(self):
        calls = []

        def run(*, rounds, rate):
            calls.append((rounds, rate))

        one = Study(name="x", title="", run=run, minutes=(1,))
        with refuses(ValueError, "x"):
            one.call({}, ("rounds=3",))
        one.call({}, ("rounds=3", "rate=1"))
        assert calls == [(3, 1)]

    def test_what_it_makes_of_the_reduced_size_says_so(self, tmp_path, capsys):
        def run(*, out=None):
            publish("# Title\n\nText.", out)

        one = Study(name="x", title="", run=run, reduced={}, minutes=(1, 1))
        for reduced in (False, True):
            one.call({"out": tmp_path / "page.md"}, reduced=reduced)
            for text in (capsys.readouterr().out, (tmp_path / "page.md").read_text("utf-8")):
                assert text.startswith("# Title\n") and ("Reduced size" in text) == reduced


def test_an_item_without_a_reduced_size_is_refused_in_it():
    study = Study(name="x", title="", run=lambda: None, minutes=(1, 1))
    table = Table(name="x", title="", columns={}, rows=(), minutes=(1,))
    for item in (study, table):
        with refuses(ValueError, "x", "--reduced"):
            _reproduced(item, {}, (), {}, set(), reduced=True)


def test_every_study_has_the_options_that_it_is_listed_with():
    found = [item for item in find_reproductions().values() if item.kind == "study"]
    assert len(found) > 30
    for item in found:
        assert item.minutes[0] > 0 and (item.reduced is None or item.minutes[1] <= 14)
        for options in (item.options, item.reduced or {}):
            assert all(item.takes(option) for option in options)
