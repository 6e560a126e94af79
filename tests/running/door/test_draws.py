"""What is drawn and asked under one charge: keys of its own, and what the query says."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
import pytest

from fedpriv.mechanisms import Clip
from fedpriv.mechanisms.gaussian import Gaussian
from fedpriv.privacy.ledger.ledger import Ledger
from fedpriv.privacy.ledger.state import UPDATE
from fedpriv.privacy.mechanism import Mechanism
from fedpriv.privacy.plan import Plan
from fedpriv.privacy.sampling import Everybody
from fedpriv.rng import Key
from fedpriv.runs.door import RunDoor
from fedpriv.runs.secret_state import SecretState
from fedpriv.sums import PartialSum
from fedpriv.training.algorithm import NO_CONTEXT, Context, SumRequest
from tests.harness.refusals import refuses

ROSTER = ("a", "b")
PARAMS = {"w": np.zeros(3, np.float32)}
KEYS = {
    mode: Key.from_bytes(Key.simulation(3).to_bytes(), mode) for mode in ("simulation", "secure")
}


@pytest.fixture
def keys(monkeypatch):
    """The keys that cohorts, noise and users are drawn by, in order."""
    noted, cohort, noise = [], Everybody.next, Gaussian.draws

    def next_cohort(self, memory, key, roster):
        noted.append(("cohort", key.to_bytes()))
        return cohort(self, memory, key, roster)

    def next_noise(self, *, key, **given):
        noted.append(("noise", key.to_bytes()))
        return noise(self, key=key, **given)

    monkeypatch.setattr(Everybody, "next", next_cohort)
    monkeypatch.setattr(Gaussian, "draws", next_noise)
    return noted


class Fails:
    """A backend that fails when it is told to, and notes the users' keys and all it is asked."""

    def __init__(self, keys):
        self.keys, self.failing, self.asked = keys, False, []

    trains_again = False

    def sum(self, request, attempt, cohort):
        self.keys.append(("users", attempt.key.to_bytes()))
        self.asked.append((request, attempt, cohort))
        if self.failing:
            raise ConnectionError
        total = {name: np.zeros(array.shape) for name, array in attempt.template.items()}
        return PartialSum(total=total, num_users=2)


@contextmanager
def opened(folder, mode, keys):
    """A door, its backend, and the root key of its private draws."""
    root, noise = KEYS[mode], KEYS[mode].fold("noise's own")
    mechanism = Mechanism(
        sampler=Everybody(num_users=2),
        bound=Clip(l2_clip_norm=1.0),
        privatizer=Gaussian(noise_multiplier=1.0),
    )
    plan = Plan(mechanism=mechanism, num_rounds=18, delta=1e-3)
    backend = Fails(keys)
    shapes = {
        "train": SimpleNamespace(template=lambda request: request.params),
        "losses": SimpleNamespace(template=lambda request: {"losses": request.params["w"][:1]}),
    }
    with ThreadPoolExecutor(1) as thread:
        yield (
            RunDoor(
                plan=plan,
                ledger=Ledger.create(folder / "ledger.jsonl", plan=plan, mode=mode),
                backend=backend,  # type: ignore[arg-type]
                works=shapes,  # type: ignore[arg-type]
                roster=ROSTER,
                root=root,
                noise=noise,
                secret_state=SecretState(folder / "secret", root),
                noise_thread=thread,
            ),
            backend,
            noise,
        )


@pytest.mark.parametrize("mode", ["simulation", "secure"])
def test_no_two_attempts_share_a_key(mode, keys, tmp_path):
    """Three queries, two rounds, three attempts: 18 keys of each of three streams, none twice.

    An attempt whose sum failed was charged, its noise drawn and its users asked. Drawn again under
    the same key, the difference of two sums would have no noise on it.
    """
    expected, root = [], KEYS[mode]  # of public choices alone
    with opened(tmp_path, mode, keys) as (door, backend, noise):
        for round_num in (1, 2):
            for name in (UPDATE, "losses", "below"):
                for attempt, backend.failing in enumerate((True, True, False), 1):
                    door.begin(round_num)
                    for stream in ("cohort", "noise", "users"):
                        key = noise.fold(stream)
                        key = key if name == UPDATE else key.fold(name)
                        expected.append((stream, key.fold(round_num).fold(attempt).to_bytes()))
                    if name == UPDATE:  # a public choice is that of the coming attempt
                        public = root.fold("order").fold(round_num).fold(attempt)
                        assert door.key("order") == public
                    query = SumRequest(params=PARAMS, name=name)
                    if not backend.failing:
                        door.ask(query)
                        continue
                    with pytest.raises(ConnectionError):
                        door.ask(query)
        for secret in ("cohort", "noise", "users", "vault", "program"):
            with refuses(ValueError, secret):
                door.key(secret)
    assert len({value for _, value in keys}) == len(keys) == 54
    assert not (tmp_path / "secret").exists()  # nothing is kept where an attempt is drawn anew
    assert sorted(keys) == sorted(expected)


