"""Parameters that are not trained keep their values, everywhere, and go with the model."""

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from fedpriv.api.result import load
from fedpriv.checkpoints.tensor_files import FROZEN, read_tensors
from fedpriv.privacy.statement.verify import verify_run
from fedpriv.report.export import MODEL, export_run
from fedpriv.rng import Key
from fedpriv.runs.prepared import resume_run
from fedpriv.tasks.dataset_tasks import module_task
from fedpriv.training.local.module import load_params
from fedpriv.training.local.schedule import LocalSgd
from tests.harness.refusals import refuses
from tests.harness.toys_of_training import (
    CLIP,
    assert_near,
    assert_same,
    contributed,
    cross_entropy,
    data_set,
    example_sum,
)
from tests.tasks import people
from tests.tasks.people import accepted, experiment, person, started


def model(value: float | None = 0.25):
    """A body that is not trained, with a head that is; `None` leaves the body to chance."""
    made = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    for parameter in made[0].parameters():
        parameter.requires_grad = False
        if value is not None:
            nn.init.constant_(parameter, value)
    return made


def of(module=model, **changes):
    return people.task(module=module, **changes)


TRAINED, BODY = {"2.weight", "2.bias"}, {"0.weight", "0.bias"}
SCHEDULE = LocalSgd(learning_rate=0.5)


@pytest.mark.slow
def test_they_are_in_no_update_and_in_every_export(tmp_path):
    started(tmp_path / "run", of()).run()
    checkpoint, _ = read_tensors(next((tmp_path / "run" / "checkpoints").glob("*.safetensors")))
    assert set(checkpoint) == TRAINED
    run = load(tmp_path / "run")
    assert set(run.params) == TRAINED | BODY
    assert all((run.params[name] == 0.25).all() for name in BODY)
    export_run(tmp_path / "run", tmp_path / "model")
    exported, _ = read_tensors(tmp_path / "model" / MODEL)
    assert {n: a.tobytes() for n, a in exported.items()} == {
        n: a.tobytes() for n, a in run.params.items()
    }
    assert not (tmp_path / "model" / FROZEN).exists()
    card = (tmp_path / "model" / "README.md").read_text("utf-8")
    assert all(f"`{name}`" in card for name in BODY)
    # What was measured is what was exported.
    whole = load_params(model(7.0), exported).eval()
    x, y = (torch.from_numpy(array) for array in person(99))
    right = float((whole(x).argmax(dim=1) == y).float().mean())
    assert run.summary["accuracy_public"] == pytest.approx(right)
    said = " ".join(str(run.statement).split())
    assert "go out with the model as they were given: 0.bias, 0.weight." in said


@pytest.mark.parametrize("users_at_once", [1, 4])
def test_whoever_trains_has_the_same(users_at_once):
    draw = lambda: model(None)  # noqa: E731
    one, other = of(draw), of(draw, users_at_once=users_at_once)
    params = one.init_params(Key.simulation(3))
    assert set(params) == TRAINED
    key = Key.simulation(1)
    first, again = (
        contributed(made.trainer(SCHEDULE, {}), params, made.data, ["u01"], key=key).real()
        for made in (one, other)
    )
    assert any(array.any() for array in first.values())
    (assert_same if users_at_once == 1 else assert_near)(again, first)
    seen = [made.evaluate(params, public=True) for made in (one, one, other)]
    assert seen[0] is not None and seen[0] == seen[1] == seen[2]


def test_single_examples_likewise():
    """Of a centralised task all modules are alike, and what is frozen goes with it."""
    x, y = person(0)
    data = data_set(x, y)
    made = module_task(data, lambda: model(None), cross_entropy)
    params = made.init_params(Key.simulation(0))
    assert set(params) == TRAINED and set(made.files()) == {FROZEN}
    assert made.measure(params) == made.measure(params)
    total = example_sum(made.train, params, np.arange(3), CLIP)
    assert set(total) == TRAINED
    whole = module_task(data, lambda: nn.Linear(4, 2), cross_entropy)
    assert whole.files() == {}


def test_values_that_are_other_ones_each_time_are_refused():
    def odd():
        return model(float(np.random.default_rng().random()))

    with refuses(ValueError, "0.weight"):
        of(odd)


@pytest.mark.slow
def test_a_run_goes_on_with_the_values_it_was_started_with(tmp_path):
    accepted(tmp_path / "run", of())
    with refuses(ValueError, *BODY):
        resume_run(tmp_path / "run", experiment=experiment(of(lambda: model(0.5))))
    summary = resume_run(tmp_path / "run", experiment=experiment(of())).run()
    assert summary["rounds"] == 2


class Features(nn.Module):
    """Random features: a buffer that is drawn, one that is not, and one that is not kept."""

    def __init__(self, drawn=None):
        super().__init__()
        self.register_buffer("proj", torch.randn(4, 8) if drawn is None else drawn)
        self.register_buffer("scale", torch.full((8,), 0.5))
        self.register_buffer("one", torch.ones(8), persistent=False)
        self.head = nn.Linear(8, 2)

    def forward(self, x):
        return self.head(torch.cos(x @ self.proj) * self.scale * self.one)


@pytest.mark.slow
def test_buffers_are_the_same_everywhere_and_go_with_the_model(tmp_path):
    made = of(Features)
    params = made.init_params(Key.simulation(0))
    assert set(params) == {"head.weight", "head.bias"}
    assert made.evaluate(params, public=True) == made.evaluate(params, public=True)
    started(tmp_path / "run", made).run()
    export_run(tmp_path / "run", tmp_path / "export")
    found, module = load_file(tmp_path / "export" / "model.safetensors"), Features()
    assert set(load(tmp_path / "run").params) == set(found) == {*params, "proj", "scale"}
    module.load_state_dict(found)
    for name, array in load_params(Features(), load(tmp_path / "run").params).state_dict().items():
        assert torch.equal(array, module.state_dict()[name])


@pytest.mark.slow
def test_verify_compares_them(tmp_path):
    started(tmp_path / "run", of()).run()
    assert verify_run(tmp_path / "run").ok
    file = tmp_path / "run" / FROZEN
    content = file.read_bytes()
    other = bytearray(content)
    other[-1] ^= 1
    for damaged in (bytes(other), content[:-3], b""):
        file.write_bytes(damaged)
        (check,) = (c for c in verify_run(tmp_path / "run").checks if c.name == "files")
        assert not check.ok
    file.unlink()
    assert not verify_run(tmp_path / "run").ok
