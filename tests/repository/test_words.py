"""Messages and names say what the field says; the words they had before do not come back."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROOMS = ("fedpriv", "server", "client", "simulations")

#: What a name does not say, and what it says instead. `guide` is not here, an option on which
#: recorded runs and their key streams hang; nor are `factor`, `part` and `unit`, which are right
#: for a multiplier, for what an experiment is composed of, and for the privacy unit (`GRID` below).
NAMES = {
    "company|isolat(?:ion|ed)": "batch invariance",
    "made_up": "synthetic",
    "gradient_trial": "independence check",
    "gradient_ways?|factored": "per-example backends, ghost norms",
    "plain_attributes": "hidden state",
    "dealing|hands|workplace": "sharding, shards, worker context",
    "guidance": "round context",
    "carriers?": "backend",
    "promised|jobs?": "base options (or guaranteed), prepared run",
    "whose|origins?|history": "unit labels, provenance, ledger state",
    "same_data": "data digest",
    "(?:un)?priced|unpromised": "accounted, nonprivate",
    "coins?|told|way_out|nobody|beside": "plain words",
}
#: As much of it as is not plain English in a sentence.
MESSAGES = {
    "made-up": "synthetic",
    "workplace|guidance": "worker context, round context",
    "carriers?": "backend",
    "(?:un)?promised": "guaranteed",
    "(?:un)?priced": "accounted",
    "coins?|told|way out|nobody|beside": "plain words",
}
#: Where sums are put on a grid, whose step is its granularity.
GRID = ("fedpriv/mechanisms/", "fedpriv/kernels/", "fedpriv/sums.py")

_THREADS = "goes with the parameter that the study by threads passes by name"
_KEYS = "labels a key: with another word its stream would be another"
#: What stays: (file, name or part of the message) and why.
KEPT = {
    ("simulations/evaluation/held_out.py", "beside"): "the study by threads passes it by name",
    ("simulations/threads/study.py", "_beside"): _THREADS,
    ("simulations/threads/study.py", "_learn_beside"): _THREADS,
    ("fedpriv/training/local/vectorised.py", "made-up user"): _KEYS,
    ("fedpriv/training/per_example/backends.py", "made-up examples"): _KEYS,
    ("simulations/dpnsgd/sst2.py", "made-up sentences"): _KEYS,
    ("simulations/linear_models/problems.py", "made-up covertype"): _KEYS,
    ("simulations/adadps/setups/imdb.py", "can be priced"): "a note of a page that is recorded",
}

_NAME = re.compile(rf"(?<![a-z])(?:{'|'.join(NAMES)})(?![a-z])")
_MESSAGE = re.compile(rf"\b(?:{'|'.join(MESSAGES)})\b", re.I)
# Only files with one of these are parsed: for the tree it is a second's work.
_EITHER = re.compile(
    "|".join((*NAMES, *MESSAGES)).replace("_", "[_ -]?").replace("whose", r"whose(?! [a-z])")
)
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


def odd_names(tree: ast.AST, *, grid: bool = False) -> Iterator[str]:
    """The names that a module gives to functions, classes, parameters, variables and fields."""
    for node in ast.walk(tree):
        name = ""
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            name = node.name
        elif isinstance(node, ast.arg):
            name = node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            name = node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            name = node.attr
        if _NAME.search(_HUMP.sub("_", name).lower()) or (grid and name.strip("_") == "unit"):
            yield name


def odd_messages(tree: ast.AST, *, of_commands: bool = False) -> Iterator[str]:
    """Strings that people may read: not docstrings, but those of commands, which are helps."""
    documentation = {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for node in ast.walk(tree):
        text: object = None
        if isinstance(node, ast.Constant) and id(node) not in documentation:
            text = node.value
        elif of_commands and isinstance(node, ast.FunctionDef) and node.name[0] != "_":
            text = ast.get_docstring(node)
        if isinstance(text, str) and " " in text.strip() and _MESSAGE.search(text):
            yield text


@cache
def found() -> tuple[tuple[str, str], ...]:
    """What there is in all rooms, as (file, name or message)."""
    odd = []
    for path in sorted(file for room in ROOMS for file in (ROOT / room).rglob("*.py")):
        file, source = path.relative_to(ROOT).as_posix(), path.read_text("utf-8")
        if _NAME.search(path.stem):
            odd.append((file, path.stem))
        grid = file.startswith(GRID)
        if _EITHER.search(source.lower()) or (grid and "unit" in source):
            tree = ast.parse(source)
            odd += [(file, name) for name in odd_names(tree, grid=grid)]
            odd += [(file, text) for text in odd_messages(tree, of_commands="/cli/" in file)]
    return tuple(odd)


def keeps(file: str, kept: str, odd: tuple[str, str]) -> bool:
    return odd[0] == file and (odd[1] == kept or (" " in kept and kept in odd[1]))


def test_names_and_messages_are_the_fields():
    """Red before in 48 names and 10 messages."""
    assert [o for o in found() if not any(keeps(*kept, o) for kept in KEPT)] == []


@pytest.mark.parametrize("kept", KEPT, ids=" ".join)
def test_what_is_kept_is_still_there(kept):
    assert any(keeps(*kept, odd) for odd in found())


@pytest.mark.parametrize(
    ("source", "odd"),
    [
        ("def told(a): pass", ["told"]),
        ("def f(*, beside_it): pass", ["beside_it"]),
        ("class MadeUp: origins: int", ["MadeUp", "origins"]),
        ("self._nothing_promised = whose = 1", ["whose", "_nothing_promised"]),
        ("from x import unpriced\nprice, x[beside(1)], reorigin, unit = x.told, 2, 3, 4", []),
        ("class JobHistory: pass", ["JobHistory"]),
    ],
)
def test_a_name_is_seen(source, odd):
    assert sorted(odd_names(ast.parse(source))) == sorted(odd)


def test_the_step_of_a_grid_is_no_unit():
    tree = ast.parse("def rounded(values, unit, unit_norm): pass")
    assert list(odd_names(tree)) == [] and list(odd_names(tree, grid=True)) == ["unit"]


def test_a_message_is_seen():
    tree = ast.parse(
        '"""Nobody here."""\ndef f():\n    """Told."""\n    raise E(f"{x} is told so")'
    )
    assert list(odd_messages(tree)) == [" is told so"]
    helped = ast.parse('def plan():\n    """Print what is promised."""')
    assert list(odd_messages(helped)) == []
    assert list(odd_messages(helped, of_commands=True)) == ["Print what is promised."]
