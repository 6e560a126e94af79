"""The page of a study in a real browser: it loads, sorts, filters, downloads and fits."""

import csv
import json
import time
from xml.etree import ElementTree

import pytest

from fedpriv.studies.page import write_page
from tests.harness.browser import CHROMIUM, browser
from tests.studies.conftest import write_study

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        CHROMIUM is None, reason="no Chromium here; on Debian: apt-get install chromium"
    ),
]
METHODS = {f"method {number}": 0.2 + 0.01 * number for number in range(5)}
TABLES = "[...document.querySelectorAll('.sortable')]"
SHOWN = "[...block.tBodies[0].rows].filter((row) => !row.hidden)"
# The nth table that sorts: the runs, the differences, the cost, the failures.
TABLE = f"const block = {TABLES}[%d].querySelector('table'); "


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    """The page of 5 methods at 4 ε and without privacy, of which two trials failed."""
    folder = tmp_path_factory.mktemp("studies") / "study"
    long = "RuntimeError: " + "/a/very/long/path/without/a/space" * 6
    study = write_study(
        folder,
        methods=METHODS,
        noise={1.0: 1.3, 2.0: 1.0, 4.0: 0.83, 8.0: 0.68},
        failures={("method 1", 1.0, 0): long, ("method 2", 8.0, 1): "killed: out of memory"},
    )
    write_page(study, folder / "index.html")
    return folder / "index.html"


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    with browser(tmp_path_factory.mktemp("browser")) as page:
        yield page


@pytest.fixture
def opened(page, file):
    page.problems.clear()
    page.open(file, width=1280)
    yield page
    assert page.problems == []


def column(page, table, name):
    """The texts of the cells of a column, of the rows that are shown but for references."""
    return page.run(
        "(() => { " + TABLE % table + f"const rows = {SHOWN}.filter((row) =>"
        " !row.classList.contains('reference'));"
        f"const place = [...block.tHead.rows].at(-1).cells; const name = {json.dumps(name)};"
        "const at = [...place].findIndex((head) => head.querySelector('button')?.textContent === "
        "name); return rows.map((row) => row.cells[at].firstChild.textContent.trim()); })()"
    )


def click(page, table, name):
    page.run(
        "(() => { " + TABLE % table + "[...block.tHead.querySelectorAll('button')].find((button) "
        f"=> button.textContent === {json.dumps(name)}).click(); }})()"
    )


def choose(page, table, key, value):
    page.run(
        f"(() => {{ const select = {TABLES}[{table}].querySelector('select[data-key={key}]');"
        f"select.value = {json.dumps(value)}; select.dispatchEvent(new Event('change')); }})()"
    )


def number(text):
    return float(text.partition("\u202f")[0])


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("dark", [False, True])
def test_it_loads_without_an_error_and_fits_its_width(page, file, width, dark):
    page.problems.clear()
    page.open(file, width=width, dark=dark)
    page.run("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    assert page.run("document.documentElement.scrollWidth") <= width
    assert page.run("document.body.scrollWidth") <= width
    # Nothing on the page needs to be scrolled sideways on a telephone, tables included.
    wide = "filter((one) => one.scrollWidth > one.clientWidth + 1).length"
    assert page.run(f"[...document.querySelectorAll('.scroll')].{wide}") == 0
    back = page.run("getComputedStyle(document.documentElement).backgroundColor")
    assert back == ("rgb(21, 23, 26)" if dark else "rgb(253, 253, 251)")
    assert page.problems == []


def test_a_click_on_a_head_sorts_and_another_one_turns_round(opened):
    before = column(opened, 0, "accuracy")
    assert len(before) == 20  # of 25, the rest is folded
    click(opened, 0, "accuracy")
    values = [number(text) for text in column(opened, 0, "accuracy")]
    assert values == sorted(values, reverse=True) and values[0] > max(map(number, before[:5]))
    sorted_by = "document.querySelector('th[aria-sort=descending] button').textContent"
    assert opened.run(sorted_by) == "accuracy"
    click(opened, 0, "accuracy")
    values = [number(text) for text in column(opened, 0, "accuracy")]
    assert values == sorted(values)
    last = "(() => { " + TABLE % 0 + f"return {SHOWN}.at(-1).textContent; }})()"
    assert "public-only" in opened.run(last)  # references stay below


def test_missing_values_come_last_both_ways(opened):
    choose(opened, 0, "level", "")
    opened.run(f"{TABLES}[0].querySelector('.more').click()")
    for _ in range(2):
        click(opened, 0, "gap closed")
        assert column(opened, 0, "gap closed")[-5:] == ["–"] * 5


def test_it_filters_by_epsilon_and_by_words(opened):
    choose(opened, 0, "level", "8")
    assert column(opened, 0, "method") == [*METHODS]
    assert opened.run(f"{TABLES}[0].querySelector('output').textContent") == "5 of 25 rows"
    opened.run(
        f"(() => {{ const find = {TABLES}[0].querySelector('input'); find.value = 'METHOD 3';"
        "find.dispatchEvent(new Event('input')); })()"
    )
    assert column(opened, 0, "method") == ["method 3"]


def test_differences_are_from_whichever_method_is_chosen(opened):
    assert set(column(opened, 1, "compared with")) == {"public-only"}
    choose(opened, 1, "second", "method 4")
    choose(opened, 1, "level", "4")
    assert column(opened, 1, "method") == ["method 0", "method 1", "method 2", "method 3"]
    assert all(text.startswith("−") for text in column(opened, 1, "difference"))


def test_all_rows_are_there_on_demand_and_in_print(opened):
    opened.run(f"{TABLES}[0].querySelector('.more').click()")
    assert len(column(opened, 0, "method")) == 25
    opened.run("dispatchEvent(new Event('beforeprint'))")
    assert len(column(opened, 2, "method")) == 25


def test_every_download_is_saved_under_its_name(opened, tmp_path):
    opened.call("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))
    links = "document.querySelectorAll('.downloads a')"
    names = opened.run(f"[...{links}].map((link) => link.download)")
    assert len(names) == 6
    for place, name in enumerate(names):
        opened.run(f"{links}[{place}].click()")
        for _ in range(600):
            if (tmp_path / name).is_file():
                break
            time.sleep(0.05)
    saved = {path.suffix: path.read_bytes() for path in tmp_path.iterdir()}
    assert {path.name for path in tmp_path.iterdir()} == set(names)
    assert json.loads(saved[".json"])["rows"]
    assert ElementTree.fromstring(saved[".svg"]).tag.endswith("svg")
    assert b"\\begin{tabular}" in saved[".tex"]
    assert len(list(csv.reader((tmp_path / "trials.csv").read_text().splitlines()))) == 51
