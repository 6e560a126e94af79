"""Three rounds of combined options against NumPy: no option is lost where several meet."""

from __future__ import annotations

import itertools
import math
from itertools import islice

import numpy as np
import pytest
from torch import nn

from fedpriv.backends import SerialBackend
from fedpriv.experiments.averaging import FederatedExperiment
from fedpriv.experiments.build import build
from fedpriv.mechanisms import SideInformation
from fedpriv.rng import Key
from fedpriv.runs.loop import rounds
from fedpriv.tasks.module_task import ModuleTask
from fedpriv.training.adaptive_clipping import clip_norm_of
from tests.combinations import each_once

USERS, ROUNDS, RATE, STEPS, CLIP = 5, 3, 0.7, 2, 0.4
CLIP_RATE, QUANTILE, COUNT, DECAY, REGULARISER = 0.9, 0.3, 0.6, 0.5, 0.05
MULTIPLIER = {"weight": np.array([[0.2, 1.0, 5.0]]), "bias": np.array([0.5])}

SCHEDULES = {"constant": 0, "cosine": 0, "warm-up": 2, "warm cosine": 1}
PLACES = ["none", "local", "update", "both", "scale-then-privatise", "past-releases", "delayed"]


def examples(number):
    """Some rows of three normals, and labels of two classes."""
    rng = np.random.default_rng(number)
    x = rng.normal(size=(3 + number, 3)).astype(np.float32)
    return x, (x @ [1.0, -1.0, 0.5] > 0).astype(int)


DATA = {f"u{number}": examples(number) for number in range(USERS)}


class Known(ModuleTask):
    """A module whose task knows multipliers."""

    def side_information(self):
        return SideInformation(
            multiplier={name: array.astype(np.float32) for name, array in MULTIPLIER.items()},
            source="public",
            description="known",
        )


def released(schedule, adaptive, place):
    """Params, and the clip norm, after each round of everybody without noise."""
    task = Known(
        name="t", module=lambda: nn.Linear(3, 2), loss=nn.functional.cross_entropy, users=DATA,
        public=examples(99), synthetic=True,
    )  # fmt: skip
    options = {
        "rounds": ROUNDS, "sampling": "fixed", "cohort": float(USERS), "noise": "none",
        "local.learning-rate": RATE, "local-steps": STEPS, "l2-clip-norm": CLIP,
        "rate-schedule": "cosine" if "cosine" in schedule else "constant",
        "warmup-rounds": SCHEDULES[schedule],
    }  # fmt: skip
    if adaptive:
        options |= {
            "clip-norm": "adaptive", "clip-rate": CLIP_RATE, "clip-quantile": QUANTILE,
            "clip-count-weight": COUNT,
        }  # fmt: skip
    if place in ("past-releases", "delayed"):
        options |= {"release-preconditioner": place, "decay": DECAY, "regulariser": REGULARISER}
        options |= {"delay-plain": 1, "delay-preconditioned": 2} if place == "delayed" else {}
    elif place != "none":
        options |= {"precondition": place, "precondition.side-information": "own"}
    own = FederatedExperiment(name="own", description="", task=lambda experiment: task)
    components = build(own.with_options(options))
    backend = SerialBackend(trainer=components.trainer, data=task.data, measure=task.evaluate)
    played = islice(rounds(components, backend, Key.simulation(0)), ROUNDS)
    states = [state for _, state in played]
    first = task.init_params(Key.simulation(0).fold("init"))
    return first, [(state.params, clip_norm_of(state) if adaptive else CLIP) for state in states]


def rate_factor(schedule, round_num):
    rising = SCHEDULES[schedule]
    if round_num <= rising:
        return round_num / rising
    if "cosine" not in schedule:
        return 1.0
    return 0.5 * (1 + math.cos(math.pi * (round_num - 1 - rising) / (ROUNDS - rising)))


