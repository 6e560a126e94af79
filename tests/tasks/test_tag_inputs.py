"""Tag prediction with words weighted by rarity and with pairs: what is public, and one meaning."""

import numpy as np
import pytest

from fedpriv.checkpoints.vocabulary import VOCABULARY, read_vocabulary
from fedpriv.datasets.stackexchange.splits import BY_SENTENCE
from fedpriv.experiments.preconditioning import Frequency, Rank, TfIdf
from fedpriv.privacy.statement.coverage import private_knowledge
from fedpriv.report.export import TagModel
from fedpriv.rng import Key
from fedpriv.tasks.tag_prediction import TagPrediction
from fedpriv.training.algorithm import NO_CONTEXT
from fedpriv.training.local.schedule import LocalSgd
from tests.datasets.corpus.sentences import write
from tests.harness.toys_of_training import assert_same, drawn

RICHER = {
    "tf-idf": {"inputs": "tf-idf"},
    "pairs": {"inputs": "unit-norm", "pairs": 50},
    "both": {"inputs": "tf-idf", "tf_idf_power": 1.0, "pairs": 50, "pair_weight": 0.5},
}


def params_of(task):
    return drawn(task.init_params(Key.simulation(0)))


def vocabulary_of(task, folder):
    folder.mkdir()
    (folder / VOCABULARY).write_bytes(task.files()[VOCABULARY])
    return read_vocabulary(folder / VOCABULARY)


def test_weights_are_of_public_counts(tiny_corpus):
    view = tiny_corpus.view()
    task = TagPrediction(view, inputs="tf-idf", tf_idf_power=0.7)
    made = task.trainer(LocalSgd(learning_rate=1.0), {}).word_features
    for word in (0, 5, len(view.words) - 1):
        idf = np.log((1 + view.num_public_examples) / (1 + int(view.word_sentences[word])))
        assert made.weights[word] == pytest.approx(idf**0.7, rel=1e-6)
    assert len(set(made.weights.tolist())) > 5


@pytest.mark.parametrize("options", RICHER.values(), ids=RICHER)
def test_predicting_from_the_file_is_what_evaluation_measures(tiny_corpus, tmp_path, options):
    view = tiny_corpus.view()
    task = TagPrediction(view, **options)
    vocabulary, params = vocabulary_of(task, tmp_path / "model"), params_of(task)
    assert params["kernel"].shape == (vocabulary.num_rows, len(view.tags))
    model = TagModel(**params, vocabulary=vocabulary)
    right, top, loss, number = 0, 0, 0.0, 0
    for user in view.roster:
        examples = view.examples(user, "test")
        for row in range(len(examples)):
            own = slice(examples.indptr[row], examples.indptr[row + 1])
            tokens = [
                view.words[word]
                for word, count in zip(examples.indices[own], examples.counts[own], strict=True)
                for _ in range(count)
            ]
            ranked = model.rank(tokens, len(view.tags))
            label = view.tags[examples.labels[row]]
            right += ranked[0][0] == label
            loss -= np.log(dict(ranked)[label])
            tags = slice(examples.tag_indptr[row], examples.tag_indptr[row + 1])
            true = {view.tags[tag] for tag in examples.tag_indices[tags]}
            top += len(true & {tag for tag, _ in ranked[:5]})
            number += 1
    found = task.evaluate(params, public=False)
    assert found.num_examples == number > 100
    assert found.totals["accuracy"].sum == right
    assert found.totals["recall_at_5"].sum == top
    assert found.totals["loss"].sum == pytest.approx(loss, rel=1e-5)


@pytest.mark.parametrize("options", RICHER.values(), ids=RICHER)
def test_the_public_learner_learns_what_is_measured(tiny_corpus, monkeypatch, options):
    def learnt():
        task = TagPrediction(tiny_corpus.view(), **options)
        learner = task.public_learner(Key.simulation(3), choosing=False)
        passes = learner.passes(0.3)
        params = [{n: t.copy() for n, t in next(passes).items()} for _ in range(3)][-1]
        return learner, params

    learner, whole = learnt()
    loss = [learner.measure(params).totals["loss"] for params in (whole, learner.begun)]
    assert loss[0].sum < loss[1].sum and loss[0].count == loss[1].count > 10
    monkeypatch.setattr("fedpriv.training.public_learning.BATCH_EXAMPLES", 7)
    monkeypatch.setattr("fedpriv.tasks.tag_prediction.SCORED_EXAMPLES", 5)
    again, blocks = learnt()
    assert_same(blocks, whole)
    found, expected = again.measure(blocks).totals, learner.measure(whole).totals
    assert found["accuracy"] == expected["accuracy"]
    assert found["loss"].count == expected["loss"].count


def test_rows_of_pairs_are_as_the_rarest_words(tiny_corpus):
    task = TagPrediction(tiny_corpus.view(), inputs="unit-norm", pairs=50)
    plain = TagPrediction(tiny_corpus.view(), inputs="unit-norm")
    counts = plain.public_words().counts
    number, rarest = len(counts), int(np.argmin(counts))
    found = []
    for part in (Rank(preconditioner_top=10), Rank(), Frequency(), TfIdf()):
        side, of_words = part.make(task, "e"), part.make(plain, "e")
        rows, expected = side.multiplier["kernel"], of_words.multiplier["kernel"]
        assert rows.shape == (number + 50, 1) and rows.dtype == np.float32
        assert rows[:number].tolist() == expected.tolist()
        assert set(rows[number:, 0].tolist()) == {float(expected[rarest, 0])}
        assert "; pairs of words as the rarest word, from" in side.description
        found.append(float(rows[-1, 0]))
    assert found[0] == 200.0 and found[1] == 1.0 and found[2] > 1.0 and found[3] < 200.0
    rank = Rank(preconditioner_top=10).make(task, "e").multiplier
    key, schedule = Key.simulation(0), LocalSgd(learning_rate=1.0)
    examples = task.data.examples(task.roster[0])
    update = task.trainer(schedule, rank).train(params_of(task), NO_CONTEXT, examples, key)
    assert update["kernel"].num_rows == number + 50


def test_counts_of_rostered_users_are_said_to_be_private(tmp_path, tiny_corpus):
    words, tags = {"king": 9, "cash": 9, "is": 1}, {"law": 2}
    counts = {"words": words, "tags": tags}
    published = write(tmp_path / "c", published=counts).view(split=BY_SENTENCE)
    made = TagPrediction(published, inputs="tf-idf")
    said = private_knowledge("user", {"provenance": made.describe().provenance}, None)
    assert any(line.startswith("weights of the words (tf-idf) taken from") for line in said)
    assert "rostered users included" in made.describe().provenance["word_weights"]
    plain = TagPrediction(published, inputs="unit-norm").describe().provenance
    assert plain == published.provenance
    public = TagPrediction(tiny_corpus.view(), inputs="tf-idf").describe().provenance
    assert private_knowledge("user", {"provenance": public}, None) == ()
    assert public["word_weights"].endswith("from text that users outside the roster wrote")
