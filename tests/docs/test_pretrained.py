"""The experiments of docs/pretrained.md, with a tiny encoder in the place of its own."""

import csv
import json
import re
import runpy
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch

import fedpriv as fp
from fedpriv.datasets.encoders import Encoder, add_encoder
from fedpriv.datasets.stackexchange.embeddings import make_embeddings
from fedpriv.models.lora import add_adapters
from tests.cli.typed import run
from tests.docs.shell_blocks import python
from tests.harness.command_line import fedpriv
from tests.harness.tiny_bert import write_tiny_bert
from tests.harness.toys_of_training import assert_same

PAGE = Path(__file__).parents[2] / "docs/pretrained.md"


if find_spec("transformers") is None:
    pytest.skip("the extra `pretrained` is not installed", allow_module_level=True)


def block(number, encoder):
    """A block of Python of the page's, with an encoder in the place of its own."""
    code = python(PAGE.read_text("utf-8"))[number]
    return re.sub(r'find_encoder\("[^"]+"\)', f'find_encoder("{encoder.files.id}")', code)


@pytest.fixture(autouse=True)
def encoder(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDPRIV_CACHE", str(tmp_path / "cache"))
    return Encoder(add_encoder(write_tiny_bert(tmp_path / "tiny")))


@pytest.mark.slow
def test_the_readmes_run_finds_the_corpus_by_itself(tiny_corpus, encoder, tmp_path, monkeypatch):
    monkeypatch.setenv("FEDPRIV_DATA", str(tiny_corpus.directory))
    command = ["run", "encoder-tags", "--rounds", "2", "--cohort", "6", "--out"]
    command += [tmp_path / "r", "-s", f"encoder={encoder.files.id}"]
    assert f"fedpriv encoder embed {encoder.files.id}" in fedpriv(*command).stderr
    assert not (tmp_path / "r").exists()
    make_embeddings(tiny_corpus, encoder, ("title",), processes=1)
    run(*command)


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.usefixtures("no_ray")
def test_the_pages_adapters_are_the_same_on_workers(encoder, tmp_path):
    """Each worker loads the frozen weights from its own copy of the files, and is sent none."""
    (tmp_path / "letters.py").write_text(block(3, encoder), "utf-8")
    named = f"{tmp_path / 'letters.py'}:experiment"
    here, there = fp.run(named), fp.run(named, backend="ray", workers=2)
    assert here.summary["rounds"] == 2 and any("lora_b" in name for name in here.params)
    assert any("lora_a" in name for name in here.params)
    assert_same(there.params, here.params)


@pytest.fixture
def posts(encoder, tmp_path, monkeypatch):
    """500 posts of 100 users, one without a label, beside the page's programs."""
    said = {"bug": "tax law", "praise": "how to start", "question": "fund a company"}
    rng, path = np.random.default_rng(0), tmp_path / "posts.csv"
    with path.open("w", encoding="utf-8", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["user", "text", "label"])
        for number in range(500):
            label = ("bug", "praise", "question")[int(rng.integers(3))]
            text = f"{said[label]}, {chr(97 + number % 26)}"
            rows.writerow([f"user-{number % 100}", text, label if number else ""])
    for place, name in enumerate(("posts.py", "predict.py")):
        (tmp_path / name).write_text(block(place, encoder), "utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "posts", raising=False)
    yield path
    sys.modules.pop("posts", None)


@pytest.mark.slow
def test_the_pages_csv_becomes_a_private_classifier(encoder, posts, capsys):
    """Words of a post say what it is, and the classifier learns more than one.

    3 labels alike: of about 100 public posts a classifier that learnt nothing names 33 of them.
    """
    names = runpy.run_path("posts.py", run_name="__main__")
    run, said = names["run"], capsys.readouterr().out
    assert "encoded 499 of 499 texts" in said and Path("runs/posts/report.html").is_file()
    assert run.epsilon.value <= 2.0 and run.epsilon.delta == 1e-4
    assert encoder.files.sha256 in json.dumps(run.corpus)
    assert run.summary["accuracy_public"] > 0.6
    runpy.run_path("predict.py")
    assert capsys.readouterr().out.partition(":")[0] in names["LABELS"]
    again = fp.resume("runs/posts", experiment=names["experiment"]())
    assert again.epsilon == run.epsilon and not capsys.readouterr().out  # rows were kept


def test_the_pages_lookup_leaves_out_public_rows_that_equal_a_rostered_users(encoder):
    rows = np.arange(12.0).reshape(4, 3)
    names = {"users": {"ann": (rows[:2], [0, 1])}, "public": (rows[1:], np.array([1, 2, 0]))}
    exec(block(2, encoder), names)
    np.testing.assert_array_equal(names["public"][0], rows[2:])
    assert names["public"][1].tolist() == [2, 0]


def test_the_pages_program_names_rows_before_anything_is_encoded(posts):
    read = runpy.run_path("posts.py")["read"]
    assert len(read()) == 499
    with posts.open("a", encoding="utf-8") as file:
        file.write('user-1,"two\nlines",bugg\n')
    with pytest.raises(SystemExit, match=r"'bugg'.*rows \[502\]"):
        read()
    posts.write_text("user;text;label\n", "utf-8")
    with pytest.raises(SystemExit, match="has no column label, text, user"):
        read()


def test_the_pages_sizes_are_those_of_the_models():
    """Of BERT-base's, as bge-base-en-v1.5 has them, and a head of 360 tags; and of GPT-2."""
    from transformers import BertConfig, BertModel, GPT2Config, GPT2LMHeadModel

    with torch.device("meta"):
        models = {
            16: (BertModel(BertConfig()), 360 * (768 + 1)),
            4: (GPT2LMHeadModel(GPT2Config()), 0),
        }
        rows = [line.split("|") for line in PAGE.read_text("utf-8").splitlines() if "| " in line]
        for column, (rank, (model, head)) in enumerate(models.items(), start=2):
            add_adapters(model, rank)
            trained = sum(p.numel() for p in model.parameters() if p.requires_grad) + head
            still = sum(p.nbytes for p in model.parameters() if not p.requires_grad) / 2**20
            said = {row[1].partition(",")[0].strip(): row[column].strip() for row in rows}
            assert said["params that are trained and sent"] == f"{trained:,}"
            assert said["weights that are not trained"] == f"{still:.0f} MB"
