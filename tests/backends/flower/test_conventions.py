"""Flower's conventions on our ledger: `Strategy.start`, and a `ClientApp` that is there already."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Error,
    Message,
    MetricRecord,
    RecordDict,
)
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, Strategy

import fedpriv as fp
from fedpriv.json_lines import read
from fedpriv.privacy.ledger.ledger import Ledger
from fedpriv.privacy.statement.statement import NO_EPSILON_COVERS, run_statement
from fedpriv.privacy.statement.verify import verify_run
from tests.backends.flower import stub_grid as stub
from tests.harness.kills import killed
from tests.harness.refusals import refuses

ROSTER = tuple(f"user-{number}" for number in range(8))
START = {"w": np.zeros(3, np.float32)}
PUBLIC = ("public-0", "public-1", "public-2")
NUM_NODES = 4


def plan(rounds=3, noise_multiplier=0.01, cohort=4):
    return fp.Rounds(users=len(ROSTER), cohort=cohort, rounds=rounds).plan(
        l2_clip_norm=0.5, noise_multiplier=noise_multiplier
    )


def record(params):
    return ArrayRecord({name: Array(array) for name, array in params.items()})


def hosted(context):
    part, of = context.node_config["partition-id"], context.node_config["num-partitions"]
    return ROSTER[part::of]


def reply_to(message, update, **metrics):
    w = message.content["arrays"]["w"].numpy() + np.asarray(update, np.float32)
    content = {"arrays": record({"w": w}), "metrics": MetricRecord(metrics or {"num-examples": 1})}
    return Message(RecordDict(content), reply_to=message)


def existing_app(update=(0.1, 0.0, 0.0), reads=True, seen=None, metrics=None, **given):
    """An app with a training function of Flower's kind, as it may exist already."""
    if seen is not None:  # in this process, where it can be looked at
        given |= {"guard": None, "public_users": PUBLIC}
    app = fp.flower.UserLevelClientApp(users=given.pop("users", hosted), **given)

    @app.train()
    def train(message, context):
        user = context.node_config["user-id"] if reads else None
        if seen is not None and user not in PUBLIC:
            seen.append((user, dict(message.content["config"]), dict(context.state)))
            context.state["kept"] = ConfigRecord({"user": str(user)})
        moved = update(user) if callable(update) else update
        return reply_to(message, moved, **(metrics or {}))

    return app


@pytest.fixture
def grid():
    def make(app, **options):
        nodes = {n + 1: stub.AppNode(app, n, NUM_NODES) for n in range(NUM_NODES)}
        return stub.StubGrid(nodes, **options)

    return make


SOON = fp.flower.GridSettings(register_seconds=1.0)


def started(grid, app, tmp_path=None, rounds=3, config=None, noise_multiplier=0.01, **options):
    strategy = fp.flower.UserLevelStrategy(
        plan(rounds, noise_multiplier),
        roster=ROSTER,
        out=None if tmp_path is None else tmp_path / "run",
        settings=SOON,
    )
    return strategy.start(
        grid(app, **options), record(START), num_rounds=rounds, train_config=config
    )


class Mine(fp.flower.UserLevelStrategy):
    pass


def wrapped(*given, **named):
    return DifferentialPrivacyServerSideFixedClipping(
        fp.flower.UserLevelStrategy(*given, **named),
        noise_multiplier=1.0, clipping_norm=1.0, num_sampled_clients=4,
    )  # fmt: skip


