"""What one user of a torch module does: plain SGD, whatever threads and buffers there are."""

import itertools
import math
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from fedpriv.datasets.local_data import NodeUsers
from fedpriv.mechanisms import Clip
from fedpriv.models import SoftmaxRegression
from fedpriv.rng import Key
from fedpriv.training.algorithm import NO_CONTEXT
from fedpriv.training.failures import KeepsStateError
from fedpriv.training.local.module import (
    ArrayExamples,
    ModuleTrainer,
    check_module,
    load_params,
    module_params,
)
from fedpriv.training.local.schedule import LocalSgd
from fedpriv.training.local.sgd import SGD, TorchOptimizer
from fedpriv.training.local.softmax import CompiledSoftmaxTrainer
from tests.harness.refusals import refuses
from tests.harness.toys_of_training import (
    KEY,
    Partly,
    assert_near,
    assert_same,
    contributed,
    cross_entropy,
    difference,
    labelled,
    trainer_of,
)
from tests.tasks.people import USERS, refused, started, task
from tests.training.local.tag_examples import (
    MULTIPLIER,
    PARAMS,
    TAGS,
    WORDS,
    assert_close,
    dense_inputs,
    make_examples,
)


def trained(module, params, examples, key=KEY, **schedule):
    own = {"learning_rate": 0.1, "batch_size": 4, "epochs": 2, **schedule}
    return trainer_of(module, **own).train(params, NO_CONTEXT, examples, key)


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
        params, x = module_params(module), labelled(256, (512,)).x
        examples = ArrayExamples(x, np.arange(256) % 10)
        before, found = torch.get_num_threads(), []
        try:
            for threads in (1, 2, 4):
                torch.set_num_threads(threads)
                found.append(trained(module, params, examples, learning_rate=0.5, batch_size=128))
                assert torch.get_num_threads() == threads  # and are left as they were
        finally:
            torch.set_num_threads(before)
        for other in found[1:]:
            assert_same(other, found[0])

    def test_equals_the_sparse_trainer(self, subtests):
        schedules = itertools.product([(100, 1), (100, 3), (4, 1), (4, 3)], ["tff", "unit-norm"])
        for multiplier, ((batch_size, epochs), inputs) in itertools.product(
            [None, MULTIPLIER], schedules
        ):
            with subtests.test(
                multiplier=multiplier, batch_size=batch_size, epochs=epochs, inputs=inputs
            ):
                examples = make_examples(13, seed=5)
                schedule = LocalSgd(learning_rate=0.5, batch_size=batch_size, epochs=epochs)
                x, y = dense_inputs(examples, inputs).astype(np.float32), examples.labels
                sparse = CompiledSoftmaxTrainer(
                    schedule=schedule, inputs=inputs, multiplier=multiplier
                )
                module = ModuleTrainer(
                    module=SoftmaxRegression(WORDS, TAGS),
                    loss=cross_entropy,
                    schedule=schedule,
                    multiplier={} if multiplier is None else {"kernel": multiplier},
                )
                found = module.train(PARAMS, NO_CONTEXT, ArrayExamples(x, y.astype(np.int64)), KEY)
                assert_close(found, sparse.train(PARAMS, NO_CONTEXT, examples, KEY))

    def test_the_key_decides_and_torchs_own_generator_is_left_alone(self):
        module = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 3))
        params, examples = module_params(module), labelled(9, classes=3)
        torch.manual_seed(1)
        state = torch.get_rng_state()
        first = trained(module, params, examples)
        assert torch.equal(torch.get_rng_state(), state)
        torch.manual_seed(2)
        assert_same(trained(module, params, examples), first)
        other = trained(module, params, examples, Key.simulation(1))
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
        params, trainer = module_params(module), trainer_of(module, batch_size=4, epochs=2)
        own = labelled(9, classes=3, seed=1)
        alone = trainer.train(params, NO_CONTEXT, own, KEY)
        poisoned = ArrayExamples(np.full((5, 4), np.nan, np.float32), np.zeros(5, np.int64))
        for before in (labelled(20, classes=3, seed=2), poisoned):
            trainer.train(params, NO_CONTEXT, before, Key.simulation(1))
            assert_same(trainer.train(params, NO_CONTEXT, own, KEY), alone)
        wrong = ArrayExamples(np.ones((5, 3), np.float32), np.zeros(5, np.int64))
        with pytest.raises(RuntimeError):
            trainer.train(params, NO_CONTEXT, wrong, Key.simulation(1))
        assert_same(trainer.train(params, NO_CONTEXT, own, KEY), alone)

    def test_frozen_and_unused_parameters(self):
        module = Partly(classes=3)
        params = module_params(module)
        assert set(params) == {"above.weight", "unused.weight", "unused.bias"}
        frozen = module.below.weight.detach().clone()
        update = trained(module, params, labelled(9, (12,), 3))
        assert torch.equal(module.below.weight, frozen)
        assert np.abs(update["above.weight"]).max() > 0 and not update["unused.weight"].any()

    @pytest.mark.parametrize("layer", [nn.BatchNorm1d(4), nn.SyncBatchNorm(4)])
    def test_batch_norm_is_refused_with_the_way_out(self, layer):
        with refuses(ValueError, "GroupNorm", "LayerNorm"):
            check_module(nn.Sequential(nn.Linear(4, 4), layer))

    def test_integer_buffers_are_refused_with_the_way_out(self):
        module = nn.Linear(4, 3)
        module.register_buffer("steps", torch.zeros((), dtype=torch.int64))
        for made in (
            lambda: check_module(module),
            lambda: trainer_of(module),
            lambda: task(module=lambda: module),
        ):
            with refuses(ValueError, "steps"):
                made()


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
    data = labelled(20, classes=3)
    made = task(
        module=lambda: nn.Linear(4, 3), users={"a": data}, client_optimizer=given, users_at_once=4
    )
    schedule, key = LocalSgd(learning_rate=0.05, batch_size=4, epochs=3), KEY
    params = made.init_params(key)
    trainer = made.trainer(schedule, {})
    for _ in range(2):
        found = trainer.alone.train(params, NO_CONTEXT, data, key)
        module = load_params(nn.Linear(4, 3), params)
        optimizer = (expected or given)(module.parameters(), lr=0.05)
        rates, stream = scheduler and scheduler(optimizer), key.generator()
        chosen = data.take(schedule.choose(20, stream))
        for batch in schedule.batches(20, stream):
            optimizer.zero_grad()
            x, y = torch.from_numpy(chosen.x[batch]), torch.from_numpy(chosen.y[batch])
            cross_entropy(module(x), y).backward()
            optimizer.step()
            if rates is not None:
                rates.step()
        assert_near(found, difference(module_params(module), params), rtol=1e-4)
    assert all(parameter.grad is None for parameter in trainer.alone.module.parameters())
    done = contributed(trainer, params, made.data, ["a"])
    assert done.num_failed == 0 and np.abs(done.total["bias"]).sum() > 0


