"""A release that is made again after a kill starts from the same params, in a secure run too."""

import pytest
from torch import nn

import fedpriv as fp
from fedpriv.experiments.bolt_on import FederatedBoltOn
from fedpriv.privacy.ledger.state import read_ledger
from fedpriv.privacy.statement.verify import verify_run
from fedpriv.runs.folder import RunFolder
from fedpriv.tasks.module_task import ModuleTask
from fedpriv.training.convex_losses import Constants
from tests.harness.toy_users import person
from tests.harness.toys_of_training import labelled


class Killed(BaseException):
    pass


class Convex(ModuleTask):
    def constants(self, *, regulariser):
        return Constants(
            name="toy", lipschitz=5.0, smoothness=1.0 + regulariser, convexity=regulariser
        )


USERS = {f"u{number:02d}": labelled(3, seed=number) for number in range(20)}


@pytest.mark.parametrize("secure", [False, True])
def test_a_drawn_start_is_kept_for_it(secure, tmp_path, monkeypatch):
    experiment = FederatedBoltOn(
        name="once",
        description="",
        task=lambda _: Convex(
            name="t",
            module=lambda: nn.Linear(4, 2),
            loss=nn.functional.cross_entropy,
            users=USERS,
            public=person(99),
            synthetic=True,
        ),
        target_epsilon=5.0,
        users_per_update=5,
    )
    keep = RunFolder.keep

    def killed(self, state):
        raise Killed

    monkeypatch.setattr(RunFolder, "keep", killed)
    with pytest.raises(Killed):
        fp.run(experiment, tmp_path / "run", secure=secure, progress=False)
    monkeypatch.setattr(RunFolder, "keep", keep)
    fp.resume(tmp_path / "run", experiment=experiment, progress=False)
    state = read_ledger(tmp_path / "run" / "ledger.jsonl")[1]
    assert len(state.charges) == len(state.releases) == 1
    assert verify_run(tmp_path / "run").ok
