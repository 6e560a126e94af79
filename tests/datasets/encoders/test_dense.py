"""Dense modules behind an encoder's pooling, and encoders reduced to fewer dimensions by one."""

import json
import shutil
from dataclasses import replace
from importlib.util import find_spec
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from fedpriv.datasets import encoders
from fedpriv.datasets.encoders import Encoder, add_encoder, check_files, find_encoder
from fedpriv.datasets.stackexchange.corpus import Corpus
from fedpriv.datasets.stackexchange.embeddings import make_embeddings, reduce_encoder, unit_rows
from fedpriv.datasets.stackexchange.parts import cut_corpus
from fedpriv.datasets.stackexchange.rosters import RosterSpec
from fedpriv.experiments.load import load_experiment
from fedpriv.experiments.tasks import EncodedTagPredictionTask
from fedpriv.tasks.pretrained import PretrainedClassifier
from tests.datasets.corpus.sentences import said, write
from tests.harness.command_line import fedpriv
from tests.harness.refusals import refuses
from tests.harness.resealed import edit_json
from tests.harness.tiny_bert import write_tiny_bert

if find_spec("transformers") is None:
    pytest.skip("the extra `pretrained` is not installed", allow_module_level=True)

TEXTS = ["", "tax", "how to start a company", "pay the tax " * 3, "law " * 40, "zq xv"]
IDENTITY, TANH = "torch.nn.modules.linear.Identity", "torch.nn.modules.activation.Tanh"
KIND, WEIGHT = "sentence_transformers.models.", "linear.weight"


def write_dense(folder, order, activation=IDENTITY, *, bias=False, width=16, to=5):
    """Write a tiny BERT with modules in this order; return its folder and the Dense tensors."""
    write_tiny_bert(folder)
    paths = [f"{place}_{kind}" if place else "" for place, kind in enumerate(order)]
    modules = [{"path": p, "type": KIND + k} for p, k in zip(paths, order, strict=True)]
    (folder / "modules.json").write_text(json.dumps(modules))
    own = folder / next(path for path in paths if path.endswith("Dense"))
    own.mkdir()
    draw = np.random.default_rng(3)
    tensors = {"linear.weight": torch.from_numpy(draw.normal(size=(to, width)).astype("f4"))}
    if bias:
        tensors["linear.bias"] = torch.from_numpy(draw.normal(size=to).astype("f4"))
    save_file(tensors, own / "model.safetensors")
    settings = {"in_features": width, "out_features": to, "bias": bias}
    (own / "config.json").write_text(json.dumps(settings | {"activation_function": activation}))
    return folder, {name: tensor.numpy() for name, tensor in tensors.items()}


NORMALISED_FIRST = ("Transformer", "Pooling", "Normalize", "Dense")
NORMALISED_LAST = ("Transformer", "Pooling", "Dense", "Normalize")


@pytest.mark.parametrize(
    "order", [NORMALISED_FIRST, NORMALISED_LAST, NORMALISED_FIRST[:2] + NORMALISED_FIRST[3:]]
)
@pytest.mark.parametrize(("activation", "bias"), [(IDENTITY, False), (TANH, True)])
def test_rows_are_those_of_the_definition(tmp_path, order, activation, bias):
    folder, tensors = write_dense(tmp_path / "tiny", order, activation, bias=bias)
    plain = write_tiny_bert(tmp_path / "plain", normalised=False)
    rows = Encoder(check_files(plain, "plain")).encode(TEXTS)
    for module in order[2:]:
        if module == "Normalize":
            rows = unit_rows(rows)
        else:
            rows = rows @ tensors["linear.weight"].T + tensors.get("linear.bias", 0)
            rows = np.tanh(rows) if activation == TANH else rows
    encoder = Encoder(add_encoder(folder))
    assert encoder.width == 5 and encoder.normalised == (order[-1] == "Normalize")
    np.testing.assert_allclose(encoder.encode(TEXTS), rows, atol=2e-6)
    assert find_encoder(encoder.files.id) == encoder.files


