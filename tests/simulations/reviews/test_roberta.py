"""RoBERTa: frozen embeddings, and single examples' gradients."""

import os
import subprocess
import sys
from importlib.util import find_spec

import numpy as np
import pytest
import torch
from torch import nn

from fedpriv.mechanisms import Clip
from fedpriv.rng import Key
from fedpriv.training.local.module import module_params
from fedpriv.training.per_example.module import ModuleGradients
from simulations.dpnsgd.sst2 import write_tiny_weights
from simulations.reviews.roberta import RobertaClassifier, load_roberta, tokens
from tests.harness.refusals import refuses
from tests.harness.toys_of_training import example_sum

if find_spec("transformers") is None:
    pytest.skip("the extra `pretrained` is not installed", allow_module_level=True)


def hub():
    """The library, imported by the first test that asks: it takes longer than collecting may."""
    import transformers

    return transformers


PADDING, KEY = 1, Key.simulation(3)
SENTENCES = (
    "plainaa gooda",
    "badb plainab plainac plainad badc",
    "goode",
    "plainba plainbb plainbc plainbd plainbe goodf plainca",
)
LABELS = np.array([1, 0, 1, 1])


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDPRIV_CACHE", str(tmp_path / "cache"))
    made = tmp_path / "weights"
    made.mkdir()
    write_tiny_weights(made)
    return made


def rows(folder, length=12):
    return tokens(folder, SENTENCES, length=length)


@pytest.mark.slow
def test_base_has_the_published_size_and_trains_all_but_the_embeddings():
    config = hub().RobertaConfig(
        vocab_size=50_265, max_position_embeddings=514, type_vocab_size=1, num_labels=2
    )
    with torch.device("meta"):
        module = RobertaClassifier(hub().RobertaForSequenceClassification(config))
    sizes = {name: p.numel() for name, p in module.named_parameters()}
    trained = {name for name, p in module.named_parameters() if p.requires_grad}
    assert sum(sizes.values()) == 124_647_170
    assert sum(sizes[name] for name in trained) == 85_646_594
    assert not any("embeddings" in name for name in trained)


@pytest.mark.slow
@pytest.mark.parametrize("length", [12, 16])
def test_logits_are_those_of_transformers(folder, length):
    """Red if padding is looked at."""
    module = load_roberta(folder).eval()
    own = hub().RobertaForSequenceClassification.from_pretrained(folder).eval()
    x = torch.from_numpy(rows(folder, length))
    with torch.no_grad():
        expected = own(x, attention_mask=(x != PADDING).long()).logits
        assert (expected - expected.mean(0)).abs().max() > 0.01
        torch.testing.assert_close(module(x), expected, rtol=1e-5, atol=1e-5)


def alone(module, x, y):
    """Minus the gradient of one example, by plain autograd, on the shortest row that holds it."""
    own = {n: p for n, p in module.named_parameters() if p.requires_grad}
    loss = nn.functional.cross_entropy(module.train()(x[None]), y[None])
    return {n: -g for n, g in zip(own, torch.autograd.grad(loss, own.values()), strict=True)}


def norm(update):
    return float(sum(u.double().square().sum() for u in update.values()) ** 0.5)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["vmap", "loop"])
def test_bounded_sum_is_that_of_plain_autograd(folder, way):
    module, x = load_roberta(folder), rows(folder)
    assert len(set((x != PADDING).sum(1))) == 4
    params = module_params(module)
    updates = [
        alone(module, row[row != PADDING], torch.tensor(LABELS[i]))
        for i, row in enumerate(torch.from_numpy(x))
    ]
    norms = sorted(map(norm, updates))
    limit = (norms[1] + norms[2]) / 2  # two are clipped, two are not
    expected = {
        name: sum(min(1.0, limit / norm(u)) * u[name].double().numpy() for u in updates)
        for name in params
    }
    gradients = ModuleGradients(module, nn.functional.cross_entropy, x, LABELS, way=way)
    found = example_sum(gradients, params, np.arange(4), Clip(l2_clip_norm=limit), KEY)
    gap = sum(np.square(found[n] - expected[n]).sum() for n in params)
    assert gap**0.5 < 1e-5 * sum(np.square(e).sum() for e in expected.values()) ** 0.5


@pytest.mark.slow
def test_tokens_are_those_of_transformers(folder):
    """And so of sentences with accents, signs and spaces of their own."""
    sentences = [*SENTENCES, " plainaa  goodb ", "café -- it 's 10/10 ... \u2019", ""]
    made = hub().PreTrainedTokenizerFast(
        tokenizer_file=str(folder / "tokenizer.json"), pad_token="<pad>"
    )
    expected = made(sentences, padding="max_length", max_length=40, truncation=True)["input_ids"]
    found = tokens(folder, sentences, length=40)
    np.testing.assert_array_equal(found, expected)
    assert found.dtype == np.int64 and (found[:, 0] == 0).all() and (found == 2).any(axis=1).all()
    for length in (2, 65):
        with refuses(ValueError, 64):
            tokens(folder, ["a"], length=length)


@pytest.mark.slow
def test_the_library_does_without_the_extra():
    code = (
        "import sys; sys.modules['transformers'] = sys.modules['tokenizers'] = None\n"
        "import fedpriv, simulations.reviews.roberta, fedpriv.cli, simulations.dpnsgd.figure4\n"
        "import fedpriv.tasks.pretrained"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env=os.environ)
