"""What one user of a torch module does: plain SGD, whatever threads and buffers there are."""

from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

import fedpriv as fp
from fedpriv import tree
from fedpriv.datasets.local_data import NodeUsers
from fedpriv.mechanisms import Clip
from fedpriv.models import SoftmaxRegression
from fedpriv.rng import Key
from fedpriv.tasks.module_task import ModuleTask
from fedpriv.training.failures import KeepsStateError
from fedpriv.training.local.module import (
    ArrayExamples,
    ModuleTrainer,
    check_module,
    load_params,
    module_params,
)
from fedpriv.training.local.schedule import Schedule
from fedpriv.training.local.sgd import SGD, TorchOptimizer
from fedpriv.training.local.softmax import CompiledSoftmaxTrainer
from fedpriv.training.work import as_work
from tests.training.local.tag_examples import (
    MULTIPLIER,
    PARAMS,
    TAGS,
    WORDS,
    assert_close,
    dense_inputs,
    make_examples,
)


def cross_entropy(outputs, targets):
    return nn.functional.cross_entropy(outputs, targets)


def arrays(number, seed=0):
    rng = np.random.default_rng(seed)
    return ArrayExamples(
        rng.normal(size=(number, 4)).astype(np.float32), rng.integers(0, 3, number)
    )


def trainer_of(module, **changes):
    schedule = Schedule(**{"learning_rate": 0.1, "batch_size": 4, "epochs": 2, **changes})
    return ModuleTrainer(module=module, loss=cross_entropy, schedule=schedule)


