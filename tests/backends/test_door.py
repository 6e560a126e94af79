"""Five methods that the door admits, each written through public parts only, on every backend.

Each is run whole, run again with a kill after the k-th line of its ledger, and verified.
"""

from __future__ import annotations

import copy
import importlib
import pickle
import shutil
import sys
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from safetensors.numpy import load_file

from fedpriv.backends import SerialBackend
from fedpriv.mechanisms import Clip, Rounded
from fedpriv.noise.gaussian import Gaussian, NoisedMean
from fedpriv.noise.privatizer import Cost
from fedpriv.privacy.event import Event
from fedpriv.privacy.ledger.ledger import BudgetSpentError, Ledger
from fedpriv.privacy.ledger.reading import read_ledger
from fedpriv.privacy.ledger.verify import verify_run
from fedpriv.privacy.mechanism import Mechanism
from fedpriv.privacy.plans.adaptive import AdaptivePlan
from fedpriv.privacy.plans.plan import Plan
from fedpriv.privacy.sampling import Everybody, PoissonSampler
from fedpriv.rng import Key
from fedpriv.running.folder import RunFolder
from fedpriv.running.loop import rounds
from fedpriv.sums import PartialSum
from fedpriv.training.algorithm import ArrayState, Query

sys.path.append(str(Path(__file__).parent))
toys = importlib.import_module("toys")
N = len(toys.ROSTER)
ALL = Everybody(num_users=N)
CLIP = Clip(l2_clip_norm=8.0)


class Killed(BaseException):
    """The process is gone."""


@dataclass
class Once:
    """A privatizer without a memory; what it draws and releases is the toy's."""

    def init(self, template, key):
        return {}

    after_crash = "retry"


def start(params):
    return ArrayState(params=params)


# -- (a) two queries an iteration, prices decided on the way, the raw sum held ----------------


class NoisyMin(Once):
    """Only the index of the least noisy sum leaves (report noisy min, Dwork and Roth 2014, 3.3)."""

    name, cost = "noisy-min", Cost(kind="pure", value=0.5)

    def __init__(self, cap):
        self.cap = cap

    def draw(self, memory, *, template, sensitivity, key):
        scale = 2.0 * self.cap / self.cost.value
        return key.generator().gumbel(0.0, scale, template["losses"].shape), memory

    def release(self, total, drawn, share):
        return int(np.argmin(total.real()["losses"] - drawn))


class Descent:
    """Noisy gradient, noisy minimum over step sizes; where none helps, the gradient once more."""

    coarse, fine = Gaussian(noise_multiplier=3.0), Gaussian(noise_multiplier=1.5)
    plan = AdaptivePlan(num_users=N, rho=2.0, delta=1e-3)
    capped = toys.Capped(cap=8.0, size=float(len(toys.STEP_SIZES)))
    init, result = staticmethod(start), staticmethod(lambda state: state.params)

    def step(self, state, door):
        gradient = Mechanism(sampler=ALL, bound=CLIP, privatizer=self.coarse)
        losses = Mechanism(sampler=ALL, bound=self.capped, privatizer=NoisyMin(8.0))
        query = Query(params=state.params, mechanism=gradient, name="gradient")
        with door.hold(query) as held:
            direction = held.answer.update["w"]
            for _ in range(2):
                tried = {**state.params, "direction": direction}
                best = door.ask(
                    Query(params=tried, work="losses", mechanism=losses, name=f"losses {_}")
                )
                if best:
                    break
                direction = held.release(self.fine).update["w"]
        return state.after({"w": state.params["w"] + toys.STEP_SIZES[best] * direction})


# -- (b) many passes inside, one release at the end, pure ε -----------------------------------


