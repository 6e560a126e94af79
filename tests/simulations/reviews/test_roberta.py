"""RoBERTa: frozen embeddings, single examples' gradients, and weights that are never unpickled."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from fedpriv.mechanisms import Clip
from fedpriv.rng import Key
from fedpriv.training.local.module import module_params
from fedpriv.training.per_example.backends import choose
from fedpriv.training.per_example.ghost import ExampleMasks
from fedpriv.training.per_example.module import ModuleGradients
from simulations.dpnsgd.sst2 import write_tiny_weights
from simulations.reviews import roberta
from simulations.reviews.roberta import load_roberta, new_head, random_roberta, save_roberta, tokens

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
def folder(tmp_path):
    write_tiny_weights(tmp_path)
    return tmp_path


def rows(folder, length=12):
    return tokens(folder, SENTENCES, length=length)


def changed(folder, change):
    """Write the folder's tensors anew, after a change."""
    tensors = load_file(str(folder / roberta.WEIGHTS))
    save_file(change(tensors), str(folder / roberta.WEIGHTS))


class TestModel:
    @pytest.mark.slow
    def test_base_has_the_published_size_and_trains_all_but_the_embeddings(self):
        config = hub().RobertaConfig(
            vocab_size=50_265, max_position_embeddings=514, type_vocab_size=1, num_labels=2
        )
        with torch.device("meta"):
            module = roberta.RobertaClassifier(config)
        sizes = {name: p.numel() for name, p in module.named_parameters()}
        trained = {name for name, p in module.named_parameters() if p.requires_grad}
        assert sum(sizes.values()) == 124_647_170
        assert sum(sizes[name] for name in trained) == 85_646_594
        assert not any("embeddings" in name for name in trained)

    @pytest.mark.parametrize("length", [12, 16])
    def test_logits_are_those_of_transformers(self, folder, length):
        module = load_roberta(folder).eval()
        own = hub().RobertaForSequenceClassification.from_pretrained(folder).eval()
        x = torch.from_numpy(rows(folder, length))
        with torch.no_grad():
            expected = own(x, attention_mask=(x != PADDING).long()).logits
            torch.testing.assert_close(module(x), expected, rtol=1e-5, atol=1e-5)

    def test_padding_changes_nothing(self, folder):
        module = load_roberta(folder).eval()
        found = [module(torch.from_numpy(rows(folder, length))) for length in (9, 12, 40)]
        assert (found[0] - found[0].mean(0)).abs().max() > 0.1
        for other in found[1:]:
            torch.testing.assert_close(other, found[0], rtol=1e-4, atol=1e-5)

    def test_building_leaves_the_processs_generator_alone(self, folder):
        before = torch.get_rng_state()
        load_roberta(folder)
        assert torch.equal(torch.get_rng_state(), before)

    def test_a_key_gives_one_model(self):
        options = {"vocab_size": 9, "hidden_size": 4, "num_attention_heads": 2}
        options |= {"num_hidden_layers": 1, "intermediate_size": 8}
        one, same, other = (random_roberta(options, Key.simulation(s)) for s in (0, 0, 1))
        for (name, a), b, c in zip(
            one.named_parameters(), same.parameters(), other.parameters(), strict=True
        ):
            assert torch.equal(a, b)
            assert a.ndim == 1 or not torch.equal(a, c), name


def alone(module, x, y, key):
    """Minus the gradient of one example, by plain autograd, on the shortest row that holds it."""
    own = {n: p for n, p in module.named_parameters() if p.requires_grad}
    module.train()
    with ExampleMasks(module).drawn(None if key is None else [key]):
        loss = nn.functional.cross_entropy(module(x[None]), y[None])
    return {n: -g for n, g in zip(own, torch.autograd.grad(loss, own.values()), strict=True)}


def norm(update):
    return float(sum(u.double().square().sum() for u in update.values()) ** 0.5)


