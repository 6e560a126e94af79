"""Data of few columns in rows of length at most 1, and their public, private and test parts.

================  =========================================================  ====================
problem           what                                                       columns
================  =========================================================  ====================
mnist-3-8         the digits 3 and 8 of MNIST                                50, projected
mnist             all ten digits                                             50, projected
mnist-projected   the same by `fedpriv.datasets.projection`             50, projected
imdb              sentiment, binary TF-IDF of public vocabulary               300, projected
covertype         one forest cover type against the others                   54
================  =========================================================  ====================

The projection is a Gaussian matrix drawn from a fixed seed: it hangs on no data. Nothing is scaled
by statistics of private examples. 1 % of the training set is public, and removed from it; a tenth
of what is left is what settings are chosen on.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import numpy as np
from scipy import sparse

from fedpriv.datasets.dataset import Dataset, hold_out_public, hold_out_validation, shape_of
from fedpriv.datasets.images import load_mnist
from fedpriv.datasets.projection import project
from fedpriv.rng import Key
from simulations.adadps.setups import imdb, mnist
from simulations.reproduction.items import Split
from simulations.reviews.features import review_features, synthetic_reviews

#: Rows of Covertype that are taken, by an order that hangs on their number alone.
COVERTYPE_ROWS = 60_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A classification of rows.

    Attributes:
        key: Its name in results.
        title: In words.
        data: Dense float32 rows of length at most 1, labels from 0.
        num_classes: How many labels there are.
    """

    key: str
    title: str
    data: Dataset = field(repr=False)
    num_classes: int = 2

    @property
    def width(self) -> int:
        """Columns."""
        return shape_of(self.data.x_train)[1]

    @property
    def dimension(self) -> int:
        """d, parameters with biases."""
        return (self.width + 1) * (1 if self.num_classes == 2 else self.num_classes)

    def part(self, split: Split) -> Dataset:
        """Return the data to train and to measure on."""
        return hold_out_validation(self.data) if split == "validation" else self.data

    def smaller(self, rows: int) -> Dataset:
        """Return the data with the first so many training rows of a public order."""
        order = Key.simulation(0).fold("smaller").generator().permutation(self.data.num_train)
        x, y = self.data.x_train[order[:rows]], self.data.y_train[order[:rows]]
        return replace(self.data, x_train=x, y_train=y)


def problem(key: str, *, tiny: bool = False) -> Problem:
    """Return a problem by its name.

    Args:
        key: One of the table.
        tiny: Of synthetic data of a few hundred rows, for a look at whether everything runs.

    Raises:
        ValueError: If there is no such problem.
    """
    if key not in _PROBLEMS:
        raise ValueError(f"problem {key!r} is unknown; give one of {', '.join(_PROBLEMS)}")
    return _PROBLEMS[key](tiny)


@cache
def _digits(tiny: bool) -> Dataset:
    if not tiny:
        try:
            return load_mnist()
        except ValueError:
            pass
    return mnist.synthetic_digits(1_500 if tiny else 20_000, 300 if tiny else 4_000)


@cache
def _mnist(tiny: bool) -> Problem:
    data = _rows(_digits(tiny), 50)
    return Problem(key="mnist", title="MNIST, ten digits", data=data, num_classes=10)


@cache
def _mnist_projected(tiny: bool) -> Problem:
    digits = _digits(tiny)
    parts = {name: np.asarray(getattr(digits, name), np.float32) for name in ("x_train", "x_test")}
    flat: dict[str, Any] = {name: x.reshape(len(x), -1) for name, x in parts.items()}
    data = project(replace(digits, **flat), 50)
    dense: dict[str, Any] = {name: getattr(data, name).toarray() for name in flat}
    made = hold_out_public(replace(data, **dense))
    return Problem(key="mnist-projected", title="MNIST, ten digits", data=made, num_classes=10)


@cache
def _pair(tiny: bool) -> Problem:
    data = _digits(tiny)
    kept: dict[str, Any] = {}
    for part in ("train", "test"):
        labels = getattr(data, f"y_{part}")
        index = np.flatnonzero(np.isin(labels, (3, 8)))
        kept[f"x_{part}"] = getattr(data, f"x_{part}")[index]
        kept[f"y_{part}"] = (labels[index] == 8).astype(np.int64)
    return Problem(key="mnist-3-8", title="MNIST, 3 or 8", data=_rows(replace(data, **kept), 50))