class Sphere(Once):
    """Noise of uniform direction and Gamma radius: ε-DP (Chaudhuri et al. 2011, Algorithm 1)."""

    name, cost, after_crash = "sphere", Cost(kind="pure", value=1.0), "replay"

    def draw(self, memory, *, template, sensitivity, key):
        random, shape = key.generator(), template["w"].shape
        direction = random.normal(size=shape)
        radius = random.gamma(direction.size, sensitivity / self.cost.value)
        return radius * direction / np.linalg.norm(direction), memory

    def release(self, total, drawn, share):
        return total.real()["w"] + drawn


class OneShot:
    """Descends on raw means, and releases where it came to."""

    # Ten steps of rate 1/4 on means of vectors within 8: one user moves the end by 8 / N.
    bound = Clip(l2_clip_norm=8.0 / N)
    plan = Plan(mechanism=Mechanism(sampler=ALL, bound=bound, privatizer=Sphere()), num_rounds=1)
    init, result = staticmethod(start), staticmethod(lambda state: state.params)

    def step(self, state, door):
        def program(raw):
            w = state.params["w"].astype(np.float64)
            for _ in range(10):
                w = w + 0.25 * raw.sum({"w": w.astype(np.float32)}, bound=CLIP).real()["w"] / N
            return PartialSum(total={"w": w}, num_users=N)

        return state.after({"w": door.run(Query(params=state.params), program).astype(np.float32)})


# -- (c) noise with a memory, burned rows, one charge, a participation limit --------------------


class Correlated(Once):
    """z_t - z_(t-1)/2: rows of C⁻¹ z, where column i of C holds 1, 1/2, 1/4, ... from row i on.

    A user who takes part twice moves C x by two of its columns, at most twice 2/√3 of the bound
    together: that is what the noise is a multiple of.
    """

    twice = 4.0 / 3.0**0.5

    name, after_crash = "two-bands", "burn"
    cost = Cost(kind="gaussian", value=2.0, whole_run=True)

    def init(self, template, key):
        return {"before": np.zeros(template["w"].shape), "row": np.zeros(())}

    def draw(self, memory, *, template, sensitivity, key):
        row = int(memory["row"]) + 1
        z = key.fold(row).generator().normal(size=template["w"].shape)
        stddev = self.cost.value * self.twice * sensitivity
        noise = (z - 0.5 * memory["before"]) * stddev
        return noise, {"before": z, "row": np.array(row)}

    def release(self, total, drawn, share):
        update = {"w": ((total.real()["w"] + drawn) * share).astype(np.float32)}
        return NoisedMean(update=update, squared_norm=0.0)


@dataclass(frozen=True)
class Twice:
    """Three users a row, nobody more than twice."""

    num_users: int = N
    expected_cohort_size: float = 3.0

    def event(self, cost):
        return ALL.event(cost)

    def init(self):
        return {"times": np.zeros(N, np.int64)}

    def next(self, memory, key, roster):
        free = np.flatnonzero(memory["times"] < 2)
        drawn = np.sort(key.generator().choice(free, min(3, len(free)), replace=False))
        times = memory["times"].copy()
        times[drawn] += 1
        return tuple(roster[i] for i in drawn), {"times": times}


class Stream:
    """Follows noisy means."""

    bound = Clip(l2_clip_norm=3.0)
    mechanism = Mechanism(sampler=Twice(), bound=bound, privatizer=Correlated())
    plan = Plan(mechanism=mechanism, num_rounds=6, delta=1e-3)
    init, result = staticmethod(start), staticmethod(lambda state: state.params)

    def step(self, state, door):
        mean = door.ask(Query(params=state.params))
        return state.after({"w": state.params["w"] + 0.5 * mean.update["w"]})


# -- (d) noise as the sum of shares that each client adds ----------------------------------------


class SharesInside(Once):
    """Nothing is added here; with too few shares nothing is released."""

    name, cost, least = "shares", Cost(kind="gaussian", value=1.0), 9

    def draw(self, memory, *, template, sensitivity, key):
        return None, memory

    def release(self, total, drawn, share):
        if total.num_users - total.num_failed < self.least:
            raise ArithmeticError(f"fewer than {self.least} shares of noise: nothing is released")
        update = {name: (a * share).astype(np.float32) for name, a in total.real().items()}
        return NoisedMean(update=update, squared_norm=0.0)


