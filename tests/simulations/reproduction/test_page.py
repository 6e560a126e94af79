"""Pages: what they say, and what they must not leave out."""

import math
import re
from dataclasses import replace

import pytest
from scipy.stats import t as student

from fedpriv.measures import ACCURACY, LOSS
from fedpriv.privacy.epsilon import rounded_up
from simulations.reproduction.items import Layout, Row
from simulations.reproduction.page import edges_of, jumps, markdown, spread, welch_half
from simulations.reproduction.runs import Run, perform
from tests.simulations.reproduction.tiny_tables import (
    RATES,
    SEEDS,
    cell,
    done_for,
    figure,
    made,
    row,
    shown,
    table,
)


@pytest.mark.slow
def test_paper_and_ours_side_by_side():
    text = shown(table(row("DP-SGD", 0.63, RATES), row("DP²", None)))
    assert text.startswith("# Tiny, Table 1 (SYNTHETIC data)\n")
    assert "| | paper | as here |" in text
    assert re.search(r"\| DP-SGD \| 0\.63 \| 0\.\d{3} ± 0\.\d{3} \|", text)
    assert re.search(r"\| DP² \| – \| 0\.\d{3} ± 0\.\d{3} \|", text)
    assert "ε as the paper counted it: 1.5 at δ = 0.001, remembered." in text
    assert "mean and standard deviation of 2 seeds" in text


BOTH = {"ours": "as here", "right": "done right"}


class TestLayout:
    def rows(self):
        return tuple(
            Row(
                label=label,
                paper=None,
                cells={
                    "ours": cell(**more),
                    "right": cell(RATES, **more),
                },
            )
            for label, more in (
                ("a", {"l2-clip-norm": 1.0}),
                ("b", {"l2-clip-norm": 2.0}),
                ("c", {"noise": "none", "bound": "none"}),
            )
        )

    def page(self, layout, seeds=SEEDS, rows=None, **changes):
        one = table(*(rows or self.rows()), columns=BOTH, layout=layout, **changes)
        done = done_for(one, seeds=seeds)
        return markdown(one, done, seeds=seeds), one, done

    def test_intervals_are_students(self):
        # Three values: t(0.975, 2) = 4.302653, standard deviation 1.
        one = table(row("a"), layout=Layout(spread="interval"))
        half = 4.302653 / 3**0.5
        assert spread([1.0, 2.0, 3.0], one) == pytest.approx(half, rel=1e-6)
        assert spread([1.0, 2.0, 3.0], table(row("a"))) == 1.0

    def test_what_the_paper_printed_keeps_its_digits(self):
        text = shown(table(row("a", 0.8), row("b", 0.62), row("c", None)))
        assert "| a | 0.80 |" in text and "| b | 0.62 |" in text and "| c | – |" in text

    def test_a_choice_inside_its_grid_is_on_no_edge(self):
        grid = [{"rate": rate, "norm": 2.0} for rate in (0.1, 1.0, 10.0)]
        assert edges_of({"rate": 1.0, "norm": 2.0}, grid) == []
        assert edges_of({"rate": 0.1, "norm": 2.0}, grid) == ["rate (least)"]
        assert edges_of({"rate": 10.0, "norm": 2.0}, grid) == ["rate (most)"]

    @pytest.mark.slow
    def test_what_was_chosen_and_from_how_much(self):
        plain, other = cell(RATES), cell(**{"l2-clip-norm": 2.0})
        other = replace(other, tuned_as=plain, adapt=lambda found: {**found, "delta": 0.25})
        rows = tuple(
            Row(label=label, paper=None, cells={"ours": one})
            for label, one in (("plain", plain), ("other", other), ("single", cell()))
        )
        text, _, done = self.page(Layout(choices=True, digits=2), rows=rows)
        chosen, grid = text.split("## Chosen settings")[1].split("## The grid")
        assert "| as here | plain | learning-rate 1.0 |" in chosen
        assert "| as here | other | learning-rate 1.0, delta 0.25 |" in chosen
        assert "3 tuning runs, on seed 1000." in grid
        assert "their settings were given or follow from those of a row that is." in grid
        top = max(line["accuracy"] for line in done.values() if line["split"] == "validation")
        assert f"| as here | plain | 3 | {top:.2f} | learning-rate (most) |" in grid
        assert "| other |" not in grid and "| single |" not in grid
        assert "## The grid" not in self.page(Layout())[0]


