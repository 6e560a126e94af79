"""Nothing is drawn twice: every stream of every attempt at every query has a key of its own."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from types import SimpleNamespace

import numpy as np
import pytest

from fedpriv.mechanisms import Clip
from fedpriv.noise.gaussian import Gaussian
from fedpriv.privacy.ledger.entries import UPDATE
from fedpriv.privacy.ledger.ledger import Ledger
from fedpriv.privacy.mechanism import Mechanism
from fedpriv.privacy.plans.plan import Plan
from fedpriv.privacy.sampling import Everybody
from fedpriv.rng import Key
from fedpriv.running.door.door import RunDoor
from fedpriv.running.door.vault import Vault
from fedpriv.sums import PartialSum
from fedpriv.training.algorithm import Query

ROSTER = ("a", "b")
PARAMS = {"w": np.zeros(3, np.float32)}
KEYS = {
    mode: Key.from_bytes(Key.simulation(3).to_bytes(), mode) for mode in ("simulation", "secure")
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Noted(Everybody):
    """A sampler that notes the keys of its cohorts."""

    keys: list = field(default_factory=list, compare=False)

    def next(self, memory, key, roster):
        self.keys.append(("cohort", key.to_bytes()))
        return Everybody.next(self, memory, key, roster)


@dataclass(frozen=True, slots=True, kw_only=True)
class NotedNoise(Gaussian):
    """Gaussian noise that notes its keys."""

    keys: list = field(default_factory=list, compare=False)

    def draw(self, memory, *, template, sensitivity, key):
        self.keys.append(("noise", key.to_bytes()))
        return Gaussian.draw(self, memory, template=template, sensitivity=sensitivity, key=key)


class Fails:
    """A backend whose first attempts at a query fail, and that notes the users' keys."""

    def __init__(self, keys):
        self.keys, self.failing = keys, True

    def partial_sum(self, *, key, template, **_):
        self.keys.append(("users", key.to_bytes()))
        if self.failing:
            raise ConnectionError
        return PartialSum(total={"w": np.zeros(3)}, num_users=2)


@pytest.mark.parametrize("mode", ["simulation", "secure"])
def test_no_two_attempts_share_a_key(mode, tmp_path):
    """Three queries, two rounds, three attempts: 18 keys of each of three streams, none twice.

    An attempt whose sum failed was charged, its noise drawn and its users asked. Drawn again under
    the same key, the difference of two sums would have no noise on it.
    """
    keys, expected, root, noise = [], [], KEYS[mode], KEYS[mode].fold("noise's own")
    mechanism = Mechanism(
        sampler=Noted(num_users=2, keys=keys),
        bound=Clip(l2_clip_norm=1.0),
        privatizer=NotedNoise(noise_multiplier=1.0, keys=keys),
    )
    plan = Plan(mechanism=mechanism, num_rounds=18, delta=1e-3)
    backend = Fails(keys)
    with ThreadPoolExecutor(1) as thread:
        door = RunDoor(
            plan=plan,
            ledger=Ledger.create(tmp_path / "ledger.jsonl", plan=plan, mode=mode),
            backend=backend,  # type: ignore[arg-type]
            works={"train": SimpleNamespace(template=lambda params: params)},  # type: ignore
            roster=ROSTER,
            root=root,
            noise=noise,
            vault=Vault(tmp_path / "secret", root),
            noise_thread=thread,
        )
        for round_num in (1, 2):
            for name in (UPDATE, "losses", "below"):
                for attempt, backend.failing in enumerate((True, True, False), 1):
                    door.begin(round_num)
                    for stream, of in (("cohort", root), ("noise", noise), ("users", root)):
                        key = of.fold(stream)
                        key = key if name == UPDATE else key.fold(name)
                        expected.append((stream, key.fold(round_num).fold(attempt).to_bytes()))
                    if name == UPDATE:  # a public choice is that of the coming attempt
                        public = root.fold("order").fold(round_num).fold(attempt)
                        assert door.key("order") == public
                    query = Query(params=PARAMS, name=name)
                    if not backend.failing:
                        door.ask(query)
                        continue
                    with pytest.raises(ConnectionError):
                        door.ask(query)
        for secret in ("cohort", "noise", "users", "vault", "program"):
            with pytest.raises(ValueError, match="is secret"):
                door.key(secret)
    assert len({value for _, value in keys}) == len(keys) == 54
    assert sorted(keys) == sorted(expected)
