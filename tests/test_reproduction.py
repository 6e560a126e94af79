"""Reproductions: what is run, what chooses, what is kept, and what the table says."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from types import ModuleType

import numpy as np
import pytest
from scipy import sparse
from typer.testing import CliRunner

from fedpriv import cli, reproduction
from fedpriv.central_experiment import CentralExperiment
from fedpriv.mechanisms import SideInformation
from fedpriv.reproduction import (
    Cell,
    Reproduction,
    Row,
    Run,
    best,
    complete,
    final_runs,
    perform,
    read,
    table_markdown,
    tuning_runs,
)
from fedpriv.training.central_task import CentralTask, zeros
from fedpriv.training.evaluate import Metrics
from fedpriv.training.linear_gradients import LogisticGradients

DIM = 5
SEEDS = (0, 1)
#: Test figures prefer the small steps, validation figures the large ones.
RATES = ({"learning-rate": 0.01}, {"learning-rate": 1.0}, {"learning-rate": 0.1})


def task(split, *, synthetic=True, source="public"):
    rng = np.random.default_rng(3)
    x = sparse.csr_matrix(rng.normal(size=(60, DIM)).astype(np.float32))
    y = (x.toarray()[:, 0] > 0).astype(np.int64)

    def measure(params):
        length = float(np.linalg.norm(params["weight"]))
        good = 1 - np.exp(-length) if split == "validation" else np.exp(-length)
        return Metrics(accuracy=float(good), loss=float(-good), num_examples=60)

    return CentralTask(
        name="sixty rows",
        train=LogisticGradients(x, y),
        num_train=60,
        init=zeros({"weight": (DIM,), "bias": (1,)}),
        measure=measure,
        side={
            "frequency": lambda: SideInformation(
                multiplier={"weight": np.ones(DIM, np.float32)},
                source=source,
                description="counts",
            )
        },
        synthetic=synthetic,
    )


def made(split="test", reduced=False, *, name="tiny", synthetic=True, source="public", **options):
    chosen = {"steps": 2 if reduced else 5, **options}
    return CentralExperiment(
        name=name,
        description="A test.",
        task=lambda experiment: task(split, synthetic=synthetic, source=source),
        batch_size=6,
        noise_multiplier=1.0,
        delta=1e-3,
        eval_every=10**9,
    ).with_options(chosen)


def cell(grid=({},), **options):
    return Cell(make=lambda split, reduced: made(split, reduced, **options), grid=grid)


def row(label, paper=0.5, grid=({},), **options):
    return Row(label=label, paper=paper, cells={"ours": cell(grid, **options)})


def table(*rows, **changes):
    fields = {
        "name": "tiny",
        "title": "Tiny, Table 1",
        "columns": {"ours": "as here"},
        "rows": rows or (row("DP-SGD", 0.63, RATES),),
        "paper_epsilon": "1.5 at δ = 0.001, remembered",
        "minutes": (1, 0.5),
    }
    return Reproduction(**{**fields, **changes})


def done_for(one, path, *, seeds=SEEDS, reduced=False, processes=1):
    complete(tuning_runs(one, reduced=reduced), path, processes=processes)
    finals = final_runs(one, read(path), seeds=seeds, reduced=reduced)
    return complete(finals, path, processes=processes)


def shown(one, path, **more):
    return table_markdown(one, done_for(one, path), seeds=SEEDS, **more)


class TestTuning:
    def test_chooses_by_validation_though_test_would_choose_otherwise(self, tmp_path):
        one = table()
        complete(tuning_runs(one, reduced=False), tmp_path / "r")
        cell_ = one.rows[0].cells["ours"]
        assert best(one, cell_, read(tmp_path / "r"), reduced=False) == {"learning-rate": 1.0}
        # What test says of the same settings, which tuning must not know:
        finals = {}
        for settings in RATES:
            run = Run(experiment=made(**settings), split="test", seed=0, reduced=False)
            finals[settings["learning-rate"]] = perform(run)["accuracy"]
        assert max(finals, key=finals.get) == 0.01

    def test_makes_no_test_set_and_runs_on_a_seed_no_table_reports(self):
        asked = []

        def make(split, reduced):
            asked.append(split)
            return made(split, reduced)

        one = table(Row(label="a", paper=None, cells={"ours": Cell(make=make, grid=RATES)}))
        runs = list(tuning_runs(one, reduced=False))
        assert asked == ["validation"] and len(runs) == 3
        assert {run.seed for run in runs} == {reproduction.TUNING_SEED}
        assert {run.split for run in runs} == {"validation"}

    def test_final_runs_are_on_test_with_what_was_chosen(self, tmp_path):
        one = table()
        done = complete(tuning_runs(one, reduced=False), tmp_path / "r")
        finals = list(final_runs(one, done, seeds=SEEDS, reduced=False))
        assert [run.seed for run in finals] == [0, 1]
        assert {run.split for run in finals} == {"test"}
        assert {run.experiment.learning_rate for run in finals} == {1.0}

    def test_the_lower_loss_wins(self, tmp_path):
        one = table(metric="loss")  # the loss of the task is minus its accuracy
        done = complete(tuning_runs(one, reduced=False), tmp_path / "r")
        chosen = best(one, one.rows[0].cells["ours"], done, reduced=False)
        assert chosen == {"learning-rate": 1.0}

    def test_a_figure_that_diverged_is_never_chosen(self, tmp_path):
        one = table()
        done = complete(tuning_runs(one, reduced=False), tmp_path / "r")
        for line in done.values():
            if line["options"]["learning-rate"] == 1.0:
                line["accuracy"] = float("nan")
            if line["options"]["learning-rate"] == 0.1:
                line["accuracy"] = None
        chosen = best(one, one.rows[0].cells["ours"], done, reduced=False)
        assert chosen == {"learning-rate": 0.01}

    def test_the_first_of_equals(self, tmp_path):
        grid = ({"adaptivity": 1e-3}, {"adaptivity": 1e-4})  # of no effect on SGD
        one = table(row("a", grid=grid))
        done = complete(tuning_runs(one, reduced=False), tmp_path / "r")
        assert best(one, one.rows[0].cells["ours"], done, reduced=False) == grid[0]

    def test_a_single_setting_is_not_tuned(self):
        one = table(row("a", grid=({"learning-rate": 0.7},)))
        assert list(tuning_runs(one, reduced=False)) == []
        [run] = final_runs(one, {}, seeds=(4,), reduced=False)
        assert run.experiment.learning_rate == 0.7 and run.experiment.seed == 4


class TestIdentity:
    base = Run(experiment=made(), split="test", seed=0, reduced=False)

    def test_every_option_changes_it(self):
        other = {
            "bound": "normalise",
            "l2-clip-norm": 2.5,
            "normalise-regulariser": 0.3,
            "noise": "none",
            "noise-multiplier": 3.25,
            "delta": 1e-4,
            "relation": "replace-one",
            "sampling": "fixed",
            "aggregate": "ema",
            "optimizer": "adam",
            "schedule": "cyclic",
            "guide": "past-releases",
            "side-information": "tf-idf",
            "public-batch": 3,
            "refresh": "epoch",
            "regulariser-inside": True,
            "epochs": 2.0,
            "steps": 9,
            "micro-batch": 2,
            "target-epsilon": 4.0,
        }
        seen = {self.base.identity}
        for name, value in self.base.experiment.options().items():
            if name in ("decay", "ema-decay", "momentum"):
                changed = 0.25
            elif name in other:
                changed = other[name]
            elif name == "seed":
                continue  # the run's own takes its place
            else:
                assert isinstance(value, (int, float)), name
                changed = value + 1
            experiment = self.base.experiment.with_options({name: changed})
            run = replace(self.base, experiment=experiment)
            assert run.identity not in seen, name
            seen.add(run.identity)

    def test_seed_split_size_and_name_change_it(self):
        seen = {self.base.identity}
        for changes in (
            {"seed": 1},
            {"split": "validation"},
            {"reduced": True},
            {"experiment": replace(made(), name="another")},
        ):
            seen.add(replace(self.base, **changes).identity)
        assert len(seen) == 5

    def test_is_the_same_for_the_same(self):
        again = Run(experiment=made(), split="test", seed=0, reduced=False)
        assert again.identity == self.base.identity and len(again.identity) == 16


class TestPerform:
    def test_what_a_line_holds(self):
        line = perform(Run(experiment=made(), split="test", seed=5, reduced=False))
        assert line["seed"] == line["options"]["seed"] == 5
        assert line["data"] == "sixty rows" and line["synthetic"] is True
        assert line["steps"] == 5 and line["side_information"] is None
        assert 0 < line["accuracy"] <= 1 and line["epsilon"] > 0
        assert line["delta"] == 1e-3 and line["unit"] == "example"
        assert line == json.loads(json.dumps(line))

    def test_the_seed_is_the_runs_and_repeats(self):
        one, again, other = (
            perform(Run(experiment=made(seed=3), split="test", seed=seed, reduced=False))
            for seed in (1, 1, 2)
        )
        assert one["accuracy"] == again["accuracy"] != other["accuracy"]

    def test_the_average_is_what_is_measured_where_there_is_one(self):
        plain, averaged = (
            perform(Run(experiment=made(aggregate=kind), split="test", seed=1, reduced=False))
            for kind in ("none", "ema")
        )
        assert plain["accuracy"] != averaged["accuracy"]


class TestComplete:
    def count(self, monkeypatch):
        performed = []

        def counted(run):
            performed.append(run.identity)
            return perform(run)

        monkeypatch.setattr(reproduction, "perform", counted)
        return performed

    def test_what_is_done_is_never_repeated(self, tmp_path, monkeypatch):
        performed, path = self.count(monkeypatch), tmp_path / "deep" / "r.jsonl"
        first = complete(tuning_runs(table(), reduced=False), path)
        assert len(performed) == 3 and len(path.read_text().splitlines()) == 3
        assert complete(tuning_runs(table(), reduced=False), path) == first
        assert len(performed) == 3

    def test_two_tables_share_what_they_have_in_common(self, tmp_path, monkeypatch):
        performed = self.count(monkeypatch)
        complete(tuning_runs(table(), reduced=False), tmp_path / "r")
        complete(
            tuning_runs(table(row("b", 0.1, RATES[1:]), name="other"), reduced=False),
            tmp_path / "r",
        )
        assert len(performed) == 3

    def test_the_same_run_wanted_twice_is_done_once(self, tmp_path, monkeypatch):
        performed = self.count(monkeypatch)
        run = Run(experiment=made(), split="test", seed=0, reduced=False)
        complete([run, run], tmp_path / "r")
        assert len(performed) == 1

    def test_killed_in_the_middle_it_goes_on(self, tmp_path, monkeypatch):
        path = tmp_path / "r"

        def killed(done, total, line):
            if done == 2:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            complete(tuning_runs(table(), reduced=False), path, tell=killed)
        assert len(read(path)) == 2
        performed = self.count(monkeypatch)
        assert len(complete(tuning_runs(table(), reduced=False), path)) == 3
        assert len(performed) == 1

    def test_a_torn_last_line_is_done_again_and_harms_no_other(self, tmp_path, monkeypatch):
        path = tmp_path / "r"
        whole = complete(tuning_runs(table(), reduced=False), path)
        content = path.read_text("utf-8")
        path.write_text(content[: len(content) - 40], "utf-8")
        assert len(read(path)) == 2
        performed = self.count(monkeypatch)
        again = complete(tuning_runs(table(), reduced=False), path)
        assert len(performed) == 1 and set(again) == set(whole)
        # Written behind the torn piece, it must still be readable by the next command.
        assert set(read(path)) == set(whole)

    def test_tells_after_each(self, tmp_path):
        told = []
        complete(
            tuning_runs(table(), reduced=False),
            tmp_path / "r",
            tell=lambda done, total, line: told.append((done, total, line["identity"])),
        )
        assert [(done, total) for done, total, _ in told] == [(1, 3), (2, 3), (3, 3)]

    def test_two_processes_give_what_one_gives(self, tmp_path):
        one, two = (
            done_for(table(), tmp_path / str(number), processes=number) for number in (1, 2)
        )
        for line in (*one.values(), *two.values()):
            del line["seconds"]
        assert one == two


class TestTable:
    def test_paper_and_ours_side_by_side(self, tmp_path):
        text = shown(table(row("DP-SGD", 0.63, RATES), row("DP²", None)), tmp_path / "r")
        assert text.startswith("# Tiny, Table 1 (SYNTHETIC data)\n")
        assert "| | paper | as here |" in text
        assert re.search(r"\| DP-SGD \| 0\.63 \| 0\.\d{3} ± 0\.\d{3} \|", text)
        assert re.search(r"\| DP² \| – \| 0\.\d{3} ± 0\.\d{3} \|", text)
        assert "ε as the paper counted it: 1.5 at δ = 0.001, remembered." in text
        assert "mean and standard deviation of 2 seeds" in text

    def test_figures_are_those_of_the_seeds(self, tmp_path):
        one = table(row("a"))
        done = done_for(one, tmp_path / "r", seeds=(0, 1, 2))
        values = [line["accuracy"] for line in done.values()]
        text = table_markdown(one, done, seeds=(0, 1, 2))
        assert f"{np.mean(values):.3f} ± {np.std(values, ddof=1):.3f}" in text

    def test_one_seed_has_no_spread(self, tmp_path):
        one = table(row("a"))
        done = done_for(one, tmp_path / "r", seeds=(0,))
        [line] = done.values()
        text = table_markdown(one, done, seeds=(0,))
        assert f"| {line['accuracy']:.3f} |" in text and "±" not in text

    def test_synthetic_is_said_only_where_it_is(self, tmp_path):
        real = table(row("a", synthetic=False))
        assert "SYNTHETIC" not in shown(real, tmp_path / "r")

    def test_a_scale_as_the_paper_prints_it(self, tmp_path):
        text = shown(table(row("a", -37.0), metric="loss", scale=100.0), tmp_path / "r")
        assert "Loss x 100 on test" in text
        assert re.search(r"\| a \| -37 \| -\d{2}\.\d{3} ± ", text)

    def test_a_reduced_size_is_said(self, tmp_path):
        one = table(row("a"))
        done = done_for(one, tmp_path / "r", reduced=True)
        assert "Reduced size." in table_markdown(one, done, seeds=SEEDS, reduced=True)
        with pytest.raises(ValueError, match="seed 0 is missing"):
            table_markdown(one, done, seeds=SEEDS, reduced=False)

    def test_a_cell_that_does_not_exist(self, tmp_path):
        one = table(row("a"), columns={"ours": "as here", "right": "done right"})
        text = shown(one, tmp_path / "r")
        assert re.search(r"\| a \| 0\.5 \| 0\.\d{3} ± 0\.\d{3} \| – \|", text)

    def test_a_seed_that_diverged_is_shown(self, tmp_path):
        one = table(row("a"))
        done = done_for(one, tmp_path / "r")
        next(iter(done.values()))["accuracy"] = None
        assert "| a | 0.5 | diverged |" in table_markdown(one, done, seeds=SEEDS)

    def test_notes_follow(self, tmp_path):
        text = shown(table(row("a"), notes=("First.", "Second.")), tmp_path / "r")
        assert text.endswith("First.\n\nSecond.\n")


class TestEpsilon:
    def lines(self, one, path):
        text = shown(one, path)
        return text.split("ε that the runs truly have:")[1]

    def test_with_all_that_makes_it_mean_something(self, tmp_path):
        text = self.lines(table(row("a")), tmp_path / "r")
        spent = perform(Run(experiment=made(), split="test", seed=0, reduced=False))
        assert f"{spent['epsilon']:.2f} at δ = 0.001 (add-remove, per example, PLD" in text
        assert f"RDP {spent['epsilon_rdp']:.2f}, simulated)" in text
        assert "NOT cover" not in text and "∞" not in text

    @pytest.mark.parametrize(
        "options", [{"noise": "none", "bound": "none"}, {"guide": "ideal"}], ids=["none", "ideal"]
    )
    def test_what_is_not_private(self, tmp_path, options):
        text = self.lines(table(row("a", **options)), tmp_path / "r")
        assert "- as here: ∞, not private" in text and "at δ" not in text

    def test_private_side_information(self, tmp_path):
        guided = {"guide": "side-information"}
        one = row("private", source="private", name="as the paper", **guided)
        text = self.lines(table(one, row("public", **guided)), tmp_path / "r")
        first, second = text.split("; ")
        assert "does NOT cover side information taken from private examples: private" in first
        assert "NOT cover" not in second and second.strip().endswith("public")

    def test_methods_with_another_promise_are_told_apart(self, tmp_path):
        one = table(row("a"), row("b"), row("c", **{"noise-multiplier": 2.0}))
        text = self.lines(one, tmp_path / "r")
        assert ": a, b; " in text and text.strip().endswith(": c")

    def test_micro_batches_cost_no_more_at_the_same_multiplier(self, tmp_path):
        """The plan's σ is to the sensitivity, so that the ε printed is true for them too."""
        text = self.lines(table(row("a"), row("b", **{"micro-batch": 2})), tmp_path / "r")
        assert "; " not in text


