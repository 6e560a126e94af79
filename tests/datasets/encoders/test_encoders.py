"""Encoders of text: a row is a function of its text alone, and of checked files alone."""

import json
import os
import shutil
from importlib.util import find_spec

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from fedpriv.datasets import encoders
from fedpriv.datasets.encoders import (
    Encoder,
    add_encoder,
    check_files,
    encode_texts,
    find_encoder,
    read_config,
)
from tests.harness.refusals import refuses
from tests.harness.resealed import edit_json
from tests.harness.tiny_bert import write_tiny_bert

if find_spec("transformers") is None:
    pytest.skip("the extra `pretrained` is not installed", allow_module_level=True)

TEXTS = [
    "", "tax", "how to start a company", "Start THE company!", "pay the tax " * 3, "law " * 40,
    "how to fund a company", "zq xv", "funding starts", "a", "the the the the the", "pays law tax",
]  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_tiny_bert(tmp_path_factory.mktemp("encoder") / "tiny")


@pytest.fixture
def odd(folder, tmp_path):
    """A copy of the encoder, to be changed; nothing of it may be added."""
    yield shutil.copytree(folder, tmp_path / "odd")
    assert encoders.added_encoders() == ()


def weights(folder, change):
    """Change an encoder's tensors by a function, which is given a dictionary of them."""
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def narrow(tensors):
    tensors[DENSE] = tensors[DENSE][:, 1:].contiguous()


BPE = {"type": "BPE", "unk_token": "[UNK]", "vocab": {"[UNK]": 0, "a": 1, "b": 2}, "merges": []}


FILES = ("config.json", "model.safetensors", "tokenizer.json")
DENSE, WORDS = "encoder.layer.0.output.dense.weight", "embeddings.word_embeddings.weight"


def opened(folder):
    return Encoder(check_files(folder, "tiny"))


def saved_since_5_4(old, new, pooling):
    """Copy a tiny encoder of 16 tokens in the files that sentence-transformers writes today."""
    shutil.copytree(old, new)
    read = {"text": {"method": "forward", "method_output_name": "last_hidden_state"}}
    lengths = {"transformer_task": "feature-extraction", "modality_config": read}
    files = {
        "1_Pooling/config.json": {"embedding_dimension": 16, "pooling_mode": pooling},
        "sentence_bert_config.json": lengths | {"module_output_name": "token_embeddings"},
        "tokenizer_config.json": {"model_max_length": 16, "do_lower_case": True},
        "config_sentence_transformers.json": {"prompts": {"query": ""}, "truncate_dim": None},
    }
    for file, settings in files.items():
        (new / file).write_text(json.dumps(settings))
    return new


@pytest.mark.slow
def test_a_row_depends_on_its_text_alone(folder):
    """To the bit: alone, in any order, beside any others."""
    encoder = opened(folder)
    alone = np.concatenate([encoder.encode([text]) for text in TEXTS])
    np.testing.assert_array_equal(encoder.encode(TEXTS), alone)
    rng = np.random.default_rng(0)
    for _ in range(10):
        order = rng.permutation(np.repeat(np.arange(len(TEXTS)), 2))[: rng.integers(1, 24)]
        np.testing.assert_array_equal(encoder.encode([TEXTS[i] for i in order]), alone[order])
    assert len(np.unique(alone, axis=0)) == len(TEXTS)


@pytest.mark.parametrize("at_most", [0, 1, 2])
def test_texts_of_no_token_are_refused(folder, at_most):
    """A text's two marks have to fit, and a token of its own."""
    encoder = opened(folder)
    with refuses(ValueError, at_most, 3):
        encoder.tokens(["pay the tax"], at_most)
    assert [len(ids) for ids in encoder.tokens(["law " * 40] * 2, 3)] == [3, 3]


@pytest.mark.slow
@pytest.mark.parametrize("pooling", ["mean", "cls", "max"])
@pytest.mark.parametrize("normalised", [False, True])
def test_rows_are_those_of_the_definition(tmp_path, pooling, normalised):
    """Text by text without padding; the file's own cut at 8 tokens is an example's, 32 counts."""
    from transformers import BertModel

    folder = write_tiny_bert(tmp_path / "tiny", pooling=pooling, normalised=normalised)
    encoder, model = opened(folder), BertModel.from_pretrained(folder).eval()
    assert (encoder.width, encoder.max_tokens, encoder.pooling) == (16, 32, pooling)
    for text in TEXTS:
        ids = torch.tensor([encoder._tokenizer(32).encode(text).ids])
        assert ids.shape[1] <= 32
        with torch.no_grad():
            states = model(input_ids=ids).last_hidden_state[0]
        row = {"mean": states.mean(0), "cls": states[0], "max": states.amax(0)}[pooling]
        row = row / row.norm() if normalised else row
        np.testing.assert_allclose(encoder.encode([text])[0], row.numpy(), atol=2e-6)
    assert encoder._tokenizer(32).encode(TEXTS[5]).ids.__len__() == 32


