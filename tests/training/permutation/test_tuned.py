"""Private tuning: how far a choice moves, parts that do not meet, one charge, one release."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest

from fedpriv.backends import SerialBackend
from fedpriv.mechanisms.event import Relation
from fedpriv.mechanisms.selection import PrivateChoice
from fedpriv.privacy.statement.verify import verify_run
from fedpriv.rng import Key
from fedpriv.runs.folder import RunFolder
from fedpriv.runs.loop import rounds
from fedpriv.training.bolt_on import CHOSEN, Tuned, candidate
from fedpriv.training.permutation_sgd import Passes, loss_constants
from fedpriv.training.step_schedules import ConstantStep
from tests.harness.toys_of_training import assert_same, linear_sgd, zeros
from tests.running.by_hand import components
from tests.training.per_example.linear.case import logistic_residual

KEY = Key.simulation(11)
START = zeros(weight=3, bias=1)
NUMBER = 403


def tuned(epsilon=0.5, number=NUMBER, present=None, rates=(0.5, 2.0, 1e-6)):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(number, 3)).astype(np.float32)
    y = (x[:, 0] > 0).astype(np.int64)
    passes = [Passes(passes=2, schedule=ConstantStep(rate=rate)) for rate in rates]
    first = linear_sgd(x, y, there=present, name="weight", residual=logistic_residual,
                       constants=loss_constants("logistic"), passes=passes[0])  # fmt: skip
    choices = tuple(replace(first, passes=one) for one in passes)
    return Tuned(choices=choices, choice=PrivateChoice(epsilon=epsilon))


class Asked(SerialBackend):
    """Who is asked for what is noted down, and what came of it."""

    def __init__(self, trainer):
        super().__init__(trainer=trainer)
        self.asked, self.totals = [], []

    def sum(self, request, attempt, cohort):
        total = super().sum(request, attempt, cohort)
        self.asked.append((request.work, set(cohort)))
        self.totals.append(total)
        return total


def play(algorithm, root=KEY, folder=None, plan=None):
    plan = algorithm.plan() if plan is None else plan
    algorithm.check_plan(plan)
    made = components(plan, algorithm, algorithm.works(), number=algorithm.num_examples)
    backend = Asked(algorithm.works())
    state = algorithm.init(START)
    if folder is not None:
        state = folder.resume(state)
    # Without a folder nothing is known of the data, and the noise would be other each time.
    noise = root if folder is None else None
    *_, (_, state) = rounds(made, backend, root, folder=folder, state=state, noise=noise)
    return state, backend


def test_parts_are_equal_and_do_not_meet_and_one_model_leaves():
    algorithm = tuned(epsilon=5.0)
    state, backend = play(algorithm)
    names = [name for name, _ in backend.asked]
    assert names == [n for i in range(3) for n in (candidate(i), "mistakes")]
    parts = [users for name, users in backend.asked if name != "mistakes"]
    judges = [users for name, users in backend.asked if name == "mistakes"]
    assert judges[0] == judges[1] == judges[2]
    apart = [*parts, judges[0]]
    assert {len(part) for part in apart} == {100} == {algorithm.part_size}
    assert len(set().union(*apart)) == 400
    index = int(state.numbers[CHOSEN])
    trained = backend.totals[2 * index].total
    moved = np.linalg.norm(state.params["weight"] - trained["weight"])
    assert set(state.params) == {"weight", "bias"} and 0 < moved < 2.0


@pytest.mark.slow
def test_one_example_moves_one_candidate_or_the_counts(monkeypatch):
    """Parallel composition, seen: with one example gone, what the program makes is as before but
    for one candidate, moved by at most its Δ, or but for counts, none by more than 1."""
    seen, real = [], PrivateChoice.perturbed

    def noted(self, total, *, sensitivity, key):
        seen.append((total.total, sensitivity))
        return real(self, total, sensitivity=sensitivity, key=key)

    monkeypatch.setattr(PrivateChoice, "perturbed", noted)

    def counts(backend):
        return np.array([total.total["mistakes"][0] for total in backend.totals[1::2]])

    _, before = play(tuned(number=80))
    here, kinds = list(seen), set()
    for gone in range(0, 80, 3):
        seen.clear()
        _, after = play(tuned(number=80, present=np.arange(80) != gone))
        moved = [
            np.linalg.norm(np.append(a["weight"] - b["weight"], a["bias"] - b["bias"])) / delta
            for (a, delta), (b, _) in zip(here, seen, strict=True)
        ]
        different = np.count_nonzero(moved)
        assert max(moved) <= 1.0 and different <= 1
        if not different:
            change = counts(before) - counts(after)
            assert ((change == 0) | (change == 1)).all()
            kinds.add("judge")
        else:
            kinds.add("trained")
    assert kinds == {"judge", "trained"}


def test_it_is_charged_once_and_released_again_after_a_crash(tmp_path, monkeypatch):
    algorithm = tuned()
    plan = algorithm.plan()
    assert plan.total().value == pytest.approx(1.0) and plan.total().delta == 0.0
    assert algorithm.plan(Relation.ADD_REMOVE).total().value == pytest.approx(0.5)
    lost = []

    def killed(self, state):
        lost.append(state)
        raise SystemExit

    perturbed, real = [], PrivateChoice.perturbed

    def noted(self, total, *, sensitivity, key):
        perturbed.append(real(self, total, sensitivity=sensitivity, key=key))
        return perturbed[-1]

    monkeypatch.setattr(PrivateChoice, "perturbed", noted)
    secure = Key.secure()
    with monkeypatch.context() as patched:
        patched.setattr(RunFolder, "keep", killed)
        with (
            closing(RunFolder.of_plan(tmp_path, plan, mode="secure")) as folder,
            pytest.raises(SystemExit),
        ):
            play(algorithm, secure, folder)
    with closing(RunFolder.of_plan(tmp_path, plan, mode="secure")) as folder:
        state, _ = play(algorithm, Key.secure(), folder)
        assert folder.ledger.charges == 1
    assert state.numbers == lost[0].numbers
    assert_same(state.params, lost[0].params)
    found = verify_run(tmp_path)
    assert found.ok and (found.num_charges, found.num_lost) == (1, 0)
    kept = b"".join(p.read_bytes() for p in tmp_path.rglob("*") if p.is_file())
    index = int(state.numbers[CHOSEN])
    assert len(perturbed) == 6  # three before the crash, and the same again
    for number, one in enumerate(perturbed):
        assert (one["weight"].tobytes() in kept) == (number % 3 == index)
