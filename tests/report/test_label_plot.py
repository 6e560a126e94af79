"""The plot of labels by user: what it shows, as text of an SVG, and what it refuses."""

import numpy as np
import pytest

from fedpriv.report.label_plot import write_label_plot

RNG = np.random.default_rng(0)


@pytest.mark.slow
@pytest.mark.parametrize("labels", [1, 10, 62])
@pytest.mark.parametrize("users", [1, 500])
def test_it_is_written_for_few_and_many(tmp_path, labels, users):
    counts = RNG.integers(0, 9, (users, labels)) + 1
    counts[-1] = 1_000 if users == 500 else counts[-1]  # numbers over a wide range
    names, made = [f"person-{row:03d}" for row in range(users)], []
    for name in ("one.svg", "two.svg"):
        write_label_plot(
            counts, tmp_path / name, labels=range(labels), users=names, title="<b>Digits</b>"
        )
        made.append((tmp_path / name).read_text("utf-8"))
    assert made[0] == made[1] and "person-000" in made[0]
    assert "&lt;b&gt;Digits&lt;/b&gt;" in made[0] and f"of {labels} labels" in made[0]
    assert ("0 (dark) to 61 (light)" in made[0]) == (labels == 62)


@pytest.mark.slow
def test_png_and_users_without_examples(tmp_path):
    write_label_plot(np.array([[0, 0], [1, 3]]), tmp_path / "a.png", labels="ab", title="t")
    assert (tmp_path / "a.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"counts": np.zeros((2, 2), int)}, "with an example at least"),
        ({"counts": np.ones(2, int)}, "a row a user and a column a label"),
        ({"labels": "abc"}, "2 users and 3 labels"),
        ({"users": ["a"]}, "1 users and 2 labels"),
        ({"path": "a.pdf"}, r"let it end in \.svg, \.png"),
    ],
)
def test_what_is_no_table_is_refused(tmp_path, change, said):
    given = {"counts": np.ones((2, 2), int), "path": "a.svg", "labels": "ab", "title": "t"} | change
    with pytest.raises(ValueError, match=said):
        write_label_plot(path=tmp_path / given.pop("path"), **given)
