"""Adaptive descent and bolt-on beside their comparators: synthetic data, and what the pages say."""

from __future__ import annotations

from statistics import mean

import numpy as np
import pytest

from fedpriv.privacy.accounting import epsilon
from fedpriv.privacy.event import Event, Relation
from simulations.agd import methods as agd
from simulations.agd import study as agd_study
from simulations.agd.methods import last_order, sigma_of_last_order
from simulations.bolt_on import methods as bolt_on
from simulations.bolt_on import study as bolt_on_study
from simulations.bolt_on.methods import timed
from simulations.bolt_on.study import over_batches
from simulations.linear_models.problems import problem
from simulations.reproduction.study import Store


class TestOldMomentsBound:
    def test_a_step_costs_it_whatever_the_noise(self):
        """ln(1e8)/32; BANK's q = .00553 and σ = 4 truly cost .0099 by PLD."""
        assert last_order(0.00553, 4.0, 1, 1e-8) == pytest.approx(0.5756, abs=5e-4)
        assert last_order(0.00553, 1e6, 1, 1e-8) == pytest.approx(0.575646, abs=1e-6)
        event = Event(kind="poisson-gaussian", noise_multiplier=4.0, sampling_prob=0.00553)
        true = epsilon(event, 1, delta=1e-8, relation=Relation.ADD_REMOVE)
        assert true.value == pytest.approx(0.0099, abs=5e-4)

    def test_it_leaves_no_room_below(self):
        assert sigma_of_last_order(0.01, 1, 0.57, 1e-8) is None
        sigma = sigma_of_last_order(0.01, 100, 0.8, 1e-8)
        assert sigma is not None
        assert last_order(0.01, sigma, 100, 1e-8) == pytest.approx(0.8, rel=1e-6)
        event = Event(kind="poisson-gaussian", noise_multiplier=sigma, sampling_prob=0.01)
        assert epsilon(event, 100, delta=1e-8, relation=Relation.ADD_REMOVE).value < 0.5


class TestProblems:
    @pytest.mark.parametrize("key", ["mnist-3-8", "mnist", "mnist-projected", "covertype"])
    def test_rows_are_short_and_public_ones_removed(self, key):
        made = problem(key, tiny=True)
        data = made.data
        assert data.synthetic and data.name.startswith("synthetic")
        for rows in (data.x_train, data.x_test, data.x_public):
            norms = np.linalg.norm(np.asarray(rows, np.float64), axis=1)
            assert norms.max() <= 1 + 1e-6 and np.shape(rows)[1] == made.width
        assert data.num_public > 0
        assert made.dimension == (made.width + 1) * (1 if made.num_classes == 2 else 10)

    def test_fewer_rows_are_among_the_more(self):
        made = problem("mnist-3-8", tiny=True)
        few, more = made.smaller(20), made.smaller(50)
        assert np.array_equal(few.x_train, np.asarray(more.x_train)[:20])


def test_a_run_is_found_again(tmp_path):
    path, calls = tmp_path / "rows.jsonl", []

    def perform(spec):
        calls.append(spec)
        return {"accuracy": 0.5}

    for _ in range(2):
        store = Store.at(path)
        assert store.row({"ε": 1.0, "settings": {"rate": 2}}, perform)["accuracy"] == 0.5
    store.row({"ε": 2.0, "settings": {"rate": 2}}, perform)
    assert len(calls) == 2 and len(path.read_text("utf-8").splitlines()) == 2


@pytest.fixture(scope="module")
def adaptive():
    """Two settings of each method, two seeds, two ε."""
    few = {name: (grid[0], grid[-1]) for name, grid in agd.GRIDS.items()}
    few["sgd"] = few["sgd-old"] = ({"steps": 20, "rate": 2.0},)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(agd_study, "GRIDS", few)
        study = agd_study.study_of("mnist-3-8", Store(), seeds=2, epsilons=(0.4, 1.6), tiny=True)
        agd_study.complete(study, ablated=(0.4, 1.6))
        yield study


