"""What the door admits is short: a toy's method and its works on users, of 60 lines at most."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

HERE = Path(__file__).parent
# Users, params and the skeletons that every method has.
FRAME = {"ALL", "BOUNDS", "CLIP", "LIKE", "N", "Once", "ROSTER", "Steps", "TASK", "Users", "WORKS"}
TOYS = {"a": "Descent", "b": "OneShot", "c": "Stream", "d": "Distributed", "e": "Adaptive"}


def defined(source: str) -> dict[str, ast.stmt]:
    """What a module defines at its top, by name."""
    found: dict[str, ast.stmt] = {}
    for node in ast.parse(source).body:
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
            found[node.name] = node
        elif isinstance(node, ast.Assign):
            names = (name for target in node.targets for name in ast.walk(target))
            found |= {name.id: node for name in names if isinstance(name, ast.Name)}
    return found


def works(found: dict[str, ast.stmt]) -> dict[str, ast.expr]:
    """The works of users by the name that a query calls them."""
    table = next(node for node in ast.walk(found["WORKS"]) if isinstance(node, ast.Dict))
    return {key.value: value for key, value in zip(table.keys, table.values, strict=True)}


def parts(name: str, found: dict[str, ast.stmt]) -> set[str]:
    """Everything that a toy is made of, without the frame."""
    known, seen, todo = works(found), set(), [name]
    while todo:
        name = todo.pop()
        seen.add(name)
        mentioned: set[str] = set()
        nodes = list(ast.walk(found[name]))
        for node in nodes:  # grows by the works that queries name
            if isinstance(node, ast.Name):
                mentioned.add(node.id)
            elif isinstance(node, ast.Attribute):
                mentioned.add(node.attr)
            elif isinstance(node, ast.Call) and ast.unparse(node.func) == "Query":
                called = {
                    k.arg: ast.literal_eval(k.value) for k in node.keywords if k.arg == "work"
                }
                nodes += ast.walk(known[called.get("work", "train")])
        todo += (mentioned & set(found)) - FRAME - seen
    return seen


def length(source: str, name: str) -> int:
    """Lines of a definition that are not blank, decorators included."""
    node = defined(source)[name]
    decorators = [item.lineno for item in getattr(node, "decorator_list", [])]
    lines = source.splitlines()[min([node.lineno, *decorators]) - 1 : node.end_lineno]
    return sum(1 for line in lines if line.strip())


@pytest.mark.parametrize("toy", TOYS)
def test_a_toy_is_sixty_lines_at_most(toy):
    sources = [(HERE / f"{name}.py").read_text("utf-8") for name in ("toys", "toy_methods")]
    found = {name: source for source in sources for name in defined(source)}
    every = {name: defined(source)[name] for name, source in found.items()}
    made_of = parts(TOYS[toy], every)
    assert len(made_of) >= 3, made_of  # the method, a privatizer and what users do
    num_lines = sum(length(found[name], name) for name in made_of)
    assert num_lines <= 60, made_of