class Scaled(nn.Module):
    """A linear model with a float buffer that forward changes: it would carry users over."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.register_buffer("running", torch.zeros(4))

    def forward(self, x):
        with torch.no_grad():
            self.running += x.mean(dim=0)
        return self.linear(x + self.running)


class TestModuleTrainer:
    def test_the_bits_do_not_depend_on_torchs_threads(self):
        module = nn.Sequential(nn.Linear(512, 512), nn.Tanh(), nn.Linear(512, 10))
        params, rng = module_params(module), np.random.default_rng(0)
        x = rng.normal(size=(256, 512)).astype(np.float32)
        trainer = trainer_of(module, learning_rate=0.5, batch_size=128)
        before, found = torch.get_num_threads(), []
        try:
            for threads in (1, 2, 4):
                torch.set_num_threads(threads)
                examples = ArrayExamples(x, np.arange(256) % 10)
                found.append(trainer.train(params, examples, Key.simulation(3)))
                assert torch.get_num_threads() == threads  # and are left as they were
        finally:
            torch.set_num_threads(before)
        for other in found[1:]:
            assert all(np.array_equal(other[name], found[0][name]) for name in params)

    def test_equals_the_sparse_trainer(self, subtests):
        for multiplier in [None, MULTIPLIER]:
            for batch_size, epochs in [(100, 1), (100, 3), (4, 1), (4, 3)]:
                for inputs in ["tff", "unit-norm"]:
                    with subtests.test(
                        multiplier=multiplier, batch_size=batch_size, epochs=epochs, inputs=inputs
                    ):
                        examples = make_examples(13, seed=5)
                        schedule = Schedule(learning_rate=0.5, batch_size=batch_size, epochs=epochs)
                        dense = ArrayExamples(
                            dense_inputs(examples, inputs).astype(np.float32),
                            examples.labels.astype(np.int64),
                        )
                        sparse = CompiledSoftmaxTrainer(
                            schedule=schedule, inputs=inputs, multiplier=multiplier
                        )
                        module = ModuleTrainer(
                            module=SoftmaxRegression(WORDS, TAGS),
                            loss=cross_entropy,
                            schedule=schedule,
                            multiplier={} if multiplier is None else {"kernel": multiplier},
                        )
                        found = module.train(PARAMS, dense, Key.simulation(8))
                        expected = sparse.train(PARAMS, examples, Key.simulation(8))
                        assert set(found) == set(PARAMS)
                        assert_close(found, tree.to_dense(expected))

    def test_the_key_decides_and_torchs_own_generator_is_left_alone(self):
        module = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 3))
        params = module_params(module)
        trainer = trainer_of(module)
        torch.manual_seed(1)
        state = torch.get_rng_state()
        first = trainer.train(params, arrays(9), Key.simulation(0))
        assert torch.equal(torch.get_rng_state(), state)
        torch.manual_seed(2)
        second = trainer.train(params, arrays(9), Key.simulation(0))
        other = trainer.train(params, arrays(9), Key.simulation(1))
        for name in params:
            np.testing.assert_array_equal(first[name], second[name])
        assert not np.array_equal(first["0.weight"], other["0.weight"])

    @pytest.mark.parametrize(
        "make",
        [
            lambda: nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)),
            lambda: nn.Sequential(nn.Linear(4, 8), nn.GroupNorm(2, 8), nn.Linear(8, 3)),
            Scaled,
        ],
    )
    def test_nobody_leaves_anything_behind_for_the_next_user(self, make):
        """The update of a user is the same whoever was trained before it, poisoned or not."""
        torch.manual_seed(0)
        module = make()
        params, trainer = module_params(module), trainer_of(module)
        alone = trainer.train(params, arrays(9, seed=1), Key.simulation(0))
        poisoned = ArrayExamples(np.full((5, 4), np.nan, np.float32), np.zeros(5, np.int64))
        for before in (arrays(20, seed=2), poisoned):
            trainer.train(params, before, Key.simulation(1))
            after = trainer.train(params, arrays(9, seed=1), Key.simulation(0))
            for name in params:
                np.testing.assert_array_equal(alone[name], after[name])
        wrong = ArrayExamples(np.ones((5, 3), np.float32), np.zeros(5, np.int64))
        with pytest.raises(RuntimeError):
            trainer.train(params, wrong, Key.simulation(1))
        after = trainer.train(params, arrays(9, seed=1), Key.simulation(0))
        for name in params:
            np.testing.assert_array_equal(alone[name], after[name])

    def test_frozen_and_unused_parameters(self):
        class Partly(nn.Module):
            def __init__(self):
                super().__init__()
                self.frozen, self.head = nn.Linear(4, 4), nn.Linear(4, 3)
                self.idle = nn.Linear(2, 2)
                self.frozen.requires_grad_(False)

            def forward(self, x):
                return self.head(self.frozen(x))

        module = Partly()
        params = module_params(module)
        assert set(params) == {"head.weight", "head.bias", "idle.weight", "idle.bias"}
        frozen = module.frozen.weight.detach().clone()
        update = trainer_of(module).train(params, arrays(9), Key.simulation(0))
        assert torch.equal(module.frozen.weight, frozen)
        assert np.abs(update["head.weight"]).max() > 0 and not update["idle.weight"].any()

    @pytest.mark.parametrize("layer", [nn.BatchNorm1d(4), nn.SyncBatchNorm(4)])
    def test_batch_norm_is_refused_with_the_way_out(self, layer):
        with pytest.raises(ValueError, match=r"GroupNorm|LayerNorm"):
            check_module(nn.Sequential(nn.Linear(4, 4), layer))

    def test_integer_buffers_are_refused_with_the_way_out(self):
        module = nn.Linear(4, 3)
        module.register_buffer("steps", torch.zeros((), dtype=torch.int64))
        with pytest.raises(ValueError, match=r"'steps'.*constant in forward"):
            check_module(module)
        with pytest.raises(ValueError, match="steps"):
            trainer_of(module)
        with pytest.raises(ValueError, match="steps"):
            ModuleTask(name="t", module=lambda: module, loss=cross_entropy, users={"a": arrays(3)})


COSINE = partial(torch.optim.lr_scheduler.CosineAnnealingLR, T_max=9)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("given", "expected", "scheduler"),
    [
        (SGD, torch.optim.SGD, None),
        (partial(torch.optim.SGD, momentum=0.8, nesterov=True), None, None),
        (torch.optim.Adam, None, None),
        (partial(torch.optim.AdamW, weight_decay=0.2), None, None),
        (torch.optim.RMSprop, None, None),
        (
            partial(TorchOptimizer, optimizer=torch.optim.SGD, scheduler=COSINE),
            torch.optim.SGD,
            COSINE,
        ),
    ],
)
def test_client_optimizers_take_torchs_steps_and_forget_from_user_to_user(
    given, expected, scheduler
):
    rng = np.random.default_rng(0)
    data = ArrayExamples(rng.normal(size=(20, 4)).astype(np.float32), rng.integers(0, 3, 20))
    task = ModuleTask(
        name="t", module=lambda: nn.Linear(4, 3), loss=nn.functional.cross_entropy,
        users={"a": data}, synthetic=True, client_optimizer=given, users_at_once=4,
    )  # fmt: skip
    schedule, key = Schedule(learning_rate=0.05, batch_size=4, epochs=3), Key.simulation(3)
    params = task.init_params(key)
    trainer = task.trainer(schedule, {})
    for _ in range(2):
        found = trainer.train(params, data, key)
        module = load_params(nn.Linear(4, 3), params)
        optimizer = (expected or given)(module.parameters(), lr=0.05)
        rates, stream = scheduler and scheduler(optimizer), key.generator()
        chosen = data.take(schedule.choose(20, stream))
        for batch in schedule.batches(20, stream):
            optimizer.zero_grad()
            x, y = torch.from_numpy(chosen.x[batch]), torch.from_numpy(chosen.y[batch])
            nn.functional.cross_entropy(module(x), y).backward()
            optimizer.step()
            if rates is not None:
                rates.step()
        for name, tensor in module.named_parameters():
            change = tensor.detach().numpy() - params[name]
            np.testing.assert_allclose(found[name], change, rtol=1e-4, atol=1e-6)
    assert all(parameter.grad is None for parameter in trainer.alone.module.parameters())
    arguments = {"params": params, "bound": Clip(l2_clip_norm=1.0), "key": key}
    done = as_work(trainer).partial_sum(**arguments, data=task.data, user_ids=["a"])
    assert done.num_failed == 0 and np.abs(done.total["bias"]).sum() > 0


class OnNode(NodeUsers):
    def __init__(self, people):
        self._people = people

    def __getitem__(self, user_id):
        return self._people[user_id]

    def __iter__(self):
        return iter(self._people)

    def __len__(self):
        return len(self._people)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (torch.optim.LBFGS, "LBFGS computes the loss several times a step"),
        (
            partial(
                TorchOptimizer, optimizer=torch.optim.SGD,
                scheduler=torch.optim.lr_scheduler.ReduceLROnPlateau,
            ),
            "ReduceLROnPlateau's step takes a measured value",
        ),
    ],
)  # fmt: skip
@pytest.mark.parametrize("on_node", [False, True])
def test_what_needs_more_than_gradients_is_refused_before_a_run(given, said, on_node, tmp_path):
    """Also where nobody's examples are looked at before the first round."""
    people = {f"u{n}": arrays(6, seed=n) for n in range(6)}
    task = ModuleTask(
        name="t", module=lambda: nn.Linear(4, 3), loss=cross_entropy,
        users=OnNode(people) if on_node else people,
        public=None if on_node else arrays(6, seed=9), synthetic=True, client_optimizer=given,
    )  # fmt: skip
    with pytest.raises(ValueError, match=said):
        fp.run(
            fp.FederatedExperiment(name="own", description="Own.", task=lambda _: task, rounds=2),
            cohort=3, noise_multiplier=1.0, progress=False, out=tmp_path / "run",
        )  # fmt: skip
    assert not (tmp_path / "run" / "ledger.jsonl").exists()


