"""Four methods that come through the door, each written through public parts only; and how to play.

What they ask of users, and the users, are in `toys`.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from itertools import islice
from types import SimpleNamespace

import numpy as np

from fedpriv.backends import SerialBackend
from fedpriv.mechanisms import Capped, Clip, Rounded
from fedpriv.mechanisms.correlated.noise import Correlated
from fedpriv.mechanisms.correlated.optimise import optimised_bands
from fedpriv.mechanisms.event import Event
from fedpriv.mechanisms.gaussian import Gaussian
from fedpriv.mechanisms.privatizer import Participation, Privatizer
from fedpriv.privacy.mechanism import Mechanism
from fedpriv.privacy.plan import FilterPlan, Plan
from fedpriv.privacy.sampling import Everybody, SeparatedSampler
from fedpriv.rng import Key
from fedpriv.runs.folder import RunFolder
from fedpriv.runs.loop import rounds
from fedpriv.runs.noise_root import NOISE
from fedpriv.sums import PartialSum
from fedpriv.training.algorithm import Algorithm, Context, Line, SumRequest
from tests.backends.door import toys
from tests.harness import kills

N = len(toys.ROSTER)
SIZES = np.array(toys.STEP_SIZES, np.float32)
ALL = Everybody(num_users=N)
CLIP = Clip(l2_clip_norm=8.0)
HERE = SerialBackend(trainer=toys.WORKS, data=toys.TASK.data)
#: Of a ledger's first line; with this noise the first of `Descent`'s directions leads nowhere.
FACTS = {NOISE: "2" * 64}


# -- (a) two queries an iteration, prices decided on the way, the raw sum held ----------------


class LeastNoisy(Privatizer):
    """Only the index of the least noisy sum leaves (report noisy min, Dwork and Roth 2014, 3.3)."""

    name, event = "noisy-min", Event(kind="pure", epsilon=0.5)

    def __init__(self, cap):
        self.cap = cap

    def draws(self, *, template, sensitivity, key):
        scale = 2.0 * self.cap / self.event.epsilon
        yield key.generator().gumbel(0.0, scale, template["losses"].shape)

    def release(self, total, drawn, share):
        return int(np.argmin(total.real()["losses"] - drawn))


class Descent(Algorithm):
    """Noisy gradient, noisy minimum over step sizes; where none helps, the gradient once more."""

    coarse, fine = Gaussian(noise_multiplier=3.0), Gaussian(noise_multiplier=1.5)
    plan = FilterPlan(num_users=N, rho=2.0, delta=1e-3)
    capped = Capped(cap=8.0, num_coordinates=len(toys.STEP_SIZES))

    def mechanisms(self):
        return (
            Mechanism(sampler=ALL, bound=CLIP, privatizer=self.coarse),
            Mechanism(sampler=ALL, bound=self.capped, privatizer=LeastNoisy(8.0)),
        )

    def step(self, state, door):
        gradient, losses = self.mechanisms()
        query = SumRequest(params=state.params, mechanism=gradient, name="gradient")
        with door.hold(query) as held:
            direction = held.answer["w"]
            for n in range(2):
                line = Line(direction={"w": direction}, sizes=SIZES)
                along = replace(
                    query,
                    context=Context(line=line),
                    work="losses",
                    mechanism=losses,
                    name=f"losses {n}",
                )
                best = door.ask(along)
                if best:
                    break
                direction = held.release(self.fine)["w"]
        return state.after({"w": state.params["w"] + toys.STEP_SIZES[best] * direction})


# -- (b) many passes inside, one release at the end, pure ε -----------------------------------


class UniformSphere(Privatizer):
    """Noise of uniform direction and Gamma radius: ε-DP (Chaudhuri et al. 2011, Algorithm 1)."""

    name, event, after_crash = "sphere", Event(kind="pure", epsilon=1.0), "replay"

    def draws(self, *, template, sensitivity, key):
        random, shape = key.generator(), template["w"].shape
        direction = random.normal(size=shape)
        radius = random.gamma(direction.size, sensitivity / self.event.epsilon)
        yield radius * direction / np.linalg.norm(direction)

    def release(self, total, drawn, share):
        return total.real()["w"] + drawn


class OneShot(Algorithm):
    """Descends on raw means, and releases where it came to."""

    # Ten steps of rate 1/4 on means of vectors within 8: one user moves the end by 8 / N.
    bound = Clip(l2_clip_norm=8.0 / N)
    plan = Plan(
        mechanism=Mechanism(sampler=ALL, bound=bound, privatizer=UniformSphere()), num_rounds=1
    )

    def step(self, state, door):
        def program(raw):
            w = state.params["w"].astype(np.float64)
            for _ in range(10):
                at = SumRequest(params={"w": w.astype(np.float32)})
                w = w + 0.25 * raw.sum(at, bound=CLIP).real()["w"] / N
            return PartialSum(total={"w": w}, num_users=N)

        return state.after(
            {"w": door.run(SumRequest(params=state.params), program).astype(np.float32)}
        )


# -- (c) correlated noise, discarded rows, one charge, a participation limit --------------------


ROWS, APART = 9, 3
LIMIT = Participation(most=2, min_separation=APART, num_rows=ROWS)


class Stream(Algorithm):
    """Follows means under the noise of a strategy, of which one charge pays for all rows."""

    def __init__(self, strategy=None):
        mechanism = Mechanism(
            sampler=SeparatedSampler(
                num_users=N, size=3, min_separation=APART, max_participations=LIMIT.most
            ),
            bound=Rounded(bound=Clip(l2_clip_norm=3.0)),
            privatizer=Correlated(
                noise_multiplier=2.0,
                strategy=strategy or optimised_bands(APART, LIMIT),
                participation=LIMIT,
            ),
        )
        self.plan = Plan(mechanism=mechanism, num_rounds=ROWS, relation="zero-out", delta=1e-3)

    def step(self, state, door):
        mean = door.ask(SumRequest(params=state.params))
        return state.after({"w": state.params["w"] + 0.5 * mean["w"]})


# -- (d) noise as the sum of shares that each client adds ----------------------------------------


class SharesInside(Privatizer):
    """Nothing is added here; with too few shares nothing is released."""

    name, event, least = "shares", Event(kind="gaussian", noise_multiplier=1.0), 9

    def draws(self, *, template, sensitivity, key):
        yield None

    def release(self, total, drawn, share):
        if total.num_users - total.num_failed < self.least:
            raise ArithmeticError(f"fewer than {self.least} shares of noise: nothing is released")
        update = {name: (a * share).astype(np.float32) for name, a in total.real().items()}
        return update


class Distributed(Algorithm):
    """Follows means of a sum that was noised where it was made."""

    bound = Rounded(bound=toys.Shared(l2_clip_norm=8.0))
    mechanism = Mechanism(sampler=ALL, bound=bound, privatizer=SharesInside())
    plan = Plan(mechanism=mechanism, num_rounds=3, delta=1e-3)

    def step(self, state, door):
        mean = door.ask(SumRequest(params=state.params, work="shares"))
        return state.after({"w": state.params["w"] + 0.5 * mean["w"]})


# -- played --------------------------------------------------------------------------------------

TOYS = {"a": Descent, "b": OneShot, "c": Stream, "d": Distributed}


def components(method):
    """What the loop runs of a method, or of a class of it."""
    made = method() if isinstance(method, type) else method
    return SimpleNamespace(
        dropout_rate=0.0,
        task=toys.TASK,
        init_params=toys.TASK.init_params,
        plan=made.plan,
        plan_sha256="",
        algorithm=made,
        trainer=toys.WORKS,
    )


def play(method, folder, carry=HERE, *, mode="simulation", num_rounds=None):
    """Run to the end, or for some rounds, from where the folder is; return the last params."""
    root = Key.simulation(3) if mode == "simulation" else Key.secure()
    made = components(method)
    kept = RunFolder.of_plan(folder, made.plan, mode=mode, extra=FACTS)
    with closing(kept):
        state = kept.resume(made.algorithm.init(made.task.init_params(root.fold("init"))))
        with closing(rounds(made, carry, root, folder=kept, state=state)) as running:
            *_, (_, state) = [(None, state), *islice(running, num_rounds)]
    return state.params["w"]


def killed(method, folder, after, carry=HERE, **rest):
    """Run until it dies, right after so many charges and rows of its ledger."""
    with kills.killed_after(after, "charge", "row"):
        play(method, folder, carry, **rest)
