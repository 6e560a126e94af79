"""FedProx, client optimisers, local steps and personal layers of one user, against plain loops."""

from __future__ import annotations

import copy
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from fedpriv.mechanisms import Clip
from fedpriv.models.text import next_word_loss
from fedpriv.rng import Key
from fedpriv.training.algorithm import NO_CONTEXT, Context
from fedpriv.training.local.module import ArrayExamples, ModuleTrainer, module_params
from fedpriv.training.local.schedule import ClientAdam, ClientMomentum, LocalSgd, PlainSteps
from fedpriv.training.local.sgd import as_client_optimizer
from fedpriv.training.local.softmax import (
    CompiledSoftmaxTrainer,
    DenseSoftmaxTrainer,
    OwnWords,
    softmax_on_device,
)
from fedpriv.training.local.vectorised import VectorisedTrainer
from fedpriv.training.local.words import WordTrainer
from fedpriv.training.work import UserTrainer
from tests.harness.refusals import refuses
from tests.harness.toys_of_training import (
    assert_near,
    assert_same,
    contributed,
    cross_entropy,
    distance,
    labelled,
    mlp,
)
from tests.training.local.tag_examples import (
    MULTIPLIER,
    PARAMS,
    TAGS,
    assert_close,
    dense_inputs,
    make_examples,
    trained,
)
from tests.training.words.test_trainer import batch as words
from tests.training.words.test_trainer import network

KEY = Key.simulation(5)
PLAIN = LocalSgd(learning_rate=0.5, batch_size=3, epochs=3)
MU = 0.7


class Plain(UserTrainer):
    """Takes nothing besides plain local steps."""

    def train(self, params, context, examples, key):
        return params


def small():
    torch.manual_seed(3)
    return mlp(4, 5, 3)


def arrays(number=8, seed=0):
    return labelled(number, classes=3, seed=seed)


def module_trainer(schedule, **more):
    return ModuleTrainer(module=small(), loss=cross_entropy, schedule=schedule, **more)


def many(schedule, users_at_once=2):
    return VectorisedTrainer(alone=module_trainer(schedule), users_at_once=users_at_once)


def unit_rows(examples, chosen):
    dense = dense_inputs(examples.take(chosen), "unit-norm").astype(np.float32)
    return dense, np.arange(len(dense))


def dense_trainer(schedule, **more):
    return DenseSoftmaxTrainer(schedule=schedule, inputs=unit_rows, **more)


def word_trainer(schedule):
    return WordTrainer(schedule=schedule, encode=lambda own: (own.x, own.y))


def batched(schedule, inputs="tff", **more):
    words = OwnWords(inputs=inputs, shape=PARAMS["kernel"].shape)
    return softmax_on_device(words, schedule, torch.device("cpu"), **more)


def of_words(tied):
    """A module, its params and a user's examples."""
    module = network(tied)
    return module, module_params(module), ArrayExamples(*words())


def by_hand(module, loss, x, y, schedule, key, *, mu=0.0, multiplier=None, make=None):
    """Local training of loss + mu/2 |w - w0|^2 by autograd and a torch optimiser."""
    module = copy.deepcopy(module)
    own = dict(module.named_parameters())
    start = {n: p.detach().clone() for n, p in own.items()}
    rng = key.generator()
    chosen = schedule.choose(len(x), rng)
    optimizer = (make or partial(torch.optim.SGD, lr=schedule.learning_rate))(list(own.values()))
    for picked in schedule.batches(len(chosen), rng):
        index = chosen[picked]
        pull = sum(((p - start[n]) ** 2).sum() for n, p in own.items())
        total = loss(module(torch.from_numpy(x[index])), torch.from_numpy(y[index]))
        optimizer.zero_grad()
        (total + 0.5 * mu * pull).backward()
        for name, factor in (multiplier or {}).items():
            own[name].grad *= factor
        optimizer.step()
    return {n: (p.detach() - start[n]).numpy() for n, p in own.items()}