class Heads(nn.Module):
    """Two heads; a user's examples go through one of them."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(2, 2), nn.Linear(2, 2)

    def forward(self, x):
        return self.a(x) if bool((x[:, 0] >= 0).all()) else self.b(x)


def clipping(params, lr):
    """SGD that raises where a gradient is not finite, as a hook before each step."""
    params = list(params)
    made = torch.optim.SGD(params, lr=lr)

    def clip(*_):
        nn.utils.clip_grad_norm_(params, 1.0, error_if_nonfinite=True)

    made.register_step_pre_hook(clip)
    return made


def test_a_user_whose_step_raises_leaves_nothing_for_the_next():
    """Red before: its gradient stayed at the module, moved others past the bound, or failed all."""
    rng = np.random.default_rng(1)
    users = {
        f"b{n}": ArrayExamples(
            -np.abs(rng.normal(size=(5, 2))).astype(np.float32), rng.integers(0, 2, 5)
        )
        for n in range(6)
    }
    users["a"] = ArrayExamples(np.full((5, 2), np.inf, np.float32), np.array([0, 1, 0, 1, 1]))
    task = ModuleTask(
        name="t", module=Heads, loss=nn.functional.cross_entropy, users=users, synthetic=True,
        client_optimizer=partial(TorchOptimizer, optimizer=clipping), users_at_once=1,
    )  # fmt: skip
    work = as_work(task.trainer(Schedule(learning_rate=0.1), {}))
    arguments = {"params": task.init_params(Key.simulation(3)), "bound": Clip(l2_clip_norm=0.5)}
    arguments |= {"key": Key.simulation(1), "data": task.data}
    others = sorted(set(users) - {"a"})
    alone = work.partial_sum(**arguments, user_ids=others)
    beside = work.partial_sum(**arguments, user_ids=["a", *others])
    assert (alone.num_failed, beside.num_failed) == (0, 1)
    for name, total in alone.total.items():
        np.testing.assert_array_equal(beside.total[name], total)


class TestKept:
    """Optimisers and schedulers that remember users are refused."""

    def test_an_optimiser_made_once_is_refused_before_a_run(self, tmp_path):
        made = []

        def once(params, lr):
            made.append(made[0] if made else torch.optim.SGD(list(params), lr=lr, momentum=0.9))
            return made[0]

        with pytest.raises(ValueError, match="the same optimiser twice"):
            self._run(partial(TorchOptimizer, optimizer=once), tmp_path)
        assert not (tmp_path / "run" / "ledger.jsonl").exists()

    @pytest.mark.slow
    def test_a_scheduler_that_counts_everybodys_steps_ends_a_simulation(self, tmp_path):
        class Halving:
            steps = 0

            def __call__(self, epoch):
                self.steps += 1
                return 1.0 if self.steps < 400 else 0.5

        given = partial(
            TorchOptimizer, optimizer=torch.optim.SGD,
            scheduler=partial(torch.optim.lr_scheduler.LambdaLR, lr_lambda=Halving()),
        )  # fmt: skip
        with pytest.raises(KeepsStateError, match="steps"):
            self._run(given, tmp_path)

    @staticmethod
    def _run(given, tmp_path):
        people = {f"u{n}": arrays(6, seed=n) for n in range(6)}
        task = ModuleTask(
            name="t", module=lambda: nn.Linear(4, 3), loss=cross_entropy, users=people,
            public=arrays(6, seed=9), synthetic=True, client_optimizer=given,
        )  # fmt: skip
        fp.run(
            fp.FederatedExperiment(name="own", description="Own.", task=lambda _: task, rounds=2),
            cohort=3, noise_multiplier=1.0, progress=False, out=tmp_path / "run",
        )  # fmt: skip


def test_params_are_loaded_into_a_module_and_not_into_its_maker():
    with pytest.raises(TypeError, match="function is no torch module; if it makes one, call it"):
        load_params(lambda: nn.Linear(2, 2), {})
