"""Runs: what chooses, what finds a run again, and what a row holds."""

import json
from dataclasses import replace

import pytest

from simulations.reproduction import runs
from simulations.reproduction.items import TUNING_SEED, Cell, Row
from simulations.reproduction.runs import (
    Run,
    best,
    complete,
    final_runs,
    pending,
    perform,
    synthetic_data,
    tuning_runs,
)
from tests.harness.refusals import refuses
from tests.simulations.reproduction.tiny_tables import (
    RATES,
    SEEDS,
    cell,
    figure,
    made,
    row,
    table,
    task,
    tuned,
)


def test_chooses_by_validation_though_test_would_choose_otherwise():
    one = table()
    cell = one.rows[0].cells["ours"]
    assert best(one, cell, tuned(one), reduced=False) == {"learning-rate": 1.0}
    # What test says of the same settings, which tuning must not know:
    finals = {}
    for settings in RATES:
        run = Run(experiment=made(**settings), split="test", seed=0, reduced=False)
        finals[settings["learning-rate"]] = perform(run)["accuracy"]
    assert max(finals, key=finals.get) == 0.01


def test_a_long_run_says_how_far_it_is(monkeypatch, capsys):
    perform(Run(experiment=made(), split="test", seed=0, reduced=False))
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(runs, "_REPORT_SECONDS", 0.0)
    line = perform(Run(experiment=made(), split="test", seed=0, reduced=False))
    first, *_, last = capsys.readouterr().err.splitlines()
    assert f"1 of {line['steps']} steps" in first
    assert "{0} of {0} steps".format(line["steps"]) in last


def test_makes_no_test_set_and_runs_on_a_seed_no_table_reports():
    asked = []

    def make(split, reduced):
        asked.append(split)
        return made(split, reduced)

    one = table(Row(label="a", paper=None, cells={"ours": Cell(make=make, grid=RATES)}))
    runs = list(tuning_runs(one, reduced=False))
    assert asked == ["validation"] and len(runs) == 3
    assert {run.seed for run in runs} == {TUNING_SEED}
    assert {run.split for run in runs} == {"validation"}


@pytest.mark.slow
def test_final_runs_are_on_test_with_what_was_chosen():
    one = table()
    done = tuned(one)
    finals = list(final_runs(one, done, seeds=SEEDS, reduced=False))
    assert [run.seed for run in finals] == [0, 1]
    assert {run.split for run in finals} == {"test"}
    assert {run.experiment.options()["optimizer.learning_rate"] for run in finals} == {1.0}


def test_a_figure_that_diverged_is_never_chosen():
    one = table()
    done = tuned(one)
    for line in done.values():
        if line["options"]["optimizer.learning_rate"] == 1.0:
            line["accuracy"] = float("nan")
        if line["options"]["optimizer.learning_rate"] == 0.1:
            line["accuracy"] = None
    chosen = best(one, one.rows[0].cells["ours"], done, reduced=False)
    assert chosen == {"learning-rate": 0.01}


def test_a_single_setting_is_not_tuned():
    one = table(row("a", grid=({"learning-rate": 0.7},)))
    assert list(tuning_runs(one, reduced=False)) == []
    [run] = final_runs(one, {}, seeds=(4,), reduced=False)
    assert run.experiment.options()["optimizer.learning_rate"] == 0.7
    assert run.experiment.seed == 4


class TestTakenOver:
    def table(self):
        plain = cell(RATES)
        other = Cell(
            make=lambda split, reduced: made(split, reduced, bound="normalise"),
            tuned_as=plain,
            adapt=lambda settings: {**settings, "l2-clip-norm": 0.5},
        )
        third = Cell(make=lambda split, reduced: made(split, reduced), tuned_as=other)
        return table(
            *(
                Row(label=label, paper=None, cells={"ours": one})
                for label, one in (("plain", plain), ("other", other), ("third", third))
            )
        )

    @pytest.mark.slow
    def test_nothing_is_tuned_for_it(self):
        assert len(tuned(self.table())) == len(RATES)
        only = table(self.table().rows[2])  # without the cell whose choice it shares
        assert len(tuned(only)) == len(RATES)

    @pytest.mark.slow
    def test_what_the_other_cell_chose_adapted_for_its_own_experiment(self):
        one = self.table()
        done = tuned(one)
        found = [
            run.experiment.options() for run in final_runs(one, done, seeds=(0,), reduced=False)
        ]
        assert [e["optimizer.learning_rate"] for e in found] == [1.0, 1.0, 1.0]
        assert [e["bound.l2_clip_norm"] for e in found] == [1.0, 0.5, 0.5]
        assert [e["bound"] for e in found] == ["clip", "normalise", "clip"]


