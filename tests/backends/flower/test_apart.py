"""A training function that keeps something between users: harmless in children, or refused."""

from __future__ import annotations

import random
import threading

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, Message, RecordDict
from flwr.clientapp import ClientApp
from torch import nn

import fedpriv as fp
from fedpriv import tree
from fedpriv.mechanisms import Clip
from fedpriv.rng import Key
from tests.backends.flower import stub_grid as stub
from tests.harness.refusals import refuses
from tests.harness.toys_of_training import asked

START = {"w": np.zeros(4, np.float32)}
BOUND = Clip(l2_clip_norm=0.5)
ROSTER = tuple(f"user-{number:02d}" for number in range(5))
PUBLIC = tuple(f"public-{number}" for number in range(3))
SOON = fp.flower.GridSettings(register_seconds=1.0)


def examples_of(user):
    seed = (ROSTER + PUBLIC).index(user)
    return np.random.default_rng(seed).normal(size=4).astype(np.float32)


def momentum():
    """An optimiser that is made once."""
    net = nn.Linear(4, 1, bias=False)
    optimizer = torch.optim.SGD(net.parameters(), lr=1.0, momentum=0.9)

    def train(params, examples, rng):
        with torch.no_grad():
            net.weight.copy_(torch.from_numpy(params["w"])[None])
        optimizer.zero_grad()
        net(torch.from_numpy(examples)).sum().backward()
        optimizer.step()
        return {"w": net.weight.detach().numpy()[0].copy()}

    return train


def cache():
    """What a loss keeps of its first call."""
    kept = {}

    def train(params, examples, rng):
        return {"w": params["w"] + examples - kept.setdefault("mean", examples)}

    return train


def generator():
    """Draws of a generator that is made once."""
    drawn = np.random.default_rng(0)

    def train(params, examples, rng):
        return {"w": params["w"] + examples * drawn.choice([-1, 1], 4)}

    return train


def thread():
    """What another thread adds to."""
    total = np.zeros(4, np.float32)

    def train(params, examples, rng):
        adding = threading.Thread(target=lambda: total.__iadd__(examples))
        adding.start()
        adding.join()
        return {"w": params["w"] + total}

    return train


def seeded():
    """Global generators that a user's data seed."""
    before = 0

    def train(params, examples, rng):
        nonlocal before
        drawn = np.random.default_rng(before).normal(size=4)
        before += int(1e6 * abs(examples[0]))
        return {"w": params["w"] + drawn}

    return train


KEEPING = {
    "momentum": momentum, "cache": cache, "generator": generator, "thread": thread,
    "seeded": seeded,
}  # fmt: skip


def clean():
    return lambda params, examples, rng: {"w": params["w"] + examples + rng.normal(size=4)}


def app_of(train, kind, public=None, **given):
    """A `ClientApp` of a function, in either of the two forms."""
    if kind == "bounded":
        app = ClientApp()
        if public is not None:
            given["public_users"] = {user: examples_of(user) for user in public}
        users = {user: examples_of(user) for user in ROSTER}
        fp.flower.bounded(app, users=lambda context: users, **given)(
            lambda params, examples, rng: train(params, examples, rng)
        )
        return app
    if public is not None:
        given["public_users"] = public
    app = fp.flower.UserLevelClientApp(users=lambda context: ROSTER, **given)

    @app.train()
    def of_flowers_kind(message, context):
        examples = examples_of(context.node_config["user-id"])
        params = {"w": message.content["arrays"]["w"].numpy()}
        found = train(params, examples, np.random.default_rng(0))
        record = ArrayRecord({"w": Array(np.asarray(found["w"], np.float32))})
        return Message(RecordDict({"arrays": record}), reply_to=message)

    return app


@pytest.fixture
def answer():
    """From an app and a cohort to the sum that its one node answers."""
    weight = torch.zeros(1, requires_grad=True)  # what an optimiser loads, before any child
    torch.optim.SGD([weight]).step()

    def summed(app, cohort=ROSTER):
        backend = fp.flower.connect(stub.StubGrid({1: stub.AppNode(app, 0, 1)}), ROSTER, SOON)
        done = asked(backend, cohort=cohort, params=START, bound=BOUND, key=Key.simulation(4))
        return done.total["w"] if done.num_failed == 0 else done

    return summed


FORMS = [*((name, "bounded") for name in KEEPING), ("momentum", "app"), ("cache", "app")]
KINDS = pytest.mark.parametrize("kind", ["bounded", "app"])


