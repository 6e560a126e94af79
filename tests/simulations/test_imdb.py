"""IMDB's setup: splits, side information, noise, and what one example can do."""

import math

import pytest

from fedpriv.experiments.build import build
from fedpriv.tasks.central import CentralTask, zeros
from simulations.adadps import figure2
from simulations.adadps.setups import imdb
from simulations.reviews.features import synthetic_reviews
from tests.harness.refusals import refuses

COLUMNS = ("paper", "right")


def clear():
    for cached in (imdb.amazon, imdb.dataset, imdb.task):
        cached.cache_clear()


@pytest.fixture(scope="module", autouse=True)
def synthetic():
    """Stand-in reviews, so that the tests need no download; nothing of them stays cached."""
    texts = synthetic_reviews(2_000, 200)
    with pytest.MonkeyPatch.context() as patch:
        clear()
        patch.setattr(imdb, "reviews", lambda: texts)
        yield texts
    clear()


@pytest.mark.parametrize("column", COLUMNS)
def test_validation_is_a_tenth_of_the_private_training_set(column):
    data = imdb.dataset(column)
    whole, held = imdb.task(column, "test"), imdb.task(column, "validation")
    assert whole.num_train == data.num_train == 1_980
    assert held.num_train == 1_980 - 198
    params = whole.init_params(None)
    assert held.evaluate(params, public=True).num_examples == 198
    assert whole.evaluate(params, public=True).num_examples == 200


def test_public_reviews_are_no_private_ones():
    for column in COLUMNS:
        assert imdb.task(column, "test").num_public + imdb.dataset(column).num_train == 2_000


def test_only_the_papers_column_takes_from_private_reviews():
    for kind in ("frequency", "tf-idf", "magnitude"):
        for column, source in (("paper", "private"), ("right", "public")):
            side = imdb.task(column, "test").side_information(kind)
            assert side.source == source
            multiplier = side.multiplier["weight"]
            assert multiplier.shape == (imdb.NUM_WORDS,) and (multiplier > 0).all()


def test_the_column_of_the_code_knows_what_the_papers_does_of_counts():
    for kind in ("frequency", "tf-idf", "magnitude"):
        coded, paper = (
            imdb.task(column, "test").side_information(kind) for column in ("coded", "paper")
        )
        assert coded.source == paper.source == "private"
        assert coded.multiplier["kernel"][:, 0].tolist() == paper.multiplier["weight"].tolist()


@pytest.mark.parametrize("column", COLUMNS)
def test_less_of_it_public_leaves_the_private_part_alone(column):
    whole, less = imdb.dataset(column), imdb.dataset(column, 4)
    assert less.num_public == 4 and whole.num_public == 20
    assert (less.x_train != whole.x_train).nnz == 0
    assert (less.x_public != whole.x_public[:4]).nnz == 0


@pytest.mark.parametrize("column", COLUMNS)
def test_public_reviews_from_elsewhere_take_none_of_these(column, synthetic):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(imdb, "amazon", lambda: synthetic.test)
        data = imdb.dataset(column, "amazon")
    assert data.num_train == 2_000 and data.num_public == 200


def test_amazon_that_is_not_here_says_how_to_get_it(monkeypatch, tmp_path):
    clear()
    monkeypatch.setenv("FEDPRIV_DATA", str(tmp_path))
    monkeypatch.setenv("FEDPRIV_CACHE", str(tmp_path))
    with refuses(ValueError, "figshare.com"):
        imdb.dataset("right", "amazon")


def of_the_real_size(label, column):
    """The plan on 24,750 examples, 25,000 without the public hundredth."""
    stand_in = CentralTask(
        name="as large",
        train=imdb.task(column, "test").train,
        num_train=24_750,
        init=zeros({"weight": (imdb.NUM_WORDS,), "bias": (1,)}),
        measure=lambda params: None,
    )
    made = imdb.SETUP.make(label, column, "test", False)
    return build(made.with_options({"l2-clip-norm": 0.4}), task=stand_in)


class TestNoise:
    @pytest.mark.parametrize("column", COLUMNS)
    def test_its_deviation_is_the_clip_norm(self, column):
        """σ = 1 to the clip norm in both columns, whatever one example can do."""
        the_plan = of_the_real_size("DP-SGD", column).plan
        assert the_plan.live_mechanism.stddev == pytest.approx(1.0 * 0.4)
        assert the_plan.live_mechanism.sensitivity == pytest.approx(
            0.4 * (2 if column == "paper" else 1)
        )

    def test_micro_batches_are_of_four(self):
        components = of_the_real_size("DP-SGD", "paper")
        mechanism = components.plan.live_mechanism
        assert mechanism.micro_batch == 4 and mechanism.denominator == 16
        assert components.trainer.num_groups == 16

    @pytest.mark.slow
    @pytest.mark.parametrize(("column", "rdp"), [("paper", 12.7), ("right", 1.51)])
    def test_epsilon(self, column, rdp):
        """As the paper counted it was 1.51; in micro-batches that is truly 12.7."""
        the_plan = of_the_real_size("DP-SGD", column).plan
        assert the_plan.num_rounds == 12_375 == math.ceil(32 * 24_750 / 64)
        spent = the_plan.epsilon(the_plan.num_rounds)
        assert abs(spent.rdp - rdp) < 0.1
        assert spent.value < spent.rdp and spent.delta == 4e-5

    def test_the_ideal_adds_the_noise_it_does_not_guarantee(self):
        for column in COLUMNS:
            components = of_the_real_size("ideal (not private)", column)
            assert (
                not components.plan.is_private and components.side_information.source == "private"
            )
            assert components.plan.live_mechanism.privatizer.stddev == pytest.approx(0.4)


@pytest.mark.slow
def test_noise_hides_which_coordinates_are_large_and_public_data_show_it():
    """Figure 2, on synthetic reviews."""
    told = figure2.agreement(figure2.moments(5, 10))
    assert told["public"] > told["released by DP-SGD"]