@pytest.mark.parametrize("file", ["config.json", "model.safetensors"])
def test_the_digest_is_of_the_files_of_dense_modules(tmp_path, file):
    folder, _ = write_dense(tmp_path / "tiny", NORMALISED_FIRST)
    found = add_encoder(folder)
    path = found.folder / "3_Dense" / file
    if file == "config.json":
        path.write_text(path.read_text().replace(IDENTITY, TANH))
    else:
        save_file({n: 2 * t for n, t in load_file(path).items()}, path)
    with refuses(ValueError, found.folder, found.id):
        find_encoder(found.id)


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"activation_function": "torch.nn.modules.activation.ReLU"}, ["ReLU", IDENTITY, TANH]),
        ({"activation_function": None}, ["None", IDENTITY, TANH]),
        ({"in_features": 8}, ["in_features 8", 16]),
        ({"out_features": 0}, ["out_features 0"]),
        ({"out_features": "5"}, ["out_features '5'"]),
        ({"out_features": 6}, ["linear.weight", "[5, 16]"]),
        ({"bias": True}, ["linear.bias"]),
        ({"bias": "no"}, ["bias 'no'"]),
        ({"use_residual": True}, ["use_residual True"]),
        ({"module_input_name": "token_embeddings"}, ["'token_embeddings'"]),
        ({"scale": 2.0}, ["scale 2.0"]),
    ],
)
def test_other_settings_are_refused_in_a_line(tmp_path, changes, names):
    folder, _ = write_dense(tmp_path / "tiny", NORMALISED_FIRST)
    edit_json(folder / "3_Dense/config.json", **changes)
    with refuses(ValueError, "3_Dense", *names) as error:
        add_encoder(folder)
    assert "\n" not in str(error.value)
    assert encoders.added_encoders() == ()


@pytest.mark.parametrize(
    ("damage", "name"),
    [
        (lambda path: path.write_bytes(path.read_bytes()[:-8]), "3_Dense/model.safetensors"),
        (lambda path: save_file({WEIGHT: torch.full((5, 16), torch.nan)}, path), "3_Dense"),
        (lambda path: save_file({"weight": torch.ones(5, 16)}, path), WEIGHT),
        (Path.unlink, "3_Dense/model.safetensors"),
        (lambda path: path.rename(path.with_name("pytorch_model.bin")), "pytorch_model.bin"),
    ],
    ids=["cut", "not-finite", "other-name", "missing", "pickled"],
)
def test_damaged_weights_are_refused(tmp_path, damage, name):
    folder, _ = write_dense(tmp_path / "tiny", NORMALISED_FIRST)
    damage(folder / "3_Dense/model.safetensors")
    with refuses(ValueError, name):
        add_encoder(folder)


@pytest.mark.parametrize(
    ("modules", "name"),
    [
        ([("Dense", "3_Dense")], "Dense"),
        ([("Dense", "3_Dense"), ("Pooling", "1_Pooling")], "Dense"),
        ([("Pooling", "1_Pooling"), ("Dense", "../3_Dense")], "'../3_Dense'"),
        ([("Pooling", "1_Pooling"), ("Dense", None)], "None"),
        ([("Pooling", "1_Pooling"), ("LayerNorm", "3_Dense")], "LayerNorm"),
        ([("Pooling", "1_Pooling"), ("Dense", "3_Dense"), ("Dense", "3_Dense")], "3_Dense"),
    ],
)
def test_modules_elsewhere_twice_or_in_another_order_are_refused(tmp_path, modules, name):
    folder, _ = write_dense(tmp_path / "tiny", NORMALISED_FIRST)
    listed = [{"path": path, "type": KIND + kind} for kind, path in [("Transformer", ""), *modules]]
    (folder / "modules.json").write_text(json.dumps(listed))
    with refuses(ValueError, "modules.json", name):
        add_encoder(folder)


def test_adapters_refuse_an_encoder_with_dense_modules(tmp_path):
    """A classifier's rows would be the model's without them."""
    folder, _ = write_dense(tmp_path / "tiny", NORMALISED_LAST)
    with refuses(ValueError, "2_Dense"):
        PretrainedClassifier(files=check_files(folder, "tiny"), num_classes=2)()


WORDS = ("company", "start", "fund", "tax", "law", "pay")
TITLES = [f"how to {a} the {b}" for a, b in product(WORDS, WORDS) if a != b]


