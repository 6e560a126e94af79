"""What is printed of a run holds of that run: no ε or δ is rounded down."""

import ast
import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from jinja2 import Environment, nodes

from fedpriv.experiments.load import find_experiments

ROOT = Path(__file__).parents[2]
ROOMS = ("fedpriv", "server", "client", "simulations")
FILES = sorted(file for room in ROOMS for file in (ROOT / room).rglob("*.py"))
TEMPLATES = sorted(
    file
    for room in ROOMS
    for file in (ROOT / room).rglob("*")
    if file.suffix in (".md", ".jinja") and "{{" in file.read_text("utf-8")
)

#: What raises a figure before it is written: `fedpriv.privacy.epsilon` and what is made of it.
RAISED = {"rounded_up", "rounded_up_to", "format_epsilon", "format_delta"}
#: An ε that somebody asked for, or a constant, is written as it was given.
ASKED = re.compile(r"target|ABOVE|learning|server|regulariser", re.I)
NAMED = re.compile(r"(^|_)(epsilon|epsilons|eps|rdp|spent|delta)($|_)", re.I)
SPENT = re.compile(r"spent|epsilon|promised|final|priced", re.I)


def is_epsilon(node: ast.AST) -> bool:
    """Return whether an expression is a number by the name of an ε, not yet raised."""
    if isinstance(node, ast.Call):
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        return name not in RAISED and name != "len" and any(is_epsilon(a) for a in node.args)
    if isinstance(node, ast.BinOp):
        return is_epsilon(node.left) or is_epsilon(node.right)
    if isinstance(node, ast.IfExp):
        return is_epsilon(node.body) or is_epsilon(node.orelse)
    if isinstance(node, ast.Attribute) and node.attr == "value":
        return bool(SPENT.search(ast.unparse(node.value)))
    name = ""
    if isinstance(node, ast.Name):
        name = node.id
    elif isinstance(node, ast.Attribute):
        name = node.attr
    elif isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        name = str(node.slice.value)
    return bool(NAMED.search(name)) and not ASKED.search(ast.unparse(node))


def written_otherwise(source: str) -> list[str]:
    """Return the places of a module where an ε or a δ is rounded by a format, and not up."""
    found = []
    for node in ast.walk(ast.parse(source)):
        suspects: Sequence[ast.AST] = []
        if isinstance(node, ast.FormattedValue) and node.format_spec is not None:
            suspects = [node.value]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            suspects = node.args[:1] if node.func.id in ("round", "format") else []
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            literal = isinstance(node.func.value, ast.Constant)
            suspects = node.args if literal and node.func.attr == "format" else []
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
            text = isinstance(node.left, ast.Constant) and isinstance(node.left.value, str)
            right = node.right.elts if isinstance(node.right, ast.Tuple) else [node.right]
            suspects = list(right) if text else []
        found += [f"line {node.lineno}: {ast.unparse(s)}" for s in suspects if is_epsilon(s)]
    return found


def written_in_template(source: str) -> list[str]:
    """Return the same of a Jinja2 template: values that a number format rounds, and not up."""
    tree, found = Environment().parse(source), []
    formats = [node for node in tree.find_all(nodes.Filter) if node.name in ("format", "round")]
    suspects = [(node, [node.node, *node.args]) for node in formats]
    for call in tree.find_all(nodes.Call):
        if isinstance(call.node, nodes.Getattr) and call.node.attr == "format":
            suspects.append((call, call.args))
    for node, values in suspects:
        for value in filter(None, values):
            parts = [value, *value.find_all((nodes.Getattr, nodes.Name))]
            names = [getattr(part, "attr", getattr(part, "name", "")) for part in parts]
            dotted = ".".join(reversed([name for name in names if isinstance(name, str)]))
            is_value = "value" in names and SPENT.search(dotted)
            if (is_value or any(NAMED.search(str(n)) for n in names)) and not ASKED.search(dotted):
                found.append(f"line {node.lineno}: {dotted}")
    return found


@pytest.mark.slow
def test_every_printed_epsilon_and_delta_is_rounded_up():
    found = {
        str(file.relative_to(ROOT)): written_otherwise(file.read_text("utf-8")) for file in FILES
    }
    assert {name: places for name, places in found.items() if places} == {}


def test_templates_round_them_up_too():
    found = {str(file): written_in_template(file.read_text("utf-8")) for file in TEMPLATES}
    assert found and {name: places for name, places in found.items() if places} == {}


@pytest.mark.parametrize(
    "source",
    [
        'f"{spent.value:.2f}"',
        "f\"ε = {row['epsilon']:.3g}\"",
        'f"{released.epsilon:.3f}"',
        'f"{2 * epsilon_rdp:g}"',
        '"%.2f" % epsilon',
        '"{:.2f}".format(plan.epsilon(3).value)',
        "round(row['epsilon_rdp'], 2)",
        "format(epsilon, '.2f')",
        "f\"{'-' if e is None else spent.rdp:.1f}\"",
        'f"{max(epsilon, 1.0):.2f}"',
        'f"{spent.delta:.3g}"',
        "f\"{row['delta']:.2g}\"",
        '{{ "%.2f" | format(spent.value) }}',
        "{{ spent.rdp | round(2) }}",
        '{{ "{:.3g}".format(row.delta) }}',
    ],
)
def test_the_law_sees_it_and_nothing_else(source):
    of_template = source.startswith("{{")
    assert len((written_in_template if of_template else written_otherwise)(source)) == 1
    for right in (
        'f"{rounded_up(spent.value, 2):.2f}"',
        "f\"{rounded_up_to(row['epsilon'], 3):.3g}\"",
        'f"{format_delta(spent.delta)} {target_epsilon:g}"',
        'f"{epsilon}"',
    ):
        assert written_otherwise(right) == []
    assert written_in_template("{{ spent.value | epsilon }} {{ '%g' | format(target) }}") == []


def test_descriptions_of_experiments_leave_epsilon_to_the_plan():
    """A description says what is done; how much of it, and at which ε, is the plan's to say."""
    said = {name: make().description for name, make in find_experiments().items()}
    number = r"[0-9]|ε|epsilon|without privacy|DP at|private"
    assert {name for name, text in said.items() if re.search(number, text)} == set()
