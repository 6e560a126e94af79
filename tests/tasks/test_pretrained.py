"""Adapters and heads on pretrained files: what is trained, sent and kept, and by whose texts."""

from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import fedpriv as fp
from fedpriv.api.forecast import round_cost
from fedpriv.backends import SerialBackend
from fedpriv.checkpoints.tensor_files import read_tensors
from fedpriv.datasets.encoders import Encoder, check_files
from fedpriv.datasets.partitions import split_users
from fedpriv.experiments.build import build
from fedpriv.mechanisms import Clip
from fedpriv.models.lora import merge_adapters
from fedpriv.models.text import next_word_loss
from fedpriv.privacy.statement.verify import verify_run
from fedpriv.report.export import MODEL, export_run
from fedpriv.rng import Key
from fedpriv.runs.loop import rounds
from fedpriv.runs.noise_root import NOISE
from fedpriv.runs.prepared import resume_run, start_run
from fedpriv.tasks.pretrained import PretrainedCausal, PretrainedClassifier
from fedpriv.training.algorithm import NO_CONTEXT
from fedpriv.training.local.module import load_params
from fedpriv.training.local.schedule import LocalSgd
from tests.harness.refusals import refuses
from tests.harness.tag_runs import ledger_state
from tests.harness.tiny_bert import WORDS, write_tiny_bert
from tests.harness.tiny_gpt2 import write_tiny_gpt2
from tests.harness.toys_of_training import (
    assert_near,
    assert_same,
    contributed,
    cross_entropy,
    drawn,
)
from tests.tasks.people import experiment, task

if find_spec("transformers") is None:
    pytest.skip("the extra `pretrained` is not installed", allow_module_level=True)

KEY = Key.simulation(3)
SCHEDULE = LocalSgd(learning_rate=0.5, epochs=2, batch_size=2)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDPRIV_CACHE", str(tmp_path / "cache"))


def enlarged(folder):
    """Weights so large that layers do something."""
    file = str(folder / "model.safetensors")
    tensors = load_file(file)
    matrices = {n: t for n, t in tensors.items() if t.ndim > 1}
    save_file(tensors | {n: 10 * t for n, t in matrices.items()}, file, {"format": "pt"})
    return folder


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    return enlarged(write_tiny_bert(tmp_path_factory.mktemp("bert") / "tiny"))


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory):
    return enlarged(write_tiny_gpt2(tmp_path_factory.mktemp("gpt2") / "tiny"))


def texts(number, count=5, longest=9):
    rng = np.random.default_rng(number)
    return [" ".join(rng.choice(WORDS, rng.integers(1, longest))) for _ in range(count)]


def classifier(folder, **settings):
    given = {"files": check_files(folder, "tiny"), "num_classes": 3, "rank": 2, **settings}
    return PretrainedClassifier(**given)


def causal(folder, **settings):
    return PretrainedCausal(**{"files": check_files(folder, "tiny"), "rank": 2, **settings})


def people(model, number=8):
    """Users with texts of very different lengths."""
    if isinstance(model, PretrainedCausal):
        return {f"u{n}": model.examples(texts(n, longest=2 + n)) for n in range(number)}
    return {
        f"u{n}": (model.inputs(texts(n, longest=3 + 3 * n)), np.arange(5) % 3)
        for n in range(number)
    }


def of(model, **changes):
    users = people(model)
    given = {"module": model, "published": model.published, "users": users, "public": users["u3"]}
    given |= {"loss": next_word_loss} if isinstance(model, PretrainedCausal) else {}
    return task(**{**given, **changes})


@pytest.fixture(params=["bert", "gpt2"])
def model(request):
    folder = request.getfixturevalue(request.param)
    return classifier(folder) if request.param == "bert" else causal(folder)


def params_of(made):
    """Params of which no adapter is zero."""
    start = made.init_params(KEY)
    moved = drawn(start, scale=0.1, seed=0)
    return {name: array + moved[name] for name, array in start.items()}