class Distributed(Stream):
    """The same steps, by a sum that was noised where it was made."""

    bound = Rounded(bound=toys.Shared(l2_clip_norm=8.0))
    mechanism = Mechanism(sampler=ALL, bound=bound, privatizer=SharesInside())
    plan = Plan(mechanism=mechanism, num_rounds=3, delta=1e-3)

    def step(self, state, door):
        mean = door.ask(Query(params=state.params, work="shares"))
        return state.after({"w": state.params["w"] + 0.5 * mean.update["w"]})


# -- (e) an update and a bounded count from one cohort under one charge --------------------------


class Adaptive(Stream):
    """Follows the update, and moves a threshold by the share below it (Andrew et al. 2021)."""

    # 1/z² = 1/z_update² + 1/z_count²: the bit is as long as makes that one Gaussian mechanism.
    bound = toys.Joint(l2_clip_norm=8.0, bit=4.0)
    mechanism = Mechanism(
        sampler=PoissonSampler(num_users=N, expected_cohort_size=6.0),
        bound=bound,
        privatizer=Gaussian(noise_multiplier=0.5),
    )
    plan = Plan(mechanism=mechanism, num_rounds=4, delta=1e-3)

    @staticmethod
    def init(params):
        return ArrayState(params=params, memory={"threshold": np.array(4.0, np.float32)})

    def step(self, state, door):
        threshold = state.memory["threshold"]
        asked = {**state.params, "threshold": threshold}
        mean = door.ask(Query(params=asked, work="below")).update
        share = float(mean["below"][0]) / self.bound.bit
        moved = {"threshold": np.array(threshold * np.exp(-0.2 * share), np.float32)}
        return state.after({"w": state.params["w"] + 0.5 * mean["w"]}, memory=moved)


# -- on every backend --------------------------------------------------------------------------

TOYS = {"a": Descent, "b": OneShot, "c": Stream, "d": Distributed, "e": Adaptive}


def components(toy):
    made = toy()
    return SimpleNamespace(task=toys.TASK, plan=made.plan, algorithm=made, trainer=toys.WORKS)


def play(toy, folder, carry, *, mode="simulation", die_after=None, monkeypatch=None):
    """Run to the end, or die right after a line of the ledger; return the last params."""
    root = Key.simulation(3) if mode == "simulation" else Key.secure()
    made, lines = components(toy), []
    with pytest.MonkeyPatch.context() as patch:
        write = Ledger._write

        def written(self, record, line):
            write(self, record, line)
            if record.kind in ("charge", "row"):
                lines.append(record)
                if len(lines) == die_after:
                    raise Killed

        patch.setattr(Ledger, "_write", written)
        kept = RunFolder.of_plan(folder, made.plan, mode=mode)
        try:
            state = kept.resume(made.algorithm.init(made.task.init_params(root.fold("init"))))
            *_, (_, state) = [
                (None, state),
                *rounds(made, carry, root, folder=kept, state=state),
            ]
        finally:
            kept.close()
    return state.params["w"]


@pytest.fixture(scope="module", params=["serial", "ray", "flower"])
def carry(request):
    """A backend over the toys' users."""
    if request.param == "serial":
        yield SerialBackend(trainer=toys.WORKS, data=toys.TASK.data)
    elif request.param == "ray":
        from fedpriv.backends.ray.backend import RayBackend

        cluster = request.getfixturevalue("ray")
        backend = RayBackend(
            share=replace(cluster.share, num_workers=2, num_cpus=0.1, num_gpus=0),
            make_context=toys.context,
            data=toys.TASK.data,
            max_examples=1,
        )
        yield backend
        backend.close()
    else:
        from fedpriv.backends.flower.client import Host
        from fedpriv.backends.flower.strategy import GridSettings, UserLevelStrategy

        stub = request.getfixturevalue("stub")
        hosts = {
            number + 1: Host.of(
                toys.TASK, toys.WORKS, partition=number, num_partitions=3, bounds=toys.BOUNDS
            )
            for number in range(3)
        }
        strategy = UserLevelStrategy(roster=toys.ROSTER, settings=GridSettings())
        yield strategy.start(stub.StubGrid(hosts=hosts), lambda backend: backend)


