"""Deleting a rostered account from the raw dump moves nothing that is called public.

Its posts go, and with its questions their titles and tags, which the answers of others carried.
Words, tags, label order, side information, the default public start and the public-only row are
the same bits without it. Of all posts of public users that is not so, which is why that row is
labelled.
"""

from collections import Counter
from itertools import islice
from xml.sax.saxutils import quoteattr

import numpy as np
import pytest

from fedpriv.datasets.importers.dump import Dump, import_stackexchange
from fedpriv.datasets.stackexchange.rosters import is_public_tenth
from fedpriv.datasets.stackexchange.splits import BY_SENTENCE, BY_THREAD, Split
from fedpriv.experiments.start import public_only
from fedpriv.experiments.tasks import TagPredictionTask
from fedpriv.rng import Key

ACCOUNTS = [str(number) for number in range(1, 200)]
PUBLIC = [account for account in ACCOUNTS if is_public_tenth(account)][:6]
ROSTERED = [account for account in ACCOUNTS if not is_public_tenth(account)][:14]
QUICK = ("by-thread-0-validation", "by-time", "by-user-0")
SPLITS = (
    BY_THREAD,
    BY_THREAD.choosing(),
    Split(fold=3),
    Split(kind="by-time"),
    Split(kind="by-time").choosing(),
    Split(kind="by-user"),
)
LITTLE = {"max_words": 60, "max_tags": 8}  # fewer than there are, so that counts decide


def community(num_questions=100, seed=0):
    """Rows of a dump: questions of everybody, each answered by two of the others."""
    rng = np.random.default_rng(seed)
    users = [*PUBLIC, *ROSTERED]

    def text():
        return " ".join(f"w{word}" for word in rng.zipf(1.4, 8) % 90)

    for number in range(num_questions):
        asker = users[number % len(users)]
        others = [user for user in rng.permutation(users).tolist() if user != asker][:2]
        tags = "".join(f"<t{tag}>" for tag in rng.zipf(1.3, 2) % 40)
        yield {
            "Id": str(number), "PostTypeId": "1", "OwnerUserId": asker, "Title": text(),
            "Tags": tags, "Body": f"<p>{text()}. {text()}.</p>",
            "CreationDate": f"2010-{1 + number // 28:02d}-{1 + number % 28:02d}T10:00:00.000",
        }  # fmt: skip
        for place, owner in enumerate(others):
            yield {
                "Id": str(1000 + 10 * number + place), "PostTypeId": "2", "OwnerUserId": owner,
                "ParentId": str(number), "Body": f"<p>{text()}. {text()}.</p>",
            }  # fmt: skip


def written(path, rows):
    lines = (
        "<row " + " ".join(f"{name}={quoteattr(text)}" for name, text in row.items()) + "/>\n"
        for row in rows
    )
    path.write_text(f"<posts>\n{''.join(lines)}</posts>\n", encoding="utf-8")
    return path


def without(rows, account):
    return [row for row in rows if row.get("OwnerUserId") != account]


def imported(folder, rows, **options):
    folder.mkdir()
    return import_stackexchange(
        written(folder / "Posts.xml", rows), folder / "c", name="site", **options
    )


def counts(corpus, split):
    """Words, tags, the order that decides labels, and what side information is made of."""
    view = corpus.view(split=split)
    arrays = view.word_counts, view.word_users, view.word_sentences, view.tag_users
    return view.words, view.tags, view.num_public_examples, [a.tolist() for a in arrays]


def learnt(corpus, **options):
    """The public start and the public-only row, how they were chosen, and the public accuracy."""
    task = TagPredictionTask(**options)(None, corpus)
    found = public_only(task, Key.simulation(0))
    assert found is not None
    models = [
        {name: tensor.tobytes() for name, tensor in model.items()}
        for model in (found.start, found.model)
    ]
    return found.choices, models, task.evaluate(found.model, public=True)


@pytest.fixture(scope="module")
def rows():
    return list(community())


@pytest.fixture(scope="module")
def whole(rows, tmp_path_factory):
    return imported(tmp_path_factory.mktemp("whole") / "dump", rows, **LITTLE)