@pytest.mark.parametrize("users_at_once", [1, 4])
def test_a_users_update_is_of_its_own_lengths(model, users_at_once):
    """All users' texts are padded together: another one's long text moves not one bit of it."""
    causal = isinstance(model, PretrainedCausal)
    rows = {f"u{n}": texts(n, count=3, longest=4) for n in range(6)}

    def padded(longest):
        said = [text for own in rows.values() for text in own] + [" ".join(["law"] * longest)]
        found = model.examples(said) if causal else None
        x = model.inputs(said) if found is None else found.x
        y = np.arange(len(said)) % 3 if found is None else found.y
        return split_users([*np.repeat(list(rows), 3), "long"], x, y, public=["long"])[0]

    def total(users):
        made = of(model, users=users, public=None, users_at_once=users_at_once)
        work, bound = made.trainer(SCHEDULE, {}), Clip(l2_clip_norm=0.5)
        return contributed(work, params_of(made), made.data, rows, bound=bound, key=KEY)

    short, long = total(padded(3)), total(padded(30))
    assert short.num_failed == long.num_failed == 0
    assert_same(long.total, short.total)


class TestModels:
    @pytest.mark.slow
    def test_without_adapters_the_rows_are_the_encoders(self, bert):
        for pooling in ("mean", "cls", "max"):
            folder = bert.parent / pooling
            write_tiny_bert(folder, pooling=pooling, normalised=pooling != "cls")
            model, said = classifier(folder, rank=0), texts(1, 12, longest=25)
            rows = Encoder(model.files).encode(said)
            rows /= np.linalg.norm(rows, axis=1, keepdims=True)
            module = model().eval()
            x = torch.from_numpy(model.inputs(said))
            with torch.no_grad():
                expected = module.head(torch.from_numpy(rows))
                torch.testing.assert_close(module(x), expected, rtol=1e-4, atol=1e-6)
            assert {n for n, p in module.named_parameters() if p.requires_grad} == {
                "head.weight", "head.bias",
            }  # fmt: skip

    def test_scores_are_those_of_transformers(self, gpt2):
        from transformers import AutoModelForCausalLM

        model = causal(gpt2)
        own = AutoModelForCausalLM.from_pretrained(gpt2).eval()
        examples = model.examples(texts(2))
        with torch.no_grad():
            found = model().eval()(torch.from_numpy(examples.x))
            for row, ids in zip(found, examples.x, strict=True):
                real = torch.from_numpy(ids[ids >= 0])
                expected = own(real[None]).logits[0]
                torch.testing.assert_close(row[: len(real)], expected, rtol=1e-4, atol=1e-5)

    def test_padding_and_other_texts_change_nothing(self, model):
        made = model()
        params = params_of(of(model))
        load_params(made, params).eval()
        x = people(model)["u6"]
        x = torch.from_numpy(x.x if isinstance(model, PretrainedCausal) else x[0])
        wider = torch.cat([x, torch.full((len(x), 8), -1)], dim=1)
        with torch.no_grad():
            whole = made(x)
            for other in (made(wider), torch.cat([made(row[None]) for row in x])):
                if other.ndim == 3:
                    real = x >= 0
                    other, ours = other[:, : x.shape[1]][real], whole[real]
                else:
                    ours = whole
                torch.testing.assert_close(other, ours, rtol=1e-4, atol=1e-5)

    def test_merged_weights_are_a_model_of_transformers(self, gpt2, tmp_path):
        from transformers import AutoModelForCausalLM

        model = causal(gpt2)
        module = load_params(model(), params_of(of(model))).eval()
        examples = model.examples(["pay the tax"])
        x = torch.from_numpy(examples.x)
        real = x >= 0
        with torch.no_grad():
            expected = module(x)[real]
            assert (expected - model().eval()(x)[real]).abs().max() > 0.01
            merge_adapters(module).body.save_pretrained(tmp_path / "merged")
            own = AutoModelForCausalLM.from_pretrained(tmp_path / "merged").eval()
            torch.testing.assert_close(own(x[real][None]).logits[0], expected, rtol=1e-4, atol=1e-4)


class TestTexts:
    def test_a_users_arrays_are_of_its_own_texts(self, bert, gpt2):
        words = classifier(bert).inputs(["pay the tax", "", "law " * 40])
        assert words.shape == (3, 32) and words.dtype == np.int64
        assert (words[0] >= 0).sum() == 5 and (words[1] >= 0).sum() == 2
        assert classifier(bert).inputs(["tax"]).shape == (1, 8)
        assert classifier(bert, max_tokens=8).inputs(["law " * 40]).shape == (1, 8)

    def test_the_next_token_of_each(self, gpt2):
        """Bytes are tokens; a text begins and ends with the mark."""
        examples = causal(gpt2).examples(["ab", ""])
        mark = examples.x[0, 0]
        assert examples.x[0, :4].tolist()[::3] == [mark, -1] and examples.y[0, 2] == mark
        np.testing.assert_array_equal(examples.x[0, 1:3], examples.y[0, :2])
        assert (examples.y[0, 3:] == -100).all()
        long = causal(gpt2).examples(["a" * 200])
        assert long.x.shape == (1, 64) and (long.y >= 0).all()