class TestGradients:
    @pytest.mark.parametrize("dropout", [0.0, 0.2])
    @pytest.mark.parametrize(
        "backend",
        ["ghost", *(pytest.param(b, marks=pytest.mark.slow) for b in ("vmap", "loop"))],
    )
    def test_bounded_sum_is_that_of_plain_autograd(self, folder, backend, dropout):
        module, x = load_roberta(folder, dropout=dropout), rows(folder)
        assert len(set((x != PADDING).sum(1))) == 4
        params = module_params(module)
        updates = []
        for i, row in enumerate(torch.from_numpy(x)):
            # Masks have the row's width; without dropout it can be cut to what is there.
            row = row if dropout else row[row != PADDING]
            key = KEY.fold(i) if dropout else None
            updates.append(alone(module, row, torch.tensor(LABELS[i]), key))
        norms = sorted(map(norm, updates))
        limit = (norms[1] + norms[2]) / 2  # two are clipped, two are not
        expected = {
            name: sum(min(1.0, limit / norm(u)) * u[name].double().numpy() for u in updates)
            for name in params
        }
        gradients = ModuleGradients(module, nn.functional.cross_entropy, x, LABELS, backend=backend)
        bound = Clip(l2_clip_norm=limit)
        found = gradients.bounded_sum(params, np.arange(4), bound, KEY)
        gap = sum(np.square(found[n] - expected[n]).sum() for n in params)
        assert gap**0.5 < 1e-5 * sum(np.square(e).sum() for e in expected.values()) ** 0.5

    @pytest.mark.parametrize("dropout", [0.0, 0.2])
    def test_layers_have_rules(self, folder, dropout):
        """Attention's dropout too is a layer's, or examples would go one by one."""
        module = load_roberta(folder, dropout=dropout)
        made = choose(module, nn.functional.cross_entropy, rows(folder), LABELS)
        assert made.backend == "ghost" and made.is_random == bool(dropout)

    def test_attention_is_dropped(self, folder):
        config = json.loads((folder / roberta.CONFIG).read_text())
        config["attention_probs_dropout_prob"] = 0.5
        (folder / roberta.CONFIG).write_text(json.dumps(config))
        module, x = load_roberta(folder), torch.from_numpy(rows(folder))
        rates = {m.p for n, m in module.named_modules() if isinstance(m, nn.Dropout) and m.p}
        assert rates == {0.5}
        made = [alone(module, x[1], torch.tensor(0), key) for key in (KEY, KEY, KEY.fold(1))]
        for name in made[0]:
            assert torch.equal(made[0][name], made[1][name])
        assert norm({n: made[0][n] - made[2][n] for n in made[0]}) > 0.1 * norm(made[0])