class TestOrderings:
    def verdict(self, first, second, *, metric="accuracy", seeds=SEEDS):
        """A table of made-up figures by seed."""
        one = table(
            row("a"), row("b", **{"l2-clip-norm": 2.0}), metric=metric, orderings=(("a", "b"),)
        )
        done = {}
        for label, values in (("a", first), ("b", second)):
            chosen = {} if label == "a" else {"l2-clip-norm": 2.0}
            for seed, value in zip(seeds, values, strict=True):
                run = Run(
                    experiment=made(seed=seed, **chosen), split="test", seed=seed, reduced=False
                )
                done[run.identity] = {
                    "accuracy": value,
                    "loss": value,
                    "synthetic": True,
                    "epsilon": None,
                }
        text = table_markdown(one, done, seeds=seeds)
        return text.split("- a ahead of b: as here: ")[1].strip()

    @pytest.mark.parametrize(
        ("first", "second", "verdict"),
        [
            ((0.80, 0.81), (0.60, 0.61), "held"),
            ((0.60, 0.61), (0.80, 0.81), "NOT held"),
            ((0.60, 0.70), (0.64, 0.65), "within the spread"),
            ((0.64, 0.65), (0.60, 0.70), "within the spread"),
        ],
    )
    def test_verdicts(self, first, second, verdict):
        assert self.verdict(first, second) == verdict

    def test_a_loss_is_better_when_lower(self):
        assert self.verdict((0.1, 0.11), (0.3, 0.31), metric="loss") == "held"
        assert self.verdict((0.3, 0.31), (0.1, 0.11), metric="loss") == "NOT held"

    def test_one_seed_has_no_spread(self):
        assert self.verdict((0.8,), (0.79,), seeds=(0,)) == "held"
        assert self.verdict((0.8,), (0.8,), seeds=(0,)) == "within the spread"

    @pytest.mark.parametrize("value", [None, float("nan")])
    def test_a_method_that_diverged_is_behind_every_other(self, value):
        assert self.verdict((0.6, value), (0.5, 0.5)) == "NOT held (diverged)"
        assert self.verdict((0.1, 0.1), (value, 0.5)) == "held (the other diverged)"
        assert self.verdict((value, value), (value, value)) == "both diverged"

    def test_a_method_that_was_not_run(self, tmp_path):
        one = table(row("a"), orderings=(("a", "unheard of"),))
        assert "as here: not run" in shown(one, tmp_path / "r")