class TestLocalSteps:
    @pytest.mark.parametrize("number", [1, 2, 3, 4, 7, 20])
    def test_so_many_steps_of_as_many_passes_as_it_takes(self, number):
        exact, long = replace(PLAIN, epochs=1, local_steps=number), replace(PLAIN, epochs=20)
        for examples in (1, 2, 3, 8):
            found = exact.batches(examples, KEY.generator())
            expected = long.batches(examples, KEY.generator())[:number]
            assert len(found) == number
            for left, right in zip(found, expected, strict=True):
                np.testing.assert_array_equal(left, right)

    def test_the_steps_of_the_epochs_are_the_epochs(self):
        user, params = arrays(8), module_params(small())
        steps = replace(PLAIN, epochs=1, local_steps=9)  # three passes of three batches
        left = module_trainer(PLAIN).train(params, NO_CONTEXT, user, KEY)
        right = module_trainer(steps).train(params, NO_CONTEXT, user, KEY)
        assert_same(left, right)

    def test_a_user_without_examples_takes_none(self):
        assert list(replace(PLAIN, epochs=1, local_steps=5).batches(0, KEY.generator())) == []

    @pytest.mark.slow
    def test_compiled_and_torch_trainers_take_the_same_ones(self):
        schedule, user = replace(PLAIN, epochs=1, local_steps=4), make_examples(8)
        left = CompiledSoftmaxTrainer(schedule=schedule).train(PARAMS, NO_CONTEXT, user, KEY)
        assert_close(trained(batched(schedule), PARAMS, user, KEY), left)


class TestFedProx:
    schedule = replace(PLAIN, proximal_mu=MU)

    @pytest.mark.parametrize("multiplied", [False, True])
    def test_module_trainers_take_the_steps_of_the_proximal_loss(self, multiplied):
        params, user = module_params(small()), arrays(8)
        multiplier = {"0.weight": np.full((5, 4), 0.3, np.float32)} if multiplied else {}
        trainer = module_trainer(self.schedule, multiplier=multiplier)
        torch_factors = {n: torch.from_numpy(m) for n, m in multiplier.items()}
        expected = by_hand(
            small(), cross_entropy, user.x, user.y, self.schedule, KEY, mu=MU,
            multiplier=torch_factors,
        )  # fmt: skip
        assert_near(trainer.train(params, NO_CONTEXT, user, KEY), expected, rtol=1e-4)
        both = VectorisedTrainer(alone=trainer, users_at_once=2)
        work = both.prepare(params, user, KEY)
        update, well = both.together(both.alone.start(params), NO_CONTEXT, [work])
        assert bool(well[0])
        assert_near({n: t[0].numpy() for n, t in update.updates.items()}, expected, rtol=1e-4)
        plain = module_trainer(PLAIN, multiplier=multiplier).train(params, NO_CONTEXT, user, KEY)
        assert distance(plain, expected) > 1e-3

    @pytest.mark.parametrize("bias", [False, True])
    @pytest.mark.parametrize("multiplied", [False, True])
    def test_softmax_regression(self, bias, multiplied):
        user, start = make_examples(8), dict(PARAMS)
        module = nn.Linear(start["kernel"].shape[0], TAGS, bias=bias)
        with torch.no_grad():
            module.weight.copy_(torch.from_numpy(start["kernel"].T.copy()))
            if bias:
                module.bias.copy_(torch.from_numpy(start["bias"]))
            else:
                start.pop("bias")
        x = dense_inputs(user, "unit-norm").astype(np.float32)
        factors = {"weight": torch.from_numpy(MULTIPLIER)[None, :]} if multiplied else None
        found = by_hand(
            module, cross_entropy, x, user.labels.astype(np.int64), self.schedule,
            KEY, mu=MU, multiplier=factors,
        )  # fmt: skip
        expected = {"kernel": found["weight"].T} | ({"bias": found["bias"]} if bias else {})
        given = {"multiplier": MULTIPLIER if multiplied else None, "biased": bias}
        trainer = batched(self.schedule, inputs="unit-norm", **given)
        assert_close(trained(trainer, start, user, KEY), expected)
        if bias or multiplied:
            return
        dense = dense_trainer(self.schedule)
        assert_close(dense.train(start, NO_CONTEXT, user, KEY), expected)
        with refuses(ValueError, "proximal-mu", MU):
            dense_trainer(self.schedule, multiplier=MULTIPLIER)

    def test_a_user_at_its_end_is_not_pulled_by_a_neighbours_steps(self):
        trainer = batched(self.schedule)
        users = [make_examples(4, seed=1), make_examples(8, seed=2)]
        works = [trainer.prepare(PARAMS, user, KEY) for user in users]
        assert len(works[0].batches) < len(works[1].batches)
        wider = works[1].x.shape[1] - works[0].x.shape[1]
        x = np.pad(works[0].x, ((0, 0), (0, wider)))
        works[0] = replace(works[0], x=x, width=works[1].width)
        update, _ = trainer.together(trainer.alone.start(PARAMS), NO_CONTEXT, works)
        alone = trained(trainer, PARAMS, users[0], KEY)
        np.testing.assert_allclose(update.updates["bias"][0].numpy(), alone["bias"], atol=2e-6)

    @pytest.mark.parametrize("tied", [False, True])
    def test_next_words(self, tied):
        module, params, examples = of_words(tied)
        as_module = ModuleTrainer(module=module, loss=next_word_loss, schedule=self.schedule)
        expected = as_module.train(params, NO_CONTEXT, examples, KEY)
        found = word_trainer(self.schedule).train(params, NO_CONTEXT, examples, KEY)
        assert_near(found, expected, rtol=1e-3, atol=1e-5)

    def test_one_step_is_fedavgs(self):
        """The pull is zero where a user begins."""
        user, params = arrays(3), module_params(small())
        one = replace(PLAIN, epochs=1)
        left = module_trainer(one).train(params, NO_CONTEXT, user, KEY)
        right = module_trainer(replace(one, proximal_mu=100.0)).train(params, NO_CONTEXT, user, KEY)
        assert_same(left, right)

    def test_mu_zero_is_fedavg_to_the_bit(self):
        for make, params, user in _every_trainer():
            left, right = make(PLAIN), make(replace(PLAIN, proximal_mu=0.0))
            assert_same(*(trained(one, params, user, KEY) for one in (left, right)))


