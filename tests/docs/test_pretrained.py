"""The experiments of docs/pretrained.md, with a tiny encoder in the place of its own."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

import pytest

import fedpriv as fp
from fedpriv.datasets.encoders import Encoder, add_encoder
from fedpriv.datasets.stackexchange.embeddings import TEXTS, make_embeddings
from fedpriv.experiments.build import build
from tests.tiny_bert import write_tiny_bert

PAGE = Path(__file__).parents[2] / "docs/pretrained.md"


if find_spec("transformers") is None:
    pytest.skip("the extra `pretrained` is not installed", allow_module_level=True)


def block(number):
    """A block of Python of the page's."""
    return re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)[number]


@pytest.fixture(autouse=True)
def encoder(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDPRIV_CACHE", str(tmp_path / "cache"))
    return Encoder(add_encoder(write_tiny_bert(tmp_path / "tiny")))


def test_the_pages_experiment_is_built(tiny_corpus, encoder):
    titled = make_embeddings(tiny_corpus, encoder, TEXTS[:1], processes=1).rows
    own = f'encoder="{encoder.files.id}", encoder_texts="sentence"'
    code, number = re.subn(r'encoder="[^"]+", encoder_texts="title"', own, block(0))
    assert number == 1 and "sentence" in titled
    names = {}
    exec(code, names)
    task = build(names["experiment"](), tiny_corpus).task
    assert task.trainer.__self__ is task and task._encoded.num_rows == encoder.width


def test_the_pages_adapters_are_trained(encoder):
    code, number = re.subn(
        r'find_encoder\("[^"]+"\)', f'find_encoder("{encoder.files.id}")', block(1)
    )
    assert number == 1
    names = {}
    exec(code, names)
    run = fp.run(names["experiment"]())
    assert run.summary["rounds"] == 2 and any("lora_b" in name for name in run.params)
