"""Reports of single examples speak of examples, those of users of users."""

from __future__ import annotations

import re

import pytest

from fedpriv.report.comparison.groups import mismatches, read_groups
from fedpriv.report.comparison.page import render as render_comparison
from fedpriv.report.comparison.tables import as_rows
from fedpriv.report.export import model_card
from fedpriv.report.page import render
from fedpriv.report.run_record import read_run
from fedpriv.report.wording import by_unit

CENTRAL = {
    "unit": "example",
    "corpus": {"roster": "training set", "num_public_users": 0, "provenance": {}},
}
USER = re.compile(r"\busers?\b|_users?\b", re.IGNORECASE)


def visible(page):
    """The words of a page, and what is read aloud of its pictures."""
    page = re.sub(r"<style.*?</style>", "", page, flags=re.DOTALL)
    aloud = " ".join(re.findall(r'aria-label="([^"]*)"', page))
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", page) + aloud)


STEP = re.compile(r"\b(rounds?|cohorts?)\b")


def test_a_page_of_examples_speaks_of_no_user(make_run):
    text = visible(render(read_run(make_run("central", **CENTRAL))))
    assert USER.search(text) is None, USER.search(text)
    assert text.count("test examples: released") >= 2  # legend, and what is read aloud
    assert text.count("training examples: a diagnostic, not covered by ε") >= 2
    for part in ("7,055 training examples", "where the examples came from", "at step 20"):
        assert part in text, part
    said, _, options = text.partition("Steps and configuration")
    said = re.sub(r"fedpriv run .*? version", "", said, flags=re.DOTALL)  # names of options
    assert STEP.search(said) is None and "held-out" not in text
    assert "num_steps 20" in options and "expected_batch_size 350" in options
    secure = visible(render(read_run(make_run("secure", mode="secure", **CENTRAL))))
    assert "test examples; released" in secure and USER.search(secure) is None


def test_a_page_of_users_speaks_of_no_example(make_run):
    text = visible(render(read_run(make_run())))
    for part in (
        "public users: released", "held-out examples of 7,055 rostered", "roster onstartups-all",
        "rostered users: a diagnostic", "max_examples_per_user", "at round 20",
        "Rounds and configuration",
    ):  # fmt: skip
        assert part in text, part
    assert re.search(r"\bsteps?\b|training example|test example", text) is None


@pytest.mark.slow
def test_figures_of_a_test_set_are_not_called_rostered_users(make_run):
    made = [make_run(f"t{n}", seed=n, corpus={"num_test_examples": 10_000}) for n in range(2)]
    pages = {
        "report": visible(render(read_run(made[0]))),
        "card": model_card(read_run(made[0]), 20, {"kernel": (5, 3)}),
        "comparison": visible(render_comparison(groups := read_groups(made))),
        "rows": str(as_rows(groups)),
    }
    assert "measured on 10,000 test examples" in pages["report"]
    assert "test examples: a diagnostic, not covered by ε" in pages["report"]
    assert "accuracy, test examples (not covered by ε)" in pages["card"]
    assert "Accuracy on test examples is a diagnostic" in pages["comparison"]
    for name, text in pages.items():
        assert "of 7,055 rostered" not in text and "rostered users:" not in text, name


@pytest.mark.parametrize(
    ("made", "there"),
    [
        (CENTRAL, ("onstartups, 7,055 training examples; this is the model",
                   "| accuracy, test examples (released) |",
                   "| recall at 5, training examples (not covered by ε) |")),
        ({"synthetic": True, **CENTRAL}, ("of synthetic examples, 7,055",)),
        ({}, ("7,055 rostered users", "| accuracy, public users (released) |",
              "| accuracy, rostered users (not covered by ε) |")),
    ],
)  # fmt: skip
def test_a_card_names_those_of_the_unit(make_run, made, there):
    card = model_card(read_run(make_run(**made)), 20, {"kernel": (5, 3)})
    assert [part for part in there if part not in card] == []
    assert not made or USER.search(card) is None


class TestComparison:
    @pytest.mark.slow
    def test_of_examples(self, make_run):
        groups = read_groups(
            [make_run(f"c{n}", seed=n % 2, name=f"n{n // 2}", **CENTRAL) for n in range(4)]
        )
        text = visible(render_comparison(groups))
        assert USER.search(text) is None, USER.search(text)
        for part in (
            "Accuracy on training examples is a diagnostic", "Accuracy on test examples Released.",
            "No ±: fewer than 4 seeds have no t-interval.",
            "many runs on the same examples, and choosing",
        ):  # fmt: skip
            assert part in text, part
        assert mismatches(groups) == []
        assert {row["unit"] for row in as_rows(groups)} == {"example"}

    @pytest.mark.slow
    def test_a_user_is_not_an_example(self, make_run):
        groups = read_groups([make_run("c", **CENTRAL), make_run("f")])
        assert mismatches(groups) == ["unit of privacy"]
        text = visible(render_comparison(groups))
        assert "Not like with like: these runs differ in unit of privacy." in text
        assert "training examples or rostered users" in text
        assert "test examples or public users" in text


def test_names_of_a_run_folder_stay_those_of_users():
    document = {"num_users": 1, "max_examples_per_user": 2, "num_public_users": 3, "delta": 4}
    assert by_unit(document, "user") == document
    assert by_unit(document, "example") == {
        "num_examples": 1,
        "num_public_examples": 3,
        "delta": 4,
    }