def test_each_pass_of_a_program_is_of_what_it_asks(keys, tmp_path):
    """Params, work, bound and users are the program's own; round, attempt and keys the query's."""
    seen = []
    other, moved = Clip(l2_clip_norm=7.0), {"w": np.ones(3, np.float32)}
    context = Context(rate=0.5)
    with opened(tmp_path, "secure", keys) as (door, backend, noise):
        door.begin(4)

        def program(raw):
            seen.extend([raw, raw.num_users, raw.key("order")])
            there = SumRequest(params=moved, context=context, work="losses", name="its own")
            raw.sum(there, bound=other, among=[1])
            with refuses(ValueError, "another"):
                door.ask(SumRequest(params=PARAMS, name="another"))
            return raw.sum(SumRequest(params=moved))

        door.run(SumRequest(params=PARAMS, name="steps"), program)
        (first, one, some), (second, other_one, everybody) = backend.asked
        assert (some, everybody) == (("b",), ("a", "b"))
        assert (one.bound, other_one.bound) == (other, door._plan.live_mechanism.bound)
        assert (first.work, second.work) == ("losses", "train")
        assert (first.context, second.context) == (context, NO_CONTEXT)
        assert (list(one.template), list(other_one.template)) == (["losses"], list(moved))
        for request, attempt, _ in backend.asked:
            assert request.name == "steps" and list(request.params) == list(moved)
            assert all(np.array_equal(request.params[n], a) for n, a in moved.items())
            assert (attempt.round_num, attempt.number) == (4, 1)
        key = noise.fold("program").fold("steps").fold(4).fold(1)
        assert seen[1:] == [2, key.fold("order")]
        with pytest.raises(ValueError):
            seen[0].sum(SumRequest(params=PARAMS))
        assert repr(seen[0]) == "RawSums(hidden)"
        assert [stream for stream, _ in keys].count("noise") == 1
        door.ask(SumRequest(params=PARAMS, name="another", work="losses"))
        request, attempt, _ = backend.asked[-1]
        assert list(attempt.template) == ["losses"] and request.work == "losses"


def test_places_that_are_nobodys_or_named_twice_are_refused(tmp_path):
    with opened(tmp_path, "simulation", []) as (door, backend, _):

        def program(raw):
            for places in ([0, 0], [2], [-1]):
                with refuses(ValueError, places, 2):
                    raw.sum(SumRequest(params=PARAMS), among=places)
            return raw.sum(SumRequest(params=PARAMS), among=[1, 0])

        door.begin(1)
        door.run(SumRequest(params=PARAMS), program)
        assert [cohort for _, _, cohort in backend.asked] == [("b", "a")]


@pytest.mark.parametrize("norm", [1.0 + 1e-11, 2.0])
def test_a_program_may_not_let_through_more_than_noise_is_for(norm, tmp_path):
    """A pass may be bounded by anything; what is released of one is within the mechanism's."""
    with opened(tmp_path, "simulation", []) as (door, _, _):
        door.begin(1)
        for number, allowed in enumerate((0.5, 1.0 + 5e-13)):  # what rounding may add
            asked = SumRequest(params=PARAMS, name=f"within {number}")
            bound = Clip(l2_clip_norm=allowed)
            door.run(asked, lambda raw, asked=asked, bound=bound: raw.sum(asked, bound=bound))
        asked = SumRequest(params=PARAMS, name="beyond")
        with refuses(ValueError, norm, 1.0):
            door.run(asked, lambda raw: raw.sum(asked, bound=Clip(l2_clip_norm=norm)))