@pytest.fixture(scope="module")
def deleted(rows, tmp_path_factory):
    folder = tmp_path_factory.mktemp("deleted")
    return {
        account: imported(folder / account, without(rows, account), **LITTLE)
        for account in ROSTERED
    }


def test_the_dump_tells_accounts_apart(rows, whole):
    """What deletion removes is there: public answers under rostered questions, and the reverse."""
    assert whole.view().roster == tuple(sorted(ROSTERED))
    askers = {row["Id"]: row["OwnerUserId"] for row in rows if row["PostTypeId"] == "1"}
    crossed = Counter(
        (row["OwnerUserId"] in PUBLIC, askers[row["ParentId"]] in PUBLIC)
        for row in rows
        if "ParentId" in row
    )
    assert len(crossed) == 4 and min(crossed.values()) >= 5
    assert set(ROSTERED) <= set(askers.values())
    # Rostered users use words and tags that public ones do not, so that there is what could move.
    totals = whole.manifest["totals"]
    assert totals["words"] > len(whole.view().words) and totals["tags"] > len(whole.view().tags)


@pytest.mark.parametrize(
    "split",
    [
        pytest.param(split, id=split.name, marks=() if split.name in QUICK else pytest.mark.slow)
        for split in SPLITS
    ],
)
def test_words_tags_and_counts_are_those_without_the_account(whole, deleted, split):
    expected = counts(whole, split)
    for account, corpus in deleted.items():
        assert counts(corpus, split) == expected, account


def test_the_default_start_and_public_only_are_those_without_the_account(whole, deleted):
    expected = learnt(whole)
    assert any(np.frombuffer(tensor, np.float32).any() for tensor in expected[1][0].values())
    for account, corpus in deleted.items():
        assert learnt(corpus) == expected, account


def test_without_the_account_it_is_gone_and_answers_to_it_have_changed(whole, deleted):
    changed = 0
    for account, corpus in deleted.items():
        view = corpus.view()
        assert view.roster == tuple(user for user in whole.view().roster if user != account)
        assert view.public_users == whole.view().public_users
        users = set(view.roster)
        changed += any(view.num_examples(u) != whole.view().num_examples(u) for u in users)
    assert changed == len(ROSTERED)  # they lost title and tags, hence their label


def test_all_posts_do_move(whole, deleted):
    expected = learnt(whole, public_text="all-posts")[1]
    moved = [
        account
        for account, corpus in deleted.items()
        if learnt(corpus, public_text="all-posts")[1] != expected
    ]
    assert len(moved) > len(ROSTERED) // 2


def test_by_sentence_what_is_counted_does_move(whole, deleted):
    # Its words are public users' own, but tags are counted as their answers carry them.
    expected = counts(whole, BY_SENTENCE)
    found = {account: counts(corpus, BY_SENTENCE) for account, corpus in deleted.items()}
    assert any(counted[3][3] != expected[3][3] for counted in found.values())
    assert "an answer has its question's tags" in str(whole.view(split=BY_SENTENCE).provenance)


@pytest.mark.data
@pytest.mark.slow
def test_a_piece_of_a_real_dump(shared_data, tmp_path):
    packed = shared_data / "stackexchange" / "onstartups.Posts.xml.xz"
    rows = [dict(row) for row in islice(Dump(packed, packed).rows(), 4_000)]
    askers = {row["Id"]: row.get("OwnerUserId") for row in rows if row["PostTypeId"] == "1"}
    answered = Counter(
        askers.get(row["ParentId"])
        for row in rows
        if "ParentId" in row and is_public_tenth(row.get("OwnerUserId", ""))
    )
    accounts = [
        account for account, _ in answered.most_common() if account and not is_public_tenth(account)
    ][:4]
    options = {"max_words": 1_000, "max_tags": 50}
    whole = imported(tmp_path / "whole", rows, **options)
    labelled = learnt(whole, public_text="all-posts")[1]
    for account in accounts:
        corpus = imported(tmp_path / account, without(rows, account), **options)
        for split in SPLITS:
            assert counts(corpus, split) == counts(whole, split), account
        assert learnt(corpus) == learnt(whole), account
        assert learnt(corpus, public_text="all-posts")[1] != labelled
