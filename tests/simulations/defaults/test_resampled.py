"""Resampled corpora: who is in them, and that nothing held out is trained on in any copy."""

from collections import Counter
from importlib.util import find_spec
from itertools import pairwise

import numpy as np
import pytest

from fedpriv.datasets.encoders import add_encoder
from fedpriv.datasets.importers.writer import CorpusDescription, Sentence, write_corpus
from fedpriv.datasets.stackexchange.rosters import RosterSpec
from fedpriv.datasets.stackexchange.splits import NUM_FOLDS, Split
from fedpriv.experiments.load import load_experiment
from simulations.defaults import evaluation, resampled
from tests.harness.refusals import refuses
from tests.harness.tiny_bert import write_tiny_bert

PUBLIC, ROSTERED = [f"p{i:02d}" for i in range(40)], [f"u{i:02d}" for i in range(5)]
COPIES = 90


def make_source(folder, users=(*PUBLIC, *ROSTERED)):
    """A corpus in which everybody asks four threads and answers six of others, twice each."""
    about = CorpusDescription(
        name="askers-synthetic", synthetic=True, source={"kind": "test"}, licence="CC0-1.0",
        credit="nobody", max_words=300, max_tags=6,
    )  # fmt: skip
    rng = np.random.default_rng(0)
    sentences = []
    for user in users:
        threads = [(user, number) for number in range(4)]
        threads += [(str(rng.choice(users)), int(rng.integers(4))) for _ in range(6)]
        for asker, number in threads:
            tag = f"tag{(sum(map(ord, asker)) + number) % 6}"
            sentences += [
                Sentence(
                    user_id=user,
                    tokens=["by", user, "in", f"{asker}-{number}", again, "once", "more"],
                    title_tokens=["about", tag, f"{asker}-{number}"],
                    tags=["common", tag],
                    own_title=asker == user,
                    title_user_id=asker,
                    thread=f"{asker}-{number}",
                    day=number,
                    kind="question" if asker == user else "answer",
                )
                for again in ("once", "again")
            ]
    roster = RosterSpec(name="few", rule="declared", ids=ROSTERED)
    return write_corpus(folder, about, sentences, [roster], "few")


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return make_source(tmp_path_factory.mktemp("source") / "c")


@pytest.fixture(scope="module")
def corpus(source, tmp_path_factory):
    return resampled.corpus(tmp_path_factory.mktemp("resampled"), source, COPIES, seed=1)


def rows_of(view, users, subset):
    return np.concatenate(list(view.rows(users, subset)))


def said(corpus, view, user):
    """Return a user's sentences in all threads, each with its title, as often as it has them."""
    sentences, titles = corpus.texts("sentence"), corpus.texts("title")
    rows, threads = view.columns.take(rows_of(view, [user], "all")).texts.T.tolist()
    return Counter(
        (titles[thread], sentences[row]) for row, thread in zip(rows, threads, strict=True)
    )


def original(user):
    return user.rpartition("-")[2]


@pytest.mark.parametrize(
    "fold", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in range(1, NUM_FOLDS))]
)
@pytest.mark.parametrize("measured_on", ["test", "validation"])
def test_nothing_held_out_is_trained_on_in_any_copy(corpus, fold, measured_on):
    """Red if copies have threads of their own."""
    view = corpus.view(split=Split(fold=fold, measured_on=measured_on, selecting=True))
    everybody = (*view.roster, *view.public_users)
    sentences, titles = corpus.texts("sentence"), corpus.texts("title")
    trained, held = (
        {
            (titles[thread], sentences[row].partition(" in ")[2])
            for row, thread in view.columns.take(rows_of(view, everybody, subset)).texts.tolist()
        }
        for subset in ("train", measured_on)
    )
    assert trained and held and not trained & held
    # And rostered users train on no thread that a public user asked.
    judged = set(view.threads[view.public_rows("all")].tolist())
    assert judged and not judged & set(view.threads[rows_of(view, view.roster, "train")].tolist())


