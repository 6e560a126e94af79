"""Words by rank, features and their counts, against small hand-made tables and plain loops."""

import numpy as np
import pytest
from scipy import sparse

from fedpriv.datasets.dataset import split_public
from fedpriv.mechanisms.side_information import frequency_multiplier, tf_idf_mass_multiplier
from simulations.reviews import bag_of_words as bags
from simulations.reviews.bag_of_words import Texts, column_sums, mean_magnitude, word_rows
from simulations.reviews.features import Reviews, review_features, synthetic_reviews
from tests.harness.refusals import refuses

TEXTS = ("the film the end", "a film", "", "zz zz zz a b the")


def rows(*texts):
    return word_rows([Texts(texts=texts, labels=np.zeros(len(texts), np.int64))])[0]


@pytest.fixture
def four():
    return rows(*TEXTS)


@pytest.fixture
def words(four):
    return bags.most_frequent(four, 4)


def test_the_most_frequent_words_come_first_and_ties_by_the_alphabet(four):
    assert bags.most_frequent(four, 10) == ("the", "zz", "a", "film", "b", "end")
    assert bags.most_frequent(four, 4) == ("the", "zz", "a", "film")
    assert bags.most_frequent(four.take(np.array([1])), 9) == ("a", "film")  # of these rows alone


def test_counts_and_document_frequencies(four, words):
    expected = [[2, 0, 0, 1, 0], [0, 0, 1, 1, 0], [0, 0, 0, 0, 0], [1, 3, 1, 0, 0]]
    x = bags.count_words(four, words, 5)
    assert x.dtype == np.float32 and x.has_sorted_indices
    assert x.toarray().tolist() == expected
    assert bags.document_frequency(four, words).tolist() == [2, 1, 2, 2]


def test_a_vocabulary_holds_over_other_tables_of_words(words):
    other = rows("film film nothing the")  # the same words, other numbers
    assert bags.count_words(other, words, 4).toarray().tolist() == [[1, 0, 0, 2]]


def plain_padded(texts, vocabulary, length, size):
    """Keras' convention as a loop: start, words or other, cut and padded in front."""
    rank = {word: at for at, word in enumerate(vocabulary)}
    out = []
    for text in texts:
        ids = [1] + [
            rank[word] + 3 if word in rank and rank[word] + 3 < size else 2 for word in text.split()
        ]
        ids = ids[-length:]
        out.append([0] * (length - len(ids)) + ids)
    return out


@pytest.mark.parametrize("length", [1, 2, 3, 4, 5, 6, 7, 8, 12])
@pytest.mark.parametrize("size", [4, 6, 7, 20])
def test_padded_ids_equal_a_plain_loop(four, words, length, size):
    got = bags.padded_ids(four, words, length=length, size=size)
    assert got.dtype == np.int32 and got.shape == (4, length)
    assert got.tolist() == plain_padded(TEXTS, words, length, size)


def test_padding_is_counted(four, words):
    x = bags.count_ids(bags.padded_ids(four, words, length=6, size=8), 8)
    assert x[1].toarray().tolist() == [[3, 1, 0, 0, 0, 1, 1, 0]]
    assert np.asarray(x.sum(axis=1)).reshape(-1).tolist() == [6, 6, 6, 6]


def test_tf_idf_and_unit_rows():
    x = sparse.csr_matrix(np.array([[3, 0, 4], [0, 0, 0], [0, 2, 0]], np.float32))
    assert bags.binary(x).toarray().tolist() == [[1, 0, 1], [0, 0, 0], [0, 1, 0]]
    assert bags.unit_rows(x).toarray() == pytest.approx(
        np.array([[0.6, 0, 0.8], [0, 0, 0], [0, 1, 0]])
    )
    stored = sparse.csr_matrix((np.zeros(1, np.float32), [0], [0, 1]), shape=(1, 1))
    assert bags.unit_rows(stored).toarray().tolist() == [[0]]
    scaled = bags.scale_columns(x, np.array([2, 3, 0.5]))
    assert scaled.toarray().tolist() == [[6, 0, 2], [0, 0, 0], [0, 6, 0]]
    assert scaled.dtype == bags.unit_rows(x).dtype == bags.binary(x).dtype == np.float32
    idf = bags.inverse_document_frequency(np.array([0, 9]), 9)
    assert idf == pytest.approx([np.log(10) + 1, 1.0]) and idf.dtype == np.float32


