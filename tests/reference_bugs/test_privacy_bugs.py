"""One test, at least, for each bug of the published reference code that could be ours.

Here are numbers 2, 4 and 5; 7 and 9 are in `test_training_bugs.py`. Others are tested elsewhere:

* 1 (spectral clipping) in `tests/laws/bounds/test_norm.py`;
* 3 (cohorts of a fixed size, accounted as Poisson) in `tests/privacy/test_sampling.py`, and that a
  plan draws by the sampler it is accounted by in `tests/privacy/plans/test_plan.py`;
* 6 (a toy's accounting) and 8 (the ε of the rounds before) in
  `tests/running/loop/test_reproducible.py`, and what 8 made of δ in
  `tests/golden/test_privacy_golden.py`;
* 11 (scripts that do not run) in `tests/experiments/test_every_experiment.py`.

Number 4 (micro-batches that are averaged before they are clipped) has no counterpart: what is
bounded is a user's whole update, however many batches went into it; the test says so.
"""

import numpy as np
import pytest
import torch

from fedpriv import tree
from fedpriv.backends import Backend
from fedpriv.experiments.build import build
from fedpriv.sums import PartialSum
from tests.datasets.corpus.sentences import write_counted
from tests.harness.toys_of_training import KEY, contributed
from tests.reference_bugs.small_runs import experiment, states


class SeedsLikeTheReference(Backend):
    """A backend whose clients seed NumPy's and torch's global generators, as the reference's do."""

    def __init__(self, seed=100):
        self.seed = seed

    def sum(self, request, attempt, cohort):
        np.random.seed(self.seed)
        torch.manual_seed(self.seed)
        np.random.permutation(300)  # the last client's batches
        return PartialSum(total=tree.zeros(request.params), num_users=1)


class TestNoise2:
    def pure_noise(self, corpus, backend, seed=0):
        components, found = states(experiment(), corpus, backend, seed)
        before = {n: np.zeros_like(t) for n, t in found[0][1].items()}
        steps = []
        for _, params in found:
            steps.append(np.concatenate([(params[n] - before[n]).reshape(-1) for n in params]))
            before = params
        return components, np.stack(steps).astype(np.float64)

    def test_2_noise_does_not_depend_on_what_clients_did_to_global_generators(self, tiny_corpus):
        components, first = self.pure_noise(tiny_corpus, SeedsLikeTheReference(100))
        _, second = self.pure_noise(tiny_corpus, SeedsLikeTheReference(7))
        np.testing.assert_array_equal(first, second)  # a simulation: the seed decides alone
        _, other = self.pure_noise(tiny_corpus, SeedsLikeTheReference(100), seed=1)
        assert len(np.intersect1d(first, other)) < 20
        assert first.std() == pytest.approx(components.plan.live_mechanism.stddev / 6, rel=0.1)

    def test_2_cohorts_are_not_drawn_by_the_number_of_the_round(self, tiny_corpus):
        def cohorts(seed):
            drawn = []

            class Spy(SeedsLikeTheReference):
                trains_again = False  # else drawn users are asked once more, alone

                def sum(self, request, attempt, cohort):
                    drawn.append(cohort)
                    return super().sum(request, attempt, cohort)

            states(experiment(), tiny_corpus, Spy(), seed)
            return drawn

        first, second = cohorts(0), cohorts(1)
        assert all(a != b for a, b in zip(first, second, strict=True))


def test_4_the_bounded_unit_is_the_whole_user(tiny_corpus):
    """Many small batches move the sum by no more than one: C, not C for each."""
    components = build(
        experiment(local_batch_size=1, local_epochs=5, l2_clip_norm=0.01), tiny_corpus
    )
    params, bound = components.task.init_params(KEY), components.plan.live_mechanism.bound
    data = components.task.data
    total = contributed(components.trainer, params, data, ["u00"], bound=bound)
    assert total.num_failed == 0
    assert tree.l2_norm(total.real()) == pytest.approx(0.01, rel=1e-5)
    assert tree.l2_norm(total.real()) <= 0.01


class TestSideInformation5:
    def test_5_public_and_rostered_users_do_not_overlap(self, tiny_corpus):
        view = tiny_corpus.view()
        assert view.public_users and not set(view.public_users) & set(view.roster)

    @pytest.mark.parametrize("kind", ["rank", "frequency", "tf-idf"])
    def test_5_its_source_is_declared_and_true(self, tmp_path, kind):
        top = {"preconditioner_top": 2} if kind == "rank" else {}
        made = experiment(precondition="local", side_information=kind, cohort=1.0, **top)
        public = build(made, write_counted(tmp_path / "public", False)).side_information
        assert public.source == "public" and "outside the roster" in public.description
        # Counts published over everybody include the rostered users: no ε covers them.
        private = build(made, write_counted(tmp_path / "private", True)).side_information
        assert private.source == "private" and "rostered users" in private.description
