"""`fedpriv theory`: each formula as a command, with the options that its function has."""

import json

import pytest

from fedpriv import theory
from tests.command_line import fedpriv, refusal

NSGD = ("theory", "dp-nsgd", "--rounds", "100", "--learning-rate", "0.1", "--gap", "1")
NSGD += ("--smoothness", "1", "--dimension", "2", "--deviation", "0.5")


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


def test_a_wrong_number_is_one_line():
    assert "either a regulariser or a clip_norm" in refusal(*NSGD)
    assert "regulariser" in refusal(*NSGD, "--regulariser", "-1")