def test_what_is_counted_of_features():
    counts = sparse.csr_matrix(np.array([[286, 1, 2, 1], [288, 1, 1, 0]], np.float32))
    sums = column_sums(counts)
    assert sums.tolist() == [574, 2, 3, 1] and sums.dtype == np.float64
    x = np.array([[1.0, -3.0, 0.0], [1.0, 1.0, 0.0]])
    for given in (x, sparse.csr_matrix(x)):
        assert mean_magnitude(given).tolist() == [1, 2, 0]


@pytest.fixture(scope="module")
def reviews():
    return synthetic_reviews(600, 300)


WEIGHTS = ("padded-counts", "padded-shares", "counts", "binary", "tf-idf", "binary-tf-idf")


@pytest.mark.parametrize("weights", WEIGHTS)
def test_a_bag_of_words_has_its_shapes_and_says_what_it_is(reviews, weights):
    data = review_features(reviews, weights=weights, size=500, public_share=0.1)
    for x, n in ((data.x_train, 540), (data.x_public, 60), (data.x_test, 300)):
        assert x.shape == (n, 500) and x.dtype == np.float32 and sparse.issparse(x)
        assert np.sqrt(x.multiply(x).sum(axis=1)).max() == pytest.approx(1, rel=1e-5)
    private, public = split_public(600, 0.1)
    assert (data.y_train == reviews.train.labels[private]).all()
    assert (data.y_public == reviews.train.labels[public]).all()
    assert data.synthetic and data.provenance["private_side_information"] == []
    assert data.provenance["features"]["weights"] == weights
    assert data.provenance["public"]["size"] == 60


@pytest.mark.slow
def test_the_weights_are_what_their_names_say(reviews):
    made = {
        weights: review_features(
            reviews, weights=weights, unit_rows=False, size=500
        ).x_train.toarray()
        for weights in WEIGHTS
    }
    ones = (made["counts"] > 0).astype(np.float32)
    assert made["counts"].max() > 1 and (made["binary"] == ones).all()
    idf = made["binary-tf-idf"].max(axis=0)
    _, public = split_public(600)
    words = bags.most_frequent(reviews.train.take(public), 500)
    frequency = bags.document_frequency(reviews.train.take(public), words)
    known = np.flatnonzero(idf)
    assert idf[known] == pytest.approx(np.log(7 / (1 + frequency[known])) + 1)
    assert (made["binary-tf-idf"] == ones * idf).all()
    assert made["tf-idf"] == pytest.approx(made["counts"] * idf)


def test_what_comes_from_private_reviews_is_said(reviews):
    def said(**options):
        return review_features(reviews, size=500, **options).provenance["private_side_information"]

    assert said(vocabulary="private") == ["vocabulary"]
    assert said(vocabulary="private", idf="private") == ["vocabulary", "document frequencies"]
    assert said(weights="counts", idf="private") == []  # not used
    assert said(weights="sequences", vocabulary="private") == ["vocabulary"]


def changed(reviews, position):
    """Return the reviews with the words of one training review replaced by a new one."""
    train = reviews.train
    ids = np.array(train.ids)
    ids[train.starts[position] : train.starts[position + 1]] = len(train.words)
    grown = {"words": (*train.words, "aardvark"), "ids": ids}
    other = type(train)(starts=train.starts, labels=train.labels, **grown)
    return Reviews(name="x", train=other, test=reviews.test, provenance={})


@pytest.mark.slow
@pytest.mark.parametrize("weights", ["binary-tf-idf", "sequences"])
def test_a_private_review_decides_nothing_about_the_others(reviews, weights):
    """The law behind 'public': change one private review, and only its own row changes."""
    private, public = split_public(600, 0.1)

    def made(reviews):
        data = review_features(reviews, weights=weights, public_share=0.1)
        dense = data.x_train if weights == "sequences" else data.x_train.toarray()
        return dense, data.x_test

    before, after = made(reviews), made(changed(reviews, int(private[7])))
    assert np.flatnonzero((before[0] != after[0]).any(axis=1)).tolist() == [7]
    assert abs(before[1] - after[1]).max() == 0
    spilt = made(changed(reviews, int(public[7])))  # the test is able to fail
    assert weights == "sequences" or abs(before[0] - spilt[0]).max() > 0


