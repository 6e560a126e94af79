"""A training loop of your own, accounted in a ledger; killed at any moment, it goes on."""

from contextlib import closing
from pathlib import Path

import numpy as np

import fedpriv as fp

data = {  # synthetic users: twenty points each
    f"user-{number:03d}": np.random.default_rng(number).normal((1, 2, 3), 1.0, (20, 3))
    for number in range(100)
}
roster, start = tuple(sorted(data)), {"center": np.zeros(3, np.float32)}
plan = fp.Rounds(users=len(roster), cohort=20, rounds=10).plan(l2_clip_norm=1.0, target_epsilon=8.0)
mechanism = plan.live_mechanism


def my_update(params, examples):
    return {"center": 0.5 * (examples.mean(axis=0) - params["center"])}


def train(folder, key):
    state = folder.resume(fp.ArrayState(params=start))
    while folder.ledger.pays_for_more:
        n = state.round_num + 1
        attempt = folder.ledger.attempts(n) + 1
        folder.ledger.charge(n, attempt)  # on disk, before anything private is drawn
        # Independent draws, as the plan says: random.sample would cost several times its ε.
        cohort, _ = mechanism.sampler.next({}, key.fold("cohort").fold(n).fold(attempt), roster)
        updates = (my_update(state.params, data[user]) for user in cohort)
        total = fp.bounded_sum(updates, mechanism.bound, like=state.params)
        noise = mechanism.draw(state.params, key.fold("noise").fold(n).fold(attempt))
        mean = mechanism.release(total, noise)
        state = state.after({"center": state.params["center"] + mean["center"]})
        folder.keep(state)  # checkpoint, state, and the release in the ledger
    return state


with closing(fp.RunFolder.of_plan(Path("runs/loop"), plan, mode="simulation")) as folder:
    state = train(folder, fp.Key.simulation(0))
    print("synthetic users:", state.params["center"], folder.ledger.epsilon())