class TestStart:
    @pytest.mark.parametrize(
        ("make", "arrays", "num_rounds", "named"),
        [
            (fp.flower.UserLevelStrategy, record(START), 1, (1, 3)),
            (fp.flower.UserLevelStrategy, record(START), 4, (4, 3)),
            (wrapped, record(START), 3, ()),
            (Mine, record(START), 3, ("Mine",)),
            (fp.flower.UserLevelStrategy, ArrayRecord(), 3, ()),
            *(
                (fp.flower.UserLevelStrategy, record({name: array}), 3, (name, named))
                for name, array, named in (
                    ("w", np.zeros(3), "float64"),
                    ("steps", np.zeros((), np.int64), "int64"),
                    ("w", np.array([0, np.nan], np.float32), "w"),
                )
            ),
        ],
    )
    def test_what_does_not_fit_is_refused_before_anything(
        self, grid, tmp_path, make, arrays, num_rounds, named
    ):
        made, strategy = grid(existing_app()), make(plan(), roster=ROSTER, out=tmp_path / "run")
        with refuses(ValueError, *named):
            strategy.start(made, arrays, num_rounds=num_rounds)
        assert not made.requests and not (tmp_path / "run").exists()

    def test_it_is_a_strategy_of_flowers_with_its_signature(self):
        import inspect

        ours, theirs = (
            inspect.signature(made.start).parameters
            for made in (fp.flower.UserLevelStrategy, Strategy)
        )
        assert issubclass(fp.flower.UserLevelStrategy, Strategy)
        assert {n: p.default for n, p in ours.items()} == {n: p.default for n, p in theirs.items()}

    @pytest.mark.slow
    def test_a_round_is_charged_on_disk_before_its_first_message(self, grid, tmp_path):
        made = grid(existing_app())
        push, charged = made.push_messages, []

        def pushed(messages):
            messages = list(messages)
            for message in messages:
                if message.metadata.message_type == "train":
                    kinds = [line["kind"] for line in read(tmp_path / "run" / "ledger.jsonl")]
                    number = int(message.metadata.group_id.partition(".")[0])
                    charged.append((number, kinds.count("charge")))
            return push(messages)

        made.push_messages = pushed
        strategy = fp.flower.UserLevelStrategy(plan(), roster=ROSTER, out=tmp_path / "run")
        strategy.start(made, record(START))
        assert charged and all(charges >= number for number, charges in charged)
        assert verify_run(tmp_path / "run").num_charges == 3

    def test_its_statement_names_timing(self, grid, tmp_path):
        started(grid, existing_app(), tmp_path, rounds=1)
        said = run_statement(tmp_path / "run")
        assert any(part.startswith("Timing") for part in said.paragraphs(NO_EPSILON_COVERS))

    @pytest.mark.slow
    @pytest.mark.parametrize("secure", [False, True])
    def test_a_secure_run_counts_no_answer(self, grid, secure, tmp_path):
        """Who failed is not known there. All are drawn: a round of lost users would end it."""
        settings = fp.flower.GridSettings(register_seconds=1.0, allow_unauthenticated_nodes=True)
        everyone = plan(cohort=len(ROSTER))
        strategy = fp.flower.UserLevelStrategy(
            everyone, roster=ROSTER, settings=settings, secure=secure, out=tmp_path / "run"
        )
        lost = {1: lambda request, reply: [Message(Error(2, "lost"), reply_to=request)]}
        strategy.start(grid(existing_app(), tamper=lost), record(START))
        assert bool(strategy.counts) != secure

    @pytest.mark.slow
    def test_sums_are_unweighted_and_metrics_are_dropped(self, grid, tmp_path, one_root):
        plain = started(grid, existing_app(), tmp_path / "a")
        heavy = {"num-examples": 10**6, "secret-loss": 123.25}
        found = started(grid, existing_app(metrics=heavy), tmp_path / "b")
        np.testing.assert_array_equal(plain.arrays["w"].numpy(), found.arrays["w"].numpy())
        assert not found.train_metrics_clientapp and not found.evaluate_metrics_clientapp
        kept = b"".join(p.read_bytes() for p in (tmp_path / "b").rglob("*") if p.is_file())
        assert b"secret-loss" not in kept and b"123.25" not in kept

    @pytest.mark.parametrize(
        "hook",
        [
            lambda s, g: s.configure_train(1, record(START), ConfigRecord(), g),
            lambda s, g: s.aggregate_train(1, []),
            lambda s, g: s.configure_evaluate(1, record(START), ConfigRecord(), g),
            lambda s, g: s.aggregate_evaluate(1, []),
        ],
    )
    def test_no_hook_is_of_use_to_another_loop(self, grid, hook):
        with pytest.raises(ValueError):
            hook(fp.flower.UserLevelStrategy(plan(), roster=ROSTER), grid(existing_app()))

    @pytest.mark.slow
    def test_a_server_that_was_killed_goes_on_and_not_without_its_ledger(self, grid, tmp_path):
        with killed(Ledger, "charge", 2, after=True):
            started(grid, existing_app(), tmp_path)
        ledger = tmp_path / "run" / "ledger.jsonl"
        books = ledger.read_bytes()
        ledger.unlink()
        made = grid(existing_app())
        for left in ("state.safetensors", "checkpoints", "rounds.jsonl"):
            strategy = fp.flower.UserLevelStrategy(plan(), roster=ROSTER, out=tmp_path / "run")
            with pytest.raises(ValueError):
                strategy.start(made, record(START))
            (tmp_path / "run" / left).rename(tmp_path / left)
        for left in ("state.safetensors", "checkpoints", "rounds.jsonl"):
            (tmp_path / left).rename(tmp_path / "run" / left)
        assert not made.requests
        ledger.write_bytes(books)
        result = started(grid, existing_app(), tmp_path)
        found = verify_run(tmp_path / "run")
        assert found.ok and (found.num_charges, found.num_releases, found.num_lost) == (3, 2, 1)
        assert (
            result.run.rounds_done == 2 and "ε = " in repr(result) and "simulated" in repr(result)
        )
        again = started(grid, existing_app(), tmp_path)
        assert again.run.rounds_done == 2

    @pytest.mark.slow
    def test_what_is_told_users_is_of_the_run(self, grid, tmp_path):
        """It is in the ledger's first line, and a simulation's noise is made of it."""
        noisy = {"noise_multiplier": 1.0}
        apps = existing_app(), existing_app()
        slow = started(grid, apps[0], tmp_path / "a", config=ConfigRecord({"rate": 1}), **noisy)
        fast = started(grid, apps[1], tmp_path / "b", config=ConfigRecord({"rate": 2}), **noisy)
        assert (slow.arrays["w"].numpy() != fast.arrays["w"].numpy()).any()
        with refuses(ValueError, "rate", 1):
            started(grid, existing_app(), tmp_path / "a", config=ConfigRecord({"rate": 2}), **noisy)
        with pytest.raises(ValueError):  # nor without any
            started(grid, existing_app(), tmp_path / "a", **noisy)

    def test_the_server_measures_on_public_data(self, grid):
        strategy, seen = fp.flower.UserLevelStrategy(plan(), roster=ROSTER), []

        def evaluate(round_num, arrays):
            seen.append(arrays["w"].numpy()[0])
            return MetricRecord({"first": float(seen[-1])})

        result = strategy.start(grid(existing_app()), record(START), evaluate_fn=evaluate)
        assert list(result.evaluate_metrics_serverapp) == [0, 1, 2, 3] and seen[0] == 0.0
        assert seen[-1] == result.arrays["w"].numpy()[0] > 0


