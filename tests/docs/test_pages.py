"""Every page of docs/: its Python is run by a test; its commands by test_commands.py."""

import ast
import pkgutil
import re
from pathlib import Path

import pytest

import fedpriv as fp
from fedpriv.privacy.statement.verify import verify_run
from tests.docs.command_checks import ROOT
from tests.docs.shell_blocks import PAGES, execute, python
from tests.harness import toy_users

DOCS = ROOT / "docs"
#: Which test runs a page's ```python blocks; code that it includes from examples/ has tests there.
RUN_BY = {
    "start.md": "tests/docs/test_pages.py",
    "before-running.md": "tests/docs/test_pages.py",
    "python-api.md": "tests/api/test_pages.py",
    "own-data.md": "tests/docs/test_own_data.py",
    "your-own.md": "tests/training/per_example/example_sum/test_public.py",
    "datasets.md": "tests/docs/test_pages_with_files.py",
    "extending.md": "tests/docs/test_extending.py",
    "studies.md": "tests/docs/test_pages_with_files.py",
    "flower-apps.md": "tests/backends/flower/test_flower_apps.py",
    "pretrained.md": "tests/docs/test_pretrained.py",
    "theory.md": "tests/simulations/test_theory.py",
    "methods/bolt-on.md": "tests/api/bolted/test_page.py",
}
NOTEBOOKS = [page for page in PAGES if "file_format: mystnb" in page.read_text("utf-8")]


def name_of(page: Path) -> str:
    return page.relative_to(DOCS).as_posix()


def test_python_is_run_by_a_test():
    with_python = {name_of(p) for p in PAGES if "```python\n" in p.read_text("utf-8")}
    assert with_python == set(RUN_BY)
    for page, test in RUN_BY.items():
        assert page.rpartition("/")[2] in (ROOT / test).read_text("utf-8"), (page, test)


#: What the code of a page has in the place of its own sizes.
SIZES = {
    "start.md": ("rounds=10", "rounds=2, cohort=6"),
    "before-running.md": ("rounds=20", "rounds=2, cohort=6"),
}
#: Pages whose code is run one block after the other, all but privacy-statement slow.
RUN = [*NOTEBOOKS, *(DOCS / name for name in SIZES)]


@pytest.mark.parametrize(
    "page",
    [pytest.param(p, marks=() if p.stem == "privacy-statement" else pytest.mark.slow) for p in RUN],
    ids=name_of,
)
def test_the_code_of_a_page_runs(page, tmp_path, tiny_corpus, monkeypatch, capsys):
    """In a folder with a tiny corpus to find."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDPRIV_DATA", str(tiny_corpus.directory))
    monkeypatch.setenv("FEDPRIV_CACHE", str(tmp_path / "cache"))
    size = SIZES.get(page.name, ("", ""))
    codes = [code.replace(*size) if size[0] else code for code in python(page.read_text("utf-8"))]
    names = execute(codes, {"my_module_task": toy_users.task(users=toy_users.users(200, 3))})
    assert codes
    globals()[f"_{page.stem.replace('-', '_')}"](names, capsys.readouterr().out)


def _epsilon_of_my_loop(names, said):
    assert fp.Ledger.open("my-ledger.jsonl").charges == 30
    assert names["ledger"].epsilon().value <= 2.0 and names["right"].float().mean() > 0.8


def _own_model(names, said):
    assert names["private"].epsilon.value <= 8.0 and names["private"].summary["rounds"] == 12


def _privacy_statement(names, said):
    assert names["found"].ok and not names["forged"].ok
    assert verify_run("runs/halves").epsilon.value <= 4.0


def _start(names, said):
    assert "SYNTHETIC" in said


def _checkpoints(names, said):
    assert fp.run(names["experiment"], rounds=2, cohort=6).summary["rounds"] == 2


def _before_running(names, said):
    assert names["grid"].points and "noise" in said


README = (ROOT / "README.md").read_text("utf-8")


def test_links_of_the_readme_exist():
    found = re.findall(r"\[[^\]]*\]\(([^)]+)\)", README)
    assert [link for link in found if not (ROOT / link.partition("#")[0]).exists()] == []


@pytest.mark.slow
def test_the_readmes_python_prints_what_stands_below_it(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDPRIV_CACHE", str(tmp_path / "cache"))
    printed = re.findall(r"```text\n(.*?)```", README, re.DOTALL)[-1].splitlines()
    execute(python(README), {})
    found = capsys.readouterr().out.splitlines()
    assert found[1:] == printed[1:]
    # Public training is in float32: other processors may end a few examples apart.
    accuracy = [float(re.search(r"[\d.]+", lines[0])[0]) for lines in (found, printed)]
    assert abs(accuracy[0] - accuracy[1]) <= 2.0


@pytest.mark.slow
def test_dp_sgd_of_ones_own_module_has_an_epsilon_per_example(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    codes = python((DOCS / "your-own.md").read_text("utf-8"))
    execute([code for code in codes if "central =" in code], {})
    said = capsys.readouterr().out
    assert "per example" in said and "60 of 60 steps" in said
    # Half of the test examples are of the commoner class; 500 at 0.8 are 13 deviations above.
    assert float(re.search(r"accuracy +([\d.]+) %", said)[1]) > 80


def test_every_public_name_and_every_one_that_a_page_imports_is_in_the_reference():
    page = (DOCS / "reference" / "api.md").read_text("utf-8")
    named = re.findall(r"^\.\. auto\w+:: ([\w.]+)", page, re.MULTILINE)
    assert set(fp.__all__) <= {name.split(".")[1] for name in named if "." in name}
    known = {id(pkgutil.resolve_name(name)) for name in named}
    missing = [
        (name_of(path), f"{node.module}.{one.name}")
        for path in PAGES
        for code in python(path.read_text("utf-8"))
        for node in ast.walk(ast.parse(code))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("fedpriv")
        for one in node.names
        if id(pkgutil.resolve_name(f"{node.module}.{one.name}")) not in known
    ]
    assert missing == []


def test_no_line_is_a_comment_of_the_sites():
    """One that begins with % is left out of the site."""
    for page in DOCS.rglob("*.md"):
        text = re.sub(r"```.*?```", "", page.read_text("utf-8"), flags=re.DOTALL)
        assert not re.search(r"^%", text, re.MULTILINE), page


def test_every_picture_of_results_is_shown_on_a_page():
    shown = {
        (page.parent / address).resolve()
        for page in [*DOCS.rglob("*.md"), ROOT / "README.md"]
        for address in re.findall(r"!\[[^\]]*\]\(([^)\s]+)\)", page.read_text("utf-8"))
    }
    results = DOCS / "results"
    pictures = {path.resolve() for kind in ("png", "svg") for path in results.rglob(f"*.{kind}")}
    assert sorted(pictures - shown) == []