def test_the_papers_features(reviews):
    data = review_features(
        reviews, weights="padded-counts", unit_rows=False, vocabulary="private", size=300, length=50
    )
    assert np.asarray(data.x_train.sum(axis=1)).max() == np.asarray(data.x_train.sum(axis=1)).min()
    assert data.provenance["features"]["vocabulary"]["words"] == 297
    same = review_features(reviews, weights="sequences", vocabulary="private", size=300, length=50)
    assert abs(bags.count_ids(same.x_train, 300) - data.x_train).max() == 0
    shares = review_features(
        reviews, weights="padded-shares", unit_rows=False, vocabulary="private", size=300, length=50
    )
    np.testing.assert_allclose(shares.x_train.data, data.x_train.data / 50, rtol=1e-6)
    np.testing.assert_allclose(shares.x_train.sum(axis=1), 1.0, rtol=1e-5)


def test_public_reviews_from_elsewhere_remove_nothing(reviews):
    data = review_features(reviews, public=rows("good word5 word7", "word5 bad"), size=500)
    assert data.num_train == 600 and data.num_public == 2
    assert data.provenance["features"]["vocabulary"]["words"] == 4
    assert data.provenance["public"]["from"].startswith("another")


def test_without_public_reviews_nothing_public_can_be_had(reviews):
    for wrong in ({}, {"vocabulary": "private"}, {"vocabulary": "test"}):
        with pytest.raises(ValueError):
            review_features(reviews, public_share=0, **wrong)
    data = review_features(reviews, public_share=0, vocabulary="private", idf="private", size=500)
    assert data.num_train == 600 and data.x_public is None and data.provenance["public"] is None
    with refuses(ValueError, "bm25"):
        review_features(reviews, weights="bm25")


def test_synthetic_reviews_can_be_learnt_and_are_repeatable(reviews):
    again = synthetic_reviews(600, 300)
    assert (again.train.ids == reviews.train.ids).all()
    assert not np.array_equal(synthetic_reviews(600, 300, seed=1).train.ids, reviews.train.ids)
    assert reviews.synthetic and "no real text" in reviews.provenance["source"]
    assert 0.75 < accuracy(reviews) < 0.999
    assert 0.4 < accuracy(synthetic_reviews(600, 300, truth=0.5)) < 0.6
    assert accuracy(synthetic_reviews(600, 300, truth=1.0)) > accuracy(reviews)


def accuracy(reviews):
    """Accuracy of the nearer class mean, cut at the median."""
    data = review_features(reviews, vocabulary="private", idf="private", size=2000)
    centre = [np.asarray(data.x_train[data.y_train == label].mean(axis=0)) for label in (0, 1)]
    score = np.asarray(data.x_test @ (centre[1] - centre[0]).reshape(-1)).reshape(-1)
    return ((score > np.median(score)) == data.y_test).mean()


@pytest.mark.slow
def test_imdb_as_the_paper_has_it(imdb):
    data = review_features(imdb, weights="padded-counts", unit_rows=False, vocabulary="private")
    assert data.x_train.shape == (24_750, 10_000) and data.num_public == 250
    assert data.provenance["features"]["vocabulary"] == {"source": "private", "words": 9_997}
    totals = np.asarray(data.x_train.sum(axis=0)).reshape(-1)
    assert totals.sum() == 24_750 * 290
    assert totals.argmax() == 0  # the padding, as algorithms.md says of the reference
    sums = column_sums(data.x_train)
    multiplier = frequency_multiplier(sums, 24_750, division=100.0)
    assert multiplier.min() == multiplier[0] == pytest.approx(0.01)
    assert multiplier.max() <= 100
    documents = sparse.vstack([data.x_train, data.x_test])
    frequency = np.asarray((documents != 0).sum(axis=0)).reshape(-1)
    mass = tf_idf_mass_multiplier(sums / 290, frequency, 49_750, reserved=bags.RESERVED)
    assert (mass > 0).all()
    assert mass[:3].tolist() == pytest.approx([0.01] * 3)