class TestRunFolder:
    @pytest.mark.parametrize(
        ("out", "said"),
        [
            ("", "--run-config"),
            ("runs/first", "runs/first"),
            (str(Path(__file__).parents[3] / "runs"), "diagnostics.jsonl"),
        ],
    )
    def test_one_that_the_superlink_or_the_bundle_would_have_is_refused(self, out, said):
        with refuses(ValueError, said):
            fp.flower.UserLevelStrategy(plan(), roster=ROSTER, out=out)

    @pytest.mark.slow
    def test_one_that_was_begun_in_an_app_goes_on(self, grid, tmp_path):
        started(grid, existing_app(), tmp_path, rounds=1)
        app = "[tool.flwr.app]\npublisher = 'you'\n"
        (tmp_path / "pyproject.toml").write_text(app, "utf-8")
        started(grid, existing_app(), tmp_path, rounds=1)
        with refuses(ValueError, tmp_path):
            fp.flower.UserLevelStrategy(plan(), roster=ROSTER, out=tmp_path / "runs" / "other")

    def test_the_log_has_plan_terms_of_epsilon_rounds_and_how_to_check_it(
        self, grid, tmp_path, caplog
    ):
        started(grid, existing_app(), tmp_path)
        lines = [entry.getMessage() for entry in caplog.records if entry.name == "fedpriv.server"]
        run = tmp_path / "run"
        assert lines[0].startswith("plan ") and len(lines[0].split()[1]) == 64
        assert "ε = " in lines[2] and "user-level, add-remove, PLD" in lines[2]
        assert any(line.startswith("ε does NOT cover") for line in lines)
        rounds = [line.partition(":")[0] for line in lines if line.startswith("round ")]
        assert rounds == ["round 1", "round 2", "round 3"]
        assert f"fedpriv verify {run}" in lines[-1]


