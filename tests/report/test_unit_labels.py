"""Reports of single examples speak of examples, those of users of users."""

from __future__ import annotations

import re

import pytest

from fedpriv.report.comparison.files import as_rows
from fedpriv.report.comparison.groups import mismatches, read_groups
from fedpriv.report.comparison.page import render as render_comparison
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


@pytest.fixture
def central(make_run):
    return read_run(make_run("central", **CENTRAL))


@pytest.fixture
def federated(make_run):
    return read_run(make_run("federated"))


class TestPage:
    def test_of_examples(self, central):
        text = visible(render(central))
        assert USER.search(text) is None, USER.search(text)
        assert text.count("test examples: released") >= 2  # legend, and what is read aloud
        assert text.count("training examples: a diagnostic, not covered by ε") >= 2
        assert "7,055 training examples" in text and "held-out" not in text
        assert "where the examples came from" in text
        assert "num_examples" in text
        said, _, options = text.partition("Steps and configuration")
        said = re.sub(r"fedpriv run .*? version", "", said, flags=re.DOTALL)  # names of options
        assert re.search(r"\b(rounds?|cohorts?)\b", said) is None
        assert "num_steps 20" in options and "expected_batch_size 350" in options
        assert "at step 20" in text

    def test_of_users(self, federated):
        text = visible(render(federated))
        assert "public users: released" in text and "held-out examples of 7,055 rostered" in text
        assert "rostered users: a diagnostic" in text and "roster onstartups-all" in text
        assert "training example" not in text and "test example" not in text
        assert "num_users" in text and "max_examples_per_user" in text
        assert "at round 20" in text and "Rounds and configuration" in text
        assert re.search(r"\bsteps?\b", text) is None

    def test_recall_without_diagnostics(self, make_run):
        run = read_run(make_run("secure", mode="secure", **CENTRAL))
        text = visible(render(run))
        assert "test examples; released" in text and USER.search(text) is None


class TestCard:
    def test_of_examples(self, central):
        card = model_card(central, 20, {"kernel": (5, 3)})
        assert USER.search(card) is None, USER.search(card)
        assert "onstartups, 7,055 training examples; this is the model" in card
        assert "| accuracy, test examples (released) |" in card
        assert "| recall at 5, training examples (not covered by ε) |" in card

    def test_of_users(self, federated):
        card = model_card(federated, 20, {"kernel": (5, 3)})
        assert "7,055 rostered users" in card and "| accuracy, public users (released) |" in card
        assert "| accuracy, rostered users (not covered by ε) |" in card


class TestComparison:
    def test_of_examples(self, make_run):
        groups = read_groups(
            [make_run(f"c{n}", seed=n % 2, name=f"n{n // 2}", **CENTRAL) for n in range(4)]
        )
        text = visible(render_comparison(groups))
        assert USER.search(text) is None, USER.search(text)
        assert "Accuracy on training examples is a diagnostic" in text
        assert "Accuracy on test examples Released." in text
        assert "over seeds, on the same examples." in text
        assert "many runs on the same examples, and choosing" in text
        assert mismatches(groups) == []
        assert {row["unit"] for row in as_rows(groups)} == {"example"}

    def test_of_users(self, make_run):
        groups = read_groups([make_run(f"c{n}", seed=n) for n in range(2)])
        text = visible(render_comparison(groups))
        assert "Accuracy on rostered users is a diagnostic" in text
        assert "Accuracy on public users Released." in text and "on the same users." in text

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