class TestIdentity:
    base = Run(experiment=made(), split="test", seed=0, reduced=False)

    def test_seed_split_size_and_name_change_it_and_nothing_else(self):
        seen = {self.base.identity}
        for changes in (
            {"seed": 1},
            {"split": "validation"},
            {"reduced": True},
            {"curve": 1},
            {"experiment": replace(made(), name="another")},
        ):
            seen.add(replace(self.base, **changes).identity)
        assert len(seen) == 6
        again = Run(experiment=made(), split="test", seed=0, reduced=False)
        assert again.identity == self.base.identity


def test_what_a_line_holds():
    line = perform(Run(experiment=made(), split="test", seed=5, reduced=False))
    assert line["seed"] == line["options"]["seed"] == 5
    assert line["data"] == "sixty rows" and line["synthetic"] is True
    assert line["steps"] == 5 and line["side_information"] is None
    assert 0 < line["accuracy"] <= 1 and line["epsilon"] > 0
    assert line["delta"] == 1e-3 and line["unit"] == "example"
    assert line == json.loads(json.dumps(line))


def test_the_seed_is_the_runs_and_repeats():
    one, again, other = (
        perform(Run(experiment=made(seed=3), split="test", seed=seed, reduced=False))
        for seed in (1, 1, 2)
    )
    assert one["accuracy"] == again["accuracy"] != other["accuracy"]


class TestRefusals:
    def test_untuned(self):
        with refuses(ValueError, "tiny", 0.01):
            list(final_runs(table(), {}, seeds=SEEDS, reduced=False))


class TestCurves:
    def run(self, curve, **options):
        experiment = made(**{"steps": 7, **options})
        return Run(experiment=experiment, split="test", seed=1, reduced=False, curve=curve)

    def test_every_so_many_steps_and_the_last(self):
        line = perform(self.run(3))
        assert [step for step, _, _ in line["curve"]] == [3, 6, 7]
        assert line["curve"][-1][1:] == [line["accuracy"], line["loss"]]
        assert len({accuracy for _, accuracy, _ in line["curve"]}) == 3
        assert line == json.loads(json.dumps(line))

    def test_measuring_changes_nothing(self):
        with_curve, without = perform(self.run(2)), perform(self.run(0))
        assert "curve" not in without
        for key in ("curve", "curve_of", "identity", "seconds"):
            del with_curve[key]
            without.pop(key, None)
        assert with_curve == without

    @pytest.mark.parametrize(("points", "steps", "every"), [(3, 7, 3), (50, 7, 1)])
    def test_a_figure_has_at_most_its_points(self, points, steps, every):
        one = figure(row("a", grid=({"steps": steps},)), points=points)
        [run] = final_runs(one, {}, seeds=(0,), reduced=False)
        assert run.curve == every
        assert len(perform(run)["curve"]) <= points


class TestSynthetic:
    def run(self, name, synthetic):
        asked = []
        plain = made(name=name, synthetic=synthetic)

        def opened(experiment, corpus):
            asked.append(name)
            return replace(task("test", synthetic=synthetic), name=f"data of {name}")

        experiment = replace(plain, task=opened)
        runs = [Run(experiment=experiment, split="test", seed=s, reduced=False) for s in range(3)]
        return runs, asked

    def test_each_name_once(self):
        one, asked = self.run("one", True)
        two, _ = self.run("two", False)
        three, _ = self.run("three", True)
        assert synthetic_data([*one, *two, *three]) == ["data of one", "data of three"]
        assert asked == ["one"]
        assert synthetic_data([]) == synthetic_data(two) == []


@pytest.fixture
def performed(monkeypatch):
    """Identities of the runs that are done from here on."""
    seen = []

    def counted(run, device):
        seen.append(run.identity)
        return perform(run, device)

    monkeypatch.setattr(runs, "perform", counted)
    return seen


def test_two_tables_share_what_they_have_in_common(performed):
    done = {}
    complete(tuning_runs(table(), reduced=False), done)
    other = table(row("b", 0.1, RATES[1:]), name="other")
    complete(tuning_runs(other, reduced=False), done)
    assert len(performed) == len(set(performed)) == len(done) == 3


def test_pending_is_what_is_not_done_each_once_in_order():
    todo, done = list(tuning_runs(table(), reduced=False)), {}
    complete(todo[1:2], done)
    assert pending([*todo, *todo], done) == [todo[0], todo[2]]