class TestChildren:
    @pytest.mark.parametrize(("name", "kind"), FORMS)
    def test_one_user_less_moves_the_answer_by_its_bound(self, answer, name, kind):
        whole, rest = (answer(app_of(KEEPING[name](), kind), c) for c in (ROSTER, ROSTER[1:]))
        assert tree.l2_norm({"w": whole - rest}) <= BOUND.l2_bound * (1 + 1e-6)

    def test_the_answer_is_that_of_one_process(self, answer):
        apart = answer(app_of(clean(), "bounded"))
        together = answer(app_of(clean(), "bounded", public=PUBLIC, guard=None))
        np.testing.assert_allclose(apart, together, rtol=1e-6)

    @pytest.mark.parametrize(
        "draw", [random.random, np.random.random, lambda: float(torch.rand(()))]
    )
    def test_global_generators_are_of_each_users_key(self, answer, draw):
        def train(params, examples, rng):
            return {"w": params["w"] + np.float32(0.1 * draw())}

        whole, again = (answer(app_of(train, "bounded")) for _ in range(2))
        np.testing.assert_array_equal(whole, again)
        each = [answer(app_of(train, "bounded"), [user]) for user in ROSTER[:3]]
        assert len({float(one[0]) for one in each}) == 3
        np.testing.assert_allclose(
            answer(app_of(train, "bounded"), ROSTER[:3]), np.sum(each, axis=0), rtol=1e-6
        )

    def test_a_user_that_takes_its_process_with_it_contributes_zero_alone(self, answer, caplog):
        def train(params, examples, rng):
            if examples[0] == examples_of(ROSTER[3])[0]:
                raise SystemExit(3)
            if examples[0] == examples_of(ROSTER[4])[0]:
                __import__("os")._exit(3)
            return clean()(params, examples, rng)

        done = answer(app_of(train, "bounded"))
        others = [user for user in ROSTER if user not in (ROSTER[3], ROSTER[4])]
        assert done.num_failed == 2
        np.testing.assert_allclose(
            done.total["w"], answer(app_of(clean(), "bounded"), others), rtol=1e-6
        )


class TestChecked:
    @pytest.mark.parametrize(("name", "kind"), FORMS)
    def test_what_keeps_something_is_refused_before_a_user_is_trained(self, answer, name, kind):
        """Each order in a child: the first data that a process sees are another's each time."""
        done = answer(app_of(KEEPING[name](), kind, public=PUBLIC))
        assert done.num_failed == len(ROSTER) and "KeepsStateError" in done.first_error

    @pytest.mark.parametrize("make", KEEPING.values(), ids=KEEPING)
    def test_in_one_process_it_is_refused_or_of_public_users(self, answer, make):
        seen, train = set(), make()

        def noted(params, examples, rng):
            seen.add(float(examples[0]))
            return train(params, examples, rng)

        app = app_of(noted, "bounded", public=PUBLIC, guard=None)
        whole = answer(app)
        if make is cache:  # made of the first data that it saw
            rest = answer(app, ROSTER[1:])
            assert tree.l2_norm({"w": whole - rest}) <= BOUND.l2_bound * (1 + 1e-6)
        else:
            assert "KeepsStateError" in whole.first_error
            assert seen <= {float(examples_of(user)[0]) for user in PUBLIC}

    @KINDS
    def test_what_keeps_nothing_is_looked_at_once(self, answer, kind):
        seen, train = [], clean()

        def noted(params, examples, rng):
            seen.append(float(examples[0]))
            return train(params, examples, rng)

        app = app_of(noted, kind, public=PUBLIC, guard=None)
        first, checked = answer(app), len(seen) - len(ROSTER)
        np.testing.assert_array_equal(first, answer(app))
        public = {float(examples_of(user)[0]) for user in PUBLIC}
        assert public <= {*seen}
        assert checked == sum(one in public for one in seen) == len(seen) - 2 * len(ROSTER)

    @pytest.mark.parametrize("draw", [random.random, np.random.random], ids=["py", "np"])
    def test_in_one_process_draws_that_other_threads_move_are_refused(self, answer, draw):
        def train(params, examples, rng):
            return {"w": params["w"] + np.float32(0.1 * draw())}

        app = app_of(train, "bounded", public=PUBLIC, guard=None)
        assert "KeepsStateError" in answer(app).first_error

    @KINDS
    def test_what_fails_or_moves_nothing_is_named(self, answer, kind):
        def fails(params, examples, rng):
            return {"w": params["w"][:2]}

        def still(params, examples, rng):
            return params

        for train, said in ((fails, "'public-0'"), (still, "ValueError")):
            done = answer(app_of(train, kind, public=PUBLIC))
            assert done.num_failed == len(ROSTER) and said in done.first_error


@KINDS
class TestRefused:
    def test_fewer_than_three_public_users(self, kind):
        with refuses(ValueError, "public_users", 2):
            app_of(clean(), kind, public=PUBLIC[:2])

    @pytest.mark.parametrize("given", ["guard", "no fork"])
    def test_one_process_without_any(self, answer, kind, given, monkeypatch):
        """When nodes register, before anything is charged."""
        monkeypatch.setattr("fedpriv.backends.flower.client.can_fork_apart", lambda: False)
        named = {"guard": None} if given == "guard" else {}
        with refuses(ValueError, "public_users"):
            answer(app_of(clean(), kind, **named))
