"""Oracles are plain NumPy of thirty lines at most; three files alone reach the product."""

import ast
from pathlib import Path

import pytest

HERE = Path(__file__).parent
FILES = {path.stem: ast.parse(path.read_text(encoding="utf-8")) for path in HERE.glob("*.py")}
WAYS_IN, TOOLS = {"product", "runs", "sums"}, {"baseline", "combinations", "options"}
ORACLES = sorted(n for n in FILES.keys() - WAYS_IN - TOOLS if not n.startswith(("test_", "__")))


def imported(tree):
    """First words of what a file imports."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        if isinstance(node, ast.ImportFrom):
            found.add((node.module or ".").partition(".")[0])
    return found


@pytest.mark.parametrize("name", ORACLES)
def test_an_oracle_is_plain_numpy_of_thirty_lines(name):
    known = {"__future__", "collections", "math", "numpy", "statistics", "typing"}
    assert imported(FILES[name]) <= known
    for function in FILES[name].body:
        if isinstance(function, ast.FunctionDef):
            docstring = (ast.get_docstring(function, clean=False) or "").count("\n") + 1
            lines = (function.end_lineno or 0) - function.lineno + 1
            assert lines - docstring <= 30, function.name


@pytest.mark.parametrize("name", sorted(set(FILES) - WAYS_IN))
def test_only_three_files_reach_the_product(name):
    assert not imported(FILES[name]) & {"fedpriv", "simulations"}