class TestTraining:
    @pytest.mark.slow
    def test_a_users_update_is_that_of_a_plain_loop(self, model):
        made = of(model)
        params = params_of(made)
        module = load_params(model(), params).train()
        own = {n: p for n, p in module.named_parameters() if p.requires_grad}
        assert set(own) == set(params)
        data = made.data.examples("u5")
        rng = KEY.generator()
        chosen = data.take(SCHEDULE.choose(len(data), rng))
        optimizer = torch.optim.SGD(own.values(), lr=0.5)
        for batch in SCHEDULE.batches(len(chosen), rng):
            optimizer.zero_grad()
            x, y = torch.from_numpy(chosen.x[batch]), torch.from_numpy(chosen.y[batch])
            made._loss(module(x), y).backward()
            optimizer.step()
        update = made.trainer(SCHEDULE, {}).train(params, NO_CONTEXT, data, KEY)
        for name, parameter in own.items():
            expected = parameter.detach().numpy() - params[name]
            assert np.abs(expected).max() > 1e-6, name
            np.testing.assert_allclose(np.asarray(update[name]), expected, rtol=1e-3, atol=1e-6)

    @pytest.mark.slow
    def test_perplexity_and_accuracy_of_each_user(self, gpt2):
        made, model = of(causal(gpt2)), causal(gpt2)
        params = params_of(made)
        users = people(model) | {"none": model.examples([])}
        found = {user: made.metrics(params, own) for user, own in users.items()}
        assert found.pop("none") is None and set(found) == set(people(model))
        module = load_params(model(), params).eval()
        for user, own in people(model).items():
            losses, right = [], []
            for x, y in zip(own.x, own.y, strict=True):
                real = x >= 0
                with torch.no_grad():
                    scores = module(torch.from_numpy(x[real])[None])[0]
                truth = torch.from_numpy(y[real])
                losses += cross_entropy(scores, truth, reduction="none").tolist()
                right += (scores.argmax(1) == truth).tolist()
            assert found[user].get("perplexity") == pytest.approx(np.exp(np.mean(losses)), rel=1e-4)
            assert found[user].get("token_accuracy") == pytest.approx(np.mean(right))

    @pytest.mark.slow
    def test_many_users_at_once_are_trained_as_one_by_one(self, model):
        alone, together = (of(model, users_at_once=number) for number in (1, 4))
        params, bound = params_of(alone), Clip(l2_clip_norm=100.0)
        assert together.trainer(SCHEDULE, {}).why_apart == ""
        sums = [
            contributed(made.trainer(SCHEDULE, {}), params, made.data, people(model), bound=bound)
            for made in (alone, together)
        ]
        assert sums[0].num_failed == sums[1].num_failed == 0
        assert_near(sums[1].total, sums[0].total, rtol=1e-2, atol=1e-5)

    @pytest.mark.slow
    def test_a_frozen_first_matrix_is_no_param_and_goes_with_the_model(self, bert, tmp_path):
        """FFA-LoRA."""
        made = of(classifier(bert, freeze_a=True))
        params = made.init_params(KEY)
        assert not any("lora_a" in name for name in params)
        one, again = made._make(), of(classifier(bert, freeze_a=True))._make()
        first = {n: p for n, p in one.named_parameters() if "lora_a" in n}
        assert first and all(torch.equal(p, again.get_parameter(n)) for n, p in first.items())
        made.trainer(SCHEDULE, {}).train(params_of(made), NO_CONTEXT, made.data.examples("u1"), KEY)
        start_run(experiment(made), None, None, tmp_path / "run").run()
        export_run(tmp_path / "run", tmp_path / "model")
        exported, _ = read_tensors(tmp_path / "model" / MODEL)
        assert set(exported) == set(params) | set(first)
        assert all(np.array_equal(exported[n], p.numpy()) for n, p in first.items())