@pytest.mark.slow
def test_a_model_without_fused_attention_is_read(folder, tmp_path):
    """Such as MPNet."""
    from transformers import MPNetConfig, MPNetModel

    shutil.copytree(folder, tmp_path / "other")
    sizes = read_config(check_files(folder, "tiny")).to_dict()
    names = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads")
    config = MPNetConfig(**{name: sizes[name] for name in names}, max_position_embeddings=64)
    MPNetModel(config).save_pretrained(tmp_path / "other")
    encoder = Encoder(check_files(tmp_path / "other", "other"))
    together = encoder.encode(["start a company", "pay the tax"])
    assert encoder.encode(["pay the tax"]).tobytes() == together[1:].tobytes()
    assert not np.array_equal(*together)


@pytest.mark.slow
def test_many_texts_have_the_same_rows_in_processes(folder, monkeypatch):
    monkeypatch.setattr(encoders, "CHUNK", 8)
    encoder, texts, told = opened(folder), [f"{t} {n}" for n, t in enumerate(TEXTS * 3)], []
    out = np.zeros((len(texts), encoder.width), np.float32)
    encode_texts(encoder, texts, out, processes=2, progress=lambda *at: told.append(at))
    assert told == [(8, 36), (16, 36), (24, 36), (32, 36), (36, 36)]
    np.testing.assert_array_equal(out, encoder.encode(texts))


