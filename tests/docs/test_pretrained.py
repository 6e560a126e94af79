"""The experiment of docs/pretrained.md, with a tiny encoder in the place of its own."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

import pytest

from fedpriv.datasets.encoders import Encoder, add_encoder
from fedpriv.datasets.stackexchange.embeddings import TEXTS, make_embeddings
from fedpriv.experiments.build import build
from tests.tiny_bert import write_tiny_bert

PAGE = Path(__file__).parents[2] / "docs/pretrained.md"


@pytest.mark.skipif(find_spec("transformers") is None, reason="needs the extra `pretrained`")
def test_the_pages_experiment_is_built(tiny_corpus, tmp_path, monkeypatch):
    monkeypatch.setenv("FEDPRIV_CACHE", str(tmp_path / "cache"))
    (block,) = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    encoder = Encoder(add_encoder(write_tiny_bert(tmp_path / "tiny")))
    titled = make_embeddings(tiny_corpus, encoder, TEXTS[:1], processes=1).rows
    own = f'encoder="{encoder.files.id}", encoder_texts="sentence"'
    code, number = re.subn(r'encoder="[^"]+", encoder_texts="title"', own, block)
    assert number == 1 and "sentence" in titled
    names = {}
    exec(code, names)
    task = build(names["experiment"](), tiny_corpus).task
    assert task.trainer.__self__ is task and task._encoded.num_rows == encoder.width
