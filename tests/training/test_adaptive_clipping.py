"""A clip norm that adapts: the vector users send, the count, the step, and what it costs."""

import math
from dataclasses import replace

import numpy as np
import pytest

from fedpriv import optimizers, tree
from fedpriv.checkpoints.tensor_files import read_tensors
from fedpriv.experiments.build import build
from fedpriv.experiments.load import load_experiment
from fedpriv.mechanisms import Clip, Rounded
from fedpriv.mechanisms.gaussian import Gaussian, Unprotected
from fedpriv.privacy.mechanism import Mechanism
from fedpriv.privacy.sampling import Everybody
from fedpriv.privacy.statement.statement import run_statement
from fedpriv.rng import Key
from fedpriv.runs.prepared import resume_run, start_run
from fedpriv.training.adaptive_clipping import CLIP, AdaptiveClip, AdaptivelyClipped, clip_norm_of
from fedpriv.training.work import UserByUser
from fedpriv.transform import identity

PARAMS = {"w": np.zeros((4, 2), np.float32), "b": np.zeros(3, np.float32)}
CLIPPING = AdaptiveClip(initial=3.0, least=1e-3, most=1e3)


def update(norm, seed=0):
    rng = np.random.default_rng(seed)
    made = {name: rng.standard_normal(a.shape) for name, a in PARAMS.items()}
    scale = norm / tree.l2_norm(made)
    return {name: (scale * a).astype(np.float32) for name, a in made.items()}


class Sending:
    """A trainer whose user sends what it has."""

    thread_safe = True

    def train(self, params, examples, key):
        assert set(params) == set(PARAMS)
        return examples


class Users:
    def __init__(self, sent):
        self.sent = sent

    def examples(self, user_id):
        return self.sent[int(user_id)]

    def num_examples(self, user_id):
        return 1


def vector(norm, clip_norm, clip=CLIPPING):
    return sent_under(clip, clip_norm, update(norm))


def sent_under(clip, clip_norm, examples):
    work = UserByUser(trainer=Sending(), transform=clip)
    params = {**PARAMS, CLIP: np.array([clip_norm], np.float32)}
    return work.contribution(params, examples, Key.simulation(0))


def test_a_users_vector_is_no_longer_than_one(subtests):
    for clip_norm in [1e-3, 0.7, 1.0, 50.0]:
        for norm in [0.0, 1e-20, 0.5, 0.7, 1.0, 3.0, 1e4, 1e30]:
            for weight in [0.05, 0.2, 0.9]:
                with subtests.test(clip_norm=clip_norm, norm=norm, weight=weight):
                    clip = replace(CLIPPING, count_weight=weight)
                    sent = (
                        vector(norm, clip_norm, clip)
                        if norm
                        else sent_under(clip, clip_norm, PARAMS)
                    )
                    assert tree.l2_norm(sent) <= 1 + 1e-6
                    below = (
                        tree.l2_norm(update(norm)) <= float(np.float32(clip_norm)) if norm else True
                    )
                    assert sent[CLIP][0] == pytest.approx(weight if below else -weight)
                    own = tree.l2_norm({n: sent[n] for n in PARAMS})
                    assert own == pytest.approx(
                        math.sqrt(1 - weight**2) * min(1, norm / clip_norm), rel=1e-5
                    )


def algorithm(clip=CLIPPING):
    return AdaptivelyClipped(optimizer=optimizers.sgd(1.0), aggregate=identity(), clip=clip)


def played(norms, number, noise=0.0, clip=CLIPPING, seed=0):
    """Return the clip norm after each round of everybody, and the last mean update."""
    privatizer = Gaussian(noise_multiplier=noise) if noise else Unprotected()
    mechanism = Mechanism(
        sampler=Everybody(num_users=len(norms)),
        bound=Rounded(bound=Clip(l2_clip_norm=1.0)),
        privatizer=privatizer,
    )
    work = UserByUser(trainer=Sending(), transform=clip)
    data = Users([update(norm, seed) for seed, norm in enumerate(norms)])

    class Door:
        def __init__(self):
            self.round_num = 0

        def key(self, stream):
            return Key.simulation(seed).fold(stream)

        def ask(self, query):
            self.round_num += 1
            key = Key.simulation(seed).fold(self.round_num)
            total = work.partial_sum(
                params=query.params,
                bound=mechanism.bound,
                data=data,
                user_ids=[str(i) for i in range(len(norms))],
                key=key,
            )
            return mechanism.release(total, mechanism.draw(query.params, key.fold("noise")))

    made, door = algorithm(clip), Door()
    state, found, means = made.init(PARAMS), [], []
    for _ in range(number):
        before = {name: a.copy() for name, a in state.params.items()}
        state = made.step(state, door)
        found.append(clip_norm_of(state))
        means.append({name: state.params[name] - before[name] for name in PARAMS})
    return found, means