class OnNode(NodeUsers):
    def __getitem__(self, user_id):
        return USERS[user_id]

    def __iter__(self):
        return iter(USERS)

    def __len__(self):
        return len(USERS)


PLATEAU = torch.optim.lr_scheduler.ReduceLROnPlateau


ON_PLATEAU = partial(TorchOptimizer, optimizer=torch.optim.SGD, scheduler=PLATEAU)


@pytest.mark.parametrize("given", [torch.optim.LBFGS, ON_PLATEAU], ids=["lbfgs", "plateau"])
@pytest.mark.parametrize("changes", [{}, {"users": OnNode(), "public": None}])
def test_what_needs_more_than_gradients_is_refused_before_a_run(given, changes, tmp_path):
    """Also where nobody's examples are looked at before the first round."""
    refused(tmp_path / "run", task(client_optimizer=given, **changes))


@pytest.mark.parametrize("given", [partial(torch.optim.SGD, lr=0.3), partial(SGD, learning_rate=1)])
def test_a_rate_of_the_optimisers_own_is_refused_and_the_option_named(given):
    with refuses(ValueError, *given.keywords, *given.keywords.values(), "local_learning_rate"):
        task(client_optimizer=given)


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
    rng = np.random.default_rng(1)
    drawn = (-np.abs(rng.normal(size=(5, 2))).astype(np.float32) for _ in range(6))
    users = {f"b{n}": ArrayExamples(x, rng.integers(0, 2, 5)) for n, x in enumerate(drawn)}
    others = list(users)
    users["a"] = ArrayExamples(np.full((5, 2), np.inf, np.float32), np.array([0, 1, 0, 1, 1]))
    made = task(
        module=Heads,
        users=users,
        public=None,
        client_optimizer=partial(TorchOptimizer, optimizer=clipping),
        users_at_once=1,
    )
    work = made.trainer(LocalSgd(learning_rate=0.1), {})
    alone, beside = (
        contributed(work, made.init_params(KEY), made.data, ids, bound=Clip(l2_clip_norm=0.5))
        for ids in (others, ["a", *others])
    )
    assert (alone.num_failed, beside.num_failed) == (0, 1)
    assert_same(beside.total, alone.total)


class TestKept:
    """Optimisers and schedulers that remember users are refused."""

    def test_an_optimiser_made_once_is_refused_before_a_run(self, tmp_path):
        made = []

        def once(params, lr):
            made.append(made[0] if made else torch.optim.SGD(list(params), lr=lr, momentum=0.9))
            return made[0]

        given = partial(TorchOptimizer, optimizer=once)
        refused(tmp_path / "run", task(client_optimizer=given))

    @pytest.mark.slow
    def test_a_scheduler_that_counts_everybodys_steps_ends_a_simulation(self, tmp_path):
        class Halving:
            steps, most = 0, math.inf

            def __call__(self, epoch):
                self.steps += 1
                return min(1.0, 125.0 / self.steps)  # a trial before the run takes fewer

        halving = partial(torch.optim.lr_scheduler.LambdaLR, lr_lambda=Halving())
        given = partial(TorchOptimizer, optimizer=torch.optim.SGD, scheduler=halving)
        with refuses(KeepsStateError, "'train'"):
            started(tmp_path / "run", task(client_optimizer=given)).run()


def test_params_are_loaded_into_a_module_and_not_into_its_maker():
    with pytest.raises(TypeError):
        load_params(lambda: nn.Linear(2, 2), {})