class TestEvaluation:
    """Clients' own metrics: a diagnostic of simulations, which both sides have to ask for."""

    def app(self, **given):
        app = existing_app(**given)

        @app.evaluate()
        def evaluate(message, context):
            part = context.node_config["partition-id"]
            metrics = MetricRecord({"loss": float(part), "num-examples": 1 + part})
            return Message(RecordDict({"metrics": metrics}), reply_to=message)

        return app

    def result(self, grid, app, out=None):
        strategy = fp.flower.UserLevelStrategy(plan(2), roster=ROSTER, out=out, diagnostics=True)
        return strategy.start(grid(app), record(START), num_rounds=2)

    @pytest.mark.slow
    def test_a_simulation_may_have_exact_ones(self, grid, tmp_path):
        result = self.result(grid, self.app(diagnostics=True), tmp_path / "run")
        loss = pytest.approx((0 * 1 + 1 * 2 + 2 * 3 + 3 * 4) / 10)
        assert [found["loss"] for found in result.evaluate_metrics_clientapp.values()] == [loss] * 2
        assert "not covered by ε: {1: {'loss': 2.0}" in repr(result)
        kept = read(tmp_path / "run" / "diagnostics.jsonl")
        assert [line["nodes_loss"] for line in kept] == [loss] * 2
        assert [line["covered_by_epsilon"] for line in kept] == [False] * 2
        assert verify_run(tmp_path / "run").ok
        assert list(fp.load(tmp_path / "run").diagnostics()["nodes_loss"]) == [loss] * 2

    @pytest.mark.slow
    @pytest.mark.parametrize(
        "sent",
        [
            {"num-examples": [1.0, 2.0]},
            {"num-examples": -5},
            {"num-examples": float("inf")},
            {"loss": float("nan")},
            {"loss": [1.0]},
        ],
        ids=str,
    )
    def test_a_node_that_sends_no_numbers_is_left_out(self, grid, sent):
        app = existing_app(diagnostics=True)

        @app.evaluate()
        def evaluate(message, context):
            part = context.node_config["partition-id"]
            metrics = {"loss": float(part), "num-examples": 1} | (sent if part == 0 else {})
            return Message(RecordDict({"metrics": MetricRecord(metrics)}), reply_to=message)

        assert [
            found["loss"] for found in self.result(grid, app).evaluate_metrics_clientapp.values()
        ] == [2.0, 2.0]

    @pytest.mark.slow
    def test_a_node_that_does_not_offer_them_answers_nothing(self, grid, caplog):
        assert not self.result(grid, self.app()).evaluate_metrics_clientapp[1]
        (said,) = [line for line in caplog.messages if "nodes did not evaluate" in line]
        assert said.startswith("4 nodes") and "diagnostics=True answers evaluation" in said

    @pytest.mark.parametrize("asked", [False, True])
    def test_a_function_that_is_not_called_is_named_once(self, grid, caplog, asked):
        started(grid, self.app(diagnostics=asked))
        said = [line for line in caplog.messages if "evaluate function is not called" in line]
        assert len(said) == (0 if asked else 1)

    def test_a_secure_run_refuses_them(self, tmp_path):
        with refuses(ValueError, "diagnostics"):
            fp.flower.UserLevelStrategy(
                plan(), roster=ROSTER, out=tmp_path, secure=True, diagnostics=True
            )

    def test_a_config_of_an_evaluation_that_is_not_done_is_refused(self, grid):
        strategy = fp.flower.UserLevelStrategy(plan(), roster=ROSTER)
        with refuses(ValueError, "evaluate_config"):
            strategy.start(
                grid(existing_app()), record(START), evaluate_config=ConfigRecord({"a": 1})
            )


