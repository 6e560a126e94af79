"""Exported models of an encoder's rows: asked with a text, they answer as the run's task does."""

from dataclasses import replace
from importlib.util import find_spec

import numpy as np
import pytest

import fedpriv as fp
from fedpriv.datasets.encoders import Encoder, add_encoder, added_encoders, encoders_dir
from fedpriv.datasets.stackexchange.embeddings import make_embeddings
from fedpriv.datasets.stackexchange.sentence_store import TEXTS
from fedpriv.experiments import FederatedExperiment, GaussianNoise
from fedpriv.experiments.build import build
from fedpriv.experiments.tasks import EncodedTagPredictionTask
from fedpriv.mechanisms import Clip
from fedpriv.report.export import export_run, load_model
from tests.harness.tiny_bert import write_tiny_bert
from tests.running.selected import topical

if find_spec("transformers") is None:
    pytest.skip("the extra `pretrained` is not installed", allow_module_level=True)


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    root = tmp_path_factory.mktemp("encoders")
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("FEDPRIV_CACHE", str(root / "cache"))
        yield root


@pytest.fixture(scope="module")
def corpus(cache):
    made = topical.make_in_letters(cache / "corpus")
    make_embeddings(made, Encoder(add_encoder(write_tiny_bert(cache / "tiny"))), processes=1)
    return made


@pytest.fixture(params=["title", "sentence", "both"])
def trained(request, corpus, cache, tmp_path):
    """What the model has rows of, its task, its params and its export."""
    (encoder,) = encoders_dir().glob("tiny-*")
    experiment = FederatedExperiment(
        name="own", description="Tags on rows of an encoder.", rounds=1,
        task=EncodedTagPredictionTask(encoder=encoder.name, encoder_texts=request.param),
        cohort=20.0, bound=Clip(l2_clip_norm=2.0),
        noise=GaussianNoise(multiplier=1.0),
    )  # fmt: skip
    run = fp.run(experiment, corpus=corpus.directory, out=tmp_path / "run")
    export_run(tmp_path / "run", tmp_path / "model")
    return request.param, build(experiment, corpus).task, run.params, tmp_path / "model"


@pytest.mark.slow
def test_a_text_has_the_probabilities_of_its_example(trained, corpus):
    texts, task, params, folder = trained
    (encoder,) = added_encoders()
    model, view = replace(load_model(folder), encode=Encoder(encoder).encode), task.view
    kept = [corpus.texts(kind) for kind in TEXTS]
    examples = view.examples(view.public_users[0], "all")
    x = task.features_of(view).dense(examples).astype(np.float64)
    logits = x @ params["kernel"]
    expected = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    seen = set()
    for row, places in enumerate(examples.texts.tolist()):
        sentence, title = (k[place].split() for k, place in zip(kept, places, strict=True))
        given = {"title": title} if texts == "both" else {}
        asked = title if texts == "title" else sentence
        found = model.rank(asked, len(view.tags), **given)
        by_tag = [dict(found)[tag] for tag in view.tags]
        np.testing.assert_allclose(by_tag, expected[row], rtol=1e-6)
        seen.add(tuple(by_tag))
    assert len(seen) > 3
