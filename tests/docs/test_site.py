"""The site: it builds without a warning, offline, and its search finds the right page first."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.docs.command_checks import ROOT
from tests.harness import browser

pytestmark = pytest.mark.slow

#: The page that a search must list first.
FIRST = {
    "epsilon": "what-epsilon-covers.html",
    "own model": "tutorials/own-model.html",
    "resume": "faq.html",
    "clip norm": "faq.html",
    "DP-FTRL": "methods/dp-ftrl.html",
    "output perturbation": "methods/bolt-on.html",
    "deploy": "tutorials/three-nodes.html",
    "glossary": "glossary.html",
}
_FOUND = """new Promise((done) => {
  let looks = 0;
  const look = () => {
    const links = [...document.querySelectorAll("#search-results ul.search > li > a")];
    looks += 1;  // results are shown one by one, in their order
    if (links.length > 4 || looks > 50) done(links.map((link) => link.getAttribute("href")));
    else setTimeout(look, 100);
  };
  look();
})"""


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The site, without its notebooks' results: `make docs` executes them."""
    pytest.importorskip("furo", reason="the extra `docs` is not installed")
    out = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "--fail-on-warning", "--keep-going", "--quiet"]
    done = subprocess.run(
        [*command, "-D", "nb_execution_mode=off", "docs", str(out)],
        cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return out


def test_nothing_is_loaded_from_elsewhere(site):
    for page in site.rglob("*.html"):
        text = page.read_text("utf-8")
        for tag in ("<script src=", 'rel="stylesheet" href=', " src="):
            for part in text.split(tag)[1:]:
                assert not part[1:].startswith(("http", "//")), (page, part[:80])


@pytest.mark.skipif(browser.CHROMIUM is None, reason="no Chromium is installed")
def test_a_search_finds_the_right_page_first(site, tmp_path, subtests):
    with browser.browser(tmp_path) as page:
        for asked, first in FIRST.items():
            page.open(site / "search.html", width=1280, query=f"q={asked.replace(' ', '+')}")
            found = [link.partition("#")[0] for link in page.run(_FOUND)]
            with subtests.test(asked=asked):
                assert found[:1] == [first], found[:6]


@pytest.mark.skipif(browser.CHROMIUM is None, reason="no Chromium is installed")
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_page_is_wider_than_a_phone_or_complains(site, tmp_path, subtests, scheme):
    pages = [path for path in site.rglob("*.html") if "_static" not in path.parts]
    with browser.browser(tmp_path) as page:
        for path in pages:
            page.open(path, width=390, dark=scheme == "dark")
            with subtests.test(page=path.relative_to(site).as_posix()):
                assert page.run("document.documentElement.scrollWidth") <= 390
                luminance = page.run(
                    "getComputedStyle(document.body).backgroundColor.match(/\\d+/g)"
                    ".slice(0, 3).reduce((sum, one) => sum + Number(one), 0)"
                )
                assert (luminance < 384) == (scheme == "dark")
        assert page.problems == []
