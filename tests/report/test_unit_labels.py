"""Reports of single examples speak of examples, those of users of users."""

import re

import pytest

from fedpriv.report.export import model_card
from fedpriv.report.page import render
from fedpriv.report.run_record import read_run
from tests.harness.shown import words

CENTRAL = {
    "unit": "example",
    "corpus": {"roster": "training set", "num_public_users": 0, "provenance": {}},
}
USER = re.compile(r"\busers?\b|_users?\b", re.IGNORECASE)


def visible(page):
    """The words of a page, and what is read aloud of its pictures."""
    return words(page) + " ".join(re.findall(r'aria-label="([^"]*)"', page))


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


@pytest.mark.parametrize("more", [{}, {"synthetic": True}])
def test_a_card_of_examples_speaks_of_no_user(make_run, more):
    card = model_card(read_run(make_run(**more, **CENTRAL)), 20, {"kernel": (5, 3)})
    assert "7,055" in card and ("synthetic" in card) == bool(more)
    assert USER.search(card) is None