class TestEpsilon:
    def lines(self, one):
        text = shown(one)
        return text.split("ε that the runs truly have:")[1]

    def test_with_all_that_makes_it_mean_something(self):
        text = self.lines(table(row("a")))
        spent = perform(Run(experiment=made(), split="test", seed=0, reduced=False))
        assert (
            f"{rounded_up(spent['epsilon'], 2):.2f} at δ = 0.001 (add-remove, per example, PLD"
            in text
        )
        assert f"RDP {rounded_up(spent['epsilon_rdp'], 2):.2f}, simulated)" in text
        assert "NOT cover" not in text and "∞" not in text

    @pytest.mark.parametrize(
        "options",
        [{"noise": "none", "bound": "none"}, {"preconditioner": "ideal"}],
        ids=["none", "ideal"],
    )
    def test_what_is_not_private(self, options):
        text = self.lines(table(row("a", **options)))
        assert "- as here: ∞, not private" in text and "at δ" not in text

    def test_private_side_information(self):
        guided = {"preconditioner": "side-information"}
        one = row("private", source="private", name="as the paper", **guided)
        text = self.lines(table(one, row("public", **guided)))
        first, second = (line for line in text.splitlines() if line.startswith("- "))
        assert first.startswith("- as here (private): ")
        assert second.startswith("- as here (public): ")
        assert first.endswith("does NOT cover: side information taken from private examples")
        assert "NOT cover" not in second


class TestOrderings:
    def text(self, first, second, *, measure=ACCURACY, seeds=SEEDS, synthetic=False):
        """A table of made-up figures by seed."""
        one = table(
            row("a"), row("b", **{"l2-clip-norm": 2.0}), measure=measure, orderings=(("a", "b"),)
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
                    "synthetic": synthetic,
                    "data": "made",
                    "epsilon": None,
                }
        return markdown(one, done, seeds=seeds)

    def verdict(self, *values, **more):
        return self.text(*values, **more).split("- a ahead of b: as here: ")[1].strip()

    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("first", "second", "verdict"),
        [
            ((0.80, 0.81), (0.60, 0.61), "held"),
            ((0.60, 0.61), (0.80, 0.81), "NOT held"),
            ((0.60, 0.70), (0.64, 0.65), "within the interval"),
            ((0.64, 0.65), (0.60, 0.70), "within the interval"),
            # Further apart than either deviation (0.05), and p = 0.16 by Welch's t.
            ((0.75, 0.82), (0.65, 0.72), "within the interval"),
        ],
    )
    def test_verdicts(self, first, second, verdict):
        assert self.verdict(first, second) == verdict

    def test_synthetic_data_judge_no_paper(self):
        text = self.text((0.80, 0.81), (0.60, 0.61), synthetic=True)
        assert "Orderings of the paper are not judged on SYNTHETIC data." in text
        assert "held" not in text.lower()

    def test_the_interval_is_welchs(self):
        """By hand: shares 1/3 and 4/3, 50/17 degrees of freedom."""
        half = welch_half((1.0, 2.0, 3.0), (0.0, 2.0, 4.0))
        assert half == pytest.approx(student.ppf(0.975, 50 / 17) * (5 / 3) ** 0.5, rel=1e-9)
        assert welch_half((0.5, 0.5), (0.4, 0.4)) == welch_half((0.5,), (0.1, 0.2)) == 0.0

    def test_a_loss_is_better_when_lower(self):
        assert self.verdict((0.1, 0.11), (0.3, 0.31), measure=LOSS) == "held"
        assert self.verdict((0.3, 0.31), (0.1, 0.11), measure=LOSS) == "NOT held"

    def test_one_seed_has_no_spread(self):
        for first in (0.8, 0.79, 0.1):
            assert self.verdict((first,), (0.79,), seeds=(0,)).startswith("not judged: one seed")

    @pytest.mark.slow
    @pytest.mark.parametrize("value", [None, float("nan")])
    def test_a_method_that_diverged_is_behind_every_other(self, value):
        assert self.verdict((0.6, value), (0.5, 0.5)) == "NOT held (diverged)"
        assert self.verdict((0.1, 0.1), (value, 0.5)) == "held (the other diverged)"
        assert self.verdict((value, value), (value, value)) == "both diverged"


class TestFigure:
    def test_a_missing_cell_a_divergence_and_notes(self):
        one = figure(
            row("a"), columns={"ours": "as here", "right": "done right"}, notes=("First.",)
        )
        done = done_for(one)
        next(iter(done.values()))["accuracy"] = None
        text = markdown(one, done, seeds=SEEDS)
        assert "| a | diverged | – |" in text and text.endswith("First.\n")

    def test_jumps_are_those_of_the_second_half(self):
        def of(curve):
            return {"curve": curve, "curve_of": ["accuracy", "loss"]}

        curve = [[1, 0.0, 9.0], [2, 0.9, 5.0], [3, 0.5, 2.0], [4, 0.8, 1.0], [5, 0.6, 1.5]]
        curve.append([6, 0.2, 0.5])
        # From 4 on: 0.8, 0.6, 0.2 around 0.5, and 1.0, 1.5, 0.5 around 0.75.
        assert jumps(of(curve), figure(row("a"))) == pytest.approx(0.1)
        loss = figure(row("a"), measure=LOSS, scale=100.0)
        assert jumps(of(curve), loss) == pytest.approx(75.0)
        steady = [[step, 0.1 * step, 1.0] for step in range(9)]
        assert jumps(of(steady), figure(row("a"))) == pytest.approx(0.0)
        assert math.isnan(jumps(of(curve[:3]), loss))
        assert math.isnan(jumps(of([*curve[:5], [6, None, None]]), loss))
