"""Tag prediction on rows of a pretrained encoder: whose text a row is of, and the dense trainer."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from importlib.util import find_spec

import numpy as np
import pytest
from scipy.special import softmax

import fedpriv as fp
from fedpriv.checkpoints.vocabulary import VOCABULARY, read_vocabulary
from fedpriv.datasets import encoders
from fedpriv.datasets.cache import cache_dir
from fedpriv.datasets.encoders import Encoder, add_encoder
from fedpriv.datasets.stackexchange import embeddings
from fedpriv.datasets.stackexchange.embeddings import (
    EncodedTexts,
    make_embeddings,
    open_embeddings,
    unit_rows,
)
from fedpriv.datasets.stackexchange.sentence_store import SentenceStore
from fedpriv.experiments.averaging import FederatedExperiment
from fedpriv.experiments.build import build
from fedpriv.experiments.tasks import EncodedTagPredictionTask
from fedpriv.mechanisms import Clip
from fedpriv.rng import Key
from fedpriv.tasks.central import by_example, kept_examples
from fedpriv.tasks.tag_prediction import TagPrediction, evaluate_tags
from fedpriv.training.algorithm import NO_CONTEXT
from fedpriv.training.local.schedule import LocalSgd
from tests.harness.refusals import refuses
from tests.harness.tiny_bert import write_tiny_bert
from tests.harness.toys_of_training import assert_same, drawn, example_sum

if find_spec("transformers") is None:
    pytest.skip("the extra `pretrained` is not installed", allow_module_level=True)

KEY = Key.simulation(5)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDPRIV_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def encoder(tmp_path):
    return Encoder(add_encoder(write_tiny_bert(tmp_path / "tiny")))


@pytest.fixture
def task(request, tiny_corpus, encoder):
    texts = getattr(request, "param", ("sentence",))
    made = make_embeddings(tiny_corpus, encoder, texts, processes=1)
    encoded = EncodedTexts(embeddings=made)
    return TagPrediction(tiny_corpus.view(), encoded=encoded)


def params_of(task):
    return drawn(task.init_params(KEY))


@pytest.mark.slow
def test_an_encoder_is_published_by_its_digest_of_users_and_of_their_examples(encoder, task):
    assert task.published == by_example(task, 3).published
    assert task.published == {encoder.files.id: encoder.files.sha256}


@pytest.mark.slow
def test_an_examples_row_is_its_own_sentences(tiny_corpus, encoder, task):
    store, view = SentenceStore(tiny_corpus.directory), tiny_corpus.view()
    words = store.all_names("words")
    known = {word: number for number, word in enumerate(view.words)}
    for user in (*view.roster[:5], *view.public_users[:2]):
        examples = view.examples(user, "all")
        numbers, lengths = store.sequences(examples.texts[:, 0])
        sentences = [
            [words[n] for n in part] for part in np.split(numbers, np.cumsum(lengths)[:-1])
        ]
        for row, sentence in enumerate(sentences):
            own = examples.indices[examples.indptr[row] : examples.indptr[row + 1]]
            assert {known[w] for w in sentence if w in known} <= set(own.tolist())  # and a title
        rows = encoder.encode([" ".join(sentence) for sentence in sentences])
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)
        np.testing.assert_allclose(task._encoded.dense(examples), rows, rtol=1e-6, atol=1e-7)


@pytest.mark.slow
@pytest.mark.parametrize("multiplier", [False, True], ids=["plain", "preconditioned"])
@pytest.mark.parametrize(
    "schedule",
    [
        LocalSgd(learning_rate=2.0),
        LocalSgd(learning_rate=1.0, batch_size=3, epochs=3),
        LocalSgd(learning_rate=1.0, batch_size=4, max_examples_per_user=5),
    ],
    ids=["one-step", "epochs", "capped"],
)
@pytest.mark.parametrize("task", [("sentence",), ("title",), ("title", "sentence")], indirect=True)
def test_dense_steps_are_those_of_a_plain_loop(task, schedule, multiplier):
    """Sentences of a thread share the row of its title."""
    rng = np.random.default_rng(0)
    factors = (
        rng.uniform(0.5, 2.0, len(task.init_params(KEY)["kernel"])).astype(np.float32)
        if multiplier
        else None
    )
    given = {} if factors is None else {"kernel": factors}
    dense, params = task.trainer(schedule, given), params_of(task)
    for user in task.roster[:10]:
        examples, key = task.data.examples(user), KEY.fold(user)
        found = dense.train(params, NO_CONTEXT, examples, key)
        generator = key.generator()
        chosen = schedule.choose(len(examples), generator)
        picked = examples.take(chosen)
        x, kernel = task._encoded.dense(picked), params["kernel"].astype(np.float64)
        for batch in schedule.batches(len(chosen), generator):
            residual = softmax(x[batch] @ kernel, axis=1)
            residual[np.arange(len(batch)), picked.labels[batch]] -= 1.0
            step = x[batch].T @ residual * (schedule.learning_rate / len(batch))
            kernel -= step if factors is None else step * factors[:, None]
        assert set(found) == {"kernel"} and found["kernel"].dtype == np.float32
        np.testing.assert_allclose(found["kernel"], kernel - params["kernel"], rtol=2e-4, atol=2e-6)


@pytest.mark.parametrize("task", [("title",)], indirect=True)
def test_an_update_is_the_same_bits_whatever_the_corpus_calls_a_thread(task):
    """A part of a corpus numbers its threads anew."""
    trainer, params = task.trainer(LocalSgd(learning_rate=1.0), {}), params_of(task)
    rows = task._encoded.embeddings.rows["title"].copy()
    turned = replace(
        task._encoded,
        embeddings=replace(task._encoded.embeddings, rows={"title": rows[::-1].copy()}),
    )
    other, seen = replace(trainer, inputs=turned.distinct), 0
    for user in task.roster[:10]:
        examples = task.data.examples(user)
        texts = examples.texts.copy()
        seen = max(seen, len(np.unique(texts[:, 1])))
        texts[:, 1] = len(rows) - 1 - texts[:, 1]
        found = trainer.train(params, NO_CONTEXT, examples, KEY)
        expected = other.train(params, NO_CONTEXT, replace(examples, texts=texts), KEY)
        assert_same(found, expected)
    assert seen > 2  # of one or two threads the order hardly shows


@pytest.mark.slow
def test_hostile_users_of_the_dense_trainer(task):
    dense, params = task.trainer(LocalSgd(learning_rate=1.0), {}), params_of(task)
    examples = task.data.examples(task.roster[0])
    none = dense.train(params, NO_CONTEXT, examples.take(np.arange(0)), KEY)
    assert not any(array.any() for array in none.values())
    for label in (-1, examples.num_tags):
        labels = np.full(len(examples), label, np.int32)
        with refuses(ValueError, "label"):
            dense.train(params, NO_CONTEXT, replace(examples, labels=labels), KEY)
    params["kernel"][:] = np.finfo(np.float32).max
    with pytest.raises(ValueError):
        dense.train(params, NO_CONTEXT, examples, KEY)


@pytest.mark.slow
def test_evaluation_is_of_the_dense_rows(task):
    params, view = params_of(task), task.view
    rows = view.public_rows("test")
    x = task._encoded.dense(view.columns.take(rows)).astype(np.float64)
    logits = x @ params["kernel"]
    expected = (logits.argmax(axis=1) == view.columns.labels[rows]).mean()
    assert task.evaluate(params, public=True).get("accuracy") == pytest.approx(expected)
    none = {"bias": np.zeros(logits.shape[1], np.float32)}
    plain = evaluate_tags(params | none, task.examples(rows), "unit-norm")
    assert plain.get("accuracy") == pytest.approx(expected)


def experiment_of(**options):
    return FederatedExperiment(
        name="own",
        description="Tags on rows of an encoder.",
        task=EncodedTagPredictionTask(**options),
        cohort=20.0,
        rounds=3,
        bound=Clip(l2_clip_norm=2.0),
        target_epsilon=8.0,
    )


@pytest.mark.slow
def test_a_run_says_which_encoder_it_had_and_needs_its_rows(tiny_corpus, encoder, tmp_path):
    experiment = experiment_of(encoder=encoder.files.id, encoder_texts="sentence")
    with refuses(ValueError, f"fedpriv encoder embed {encoder.files.id}"):
        build(experiment, tiny_corpus)
    made = make_embeddings(tiny_corpus, encoder, ("sentence",), processes=1)
    again = open_embeddings(tiny_corpus, encoder, ("sentence",))
    np.testing.assert_array_equal(made.rows["sentence"], again.rows["sentence"])
    result = fp.run(experiment, corpus=tiny_corpus.directory, out=tmp_path / "run")
    named = json.dumps(result.corpus)
    assert encoder.files.sha256 in named and "may include text of these users" in named
    assert f'"encoder_rows_made_by": "{made.made_by}"' in named
    stated = " ".join(str(result.statement).split())
    assert f"of an example's sentence (digest {encoder.files.sha256})." in stated
    kept = read_vocabulary(result.folder / VOCABULARY)
    assert kept.encoder.id == encoder.files.id and kept.num_rows == encoder.width
    with refuses(ValueError, encoder.files.id):
        kept.features(["tax"])


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({}, ["task.encoder"]),
        ({"encoder": "nothing-here"}, ["nothing-here"]),
        ({"encoder": "nothing-here", "inputs": "tf-idf"}, ["tf-idf"]),
        ({"encoder": "nothing-here", "pairs": 9}, [9]),
    ],
)
def test_what_does_not_fit_is_refused(tiny_corpus, options, names):
    with refuses(ValueError, *names):
        build(experiment_of(**options), tiny_corpus)


@pytest.mark.slow
def test_an_encoders_rows_are_no_words(task):
    with pytest.raises(ValueError):
        task.public_words()


@pytest.mark.slow
def test_damaged_rows_are_never_read_and_made_again_when_removed(tiny_corpus, encoder):
    made = make_embeddings(tiny_corpus, encoder, ("sentence",), processes=1).rows["sentence"].copy()
    (path,) = cache_dir().glob("embeddings/*/sentences.npy")
    path.write_bytes(path.read_bytes()[:-50])
    for call in (open_embeddings, make_embeddings):
        with refuses(ValueError, path):
            call(tiny_corpus, encoder, ("sentence",))
    path.unlink()
    again = make_embeddings(tiny_corpus, encoder, ("sentence",), processes=1).rows["sentence"]
    np.testing.assert_array_equal(again, made)


@pytest.mark.slow
def test_single_examples_have_the_gradient_of_their_row(task):
    """Of the kernel alone, clipped by its own norm: a bias would take a part of the bound."""
    params, clip = params_of(task), 0.01
    found = by_example(task, 2)
    place = task.roster.index("u07")
    kept = kept_examples("u07", task.data.num_examples("u07"), 2)
    row = task.view.all_rows(["u07"], "train")[kept[:1]]
    one = task.examples(row)
    x = np.asarray(one.features("unit-norm").todense())[0].astype(np.float64)
    residual = -softmax(x @ params["kernel"])
    residual[one.labels[0]] += 1.0
    expected = np.outer(x, residual)
    slots = np.array([2 * place])
    total = example_sum(found.train, params, slots, Clip(l2_clip_norm=clip))
    assert set(total) == {"kernel"}
    expected *= clip / np.linalg.norm(expected)
    np.testing.assert_allclose(total["kernel"], expected, rtol=1e-4, atol=1e-8)
    mean = found.train.gradient(params, slots)
    np.testing.assert_allclose(mean["kernel"], -np.outer(x, residual), rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_a_stop_is_gone_on_from_by_the_same_versions_alone(tiny_corpus, encoder, monkeypatch):
    """Rows of one array are of one build, whose versions a run names."""
    for module in (encoders, embeddings):
        monkeypatch.setattr(module, "CHUNK", 64)
    make = partial(make_embeddings, tiny_corpus, encoder, ("sentence",), processes=1)
    made = make()
    expected, names = made.rows["sentence"].copy(), encoders.library_versions()
    assert made.made_by == ", ".join(f"{name} {names[name]}" for name in sorted(names))
    (path,) = cache_dir().glob("embeddings/*/sentences.npy")

    def begun():
        """Three chunks that were written, of other numbers, and a part of the next one."""
        start = path.stat().st_size - expected.nbytes
        content = path.read_bytes()[:start] + np.full_like(expected[:200], -1.0).tobytes()
        path.with_name("sentences.npy.part").write_bytes(content)
        path.unlink()

    begun()
    with refuses(ValueError, "fedpriv encoder embed"):
        open_embeddings(tiny_corpus, encoder, ("sentence",))
    again = make().rows["sentence"]
    assert (again[:128] == -1.0).all() and np.array_equal(again[128:], expected[128:])
    begun()
    path.with_name("sentences.json").write_text(json.dumps({**names, "torch": "0.1"}), "utf-8")
    again = make()
    np.testing.assert_array_equal(again.rows["sentence"], expected)
    assert again.made_by == made.made_by


def test_rows_of_any_finite_length_get_unit_norm():
    """Also where their squares are beyond float32."""
    sizes = np.array([1e-44, 1e-30, 1e-19, 1e-10, 1.0, 3e18, 3e19, 1e38], np.float32)
    rows = sizes[:, None] * np.array([[1.0, -2.0, 0.0, 1.0]], np.float32)
    norms = np.linalg.norm(unit_rows(rows).astype(np.float64), axis=1)
    np.testing.assert_allclose(norms, 1.0, rtol=1e-6)
    assert unit_rows(rows).dtype == np.float32
    assert not unit_rows(np.zeros((2, 4), np.float32)).any()
