"""Users whose data are odd, or who are missing: of whom there is a release, and of whom none."""

from dataclasses import replace

import numpy as np
import pytest

from fedpriv.backends import SerialBackend
from fedpriv.experiments.build import build
from fedpriv.experiments.load import load_experiment
from fedpriv.privacy.statement.statement import privacy_statement
from fedpriv.privacy.statement.verify import verify_run
from fedpriv.sums import PartialSum
from fedpriv.training.bolt_on import BoltOnUsers
from fedpriv.training.permutation_sgd import Passes, loss_constants
from fedpriv.training.step_schedules import ConstantStep
from tests.harness.resumed import resume_run
from tests.harness.tag_runs import checkpoint, ledger_state
from tests.running.methods.test_runs import BOLT_ON, started
from tests.running.test_all_failed import backend_of
from tests.training.permutation.test_starts import Raw as Fifty


class Raw(Fifty):
    """Of fifty users some fail wherever training is, some only away from the start."""

    def __init__(self, there=True, never=(), later=()):
        super().__init__(there)
        self.never, self.later, self.asked = set(never), set(later), []

    def sum(self, request, *, bound=None, among=None):
        failing = self.never | (self.later if request.params["w"].any() else set())
        self.asked.append(set(among))
        total = super().sum(request, among=[user for user in among if user not in failing])
        return replace(total, num_users=len(among), num_failed=len(failing & set(among)))


def trained(raw, size=10, passes=2):
    algorithm = BoltOnUsers(
        passes=Passes(passes=passes, batch_size=size, schedule=ConstantStep(rate=0.5)),
        constants=loss_constants("logistic", regulariser=0.1),
    )
    total: PartialSum = algorithm._trained({"w": np.zeros(1, np.float32)}, raw)
    return total.total["w"], algorithm.sensitivity(50)


@pytest.mark.parametrize("size", [1, 7, 10, 50])
def test_whose_data_are_odd_counts_as_one_who_is_not_there(size):
    whole, most = trained(Raw(), size)
    gone, _ = trained(Raw(there=False), size)
    odd, _ = trained(Raw(never={7}), size)
    assert np.array_equal(odd, gone)
    assert 0 < abs(odd - whole)[0] <= most
    everybody, _ = trained(Raw(never=range(50)), size)
    assert everybody == 0.0
    several = Raw(never={0, 1, 7, 49})
    assert trained(several, size)[0] < gone
    # Nobody is asked any more who failed at the start: only until it was known who that was.
    most = 1 + int(np.ceil(np.log2(size)))
    assert all(sum(user in asked for asked in several.asked) <= most for user in several.never)


def test_who_fails_later_ends_it():
    with pytest.raises(ValueError):
        trained(Raw(later={7}))


@pytest.mark.slow
@pytest.mark.parametrize("odd", [(1,), (3, 5)])
def test_a_secure_run_with_such_a_user_is_released(odd, tiny_corpus, tmp_path):
    experiment = load_experiment("bolt-on-tags").with_options(BOLT_ON)
    assert experiment.method == "bolt-on"
    made = backend_of("serial", lambda roster: [roster[place] for place in odd])
    prepared = started("bolt-on-tags", tiny_corpus, tmp_path / "run", made)
    prepared.run()
    state = ledger_state(tmp_path / "run")
    assert len(state.charges) == len(state.releases) == 1
    assert verify_run(tmp_path / "run").ok
    whole = started("bolt-on-tags", tiny_corpus, tmp_path / "whole")
    whole.run()
    one, other = (checkpoint(tmp_path / name) for name in ("run", "whole"))
    moved = sum(float(np.sum((one[name] - other[name]) ** 2)) for name in one)
    plan = build(experiment, tiny_corpus).plan
    assert 0 < moved**0.5 <= len(odd) * plan.live_mechanism.sensitivity * (1 + 1e-4)


@pytest.mark.slow
def test_whoever_is_missing_later_ends_it_and_a_resumed_run_releases_for_the_same_charge(
    tiny_corpus, tmp_path, monkeypatch
):
    """Somebody is missing, but where training starts."""
    sums = SerialBackend.sum

    def losing(self, request, attempt, cohort):
        if any(array.any() for array in request.params.values()):
            cohort = (*cohort[1:], "nobody")
        return sums(self, request, attempt, cohort)

    prepared = started("bolt-on-tags", tiny_corpus, tmp_path / "run")
    monkeypatch.setattr(SerialBackend, "sum", losing)
    with pytest.raises(ValueError):
        prepared.run()
    state = ledger_state(tmp_path / "run")
    assert len(state.charges) == 1 and not state.releases
    monkeypatch.undo()
    resume_run(tmp_path / "run").run()
    state = ledger_state(tmp_path / "run")
    assert len(state.charges) == len(state.releases) == 1


def test_the_statement_says_so(tiny_corpus):
    plan = build(load_experiment("bolt-on-tags").with_options(BOLT_ON), tiny_corpus).plan
    said = privacy_statement(plan, {"mode": "simulation"}, num_charges=1, num_lost=0)
    text = " ".join(paragraph for part in said.sections for paragraph in part.paragraphs)
    assert "that it ended is covered by no ε" in text
