"""Pages on papers: names they link to are in the reference, and NumPy versions are all there."""

import ast
import pkgutil
import re
import shlex

import pytest

from tests.docs.command_checks import ROOT, check
from tests.docs.shell_blocks import Command

PAPERS = ROOT / "docs" / "papers"
ORACLES = ROOT / "tests" / "oracles"
METHOD = (ROOT / "docs" / "methods" / "dp-fedavg.md").read_text("utf-8")
PAGES = {path.name: path.read_text("utf-8") for path in sorted(PAPERS.glob("*.md"))}
#: Oracles of the papers' algorithms, each of whose functions is on a page.
SHOWN = ("adadps", "bolt_on", "dp_agd", "dp_nsgd", "recycling", "theorems", "federated")
ROLE = re.compile(r"\{py:\w+\}`(?:[^`<]*<)?~?([\w.]+)>?`")
INCLUDE = re.compile(
    r"```\{literalinclude\} (\S+)\n:language: python\n:pyobject: (\w+)\n```", re.MULTILINE
)
ENTRY = re.compile(r"^\.\. auto\w+:: ([\w.]+)$(?:\n   :members: ?(.*)$)?", re.MULTILINE)


def functions(path):
    """Functions of a module by name, as syntax trees."""
    tree = ast.parse(path.read_text("utf-8"))
    return {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}


@pytest.fixture(scope="module")
def entries():
    """Names of the reference pages, each with the members that are listed; None without any."""
    text = "\n".join(p.read_text("utf-8") for p in (ROOT / "docs" / "reference").glob("*.md"))
    return {found[1]: found[2] for found in ENTRY.finditer(text)}


@pytest.mark.parametrize("page", PAGES)
def test_a_name_that_a_page_links_to_is_in_the_reference(page, entries):
    names = ROLE.findall(PAGES[page])
    assert len(names) == PAGES[page].count("{py:") and bool(names) == (page != "index.md")
    for name in names:
        pkgutil.resolve_name(name)
        owner, _, member = name.rpartition(".")
        members = entries.get(owner)
        listed = members is not None and (not members or member in members.split(", "))
        assert name in entries or listed, name


@pytest.mark.parametrize("page", PAGES)
def test_what_a_page_includes_is_an_oracle(page):
    assert len(INCLUDE.findall(PAGES[page])) == PAGES[page].count("{literalinclude}")
    for address, name in INCLUDE.findall(PAGES[page]):
        path = (PAPERS / address).resolve()
        assert path.parent == ORACLES and name in functions(path), (address, name)


@pytest.mark.parametrize("oracle", SHOWN)
def test_every_function_of_an_oracle_is_on_a_page(oracle):
    shown = {
        name
        for text in (*PAGES.values(), METHOD)
        for address, name in INCLUDE.findall(text)
        if address.endswith(f"/{oracle}.py")
    }
    public = {name for name in functions(ORACLES / f"{oracle}.py") if not name.startswith("_")}
    assert public - shown == set()


@pytest.mark.parametrize("page", PAGES)
def test_commands_of_a_page_could_be_typed(page):
    """Of the last section's table each row names what comes after `python -m simulations`."""
    table = PAGES[page].partition("## Tables and figures\n")[2]
    rows = [line.split(" | ") for line in table.splitlines() if line.startswith("| ")][1:]
    asked = [
        ("python", "-m", "simulations", name)
        for row in rows
        for name in re.findall("`(.+?)`", row[1])
    ]
    said = re.findall(r"`fedpriv (.+?)`", PAGES[page])
    asked += [("fedpriv", *shlex.split(text)) for text in said]
    assert asked or page == "index.md"
    for words in asked:
        check(Command(words))
