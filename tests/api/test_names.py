"""The names of `import fedpriv as fp`: loaded when used, known to type checkers, no modules."""

import ast
import dataclasses
import importlib
import inspect
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest

import fedpriv as fp
from fedpriv.experiments.load import find_experiments
from tests.harness.refusals import refuses

HEAVY = {
    "torch", "numpy", "scipy", "numba", "ray", "flwr", "pandas", "rich", "dp_accounting",
    "matplotlib", "requests",
}  # fmt: skip


def in_a_new_process(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_importing_loads_nothing_but_itself():
    loaded = in_a_new_process(
        "import sys; before = set(sys.modules); import fedpriv as fp; dir(fp); fp.__all__;"
        "print(*set(sys.modules) - before)"
    ).split()
    assert "fedpriv" in loaded
    assert not {name.partition(".")[0] for name in loaded} & HEAVY
    assert [name for name in loaded if name.startswith("fedpriv.")] == []


@pytest.mark.slow
def test_accounting_loads_neither_torch_nor_ray_nor_dp_accounting():
    loaded = in_a_new_process(
        "import sys, fedpriv as fp; fp.Rounds, fp.Account; print(*sys.modules)"
    ).split()
    assert "fedpriv.privacy.accounting" in loaded
    assert not {"torch", "ray", "flwr", "pandas", "dp_accounting"} & set(loaded)


def test_every_name_is_there_and_documented(subtests):
    for name in fp.__all__:
        with subtests.test(name=name):
            value = getattr(fp, name)
            assert (value.__doc__ or "").strip() and name in dir(fp)
            assert getattr(fp, name) is value


CLASSES = {
    name: value
    for module, names in ((fp, fp.__all__), (fp.flower, fp.flower.__all__))
    for name in names
    if inspect.isclass(value := getattr(module, name))
}


def test_every_public_field_is_described(subtests):
    for name in CLASSES:
        with subtests.test(name=name):
            made = CLASSES[name]
            if dataclasses.is_dataclass(made):
                text = "\n".join(owner.__doc__ or "" for owner in made.__mro__)
                # An option's line of help is with its field.
                fields = [f.name for f in dataclasses.fields(made) if not f.metadata.get("help")]
                told = [f for f in fields if not f.startswith("_")]
                assert [f for f in told if not re.search(rf"^ +{f}: ", text, re.MULTILINE)] == []


def test_an_unknown_name_is_an_attribute_error():
    with refuses(AttributeError, "runn"):
        fp.runn  # noqa: B018


def test_type_checkers_see_the_names_that_are_there():
    tree = ast.parse(Path(fp.__file__).read_text("utf-8"))
    (block,) = (n for n in tree.body if isinstance(n, ast.If) and "TYPE_CHECKING" in ast.dump(n))
    seen = {
        (alias.asname, f"{line.module}.{alias.name}")
        for line in block.body
        if isinstance(line, ast.ImportFrom)
        for alias in line.names
    }
    assert seen == {(name, f"{room}.{name}") for name, room in fp._ROOM.items()} | set(
        fp._MODULES.items()
    )
    assert {name for name, _ in seen} == set(fp.__all__)


def test_no_name_is_that_of_a_module():
    # Importing `fedpriv.x` would put the module in the place of the name.
    modules = {found.name for found in pkgutil.iter_modules(fp.__path__)}
    assert not modules & set(fp.__all__)
    importlib.import_module("fedpriv.runs.loop")
    assert inspect.isfunction(fp.run)


def test_no_argument_of_run_hides_an_option():
    arguments = set(inspect.signature(fp.run).parameters) - {"options"}
    for make in find_experiments().values():
        assert not arguments & {name.replace("-", "_") for name in make().options()}
