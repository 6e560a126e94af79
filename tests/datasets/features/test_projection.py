"""Random projection: of numbers alone, of the right law, and made again where a model predicts."""

from dataclasses import replace

import numpy as np
import pytest
from scipy import sparse, stats

from fedpriv.datasets.dataset import Dataset
from fedpriv.datasets.projection import GaussianProjection, project
from fedpriv.tasks.dataset_tasks import linear_task
from fedpriv.training.per_example.linear import LogisticGradients
from tests.harness.refusals import refuses


def made(seed=0, number=30, width=40):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(number, width)).astype(np.float32) * 0.1
    y = rng.integers(0, 2, number)
    return Dataset(
        name="made", x_train=sparse.csr_matrix(x), y_train=y, x_test=sparse.csr_matrix(x[:9]),
        y_test=y[:9], provenance={}, synthetic=True,
    )  # fmt: skip


images = sparse.csr_matrix.toarray


@pytest.mark.slow
def test_lengths_follow_their_law():
    """d' ‖Px‖²/‖x‖² is chi-squared of d': 2,000 seeds, KS at 1e-6; and angles survive."""
    d, into = 30, 8
    x = np.random.default_rng(1).normal(size=(1, d)) * 0.01
    found = []
    for seed in range(2000):
        projection = GaussianProjection(inputs=d, outputs=into, seed=seed)
        found.append(float(np.sum((x @ projection.matrix) ** 2)))
    assert stats.kstest(into * np.array(found) / np.sum(x**2), stats.chi2(into).cdf).pvalue > 1e-6
    whole = GaussianProjection(inputs=200, outputs=100).matrix
    assert stats.kstest(whole.reshape(-1) * 10, "norm").pvalue > 1e-6
    assert abs(np.corrcoef(whole[:, 0], whole[:, 1])[0, 1]) < 5 / np.sqrt(200)


def test_no_row_has_a_part_in_it():
    """Other rows, fewer rows, other labels: the same matrix, and each row's own image."""
    one, other = made(0), made(1)
    fewer = replace(one, x_train=one.x_train[1:], y_train=one.y_train[1:])
    for data in (one, other, fewer):
        matrix = GaussianProjection(inputs=40, outputs=6, seed=3).matrix
        image = np.asarray(data.x_train @ matrix, np.float32)
        assert np.allclose(images(project(data, 6, 3).x_train), image, atol=1e-6)
    changed = images(project(one, 6, 3).x_train)[1:]
    assert np.array_equal(images(project(fewer, 6, 3).x_train), changed)
    assert not np.allclose(images(project(one, 6, 4).x_train)[1:], changed)


def test_rows_are_within_the_unit_ball_and_none_is_refused():
    x = np.array([[1e3, 5.0], [1e-3, 0], [np.nan, 1], [0, 0], [np.inf, 1]])
    projection = GaussianProjection(inputs=2, outputs=2)
    found = projection.apply(x)
    norms = np.linalg.norm(found.astype(float), axis=1)
    assert found.dtype == np.float32 and (norms <= 1).all() and norms[0] > 0.999
    assert 0 < norms[1] < 0.01 and (norms[2:] == 0).all()
    long = np.asarray(x[0] @ projection.matrix)
    assert np.allclose(found[0], long / np.linalg.norm(long), atol=1e-5)


def test_it_goes_with_the_model():
    data = project(made(), 6, 5)
    task = linear_task(data, LogisticGradients, {"weight": (6,), "bias": (1,)})
    content = task.files()["projection.json"]
    again = GaussianProjection.from_bytes(content)
    assert again == GaussianProjection(inputs=40, outputs=6, seed=5)
    assert again.to_bytes() == content
    assert np.array_equal(again.apply(made().x_test), images(data.x_test))
    assert "projected to 6 dimensions" in task.name
    assert linear_task(made(), LogisticGradients, {}).files() == {}
    for wrong in (b"{", b"[]", b'{"inputs": 2, "outputs": 1, "seed": 0}'):
        with refuses(ValueError, "projection.json"):
            GaussianProjection.from_bytes(wrong)


def test_what_is_no_projection_is_refused():
    with refuses(ValueError, 9, 8):
        GaussianProjection(inputs=8, outputs=9)
    with refuses(ValueError, "(3, 9)", 8):
        GaussianProjection(inputs=8, outputs=2).apply(np.zeros((3, 9)))