class TestRefusals:
    def test_untuned(self):
        with pytest.raises(ValueError, match=r"tiny: .*0\.01.* was not run; tune it first"):
            list(final_runs(table(), {}, seeds=SEEDS, reduced=False))

    def test_a_missing_seed(self, tmp_path):
        one = table(row("a"))
        done = done_for(one, tmp_path / "r", seeds=(0,))
        with pytest.raises(ValueError, match="tiny: a run of seed 1 is missing; run it first"):
            table_markdown(one, done, seeds=SEEDS)


class TestCommand:
    @pytest.fixture(autouse=True)
    def known(self, monkeypatch):
        """What the commands find: one table of ours."""
        package, tables = ModuleType("simulations"), ModuleType("made_up_tables")
        package.REPRODUCTIONS = ("made_up_tables",)
        tables.REPRODUCTIONS = (table(row("DP-SGD", 0.63, RATES)),)
        monkeypatch.setitem(__import__("sys").modules, "simulations", package)
        monkeypatch.setitem(__import__("sys").modules, "made_up_tables", tables)

    def run(self, *arguments):
        return CliRunner().invoke(cli.app, ["reproduce", *(str(a) for a in arguments)])

    def test_lists(self):
        said = self.run()
        assert said.exit_code == 0
        assert "tiny" in said.output and "Tiny, Table 1" in said.output and "0.5" in said.output

    def test_an_unknown_name(self):
        said = self.run("nothing")
        assert "'nothing' is not known; `fedpriv reproduce` lists them" in str(said.exception)

    @pytest.mark.parametrize("option", ["--seeds", "--processes"])
    def test_numbers_below_one(self, option, tmp_path):
        said = self.run("tiny", option, 0, "--results", tmp_path / "r")
        assert isinstance(said.exception, ValueError) and "at least 1" in str(said.exception)
        assert not (tmp_path / "r").exists()

    def test_from_nothing_to_a_table_and_again_for_nothing(self, tmp_path, monkeypatch):
        results, out = tmp_path / "r.jsonl", tmp_path / "deep" / "t.md"
        given = ("tiny", "--seeds", 2, "--results", results, "--out", out)
        said = self.run(*given)
        assert said.exit_code == 0, said.output
        assert "(SYNTHETIC data)" in said.output and "| DP-SGD | 0.63 |" in said.output
        assert out.read_text("utf-8").strip() in said.output
        assert len(read(results)) == 5

        def never(run):
            raise RuntimeError("done already")

        monkeypatch.setattr(reproduction, "perform", never)
        assert self.run(*given).exit_code == 0

    def test_reduced_is_marked(self, tmp_path):
        said = self.run("tiny", "--reduced", "--seeds", 1, "--results", tmp_path / "r")
        assert "Reduced size." in said.output
        assert all(line["reduced"] and line["steps"] == 2 for line in read(tmp_path / "r").values())