def write_corpus(
    folder, rostered="start a company", *, users=6, public=TITLES, few=("u0", "u1"), **description
):
    """Write a corpus of 12 public users, who ask and answer rostered users' questions."""
    rows = [
        replace(
            said(f"p{number % 12:02d}", "law pays", f"t{number % 3}", title), thread=f"p{number}"
        )
        for number, title in enumerate(public)
    ]
    for number in range(users):
        asker, title = f"u{number}", f"{rostered} {WORDS[number]}"
        rows += [
            replace(said(asker, "tax", "t0", title), thread=asker),
            replace(said(f"p{number:02d}", "tax", "t0", title, False, asker), thread=asker),
        ]
    rosters = [
        RosterSpec(name=name, rule="declared", ids=ids)
        for name, ids in (("all", [f"u{n}" for n in range(6)]), ("few", few))
    ]
    return write(folder, rows, rosters, **{"name": "c", **description})


def reduced(corpus, folder, dimensions=4, **settings):
    encoder = Encoder(add_encoder(folder))
    make_embeddings(corpus, encoder, ("title",), processes=1)
    return encoder, reduce_encoder(corpus, encoder, dimensions, **settings)


@pytest.mark.parametrize("normalised", [False, True])
def test_rows_are_first_principal_components_of_public_titles(tmp_path, normalised):
    corpus = write_corpus(tmp_path / "c")
    tiny = write_tiny_bert(tmp_path / "tiny", normalised=normalised)
    encoder, found = reduced(corpus, tiny)
    _, _, wanted = np.linalg.svd(unit_rows(encoder.encode(TITLES)).astype(float))
    wanted = wanted[:4] * np.sign(wanted[np.arange(4), np.abs(wanted[:4]).argmax(1)])[:, None]
    made = Encoder(found)
    np.testing.assert_allclose(made._steps[-1].linear.weight.detach(), wanted, atol=1e-4)
    assert made.width == 4 and found.name == "tiny-4"
    np.testing.assert_allclose(made.encode(TEXTS), encoder.encode(TEXTS) @ wanted.T, atol=1e-4)
    make_embeddings(corpus, made, ("title",), processes=1)
    again = reduce_encoder(corpus, made, 2, name="again")
    assert Encoder(again).modules[-2:] == (made.modules[-1], f"{len(made.modules)}_Dense")


def test_what_rostered_users_wrote_changes_no_byte(tmp_path):
    """Their titles, under which public users answered, sentences, and whether there are any.

    A public user's title is of the file.
    """
    tiny, made = write_tiny_bert(tmp_path / "tiny"), []
    others = {"b": {"rostered": "fund the law"}, "c": {"users": 0}, "d": {"public": TITLES[1:]}}
    for name, changes in {"a": {}, **others}.items():
        _, found = reduced(write_corpus(tmp_path / name, **changes), tiny)
        files = (path for path in found.folder.rglob("*") if path.is_file())
        made.append((found.id, {path.name: path.read_bytes() for path in files}))
        shutil.rmtree(found.folder)
    assert made[0] == made[1] == made[2]
    assert made[0][0] != made[3][0]
    about = json.loads(made[0][1]["modules.json"])[-1]["made_from"]
    assert (about["titles"], about["corpus"], about["roster"]) == (len(TITLES), "c", "all")
    assert about["encoder"] == add_encoder(tiny).id


def test_an_encoder_of_three_files_is_reduced(tmp_path):
    """It has neither modules nor pooling; the reduced one lists both, for whoever else reads it."""
    bare = write_tiny_bert(tmp_path / "bare")
    shutil.rmtree(bare / "1_Pooling")
    (bare / "modules.json").unlink()
    encoder = Encoder(add_encoder(bare))
    matrix = np.eye(3, encoder.width, k=1, dtype=np.float32)
    reduced = Encoder(encoders.add_reduced(encoder, matrix, {"source": "a test"}))
    assert reduced.modules == ("Transformer", "Pooling", "2_Dense") and reduced.pooling == "mean"
    texts = ["how to fund a company", "pay the tax"]
    np.testing.assert_allclose(
        reduced.encode(texts), encoder.encode(texts)[:, 1:4], rtol=0, atol=1e-6
    )


def test_a_reduced_encoder_is_added_from_its_folder_elsewhere(tmp_path, monkeypatch):
    _, found = reduced(write_corpus(tmp_path / "c"), write_tiny_bert(tmp_path / "tiny"))
    monkeypatch.setenv("FEDPRIV_CACHE", str(tmp_path / "other"))
    there = add_encoder(found.folder, found.name)
    assert there.id == found.id and there.folder != found.folder
    np.testing.assert_array_equal(Encoder(there).encode(TEXTS), Encoder(found).encode(TEXTS))