def local_update(params, x, y, rate, multiplier):
    """Full-batch steps of softmax regression."""
    own = dict(params)
    for _ in range(STEPS):
        logits = x @ own["weight"].T + own["bias"]
        odds = np.exp(logits - logits.max(1, keepdims=True))
        error = (odds / odds.sum(1, keepdims=True) - np.eye(2)[y]) / len(x)
        gradient = {"weight": error.T @ x, "bias": error.sum(0)}
        own = {n: own[n] - rate * gradient[n] * multiplier.get(n, 1.0) for n in own}
    return {n: own[n] - params[n] for n in own}


def norm(tensors):
    return math.sqrt(sum(float((array**2).sum()) for array in tensors.values()))


def scaled(tensors, by):
    return {n: a * (by[n] if isinstance(by, dict) else by) for n, a in tensors.items()}


def expected(first, schedule, adaptive, place):
    """The same, by the formulas of the methods in float64."""
    params = {n: a.astype(np.float64) for n, a in first.items()}
    clip, found, gathered = CLIP, [], {}
    second = {n: np.zeros_like(a) for n, a in params.items()}
    for round_num in range(1, ROUNDS + 1):
        in_steps = MULTIPLIER if place in ("local", "both") else {}
        before = after = 1.0
        if place in ("update", "both", "scale-then-privatise"):
            before = MULTIPLIER
            after = {n: 1 / m for n, m in MULTIPLIER.items()} if "scale" in place else 1.0
        if place == "past-releases" or (place == "delayed" and round_num > 1):
            if place == "delayed" and round_num == 2:
                second = {n: (1 - DECAY) * gathered[n] ** 2 for n in second}
            root = {n: np.sqrt(v) + REGULARISER for n, v in second.items()}
            if place == "past-releases":
                size = sum(a.size for a in root.values())
                root = scaled(root, math.sqrt(size) / norm(root))
                after = root
            before = {n: 1 / a for n, a in root.items()}
        rate = RATE * rate_factor(schedule, round_num)
        updates = [scaled(local_update(params, x, y, rate, in_steps), before) for x, y in
                   DATA.values()]  # fmt: skip
        clipped = [scaled(one, min(1.0, clip / norm(one))) for one in updates]
        mean = scaled({n: sum(one[n] for one in clipped) / USERS for n in params}, after)
        if adaptive:
            below = sum(norm(one) <= clip for one in updates) / USERS
            clip *= math.exp(-CLIP_RATE * (below - QUANTILE))
        if place == "past-releases":
            second = {n: DECAY * v + (1 - DECAY) * mean[n] ** 2 for n, v in second.items()}
        gathered = mean if round_num == 1 else gathered
        params = {n: params[n] + mean[n] for n in params}
        found.append((params, clip))
    return found


IN_STEPS = ("none", "local")


def cases():
    """Whether each runs by default: some of every value, and all where the clip norm adapts."""
    return each_once(
        {name: name for name in SCHEDULES},
        {"fixed": False, "adaptive": True},
        {name: name for name in PLACES},
        also=lambda schedule, clip, place: clip == "adaptive" and place in IN_STEPS,
    )


@pytest.mark.parametrize(("schedule", "adaptive", "place"), cases())
def test_rounds_are_those_of_numpy(schedule, adaptive, place):
    if adaptive and place not in IN_STEPS:
        with pytest.raises(ValueError, match="clip-norm 'adaptive'"):
            released(schedule, adaptive, place)
        return
    first, found = released(schedule, adaptive, place)
    wanted = expected(first, schedule, adaptive, place)
    for (params, clip), (own, own_clip) in zip(found, wanted, strict=True):
        assert clip == pytest.approx(own_clip, rel=1e-5)
        for name, array in own.items():
            np.testing.assert_allclose(params[name], array, rtol=1e-4, atol=1e-6)


def test_the_cases_tell_every_option_from_its_absence():
    """Otherwise a lost one would go unseen: no two cases end at the same params."""
    first = {"weight": np.zeros((2, 3)), "bias": np.zeros(2)}
    ends = [
        expected(first, schedule, adaptive, place)[-1][0]["weight"].tobytes()
        for schedule, adaptive, place in itertools.product(SCHEDULES, [False, True], PLACES)
        if not adaptive or place in IN_STEPS
    ]
    assert len(set(ends)) == len(ends)