class TestFiles:
    @pytest.mark.slow
    def test_an_encoder_is_added_once_and_found_by_its_id(self, folder, tmp_path):
        found = add_encoder(folder, sha256=check_files(folder, "x").weights_sha256.upper())
        assert found == add_encoder(folder) == find_encoder(found.id)
        assert encoders.added_encoders() == (found,)
        assert found.folder.parent == encoders.encoders_dir()
        row = Encoder(found).encode(["tax"])
        np.testing.assert_array_equal(row, Encoder(find_encoder(str(folder))).encode(["tax"]))

    def test_another_files_sha256_is_refused_and_nothing_is_added(self, folder):
        with refuses(ValueError, "0" * 64):
            add_encoder(folder, sha256="0" * 64)
        assert encoders.added_encoders() == ()

    @pytest.mark.parametrize(
        ("damage", "name"),
        [
            *((lambda f, file=file: (f / file).unlink(), file) for file in FILES),
            (lambda f: os.truncate(f / FILES[1], 5000), "odd"),
            (lambda f: weights(f, lambda t: t.pop(DENSE)), "odd"),
            (lambda f: weights(f, narrow), "odd"),
            (lambda f: weights(f, lambda t: t[WORDS][-1].fill_(float("nan"))), WORDS),
        ],
        ids=[*FILES, "cut", "lacks one", "other shape", "a word without numbers"],
    )
    def test_missing_and_damaged_files_are_refused_and_nothing_is_added(self, odd, damage, name):
        (odd / "pytorch_model.bin").write_bytes(b"")  # pickled, so that it is not read
        damage(odd)
        with refuses(ValueError, name):
            add_encoder(odd)

    def test_an_unknown_encoder_and_files_that_changed_since_are_refused(self, folder):
        found = add_encoder(folder)
        with refuses(ValueError, "'minilm'", found.id):
            find_encoder("minilm")
        edit_json(found.folder / "sentence_bert_config.json", max_seq_length=16)
        with refuses(ValueError, found.folder, found.id):
            find_encoder(found.id)

    def test_the_digest_is_of_all_that_decides_a_row(self, folder, tmp_path):
        before = check_files(folder, "x")
        other = write_tiny_bert(tmp_path / "other", pooling="cls")
        found = check_files(other, "x")
        assert found.weights_sha256 == before.weights_sha256 and found.sha256 != before.sha256

    @pytest.mark.parametrize(
        ("file", "value"),
        [
            ("sentence_bert_config.json", {"max_seq_length": -5}),
            ("sentence_bert_config.json", {"max_seq_length": True}),
            ("sentence_bert_config.json", {"max_seq_length": 32, "do_lower_case": True}),
            ("sentence_bert_config.json", []),
            ("modules.json", {"type": "Transformer"}),
            ("modules.json", [{"type": "a.Transformer"}, {"type": "a.Dense"}]),
            ("modules.json", ["x", 3]),
            ("1_Pooling/config.json", []),
            ("sentence_bert_config.json", {"max_seq_length": 32, "transformer_task": "fill-mask"}),
            ("1_Pooling/config.json", {"pooling_mode_weightedmean_tokens": True}),
            ("1_Pooling/config.json", {"pooling_mode": "lasttoken"}),
            ("1_Pooling/config.json", {"pooling_mode": ["mean", "max"]}),
            ("1_Pooling/config.json", {"pooling_mode": "cls_token"}),
            ("modules.json", [{"type": "a.Transformer", "path": "0_Transformer"}]),
            (
                "modules.json",
                [{"type": "a.Transformer"}, {"type": "a.Pooling", "path": "5_Pooling"}],
            ),
            ("config_sentence_transformers.json", {"truncate_dim": 8}),
            (
                "config_sentence_transformers.json",
                {"default_prompt_name": "query", "prompts": {"query": "find: "}},
            ),
            ("tokenizer_config.json", {"truncation_side": "left"}),
            ("tokenizer_config.json", {"do_lower_case": False}),
            ("tokenizer_config.json", {"strip_accents": False}),
            ("sentence_bert_config.json", {"processing_kwargs": {"text": {"max_length": 16}}}),
            ("sentence_bert_config.json", {"module_output_name": "sentence_embedding"}),
            (
                "sentence_bert_config.json",
                {"modality_config": {"text": {"method_output_name": "pooler_output"}}},
            ),
            ("config.json", []),
            ("config.json", {"auto_map": {"AutoModel": "evil.Model"}}),
            ("config.json", {"_attn_implementation": "somebody/kernel"}),
            ("config.json", {"quantization_config": {"bits": 4}}),
            ("config.json", {"transformers_weights": "others.safetensors"}),
            ("config.json", {"return_dict": False}),
            ("config.json", {"max_position_embeddings": -5}),
            ("config.json", {"pad_token_id": -3}),
            ("config.json", {"hidden_size": "x"}),
            ("config.json", {"num_attention_heads": 0}),
            ("config.json", {"vocab_size": 3}),
        ],
    )
    def test_odd_settings_are_refused_and_nothing_is_added(self, odd, file, value):
        if file == "config.json" and value:
            edit_json(odd / file, **value)
        else:
            (odd / file).write_text(json.dumps(value))
        with refuses(ValueError, "odd"):
            add_encoder(odd)

    @pytest.mark.parametrize("pooling", ["mean", "cls", "max"])
    def test_folders_as_sentence_transformers_saves_them_since_version_5_4(self, tmp_path, pooling):
        """The length is in the tokeniser's settings, and pooling is named."""
        old = write_tiny_bert(tmp_path / "old", pooling=pooling, max_tokens=16)
        new = saved_since_5_4(old, tmp_path / "new", pooling)
        texts, rows = ["how to fund a company", "pays " * 40], opened(old).encode
        found = Encoder(add_encoder(new))
        assert np.array_equal(found.encode(texts), rows(texts)) and found.max_tokens == 16
        matrix = np.eye(3, found.width, dtype=np.float32)
        reduced = Encoder(encoders.add_reduced(found, matrix, {"source": "a test"}))
        assert reduced.max_tokens == 16
        np.testing.assert_allclose(reduced.encode(texts), rows(texts)[:, :3], atol=1e-7)
        settings = new / "tokenizer_config.json"
        for said, length in (({"model_max_length": int(1e30)}, 64), ({"max_len": 8}, 8), ({}, 64)):
            settings.write_text(json.dumps(said))
            assert check_files(new, "new").sha256 != found.files.sha256
            assert opened(new).max_tokens == length
        settings.write_text(json.dumps({"model_max_length": "many"}))
        with refuses(ValueError, "model_max_length 'many'"):
            add_encoder(new)

    def test_a_length_that_is_stated_is_the_length(self, tmp_path):
        """And the tokeniser's settings are not in the digest."""
        old = write_tiny_bert(tmp_path / "old", max_tokens=16)
        before = check_files(old, "old").sha256
        (old / "tokenizer_config.json").write_text(json.dumps({"model_max_length": 8}))
        assert opened(old).max_tokens == 16 and check_files(old, "old").sha256 == before
        (old / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": None}))
        assert opened(old).max_tokens == 8 and check_files(old, "old").sha256 != before

    def test_of_both_ways_to_say_the_pooling_the_newer_one_counts(self, odd):
        said = {"pooling_mode": "cls", "pooling_mode_mean_tokens": True}
        (odd / "1_Pooling/config.json").write_text(json.dumps(said))
        assert opened(odd).pooling == "cls"

    def test_modules_above_the_weights_are_not_passed_over(self, odd):
        """Published folders once had the model in a folder within."""
        outer = odd.rename(odd.parent / "0_Transformer").parent
        (outer / "0_Transformer" / "modules.json").rename(outer / "modules.json")
        with refuses(ValueError, "config.json"):
            add_encoder(outer)

    @pytest.mark.parametrize(
        ("changes", "name"),
        [
            ({"model": BPE | {"dropout": 0.5}}, "tokenizer.json"),
            ({"model": BPE | {"vocab": {"[UNK]": 0, "a": 1, "b": 1_000}}}, "1000"),
            ({"model": {"type": "WordLevel", "vocab": {}, "unk_token": "?"}}, "odd"),
        ],
    )
    def test_a_tokeniser_that_is_no_function_of_a_text_is_refused(self, odd, changes, name):
        edit_json(odd / "tokenizer.json", **{"post_processor": None, "added_tokens": [], **changes})
        with refuses(ValueError, name):
            add_encoder(odd)

    @pytest.mark.slow
    def test_a_text_that_a_tokeniser_cannot_bear_is_an_error_of_ours(self, folder, tmp_path):
        """Its pattern of exponential time ends in a panic; other texts' rows stay what they are."""
        odd = shutil.copytree(folder, tmp_path / "odd")
        pattern = {"type": "Split", "pattern": {"Regex": "(a+)+$"}}
        pattern |= {"behavior": "Isolated", "invert": False}
        edit_json(odd / "tokenizer.json", pre_tokenizer=pattern)
        encoder = Encoder(add_encoder(odd))
        before = encoder.encode(["taxes"])
        with refuses(ValueError, encoder.files.id):
            encoder.tokens([3 * "aaaaaaaaaaaaaaaaaaaaaaaaaaaa!"], at_most=4)
        np.testing.assert_array_equal(encoder.encode(["taxes"]), before)

    def test_a_stray_or_half_made_folder_hides_no_encoder(self, folder):
        found = add_encoder(folder, "n" * 47)
        for name in (".unpacked-abc", "backup-old", f".{found.id}.partial-x"):
            (encoders.encoders_dir() / name).mkdir()
        assert encoders.added_encoders() == (found,) and find_encoder(found.id) == found
        with refuses(ValueError, f"'{'n' * 48}'"):
            add_encoder(folder, "n" * 48)


@pytest.mark.slow
@pytest.mark.parametrize("positions", [20, 64])
def test_the_longest_text_fits_the_positions(tmp_path, positions):
    folder = write_tiny_bert(tmp_path / "tiny")
    (folder / "sentence_bert_config.json").unlink()
    name = "embeddings.position_embeddings.weight"
    weights(folder, lambda tensors: tensors.update({name: tensors[name][:positions].contiguous()}))
    edit_json(folder / "config.json", max_position_embeddings=positions)
    encoder = Encoder(add_encoder(folder))
    assert encoder.max_tokens == positions
    rows = encoder.encode(["a " * 500, "a " * 400, "a"])
    np.testing.assert_array_equal(rows[0], rows[1])


@pytest.mark.parametrize("given", ["a text", ["pay", float("nan")], ["pay", None]], ids=str)
def test_what_is_no_list_of_texts_is_refused(folder, given):
    """One text would be a row for each of its letters."""
    encoder, rows = opened(folder), np.zeros((len(given), 16), np.float32)
    calls = [encoder.encode, encoder.tokens, lambda texts: encode_texts(encoder, texts, rows)]
    for call in calls:
        with refuses(
            ValueError, repr(given) if isinstance(given, str) else type(given[1]).__name__
        ):
            call(given)
    assert not rows.any()


def test_a_lone_half_of_a_character_is_text(folder):
    assert np.isfinite(opened(folder).encode(["tax \ud800 law"])).all()