@pytest.mark.parametrize("other", [None, "all"])
def test_components_of_users_on_the_roster_are_refused(tmp_path, other):
    """Who is public for the smaller roster may be on the larger one."""
    corpus = write_corpus(tmp_path / "c")
    _, found = reduced(corpus, write_tiny_bert(tmp_path / "tiny"), roster="few")
    make_embeddings(corpus, Encoder(found), ("title",), processes=1)
    experiment = load_experiment("encoder-tags")
    task = EncodedTagPredictionTask(encoder=found.id, roster="few")
    assert len(task(experiment, corpus).roster) == 2
    with refuses(ValueError, "'few'"):
        replace(task, roster=other)(experiment, corpus)


@pytest.mark.parametrize(("name", "twice"), [("c", False), ("another", False), ("c", True)])
def test_components_are_of_a_roster_and_not_of_its_name(tmp_path, name, twice):
    """Another list of ids that is called alike: users whose titles were taken are on it.

    So they are where the encoder was reduced again, for the list that it is used with.
    """
    _, found = reduced(write_corpus(tmp_path / "c"), write_tiny_bert(tmp_path / "t"), roster="few")
    there = write_corpus(tmp_path / "d", name=name, few=("u2", "u3"))
    make_embeddings(there, Encoder(found), ("title",), processes=1)
    if twice:
        found = reduce_encoder(there, Encoder(found), 2, roster="few")
        make_embeddings(there, Encoder(found), ("title",), processes=1)
    task = EncodedTagPredictionTask(encoder=found.id, roster="few")
    with refuses(ValueError, "'few'"):
        task(load_experiment("encoder-tags"), there)


@pytest.mark.slow
@pytest.mark.parametrize("roster", ["few", "all"])
def test_on_parts_of_a_corpus_components_are_of_the_wholes_roster(tmp_path, roster):
    """A node's part lists its own users alone."""
    corpus = write_corpus(tmp_path / "c")
    _, found = reduced(corpus, write_tiny_bert(tmp_path / "tiny"), roster="few")
    folder = cut_corpus(corpus, tmp_path / "parts", nodes=2, roster=roster).folder
    task = EncodedTagPredictionTask(encoder=found.id)
    for part, users in (("node-1", 1), ("server", 2)):
        here = Corpus.open(folder / part)
        make_embeddings(here, Encoder(found), ("title",), processes=1)
        if roster == "few":
            assert len(task(load_experiment("encoder-tags"), here).roster) == users
        else:
            with refuses(ValueError, "'few'"):
                task(load_experiment("encoder-tags"), here)


def test_the_command_adds_an_encoder_that_embeds(tmp_path):
    corpus, encoder = write_corpus(tmp_path / "c"), add_encoder(write_tiny_bert(tmp_path / "tiny"))
    command = ("encoder", "reduce", encoder.id, "--dimensions", "3", "--corpus", corpus.directory)
    missing = fedpriv(*command)
    assert missing.exit_code and f"fedpriv encoder embed {encoder.id}" in missing.stderr
    make_embeddings(corpus, Encoder(encoder), ("title",), processes=1)
    done = fedpriv(*command, "--roster", "all", "--name", "few", "--json")
    facts = json.loads(done.stdout)
    assert facts["width"] == 3 and facts["id"].startswith("few-")
    found = Encoder(find_encoder(facts["id"]))
    rows = make_embeddings(corpus, found, ("title",), processes=1).rows["title"]
    assert rows.shape[1] == 3


@pytest.mark.parametrize(
    ("dimensions", "public"), [(0, TITLES), (17, TITLES), (-1, TITLES), (8, TITLES[:7])]
)
def test_dimensions_that_there_are_not_are_refused(tmp_path, dimensions, public):
    corpus, tiny = write_corpus(tmp_path / "c", public=public), write_tiny_bert(tmp_path / "tiny")
    with refuses(ValueError, dimensions, 16, len(public)):
        reduced(corpus, tiny, dimensions)


def test_a_corpus_without_titles_is_refused(tmp_path):
    corpus = write_corpus(tmp_path / "c", own_text_only=True)
    encoder = Encoder(add_encoder(write_tiny_bert(tmp_path / "tiny")))
    with refuses(ValueError, "--own-text-only"):
        reduce_encoder(corpus, encoder, 2)
