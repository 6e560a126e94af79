"""`fedpriv theory`: each formula as a command, with the options that its function has."""

import json
import re
from pathlib import Path

import pytest

from fedpriv import theory
from fedpriv.training.permutation_sgd import softmax_constants
from tests.docs.shell_blocks import commands
from tests.harness.command_line import fedpriv, refusal

ROOT = Path(__file__).parents[2]

NSGD = ("theory", "dp-nsgd", "--rounds", "100", "--learning-rate", "0.1", "--gap", "1")
NSGD += ("--smoothness", "1", "--dimension", "2", "--deviation", "0.5")


@pytest.mark.slow
def test_a_command_prints_what_its_function_returns():
    done = fedpriv(*NSGD, "--regulariser", "0.5", "--json")
    found = theory.dp_nsgd(
        rounds=100,
        learning_rate=0.1,
        gap=1.0,
        smoothness=1.0,
        dimension=2,
        deviation=0.5,
        regulariser=0.5,
    )
    assert done.exit_code == 0 and json.loads(done.stdout) == found.to_json()


def test_people_read_values_sources_and_assumptions():
    text = fedpriv("theory", "bias", "--regulariser", "0.01").stdout
    assert "Bias of single gradients' scaling (DP-NSGD, Appendix A.1)" in text
    assert "-0.322806" in text
    assert "(1) from the paper (DP-NSGD, equations 2 and 3)" in text
    assert "(2) derived (" in text and "checked by simulation" in text
    assert "assumes: gradients are in one dimension" in text and "note: " in text


@pytest.mark.parametrize("name", theory.FORMULAS)
def test_every_option_is_explained(name):
    text = fedpriv("theory", name, "--help").stdout
    options = theory.FORMULAS[name].__kwdefaults__ or {}
    assert all(f"--{option.replace('_', '-')}" in text for option in options)
    from fedpriv.cli.theory import _helps

    assert all(_helps(theory.FORMULAS[name]).values())
    assert _helps(theory.FORMULAS[name]).keys() == theory.FORMULAS[name].__annotations__.keys() - {
        "return"
    }


@pytest.mark.parametrize("name", theory.FORMULAS)
def test_help_defines_what_it_names(name):
    text = " ".join(re.sub("[│\\s]+", " ", fedpriv("theory", name, "--help").stdout).split())
    assert "None" not in text  # the command line knows no such value: an option is left out
    assert "E/A" not in text and "E <=" not in text  # brackets that were read as markup
    if "A_j" in text:
        assert "is divided" in text


def test_brackets_of_help_are_printed():
    text = fedpriv("theory", "adadps-convex-fixed", "--help").stdout
    assert "E[g_j²]/A_j" in text


@pytest.mark.parametrize(
    ("start", "names"),
    [
        ("bolt-on", "bolt-on-convex, bolt-on-strongly-convex"),
        ("adadps", "adadps-convex-public, adadps-convex-fixed, adadps-smooth"),
    ],
)
def test_the_start_of_a_name_is_answered_by_the_names(start, names):
    done = fedpriv("theory", start)
    assert done.exit_code == 2
    assert f"No such command '{start}'; there are {names}" in re.sub("[│\\s]+", " ", done.stderr)
    assert "Did you mean" not in done.stderr


def test_a_name_that_begins_none_is_refused():
    done = fedpriv("theory", "nothing")
    assert done.exit_code == 2 and "No such command 'nothing'" in done.stderr


def test_the_page_has_the_numbers_of_its_example():
    page = (ROOT / "docs" / "theory.md").read_text("utf-8")
    example = [found for found in commands(page) if "--reshuffled" in found.words]
    assert len(example) == 2
    for program, *words in (found.words for found in example):
        assert program == "fedpriv"
        values = json.loads(fedpriv(*words, "--json").stdout)["values"]
        rate = words[words.index("--learning-rate") + 1]
        names = ("bound", "from_steps", "from_order", "from_noise", "sensitivity")
        shown = [f"{values[name]['value']:.3g}" for name in (*names, "best_learning_rate")]
        assert f"| {' | '.join([rate, *shown])} |" in page
    loss = softmax_constants()
    assert float(words[words.index("--lipschitz") + 1]) == pytest.approx(loss.lipschitz)
    assert float(words[words.index("--smoothness") + 1]) == loss.smoothness


def test_a_bound_above_guessing_is_said_to_be_empty(subtests):
    problem = ("--rounds", "9", "--learning-rate", "1", "--distance", "1")
    for name, rest in {
        "adadps-convex-public": ("--preconditioner-sum", "1"),
        "adadps-convex-fixed": ("--preconditioner-sum", "1", "--preconditioner-max", "1"),
        "last-iterate": ("--dimension", "1"),
    }.items():
        with subtests.test(name=name):
            assert "ln of the number of classes" in fedpriv("theory", name, *problem, *rest).stdout
    problem = ("--examples", "9", "--passes", "1", "--distance", "1", "--lipschitz", "1")
    problem += ("--smoothness", "1", "--dimension", "1", "--epsilon", "1")
    for name, rest in {
        "bolt-on-convex": ("--learning-rate", "1"),
        "bolt-on-strongly-convex": ("--convexity", "0.5"),
    }.items():
        with subtests.test(name=name):
            assert "ln of the number of classes" in fedpriv("theory", name, *problem, *rest).stdout


def test_a_wrong_number_is_one_line():
    assert "either a regulariser or a clip_norm" in refusal(*NSGD)
    assert "regulariser" in refusal(*NSGD, "--regulariser", "-1")