def _every_trainer():
    _, params, examples = of_words(False)
    return [
        (module_trainer, module_params(small()), arrays()),
        (lambda s: CompiledSoftmaxTrainer(schedule=s), PARAMS, make_examples(8)),
        (batched, PARAMS, make_examples(8)),
        (dense_trainer, {"kernel": PARAMS["kernel"]}, make_examples(8)),
        (word_trainer, params, examples),
        (many, module_params(small()), arrays()),
    ]


class TorchsSgd(PlainSteps):
    """Plain steps by PyTorch."""

    def make(self):
        return as_client_optimizer(torch.optim.SGD)


class TestClientOptimizers:
    @pytest.mark.parametrize(
        ("options", "torchs"),
        [
            (ClientMomentum(client_decay=0.8), partial(torch.optim.SGD, momentum=0.8)),
            (
                ClientAdam(client_beta1=0.8, client_beta2=0.9, client_adaptivity=1e-6),
                partial(torch.optim.Adam, betas=(0.8, 0.9), eps=1e-6),
            ),
        ],
    )
    def test_the_options_take_torchs_steps(self, options, torchs):
        schedule = replace(PLAIN, client_optimizer=options, learning_rate=0.05)
        user = arrays()
        expected = by_hand(
            small(), cross_entropy, user.x, user.y, schedule, KEY,
            make=partial(torchs, lr=0.05),
        )  # fmt: skip
        found = module_trainer(schedule).train(module_params(small()), NO_CONTEXT, user, KEY)
        assert_near(found, expected, rtol=1e-4, atol=1e-5)
        module, params, examples = of_words(True)
        found = word_trainer(schedule).train(params, NO_CONTEXT, examples, KEY)
        same = ModuleTrainer(module=module, loss=next_word_loss, schedule=schedule)
        assert_near(found, same.train(params, NO_CONTEXT, examples, KEY), 1e-2, 1e-3)

    def test_torchs_plain_sgd_is_ours_to_the_bit(self):
        schedule = replace(PLAIN, client_optimizer=TorchsSgd())
        left = module_trainer(PLAIN).train(module_params(small()), NO_CONTEXT, arrays(), KEY)
        right = module_trainer(schedule).train(module_params(small()), NO_CONTEXT, arrays(), KEY)
        assert_same(left, right)

    def test_what_a_trainer_does_not_take_is_refused_with_the_way_out(self):
        optimizer = replace(PLAIN, client_optimizer=ClientAdam())
        proximal = replace(PLAIN, proximal_mu=1.0)
        compiled = CompiledSoftmaxTrainer(schedule=PLAIN)
        with refuses(ValueError, "proximal-mu", "CompiledSoftmaxTrainer"):
            proximal.check_taken(compiled)
        with refuses(ValueError, "client-optimizer", "CompiledSoftmaxTrainer"):
            optimizer.check_taken(compiled)
        with refuses(ValueError, "proximal-mu", "takes"):
            proximal.check_taken(Plain())
        for schedule in (optimizer, proximal):
            schedule.check_taken(module_trainer(PLAIN))
        PLAIN.check_taken(Plain())


