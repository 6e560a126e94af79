"""SGDClassifier perturbed once: scikit-learn's own where it is, and what it documents anywhere."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

import fedpriv as fp
from fedpriv.training.wrapped_sgd import Wrapped
from tests.api.bolted import stand_in
from tests.combinations import each_once


def _real():
    return pytest.importorskip("sklearn.linear_model").SGDClassifier


@pytest.fixture(params=["stand-in", "scikit-learn"])
def kind(request):
    return stand_in.SGDClassifier if request.param == "stand-in" else _real()


GOOD = {
    "loss": "log_loss",
    "alpha": 0.01,
    "learning_rate": "constant",
    "eta0": 0.5,
    "fit_intercept": False,
    "tol": None,
    "max_iter": 2,
}


@pytest.fixture
def ends(monkeypatch, one_root):
    """Where trainings end, before any noise."""
    found, real = [], Wrapped.answer

    def seen(self, asked):
        total = real(self, asked)
        found.append(total.total["weights"])
        return total

    monkeypatch.setattr(Wrapped, "answer", seen)
    return found


def data(seed, number=60, width=3, classes=2):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(number, width)) * 10.0 ** rng.uniform(-1, 2)
    return x, rng.integers(0, classes, number)


@pytest.mark.slow
def test_it_learns_and_is_a_classifier(kind, one_root):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(4000, 4))
    y = (x[:, 0] > 0).astype(int)
    given = kind(**GOOD)
    made = fp.bolt_on_classifier(given, x, y, classes=(0, 1), target_epsilon=10.0)
    assert (made.classifier.predict(x) == y).mean() > 0.85
    assert type(made.classifier) is kind and not hasattr(given, "coef_")
    assert np.array_equal(made.classifier.coef_, made.released.params["weights"])
    assert "Δ₂ = " in str(made) and "L₀ + λR = 2" in str(made) and "δ = 0" in str(made)
    sparser = fp.bolt_on_classifier(
        kind(**GOOD), sparse.csr_matrix(x) if kind is not stand_in.SGDClassifier else x, y,
        classes=(0, 1), target_epsilon=10.0,
    )  # fmt: skip
    assert np.allclose(sparser.classifier.coef_, made.classifier.coef_, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "classes"),
    each_once(
        {
            "usual": {},
            "decay": {"alpha": 0.2, "max_iter": 4},
            "no penalty": {"penalty": None, "eta0": 7.0},
            "falling rate": {"learning_rate": "invscaling", "power_t": 0.5},
            "average": {"average": True, "shuffle": False},
            "huber": {"loss": "modified_huber", "eta0": 0.3},
        },
        {"two": (0, 1), "three": (0, 1, 2)},
    ),
)
def test_measured_distances_never_pass_the_bound(kind, ends, changes, classes):
    """Rows replaced by their opposite, by another label, by an outlier, by one of no class."""
    for case in range(3):
        x, y = data(case, classes=len(classes))
        options = {"classes": classes, "target_epsilon": 1.0}
        here = fp.bolt_on_classifier(kind(**{**GOOD, **changes}), x, y, **options)
        for who in (0, 17, 59):
            for row, label in ((-x[who], y[who]), (x[who], (y[who] + 1) % 2), (1e9, 1), (x[0], 9)):
                other_x, other_y = x.copy(), y.copy()
                other_x[who], other_y[who] = row, label
                fp.bolt_on_classifier(kind(**{**GOOD, **changes}), other_x, other_y, **options)
                assert np.linalg.norm(ends[-1] - ends[0]) <= here.released.moved.sensitivity
        ends.clear()


def test_an_extreme_row_passes_half_of_the_bound(kind, ends):
    """A row that all others contradict, there or not: nine tenths of Δ, so that Δ/2 is refuted."""
    x, y = np.tile([1e6, 0.0], (60, 1)), np.ones(60, int)
    options = {"classes": (0, 1), "target_epsilon": 1.0, "relation": "add-remove"}
    changes = {**GOOD, "penalty": None, "eta0": 0.3, "max_iter": 1, "shuffle": False}
    moved = []
    for label in (0, 9):
        y[-1] = label  # 9 is no class: the row is not there
        made = fp.bolt_on_classifier(kind(**changes), x, y, **options)
        moved.append(made.released.moved.sensitivity)
    distance = np.linalg.norm(ends[0] - ends[1])
    assert 0.85 * moved[0] < distance <= moved[0] == moved[1]


def test_no_row_stops_it(kind, ends):
    """Rows that are not finite, labels of no class, classes of no row."""
    x, y = data(0)
    x[3], x[4, 1], y[5], y[y == 1] = np.nan, np.inf, 7, 0
    made = fp.bolt_on_classifier(kind(**GOOD), x, y, classes=(0, 1), target_epsilon=1.0)
    assert np.isfinite(made.classifier.coef_).all()
    without, left = x.copy(), y.copy()
    without[[3, 4, 5]], left[5] = 0.0, 0
    fp.bolt_on_classifier(kind(**GOOD), without, left, classes=(0, 1), target_epsilon=1.0)
    assert np.allclose(ends[0], ends[1], rtol=0, atol=1e-12)


def test_the_stand_in_is_what_it_stands_for(ends):
    """Without shuffling, weights of the two agree: to 1e-9, in every option that is allowed."""
    real = _real()
    x, y = data(3, classes=3)
    for changes in ({}, {"average": True}, {"learning_rate": "invscaling"}, {"penalty": None},
                    {"loss": "modified_huber", "eta0": 0.3}):  # fmt: skip
        for one in (stand_in.SGDClassifier, real):
            made = {**GOOD, "shuffle": False, **changes}
            fp.bolt_on_classifier(one(**made), x, y, classes=(0, 1, 2), target_epsilon=1.0)
        assert np.allclose(ends[-1], ends[-2], atol=1e-9)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"tol": 1e-3}, "tol=0.001 cannot be bounded: it stops"),
        ({"early_stopping": True}, "early_stopping=True cannot"),
        ({"learning_rate": "adaptive"}, "learning_rate='adaptive' cannot.*hang on the loss"),
        ({"learning_rate": "optimal"}, "learning_rate='optimal' cannot.*beyond 1/β"),
        ({"class_weight": "balanced"}, "class_weight='balanced' cannot"),
        ({"class_weight": {0: 1.0, 1: 9.0}}, "class_weight=.* cannot"),
        ({"fit_intercept": True}, "fit_intercept=True cannot.*constant column"),
        ({"warm_start": True}, "warm_start=True cannot"),
        ({"penalty": "l1"}, "penalty='l1' cannot be bounded: it is not smooth"),
        ({"penalty": "elasticnet"}, "penalty='elasticnet' cannot"),
        ({"loss": "hinge"}, "loss 'hinge' has a corner"),
        ({"loss": "squared_hinge"}, "'squared_hinge' is ever steeper"),
        ({"loss": "perceptron"}, "'perceptron' has a corner"),
        ({"loss": "squared_error"}, "'squared_error' is ever steeper"),
        ({"average": 10}, "average=10: only"),
        ({"verbose": 1}, "verbose=1 cannot.*prints losses"),
        ({"eta0": 5.0}, "a step of 5 is above 3.8"),
        ({"penalty": None, "eta0": 8.5}, "above 8, 2/β"),
        ({"max_iter": 0}, "max_iter"),
    ],
    ids=str,
)
def test_what_cannot_be_bounded_is_refused_by_name(kind, changes, said, tmp_path):
    x, y = data(0)
    with pytest.raises(ValueError, match=said):
        made = kind(**{**GOOD, **changes})
        fp.bolt_on_classifier(made, x, y, classes=(0, 1), target_epsilon=1.0, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_what_was_fitted_or_weighs_rows_is_refused(kind):
    x, y = data(0)
    fitted = kind(**GOOD).partial_fit(x, y, classes=np.array([0, 1]))
    with pytest.raises(ValueError, match="fitted already"):
        fp.bolt_on_classifier(fitted, x, y, classes=(0, 1), target_epsilon=1.0)
    with pytest.raises(ValueError, match="sample_weight cannot be bounded"):
        fp.bolt_on_classifier(
            kind(**GOOD), x, y, classes=(0, 1), target_epsilon=1.0, sample_weight=np.ones(60)
        )
    with pytest.raises(ValueError, match="Other is not scikit-learn's SGDClassifier"):
        other = type("Other", (kind,), {})
        fp.bolt_on_classifier(other(**GOOD), x, y, classes=(0, 1), target_epsilon=1.0)
    for classes in ((0,), (0, 0)):
        with pytest.raises(ValueError, match="two or more different labels"):
            fp.bolt_on_classifier(kind(**GOOD), x, y, classes=classes, target_epsilon=1.0)


def test_a_parameter_that_is_not_known_is_refused():
    class SGDClassifier(stand_in.SGDClassifier):
        def get_params(self, deep=True):
            return {**{n: v for n, v in vars(self).items() if n in _known()}, "momentum": 0.9}

    x, y = data(0)
    with pytest.raises(ValueError, match="parameters momentum are not those"):
        fp.bolt_on_classifier(SGDClassifier(**GOOD), x, y, classes=(0, 1), target_epsilon=1.0)


def _known():
    return stand_in.SGDClassifier().get_params()