class TestExistingApp:
    def test_it_is_called_once_for_each_drawn_user_with_the_servers_config(self, grid, tmp_path):
        seen = []
        config = ConfigRecord({"rate": 0.25})
        started(grid, existing_app(seen=seen), tmp_path, config=config)
        sizes = [line["cohort_size"] for line in read(tmp_path / "run" / "diagnostics.jsonl")]
        assert len(seen) == sum(sizes) and {user for user, _, _ in seen} <= set(ROSTER)
        assert all(told == {"rate": 0.25} and not state for _, told, state in seen)

    @pytest.mark.parametrize("where", ["app", "function"])
    def test_mods_are_inside(self, grid, where):
        def enlarging(message, context, answer):
            return reply_to(message, answer(message, context).content["arrays"]["w"].numpy() + 1e3)

        mods = [enlarging]
        app = fp.flower.UserLevelClientApp(users=hosted, mods=mods if where == "app" else None)

        @app.train(mods=None if where == "app" else mods)
        def train(message, context):
            return reply_to(message, [context.node_config["user-id"] == "", 0.0, 0.0])

        found = started(grid, app, rounds=1)
        assert 0 < np.linalg.norm(found.arrays["w"].numpy()) <= 8 * 0.5 / 4 * 1.05

    def test_several_users_behind_one_call_contribute_zero(self, grid, tmp_path, caplog):
        reason = "one_user_per_node=True"
        with refuses(ValueError, reason):
            started(grid, existing_app(reads=False), tmp_path)
        assert caplog.text.count('did not read context.node_config["user-id"]') == 1
        assert "a user contributes zero" not in caplog.text
        assert verify_run(tmp_path / "run").num_releases == 0

    def test_a_declared_one_user_need_not_be_asked_for(self, grid):
        one = lambda context: [ROSTER[context.node_config["partition-id"]]]  # noqa: E731
        app = existing_app(reads=False, users=one, one_user_per_node=True)
        nodes = {n + 1: stub.AppNode(app, n, len(ROSTER)) for n in range(len(ROSTER))}
        strategy = fp.flower.UserLevelStrategy(plan(), roster=ROSTER)
        result = strategy.start(stub.StubGrid(nodes), record(START))
        assert result.arrays["w"].numpy()[0] > 0

    @pytest.mark.slow
    @pytest.mark.parametrize("kind", ["roster", "app", "function"])
    def test_ids_that_are_no_strings_are_refused_at_once(self, grid, kind):
        numbers, app = range(len(ROSTER)), existing_app()
        if kind == "app":
            app = existing_app(users=lambda context: numbers)
        if kind == "function":
            app = ClientApp()
            fp.flower.bounded(app, users=lambda context: dict.fromkeys(numbers))(lambda *_: {})
        made = grid(app)
        whose = "the roster" if kind == "roster" else "this node"
        with refuses(ValueError, whose):
            strategy = fp.flower.UserLevelStrategy(
                plan(), roster=numbers if kind == "roster" else ROSTER, settings=SOON
            )
            strategy.start(made, record(START))
        assert not made.requests

    @pytest.mark.slow
    def test_a_plain_client_app_is_named(self, grid):
        app = ClientApp()
        app.train()(lambda message, context: message)
        with pytest.raises(ValueError):
            started(grid, app)

    @pytest.mark.slow
    def test_a_declared_one_user_that_is_two_is_refused(self, grid):
        strategy = fp.flower.UserLevelStrategy(plan(), roster=ROSTER, settings=SOON)
        app = existing_app(reads=False, one_user_per_node=True)
        with refuses(ValueError, 2, "one_user_per_node"):
            strategy.start(grid(app), record(START))

    @pytest.mark.slow
    @pytest.mark.parametrize(
        "wrong",
        [
            lambda w: {"arrays": record({"w": w[:2]})},
            lambda w: {"arrays": record({"v": w})},
            lambda w: {"arrays": record({"w": w * np.nan})},
            lambda w: {"arrays": record({"w": w}), "more": record({"w": w})},
            lambda w: {},
        ],
    )
    def test_a_user_whose_reply_is_no_params_contributes_zero_alone(self, grid, wrong, one_root):
        app = fp.flower.UserLevelClientApp(users=hosted)

        @app.train()
        def train(message, context):
            good = reply_to(message, [0.1, 0.0, 0.0])
            if context.node_config["user-id"] == "user-0":
                w = good.content["arrays"]["w"].numpy() + 1e3
                return Message(RecordDict(wrong(w)), reply_to=message)
            return good

        zero = existing_app(lambda user: [0.1 * (user != "user-0"), 0.0, 0.0])
        found, expected = started(grid, app), started(grid, zero)
        np.testing.assert_array_equal(found.arrays["w"].numpy(), expected.arrays["w"].numpy())

    def test_a_plain_strategys_message_and_an_apps_own_query_get_no_answer(self):
        app = existing_app()

        @app.query("histogram")
        def histogram(message, context):
            raise AssertionError("users' data would leave the node")

        stub.StubGrid({})  # a message's identity
        place = stub.context({"partition-id": 0, "num-partitions": 2})
        content = RecordDict({"arrays": record(START), "config": ConfigRecord()})
        for kind in ("train", "query.histogram"):
            message = Message(content, 1, kind)
            message.metadata.__dict__["_message_id"] = "1"
            reply = app(message, place)
            assert reply.has_error() and "AssertionError" not in reply.error.reason

    def test_a_bounded_function_is_given_what_it_names(self, grid):
        app, seen = ClientApp(), []
        public = dict.fromkeys(PUBLIC, 1.0)

        @fp.flower.bounded(
            app,
            users=lambda c: dict.fromkeys(hosted(c), 1.0),
            public_users=public,
            guard=None,
        )
        def train(params, examples, rng, context, config):
            seen.append((context.node_config["num-partitions"], config))
            return {"w": params["w"] + np.float32(config["rate"])}

        found = started(grid, app, config=ConfigRecord({"rate": 0.1}))
        assert found.arrays["w"].numpy()[0] > 0
        assert seen and all(item == (NUM_NODES, {"rate": 0.1}) for item in seen)