@cache
def _imdb(tiny: bool) -> Problem:
    if tiny:
        made = synthetic_reviews(600, 200)
        data = replace(review_features(made), name=made.name)
    else:
        data = replace(imdb.dataset("right"), name=imdb.reviews().name)
    return Problem(
        key="imdb", title="IMDB reviews, good or bad", data=_rows(data, 300, public=False)
    )


@cache
def _covertype(tiny: bool) -> Problem:
    rows = 600 if tiny else COVERTYPE_ROWS
    try:
        x, y = _fetched() if not tiny else _synthetic_covertype(rows)
    except (ImportError, OSError):
        x, y = _synthetic_covertype(rows)
        fetched = False
    else:
        fetched = not tiny
    order = Key.simulation(0).fold("covertype").generator().permutation(len(y))[:rows]
    x, y, cut = x[order], y[order], rows * 5 // 6
    data = Dataset(
        name="covertype" if fetched else "synthetic-covertype",
        x_train=x[:cut],
        y_train=y[:cut],
        x_test=x[cut:],
        y_test=y[cut:],
        provenance={
            "source": "scikit-learn's fetch_covtype" if fetched else "made up",
            "private_side_information": [],
            "public": None,
        },
        synthetic=not fetched,
    )
    title = "Covertype" if fetched else "Covertype's stand-in"
    return Problem(key="covertype", title=title, data=_rows(data, None))


_PROBLEMS: Mapping[str, Callable[[bool], Problem]] = {
    "mnist-3-8": _pair,
    "mnist": _mnist,
    "mnist-projected": _mnist_projected,
    "imdb": _imdb,
    "covertype": _covertype,
}


def _fetched() -> tuple[np.ndarray, np.ndarray]:
    """Return Covertype: ten measures divided by public upper limits, 44 columns of 0 and 1.

    Raises:
        ImportError: If scikit-learn is not here.
        OSError: If there is no network, and no copy.
    """
    loaded: Any = importlib.import_module("sklearn.datasets").fetch_covtype()
    # From the documentation of the data: metres, degrees and shades of grey.
    limits = np.array([4000, 360, 90, 1500, 800, 7500, 255, 255, 255, 7500], np.float32)
    x = np.asarray(loaded.data, np.float32)
    x[:, :10] /= limits
    return x, (np.asarray(loaded.target) == 2).astype(np.int64)


def _synthetic_covertype(rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Return rows of Covertype's shape: ten measures, one of four areas, one of forty soils.

    The label follows a linear score of them with a bend and noise; nothing else is alike.
    """
    rng = Key.simulation(0).fold("made-up covertype").generator()
    height = rng.normal(0.0, 1.0, rows)
    measures = 0.5 + 0.15 * (0.7 * height[:, None] + rng.normal(0.0, 1.0, (rows, 10)))
    area = np.clip(np.rint(1.5 + height + rng.normal(0, 1, rows)), 0, 3).astype(int)
    soil = np.clip(np.rint(20 + 8 * height + 6 * rng.normal(0, 1, rows)), 0, 39).astype(int)
    x = np.concatenate([measures, np.eye(4)[area], np.eye(40)[soil]], axis=1)
    effect = rng.normal(0.0, 0.7, 40)
    score = 1.2 * height - 0.8 * height**2 + 0.8 * measures[:, 3] + effect[soil] + 0.4
    y = score + rng.logistic(0.0, 0.7, rows) > 0
    return x.astype(np.float32), y.astype(np.int64)


def _rows(data: Dataset, columns: int | None, *, public: bool = True) -> Dataset:
    """Return projected rows of length at most 1, and 1 % of them public where `public` says so."""
    parts = {name: getattr(data, name) for name in ("x_train", "x_test", "x_public")}
    found: dict[str, Any] = {n: _projected(x, columns) for n, x in parts.items() if x is not None}
    made = replace(data, **found)
    return hold_out_public(made) if public else made


def _projected(x: Any, columns: int | None) -> np.ndarray:
    flat = x if sparse.issparse(x) else np.asarray(x, np.float32).reshape(len(x), -1)
    if columns is not None:
        rng = Key.simulation(0).fold("projection").generator()
        matrix = rng.normal(0.0, columns**-0.5, (flat.shape[1], columns))
        flat = np.asarray(flat @ matrix)
    norms = np.linalg.norm(flat, axis=1, keepdims=True)
    return (flat / np.maximum(norms, 1e-12)).astype(np.float32)