@pytest.fixture(scope="module")
def stub():
    """Flower's grid within this process."""
    sys.path.append(str(Path(__file__).parent / "flower"))
    return importlib.import_module("stub_grid")


WHOLE: dict[str, np.ndarray] = {}


@pytest.mark.ray
@pytest.mark.parametrize("name", TOYS)
def test_it_runs_and_verifies(name, carry, tmp_path):
    found = play(TOYS[name], tmp_path, carry)
    assert verify_run(tmp_path).ok
    assert np.isfinite(found).all()
    # One oracle for all backends: whoever runs first, all others find the same.
    np.testing.assert_allclose(found, WHOLE.setdefault(name, found), rtol=1e-5)


@pytest.mark.ray
@pytest.mark.parametrize("die_after", [1, 2, 3])
@pytest.mark.parametrize("name", TOYS)
def test_it_survives_a_kill_after_a_charge(name, die_after, carry, tmp_path):
    try:
        play(TOYS[name], tmp_path, carry, die_after=die_after)
    except Killed:
        play(TOYS[name], tmp_path, carry)
    found = verify_run(tmp_path)
    assert found.ok, found


def lines(folder, kind):
    _, state, _ = read_ledger(folder / "ledger.jsonl")
    return list(getattr(state, kind))


HERE = SerialBackend(trainer=toys.WORKS, data=toys.TASK.data)


def after_a_kill(name, folder, die_after, **rest):
    with pytest.raises(Killed):
        play(TOYS[name], folder, HERE, die_after=die_after, **rest)
    return play(TOYS[name], folder, HERE, **rest)


def test_a_the_filter_stops_before_its_total_and_the_ledger_proves_it(tmp_path):
    play(Descent, tmp_path, HERE)
    plan, spent = Descent.plan, Counter(charge.event for charge in lines(tmp_path, "charges"))
    prices = {event: plan.rho - plan.left(Counter({event: 1})) for event in spent}
    total = sum(prices[event] * number for event, number in spent.items())
    assert 0.9 * plan.rho - max(prices.values()) < total <= plan.rho
    assert {charge.query.split()[0] for charge in lines(tmp_path, "charges")} == {
        "gradient",
        "losses",
    }
    with pytest.raises(BudgetSpentError, match="above the 2 of the plan"):
        ledger = Ledger.open(tmp_path / "ledger.jsonl")
        try:
            ledger.charge(99, 1, Event(kind="gaussian", noise_multiplier=0.6), query="gradient")
        finally:
            ledger.close()


def test_a_the_held_sum_dies_with_its_block_and_does_not_travel(tmp_path):
    made = components(Descent)
    taken = []

    class Thief(Descent):
        def step(self, state, door):
            gradient = Mechanism(sampler=ALL, bound=CLIP, privatizer=self.coarse)
            with door.hold(Query(params=state.params, mechanism=gradient, name="g")) as held:
                taken.append(held)
                for copied in (pickle.dumps, copy.copy, copy.deepcopy):
                    with pytest.raises(TypeError, match="does not leave"):
                        copied(held)
                assert "hidden" in repr(held)
            return None

    made.algorithm = Thief()
    assert list(rounds(made, HERE, Key.simulation(1))) == []
    with pytest.raises(ValueError, match="not held any more"):
        taken[0].release(Descent.fine)


