"""Next tokens of users' sentences by adapters on a causal model (a command of pretrained.md)."""

from importlib.util import find_spec

import numpy as np
import pytest
import torch
from torch import nn

import fedpriv as fp
from fedpriv.datasets.encoders import check_files
from fedpriv.experiments.build import build
from fedpriv.privacy.statement.verify import verify_run
from fedpriv.tasks.pretrained import PretrainedCausal
from fedpriv.training.local.module import load_params
from simulations.threads import next_tokens
from simulations.threads.next_tokens import adapter_tokens, describe_users

if find_spec("transformers") is None:
    pytest.skip("the extra `pretrained` is not installed", allow_module_level=True)

from tests.harness.refusals import refuses
from tests.harness.tiny_gpt2 import write_tiny_gpt2


@pytest.fixture
def gpt2(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDPRIV_CACHE", str(tmp_path / "cache"))
    return write_tiny_gpt2(tmp_path / "gpt2")


def experiment(folder, **options):
    given = {"encoder": str(folder), "rounds": 2, "cohort": 10.0, "rank": 2, **options}
    return adapter_tokens().with_options(given)


def model(folder):
    return PretrainedCausal(files=check_files(folder, "tiny"), rank=2, max_tokens=64)


def sentences(corpus, user, subset="train"):
    """A user's sentences."""
    rows = corpus.view().examples(user, subset).texts[:, 0]
    return [corpus.texts("sentence")[int(row)] for row in rows]


@pytest.mark.slow
def test_an_example_is_a_users_own_sentence(tiny_corpus, gpt2):
    """Red if titles, or another's sentences, are taken."""
    task = build(experiment(gpt2), tiny_corpus).task
    for user in ("u03", "u17"):
        own, expected = task.data.examples(user), sentences(tiny_corpus, user)
        assert len(own) == len(expected) > 0 and all("common" in text for text in expected)
        found = model(gpt2).examples(expected)
        np.testing.assert_array_equal(own.x, found.x)
        np.testing.assert_array_equal(own.y, found.y)
    assert len(task.data.examples("u59")) == 0
    assert all("lora" in name for name in task.init_params(fp.Key.simulation(0)))


def measured_by_user(module, folder, corpus):
    """Perplexity and token accuracy of each of the first users, sentence by sentence."""
    found = []
    for user in corpus.view().roster[:5]:
        losses, right = [], []
        for sentence in sentences(corpus, user, "test"):
            own = model(folder).examples([sentence])
            real = own.x[0] >= 0
            with torch.no_grad():
                scores = module(torch.from_numpy(own.x[:, real]))[0]
            truth = torch.from_numpy(own.y[0, real])
            losses += nn.functional.cross_entropy(scores, truth, reduction="none").tolist()
            right += (scores.argmax(1) == truth).tolist()
        if losses:
            found.append((np.exp(np.mean(losses)), np.mean(right)))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("device", [None, "cpu"])
def test_a_run_says_its_epsilon_and_perplexity_by_user(tiny_corpus, gpt2, tmp_path, device, capsys):
    """On the path of a GPU too. Red if padding is counted, or users are measured together."""
    run = fp.run(
        experiment(gpt2, target_epsilon=8.0, delta=1e-3), corpus=tiny_corpus.directory,
        device=device, out=tmp_path / "run",
    )  # fmt: skip
    assert verify_run(tmp_path / "run").ok and 7.9 < run.epsilon.value <= 8.0
    assert run.summary["perplexity_public"] > 1 and run.summary["delta"] == 1e-3
    next_tokens.main([str(tmp_path / "run"), "--users", "5"])
    text = capsys.readouterr().out
    assert "simulated ε = " in text and "δ = 0.001 (add-remove, per user" in text

    # Adapters start without an effect.
    modules = {"published": model(gpt2)(), "returned": load_params(model(gpt2)(), run.params)}
    for name, module in modules.items():
        measured = measured_by_user(module.eval(), gpt2, tiny_corpus)
        assert len(measured) > 2
        for place, label in enumerate(("perplexity", "token accuracy")):
            values = [own[place] for own in measured]
            start = f"| {name} model | {label} |"
            (row,) = (line for line in text.splitlines() if line.startswith(start))
            *quarters, users = (float(cell) for cell in row.split("|")[3:-1])
            assert quarters == pytest.approx(np.quantile(values, (0.25, 0.5, 0.75)), rel=2e-3)
            assert users == len(values)


@pytest.mark.slow
def test_private_training_lowers_perplexity(tiny_corpus, gpt2):
    """Red if adapters are not trained: from a random model, with little noise."""
    options = {"noise_multiplier": 0.01, "local_learning_rate": 1.0, "rounds": 6, "cohort": 30.0}
    run = fp.run(experiment(gpt2, **options), corpus=tiny_corpus.directory)
    assert run.summary["perplexity_public"] < 240  # of 257 tokens


@pytest.mark.slow
def test_other_runs_are_refused(tiny_corpus, gpt2, tmp_path):
    fp.run("dp-fedavg-tags", corpus=tiny_corpus.directory, rounds=1, out=tmp_path / "tags")
    with refuses(ValueError, "dp-fedavg-tags"):
        describe_users(tmp_path / "tags")
    fp.run(
        experiment(gpt2, rounds=1), corpus=tiny_corpus.directory, secure=True,
        out=tmp_path / "secure",
    )  # fmt: skip
    with refuses(ValueError, tmp_path / "secure"):
        describe_users(tmp_path / "secure")