class TestRuns:
    @pytest.mark.slow
    def test_nothing_frozen_is_sent_or_kept(self, model, tmp_path):
        made = of(model)
        run = fp.run(experiment(made), out=tmp_path / "run")
        kept = set(run.params)
        assert kept == set(made.init_params(KEY)) and all(
            n.count("lora") or "head" in n for n in kept
        )
        sizes = [p.stat().st_size for p in Path(tmp_path / "run").rglob("*") if p.is_file()]
        assert max(sizes) < 200_000 and not (tmp_path / "run" / "frozen.safetensors").exists()
        export_run(tmp_path / "run", tmp_path / "model")
        exported, _ = read_tensors(tmp_path / "model" / MODEL)
        module = load_params(model(), exported)
        again = {n: p.detach().numpy() for n, p in module.named_parameters() if p.requires_grad}
        assert made.evaluate(again, public=True) == made.evaluate(run.params, public=True)
        sha256 = model.files.sha256
        assert f"tiny (digest {sha256})." in " ".join(str(run.statement).split())
        assert "weights     tiny (published;" in repr(run)
        assert sha256 in (tmp_path / "model" / "README.md").read_text("utf-8")
        assert verify_run(tmp_path / "run").ok

    @pytest.mark.slow
    def test_a_run_goes_on_with_the_same_weights_only(self, bert, tmp_path):
        start_run(experiment(of(classifier(bert))), None, None, tmp_path / "run").folder.close()
        other = write_tiny_bert(tmp_path / "other", seed=9)
        with pytest.raises(ValueError):
            resume_run(tmp_path / "run", experiment=experiment(of(classifier(other))))
        whole = fp.run(experiment(of(classifier(bert))), out=tmp_path / "whole")
        resumed = resume_run(tmp_path / "run", experiment=experiment(of(classifier(bert)))).run()
        assert resumed["rounds"] == 2
        assert_same(fp.load(tmp_path / "run").params, whole.params)

    @pytest.mark.slow
    def test_noise_is_of_the_weights_too(self, bert, tmp_path):
        digests = set()
        for folder in (bert, write_tiny_bert(tmp_path / "other", seed=9)):
            out = tmp_path / folder.name
            start_run(experiment(of(classifier(folder))), None, None, out).folder.close()
            digests.add(ledger_state(out).extra[NOISE])
        assert len(digests) == 2

    def test_a_plan_on_other_weights_has_another_digest(self, bert, tmp_path):
        named = []

        class Named(SerialBackend):
            def under(self, plan):
                named.append(plan)
                return self

        other = write_tiny_bert(tmp_path / "other", seed=9)
        for folder in (bert, bert, other):
            made = build(experiment(of(classifier(folder))))
            backend = Named(trainer=made.trainer, data=made.task.data)
            list(rounds(made, backend, KEY))
        assert named[0] == named[1] != named[2]


@pytest.mark.slow
def test_memory_is_of_frozen_weights_adapters_and_a_batch(model):
    made = experiment(of(model), batch_size=4)
    cost = round_cost(build(made), of(model).init_params(KEY), timed=False)
    module = model()
    weights = {n: p.nbytes for n, p in module.named_parameters()}
    trained = {n for n, p in module.named_parameters() if p.requires_grad}
    assert cost.num_params == sum(weights[n] for n in trained) / 4
    buffers = sum(b.nbytes for b in module.buffers())
    assert cost.frozen_bytes == sum(weights.values()) - 4 * cost.num_params + buffers
    ids = of(model)._batch[0].x[:1]
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        module(torch.from_numpy(ids))
    pointers = {p.data_ptr() for p in module.parameters()}
    expected = sum(t.nbytes for t in kept if t.data_ptr() not in pointers)
    assert cost.step_bytes == pytest.approx(4 * 2 * expected, rel=0.01)
    assert "for weights that are not trained" in cost.memory()


def test_what_does_not_fit_is_refused(bert, gpt2):
    with refuses(ValueError, "c_attn"):
        classifier(bert, matrices=("c_attn",))()
    with refuses(ValueError, 0):
        causal(gpt2, rank=0)()
    layer = replace(classifier(bert), rank=1)().body.encoder.layer[0]
    assert layer.output.dense.lora_a.out_features == 1
