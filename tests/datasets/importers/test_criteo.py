"""Logs in Criteo's form: a line counted by hand, lines that are none, and the synthetic one."""

import numpy as np
import pytest

from fedpriv.datasets.criteo import load_criteo, read_rows, synthetic_criteo, synthetic_lines
from tests.harness.refusals import refuses


def line(label="1", integers=("1",) * 13, categories=("a",) * 26):
    return "\t".join([label, *integers, *categories])


def test_a_line_is_logarithms_marks_of_what_is_missing_and_hashed_categories():
    integers = ("0", "3", "-3", "", *("",) * 9)
    x, y = read_rows([line("0", integers, ("",) * 26), line()], "here", buckets=7)
    assert x.shape == (2, 26 + 7) and y.tolist() == [0, 1]
    dense = x.toarray()
    expected = np.zeros(26)
    expected[1], expected[2] = np.log(4), -np.log(4)
    expected[16:26] = 1.0  # ten of thirteen are missing
    np.testing.assert_allclose(dense[0, :26], expected / np.linalg.norm(expected), rtol=1e-6)
    assert not dense[0, 26:].any() and dense[1, 26:].any()
    assert np.linalg.norm(dense, axis=1) == pytest.approx(1.0)


def test_a_rows_features_depend_on_no_other_row():
    lines = list(synthetic_lines(30, seed=3))
    whole, _ = read_rows(lines, "here", buckets=50)
    fewer, _ = read_rows([*lines[:10], *lines[11:]], "here", buckets=50)
    kept = np.delete(np.arange(30), 10)
    np.testing.assert_array_equal(whole.toarray()[kept], fewer.toarray())


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (line(label="2"), "'2'"),
        (line() + "\tx", 41),
        ("", 1),
        (line(integers=("x", *("1",) * 12)), "'x'"),
        (line(integers=(str(1 << 70), *("1",) * 12)), f"'{1 << 70}'"[:21]),
    ],
)
def test_a_line_of_another_form_is_refused_with_its_number(text, name):
    with refuses(ValueError, "here", 2, name):
        read_rows([line(), text], "here", buckets=5)


def test_a_file_is_read_and_split_in_its_order(tmp_path):
    file = tmp_path / "log.tsv"
    file.write_text("\n".join(synthetic_lines(20, seed=1)) + "\n")
    data = load_criteo(file, buckets=30)
    assert (data.num_train, len(data.y_test), data.synthetic) == (16, 4, False)
    assert data.name == "criteo" and len(load_criteo(file, rows=10).y_test) == 2
    with refuses(ValueError, tmp_path / "none.tsv"):
        load_criteo(tmp_path / "none.tsv")
    with refuses(ValueError, "here"):
        read_rows([], "here", buckets=3)


@pytest.mark.slow
def test_the_synthetic_log_says_so_and_is_its_seeds():
    data = synthetic_criteo(400, seed=5)
    assert data.synthetic and "synthetic" in data.name
    assert data.y_train.tolist() == synthetic_criteo(400, seed=5).y_train.tolist()
    assert data.y_train.tolist() != synthetic_criteo(400, seed=6).y_train.tolist()
    assert 0.1 < data.y_train.mean() < 0.5