def test_it_stays_within_public_limits():
    clip = replace(CLIPPING, initial=1.0, least=0.9, most=1.1, rate=5.0)
    assert set(played([1e-6] * 4, 5, clip=clip)[0]) == {np.float32(0.9)}
    assert set(played([1e6] * 4, 5, clip=clip)[0]) == {np.float32(1.1)}
    for wrong in ({"initial": 2.0}, {"least": 0.0}, {"most": math.inf}, {"least": 1.5}):
        with pytest.raises(ValueError, match="clip-least and clip-most"):
            replace(clip, **wrong)


@pytest.mark.slow
def test_noise_is_for_the_clip_norm_that_was_used_and_for_the_count():
    """Standard deviations σ C / (a m) and σ / (2 h m), 300 rounds of 11 numbers, α = 1e-6.

    With so many rounds a scale that is wrong by a tenth is told.
    """
    clip, m = replace(CLIPPING, initial=1.0, rate=1e-9), 10
    norms = [0.5] * m
    _, [plain] = played(norms, 1, clip=clip)
    deviations = []
    for seed in range(300):
        _, [mean] = played(norms, 1, noise=2.0, clip=clip, seed=seed)
        deviations.append(np.concatenate([(mean[n] - plain[n]).reshape(-1) for n in PARAMS]))
    found = float(np.std(deviations)) * clip.update_weight * m / 2.0
    assert 0.94 < found < 1.06
    counts = []
    moving = replace(CLIPPING, initial=1.0, rate=1.0)
    for seed in range(300):
        [norm], _ = played(norms, 1, noise=2.0, clip=moving, seed=seed)
        counts.append(0.5 - math.log(norm) - 1.0)  # b̄ less the true share, 1
    assert 0.8 < float(np.std(counts)) * 2 * clip.count_weight * m / 2.0 < 1.2


OPTIONS = {
    "clip-norm": "adaptive",
    "l2-clip-norm": 0.5,
    "rounds": 6,
    "cohort": 12.0,
    "target-epsilon": None,
    "noise-multiplier": 1.0,
    "start": "fresh",
}


@pytest.mark.slow
def test_a_run_is_resumed_where_its_clip_norm_was(tiny_corpus, tmp_path):
    made = load_experiment("adadps-tags").with_options(OPTIONS)
    start_run(made, "adadps-tags", tiny_corpus, tmp_path / "whole").run()
    broken = start_run(made, "adadps-tags", tiny_corpus, tmp_path / "broken")

    class Stopped(Exception):
        pass

    def stop(record):
        if record.released.round_num == 3:
            raise Stopped

    with pytest.raises(Stopped):
        broken.run(on_round=stop)
    broken.folder.close()
    resume_run(tmp_path / "broken").run()
    whole, again = (
        read_tensors(tmp_path / run / "state.safetensors")[0] for run in ("whole", "broken")
    )
    assert whole.keys() == again.keys() and any("clip" in name for name in whole)
    assert all(np.array_equal(whole[name], again[name]) for name in whole)
    said = str(run_statement(tmp_path / "whole").to_json())
    assert "The clip norm adapts." in said


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"precondition": "update"}, "counts norms of updates as users make them"),
        ({"precondition": "none", "release_preconditioner": "delayed"}, "counts norms of updates"),
        ({"clip-least": 1.0}, "clip-least and clip-most"),
    ],
)
def test_what_does_not_fit_is_refused(tiny_corpus, options, said):
    with pytest.raises(ValueError, match=said):
        build(load_experiment("adadps-tags").with_options({**OPTIONS, **options}), tiny_corpus)


def test_a_user_that_lies_moves_the_count_by_no_more_than_its_vector():
    """Whatever is sent in its place, the vector is clipped to one as a whole."""
    bound = Clip(l2_clip_norm=1.0)
    hostile = {**update(1e6), CLIP: np.array([1e9], np.float32)}
    assert tree.l2_norm(bound.apply(hostile)) <= 1 + 1e-6