@pytest.mark.slow
class TestAdaptiveDescent:
    def test_page(self, adaptive):
        text = agd_study.page([adaptive], command="c", ablated=("mnist-3-8",))
        for said in ("SYNTHETIC", "artefact", "add-remove, per example, simulated", "majority",
                     "no step", "truly", "T = 4", "γ = 0.5", "objective fell"):  # fmt: skip
            assert said in text, said

    def test_no_method_spends_more_than_it_says(self, adaptive):
        rows = adaptive.store.rows.values()
        runs = [r for r in rows if "method" in r["spec"] and r["accuracy"]]
        assert len(runs) > 30
        for row in runs:
            assert row["true_epsilon"] <= row["spec"]["epsilon"] * (1 + 1e-9), row["spec"]


def small(key, loss, **given):
    return bolt_on_study.study_of(key, loss, Store(), seeds=2, tiny=True, **given)


@pytest.fixture(scope="module")
def bolted():
    return bolt_on_study.Found(small("mnist", "softmax", epsilons=(2.0,)), (1,))


class TestBoltOn:
    def test_page(self, bolted):
        text = bolt_on_study.page(
            [bolted], seeds=2, command="c",
            batches=over_batches(bolted.study, sizes=(10,), passes=1),
            times=timed("mnist", "softmax", pairs=1, tiny=True),
        )  # fmt: skip
        for said in ("SYNTHETIC", "pure ε, δ = 0", "δ = 1/m²", "SCS13", "BST14", "add-remove",
                     "Over the grid", "b = 10", "ratio of pairs"):  # fmt: skip
            assert said in text, said

    def test_every_row_states_its_epsilon(self, bolted):
        for (guarantee, *_), rows in bolted.cells.items():
            for row in rows:
                assert row["true_epsilon"] <= 2.0 * (1 + 1e-9)
                assert (row["delta"] == 0.0) == (guarantee == "pure")

    def test_the_same_training_is_perturbed_for_every_epsilon(self, bolted):
        """With ε a million times larger hardly anything is left of the noise."""

        def risk(guarantee, epsilon, seed=3):
            place = {"guarantee": guarantee, "method": "bolt-on", "epsilon": epsilon, "passes": 1}
            return bolted.study.row({"rate": 0.3}, seed=seed, **place)["objective"]

        plain = risk(None, 1.0)
        assert abs(risk("pure", 1e6) - plain) < 1e-4
        assert risk("pure", 1e-3) > 2 * plain
        assert risk(None, 1.0, seed=4) != plain

    def test_excess_risk_falls_with_noise(self):
        study = small("mnist-3-8", "logistic")
        loud, quiet = (
            mean(bolt_on_study.excess(study, "approximate", "bolt-on", e, 2, 200))
            for e in (0.01, 10.0)
        )
        assert 0 <= quiet < loud

    def test_objective_perturbation_is_of_one_line_and_has_no_passes(self, bolted):
        assert not any(method == "objective" for _, method, *_ in bolted.cells)
        found = bolt_on_study.Found(small("mnist-3-8", "huber", epsilons=(2.0,)), (1, 2))
        places = [place for place in found.cells if place[1] == "objective"]
        assert places == [(g, "objective", 2.0, 1) for g in ("pure", "approximate")]
        for place in places:
            for row in found.cells[place]:
                assert 1.99 < row["true_epsilon"] <= 2.0 * (1 + 1e-9)
                assert (row["delta"] == 0.0) == (place[0] == "pure")
        text = bolt_on_study.page([found], seeds=2, command="c")
        assert "| objective perturbation | – |" in text and "Against objective perturb" in text

    def test_one_against_all_is_perturbed_jointly(self):
        model = bolt_on.model_of("mnist-projected", "one-vs-all", "test", None, True)
        sgd = bolt_on.permutation_sgd(model, 1, 50, {"rate": 0.3})
        assert sgd.constants.lipschitz == pytest.approx(10**0.5)
        bound = bolt_on.plan_of(model, sgd, "pure", 1.0).live_mechanism.l2_bound
        assert bound == pytest.approx(10**0.5 * 0.3 / 50, rel=1e-6)