@pytest.mark.parametrize("mode", ["simulation", "secure"])
def test_b_a_release_that_is_done_again_is_the_identical_one(mode, tmp_path):
    """Killed after its charge, then twice from there: one charge, and the same release."""
    first, second = tmp_path / "first", tmp_path / "second"
    with pytest.raises(Killed):
        play(OneShot, first, HERE, mode=mode, die_after=1)
    shutil.copytree(first, second)
    found = [play(OneShot, folder, HERE, mode=mode) for folder in (first, second)]
    np.testing.assert_array_equal(*found)
    again = tmp_path / "again"
    shutil.copytree(first, again)
    (again / "state.safetensors").unlink()
    trimmed = (again / "ledger.jsonl").read_bytes().split(b"\n")[:2]
    (again / "ledger.jsonl").write_bytes(b"\n".join(trimmed) + b"\n")
    np.testing.assert_array_equal(play(OneShot, again, HERE, mode=mode), found[0])
    for folder in (first, second, again):
        assert len(lines(folder, "charges")) == 1
    _, state, _ = read_ledger(first / "ledger.jsonl")
    assert (state.epsilon().value, state.epsilon().delta) == (1.0, 0.0)
    if mode == "secure":
        assert (first / "secret" / "replay.key").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("mode", ["simulation", "secure"])
@pytest.mark.parametrize("die_after", [2, 3, 5])
def test_c_a_row_left_open_is_burned_and_its_users_took_part(mode, die_after, tmp_path):
    after_a_kill("c", tmp_path, die_after, mode=mode)
    charges, rows = lines(tmp_path, "charges"), lines(tmp_path, "rows")
    assert len(charges) == 1 and [row.row for row in rows] == [1, 2, 3, 4, 5, 6]
    assert len(lines(tmp_path, "releases")) == 5
    open_ = die_after - 1  # the first line was the charge
    released = {release.attempt for release in lines(tmp_path, "releases")}
    assert released == set(range(1, 7)) - {open_}
    times = load_file(tmp_path / "secret" / "cohorts-update.safetensors")["times"]
    # The kill came between the row and its cohort: nobody was drawn for it.
    assert times.max() <= 2 and times.sum() == 5 * 3


@pytest.mark.parametrize("lost", ["stream.key", "cohorts-update.safetensors"])
def test_c_secret_state_that_is_gone_is_missed(lost, tmp_path):
    """Another key would not cancel what was drawn, and a limit would be counted from zero."""
    with pytest.raises(Killed):
        play(Stream, tmp_path, HERE, mode="secure", die_after=4)
    (tmp_path / "secret" / lost).unlink()
    with pytest.raises(ValueError, match="gone: restore"):
        play(Stream, tmp_path, HERE, mode="secure")


def test_d_too_few_shares_release_nothing(tmp_path):
    class Few:
        num_examples = toys.Users.num_examples

        def examples(self, user_id):
            if user_id > "user-07":
                raise OSError
            return toys.Users().examples(user_id)

    lacking = SerialBackend(trainer=toys.WORKS, data=Few())
    with pytest.raises(ArithmeticError, match="nothing is released"):
        play(Distributed, tmp_path, lacking)
    assert len(lines(tmp_path, "charges")) == 1 and not lines(tmp_path, "releases")


def test_e_two_answers_are_one_charge_a_round(tmp_path):
    play(Adaptive, tmp_path, HERE)
    assert len(lines(tmp_path, "charges")) == len(lines(tmp_path, "releases")) == 4
    kinds = {charge.event.kind for charge in lines(tmp_path, "charges")}
    assert kinds == {"poisson-gaussian"}


def test_public_keys_open_nothing_private():
    made, seen = components(Adaptive), []

    class Curious(Adaptive):
        def step(self, state, door):
            for stream in ("noise", "cohort", "users", "vault", "program"):
                with pytest.raises(ValueError, match="secret"):
                    door.key(stream)
            seen.append(door.key("guide"))
            return None

    made.algorithm = Curious()
    list(rounds(made, HERE, Key.simulation(1)))
    assert len(seen) == 1