class TestWeights:
    def test_round_trip(self, folder, tmp_path_factory):
        module, there = load_roberta(folder), tmp_path_factory.mktemp("there")
        new_head(module, Key.simulation(8))
        save_roberta(module, there)
        again = load_roberta(there)
        for (name, a), (same, b) in zip(
            module.state_dict().items(), again.state_dict().items(), strict=True
        ):
            assert name == same and torch.equal(a, b)

    def test_a_key_draws_a_new_head_whatever_the_file_has(self, folder):
        files, one, same, other = (
            load_roberta(folder, key=key) for key in (None, KEY, KEY, Key.simulation(4))
        )
        heads = [m.classifier.out_proj.weight for m in (files, one, same, other)]
        assert torch.equal(heads[1], heads[2])
        assert not torch.equal(heads[0], heads[1]) and not torch.equal(heads[1], heads[3])
        assert not one.classifier.dense.bias.any()
        for a, b in zip(files.roberta.parameters(), one.roberta.parameters(), strict=True):
            assert torch.equal(a, b)

    @pytest.mark.parametrize("prefix", ["roberta.", ""])
    def test_pre_trained_weights_of_either_naming(self, folder, prefix):
        """Published weights have a language model's head, some a pooler, and none of ours."""
        before = load_roberta(folder)

        def change(tensors):
            body = {n: t for n, t in tensors.items() if n.startswith("roberta.")}
            made = {prefix + n.removeprefix("roberta."): t.half() for n, t in body.items()}
            extra = ("pooler.dense.weight", "embeddings.position_ids")
            made |= {prefix + name: torch.zeros(2) for name in extra}
            return made | {"lm_head.bias": torch.zeros(2)}

        changed(folder, change)
        with pytest.raises(ValueError, match=r"lacks 4 tensors, such as 'classifier.*give a key"):
            load_roberta(folder)
        after = load_roberta(folder, key=KEY)
        for a, b in zip(before.roberta.parameters(), after.roberta.parameters(), strict=True):
            assert b.dtype == torch.float32 and torch.equal(a.half().float(), b)

    @pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "model.ckpt"])
    def test_pickled_weights_are_refused_and_not_opened(self, folder, name, tmp_path):
        (folder / roberta.WEIGHTS).unlink()
        (folder / name).symlink_to(tmp_path / "nowhere")
        with pytest.raises(ValueError, match=rf"pickled weights \({name}\).*convert them once"):
            load_roberta(folder, key=KEY)

    def test_damaged_files(self, folder):
        path = folder / roberta.WEIGHTS
        content = path.read_bytes()
        path.write_bytes(content[: len(content) // 2])
        with pytest.raises(ValueError, match="not a complete safetensors file"):
            load_roberta(folder)
        path.write_bytes(content)
        (folder / roberta.CONFIG).write_text("{")
        with pytest.raises(ValueError, match="cannot be read"):
            load_roberta(folder)


class TestTokens:
    def test_marks_and_padding(self, folder):
        made = rows(folder)
        for row in made:
            real = row[row != PADDING]
            assert row[0] == real[0] == 0 and real[-1] == 2
            assert (row[len(real) :] == PADDING).all()
        assert made.dtype == np.int64 and made.shape == (4, 12)

    def test_either_form_of_the_files_gives_transformers_tokens(self, folder):
        """And so do sentences with accents, signs and spaces of their own."""
        sentences = [*SENTENCES, " plainaa  goodb ", "café -- it 's 10/10 ... \u2019", ""]
        made = hub().RobertaTokenizer(*(str(folder / n) for n in ("vocab.json", "merges.txt")))
        expected = made(sentences, padding="max_length", max_length=40, truncation=True)[
            "input_ids"
        ]
        from_parts = tokens(folder, sentences, length=40)
        np.testing.assert_array_equal(from_parts, expected)
        made.save_pretrained(folder)
        for name in ("vocab.json", "merges.txt"):
            (folder / name).unlink(missing_ok=True)
        assert (folder / "tokenizer.json").is_file()
        np.testing.assert_array_equal(tokens(folder, sentences, length=40), from_parts)

    def test_marks_that_are_not_there_or_not_the_models(self, folder):
        words = json.loads((folder / "vocab.json").read_text())
        for name, says in (("<s>", "does not know <s> and </s>"), ("<pad>", "pads with None")):
            renamed = {("other" if word == name else word): n for word, n in words.items()}
            (folder / "vocab.json").write_text(json.dumps(renamed))
            with pytest.raises(ValueError, match=says):
                tokens(folder, ["a"], length=5)
        (folder / "vocab.json").write_text(json.dumps(words))
        config = json.loads((folder / roberta.CONFIG).read_text())
        (folder / roberta.CONFIG).write_text(json.dumps({**config, "pad_token_id": 4}))
        with pytest.raises(ValueError, match="pads with 1, config"):
            tokens(folder, ["a"], length=5)


class TestExtra:
    def test_a_missing_extra_says_how_to_install_it(self, folder, monkeypatch):
        monkeypatch.setitem(sys.modules, "transformers", None)
        for call in (lambda: load_roberta(folder), lambda: tokens(folder, ["a"], length=5)):
            with pytest.raises(ValueError, match=r"pip install 'fedpriv\[pretrained\]'"):
                call()

    @pytest.mark.slow
    def test_the_library_does_without_it(self):
        code = (
            "import sys; sys.modules['transformers'] = sys.modules['tokenizers'] = None\n"
            "import fedpriv, simulations.reviews.roberta, fedpriv.cli, simulations.dpnsgd.figure4"
        )
        subprocess.run([sys.executable, "-c", code], check=True, env=os.environ)