def test_public_users_and_originals_share_nobody_and_nobody_is_of_the_source_s_roster(corpus):
    view = corpus.view()
    assert len(view.roster) == COPIES and len(view.public_users) == len(PUBLIC) // 4
    originals = {original(user) for user in view.roster}
    assert len(originals) > 20  # of thirty, drawn 90 times
    assert not originals & set(view.public_users)
    assert originals | set(view.public_users) <= set(PUBLIC)


@pytest.mark.slow
def test_a_copy_has_whole_threads_of_its_original_as_often_as_they_were_drawn(source, corpus):
    """Red if repeats are left out, or sentences of a thread are drawn one by one."""
    whole, view = source.view(), corpus.view()
    for user in view.public_users:
        assert said(corpus, view, user) == said(source, whole, user)
    differ = 0
    for user in view.roster:
        own, copied = said(source, whole, original(user)), said(corpus, view, user)
        assert copied.keys() <= own.keys()
        times = {}
        for text, number in copied.items():
            times.setdefault(text[0], set()).add(number / own[text])
        assert all(len(found) == 1 and min(found) >= 1 for found in times.values())
        threads = {title for title, _ in own}
        assert sum(number for (number,) in times.values()) == len(threads)
        assert {text for text in own if text[0] in times} == copied.keys()
        differ += copied != own
    assert differ > COPIES / 2
    copies = sorted(view.roster, key=original)
    assert any(
        original(one) == original(other)
        and said(corpus, view, one) != said(corpus, view, other)
        for one, other in pairwise(copies)
    )  # fmt: skip


def test_a_thread_is_public_where_a_public_user_asked_it(corpus):
    """Red if every asker, or none, is taken over."""
    view = corpus.view()
    titles, public = corpus.texts("title"), set(view.public_users)
    rows = rows_of(view, view.public_users, "all")
    askers = {
        row: titles[thread].rpartition(" ")[2].partition("-")[0]
        for row, thread in zip(rows.tolist(), view.threads[rows].tolist(), strict=True)
    }
    of_public = {row for row, asker in askers.items() if asker in public}
    assert set(view.public_rows("all").tolist()) == of_public
    assert 0 < len(of_public) < len(rows)


def test_a_seed_gives_the_same_corpus_and_another_seed_another(source, corpus, tmp_path):
    same = resampled.corpus(tmp_path, source, COPIES, seed=1)
    assert same.content_sha256 == corpus.content_sha256
    assert same.view().roster == corpus.view().roster
    other = resampled.corpus(tmp_path, source, COPIES, seed=2)
    assert other.view().public_users != corpus.view().public_users
    written = same.directory / "manifest.json"
    before = written.stat().st_mtime_ns
    resampled.corpus(tmp_path, source, COPIES, seed=1)
    assert written.stat().st_mtime_ns == before


def test_a_source_with_few_public_users_is_refused(tmp_path):
    few = make_source(tmp_path / "c", users=(*PUBLIC[:3], *ROSTERED))
    with refuses(ValueError, 3, 4):
        resampled.corpus(tmp_path, few, 10)


@pytest.mark.slow
@pytest.mark.skipif(find_spec("transformers") is None, reason="no extra `pretrained`")
def test_a_run_on_one_is_on_the_page(source, tmp_path, monkeypatch):
    monkeypatch.setenv("FEDPRIV_CACHE", str(tmp_path / "cache"))
    own = {"encoder": add_encoder(write_tiny_bert(tmp_path / "tiny")).id, "rounds": 3}
    named = []
    monkeypatch.setattr(evaluation, "resolve_corpus", lambda name, **_: source)
    monkeypatch.setattr(
        evaluation,
        "load_experiment",
        lambda name: named.append(name) or load_experiment(name).with_options(own),
    )
    evaluation.reproduce(
        study="resampled", seeds=2, sizes=(40,), epsilons=(8.0,), corpora=str(tmp_path),
        out=tmp_path / "page.md",
    )  # fmt: skip
    page = (tmp_path / "page.md").read_text("utf-8")
    section = page.partition("## An encoder's rows of resampled real text")[2]
    assert "of 2 returned models were below" in section and "\n| 40 | 8 | 2 |" in section
    assert named == ["encoder-tags"] * 2
    for seed in range(2):
        assert (tmp_path / f"askers-synthetic-resampled-40-{seed}").is_dir()