class TestRates:
    @pytest.mark.parametrize("proximal", [0.0, MU])
    @pytest.mark.parametrize("factor", [1.0, 0.25])
    def test_a_round_trains_at_its_rate_to_the_bit(self, factor, proximal):
        for make, params, user in _every_trainer():
            own = replace(PLAIN, proximal_mu=proximal)
            if proximal and "proximal" not in make(PLAIN).takes:
                continue
            found = _summed(make(own), params, user, Context(rate=factor))
            scaled = replace(own, learning_rate=own.learning_rate * factor)
            assert_same(found, _summed(make(scaled), params, user))
            again = _summed(make(own), params, user, Context(rate=0.5))
            assert any((again[n] != found[n]).any() for n in found)

    @pytest.mark.parametrize("users_at_once", [1, 2])
    def test_a_client_optimizer_takes_the_rounds_rate(self, users_at_once):
        own = replace(PLAIN, client_optimizer=ClientAdam())
        found = _summed(
            many(own, users_at_once), module_params(small()), arrays(), Context(rate=0.5)
        )
        expected = module_trainer(replace(own, learning_rate=0.25))
        assert_same(found, _summed(expected, module_params(small()), arrays()))

    def test_many_users_at_once(self):
        found = _summed(many(PLAIN), module_params(small()), arrays(), Context(rate=0.5))
        expected = module_trainer(replace(PLAIN, learning_rate=0.25))
        assert_close(found, _summed(expected, module_params(small()), arrays()))

    def test_a_rate_lasts_a_round(self):
        """Whatever a trainer keeps of a round, the next one is at its own rate."""
        for make, params, user in _every_trainer():
            trainer = make(PLAIN)
            first = _summed(trainer, params, user)
            _summed(trainer, params, user, Context(rate=0.25))
            assert_same(_summed(trainer, params, user), first)

    def test_a_trainer_that_does_not_take_a_rate_is_refused(self):
        with refuses(ValueError, "Plain", "rate-schedule", "rate"):
            PLAIN.check_taken(Plain(), rates=True)
        PLAIN.check_taken(Plain())
        for make, _, _ in _every_trainer():
            PLAIN.check_taken(make(PLAIN), rates=True)


def _summed(work, params, user, context=NO_CONTEXT):
    bound = Clip(l2_clip_norm=100.0)
    done = contributed(work, params, {"u": user}, bound=bound, context=context)
    assert done.num_failed == 0
    return done.real()


class TestPersonalLayers:
    own = {"2.weight": np.zeros((3, 5), np.float32), "2.bias": np.ones(3, np.float32)}  # noqa: RUF012

    def shared(self):
        return {n: a for n, a in module_params(small()).items() if n not in self.own}

    def test_they_begin_anew_and_are_not_sent(self):
        params, trainer = self.shared(), module_trainer(PLAIN, personal=self.own)
        module = small()
        with torch.no_grad():
            for name, array in self.own.items():
                dict(module.named_parameters())[name].copy_(torch.from_numpy(array))
        user = arrays()
        expected = by_hand(module, cross_entropy, user.x, user.y, PLAIN, KEY)
        for _ in range(2):  # whoever trained before
            found = trainer.train(params, NO_CONTEXT, user, KEY)
            assert_near(found, {n: expected[n] for n in params}, rtol=1e-4)
            trainer.train(params, NO_CONTEXT, arrays(5, seed=9), KEY)

    def test_personalised_the_rest_stays(self):
        trainer = module_trainer(PLAIN, personal=self.own)
        found = trainer.personalise(self.shared(), arrays(), KEY)
        assert set(found) == set(self.own)
        assert all((found[name] != array).any() for name, array in self.own.items())
