"""The table of named faults fits the code and the tests that are there."""

import ast
import inspect
from collections import Counter
from importlib import import_module
from operator import attrgetter

import pytest

from tests.trust.named import all_named, text_of
from tests.trust.scoreboard import TESTS
from tests.trust.twins.breaks import BREAKS
from tests.trust.twins.faults import FAULTS


def test_there_are_a_hundred_and_each_has_a_name_of_its_own():
    names = [one.name for one in all_named()]
    assert [name for name, number in Counter(names).items() if number > 1] == []
    assert len(names) >= 100
    assert set(BREAKS) == set(names) - {fault.name for fault in FAULTS}


def test_each_of_them_says_in_a_sentence_what_is_wrong():
    said = [change.__doc__ for _, change in BREAKS.values()]
    said += [fault.behaviour for fault in FAULTS]
    assert all(text and text.strip().endswith(".") for text in said)


@pytest.mark.parametrize("name", BREAKS)
def test_a_change_replaces_what_its_module_has(name):
    """Else nothing is broken, and tests that stay green say nothing."""
    module, change = BREAKS[name]
    (function,) = ast.parse(inspect.getsource(change)).body
    assert isinstance(function, ast.FunctionDef)
    (given,) = (one.arg for one in function.args.args)
    replaced = [
        ast.unparse(node).removeprefix(f"{given}.")
        for node in ast.walk(function)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
        if ast.unparse(node).startswith(f"{given}.")
    ]
    assert replaced
    for path in replaced:
        assert attrgetter(path)(import_module(module)) is not None


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_changes_one_place_of_its_module(fault):
    """Red when a line moved or was rewritten, and its fault did not follow."""
    text = text_of(fault.module)
    assert text.count(fault.old) == 1
    compile(text.replace(fault.old, fault.new), fault.module, "exec")


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_names_tests_that_are_there(fault):
    for test in fault.tests:
        file, *names = test.split("::")
        inside = ast.parse((TESTS / file).read_text("utf-8")).body
        for name in names:
            (found,) = (one for one in inside if getattr(one, "name", None) == name)
            inside = found.body
