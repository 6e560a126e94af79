"""The report page: what it must say, escaping, self-containment, contrast."""

import json
import math
import re
from html.parser import HTMLParser

import pytest

from fedpriv.privacy.epsilon import format_delta
from fedpriv.privacy.ledger.ledger import Ledger
from fedpriv.report.page import write_report
from fedpriv.report.run_record import read_run, spent
from tests.harness.refusals import refuses
from tests.harness.resealed import reseal
from tests.harness.shown import words
from tests.report.conftest import write_run


@pytest.fixture(scope="module")
def usual(tmp_path_factory):
    """A run as most are, which no test changes."""
    return write_run(tmp_path_factory.mktemp("usual") / "run")


@pytest.fixture(scope="module")
def usual_page(usual) -> str:
    return _page(usual)


def _page(folder) -> str:
    return write_report(folder).read_text(encoding="utf-8")


def _head(page: str) -> str:
    return words(page[page.index("<header>") : page.index("</header>")])


class _Parsed(HTMLParser):
    """The tags of a page, and what they lead to; no tag has code of its own."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.links: list[str | None] = []
        self.tags: set[str] = set()
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attrs) -> None:
        self.tags.add(tag)
        assert not [name for name, _ in attrs if name.startswith("on")]
        self.links += [v for k, v in attrs if k in ("href", "src", "xlink:href", "action")]


def test_the_head_says_what_the_figures_mean(usual, usual_page) -> None:
    run = read_run(usual)
    head = _head(usual_page)
    accuracy = run.diagnosed[-1]["accuracy"]
    public = run.released[-1]["accuracy_public"]
    for part in (
        "adadps-tags",
        "7,055 users",
        f"{100 * accuracy:.1f} %",
        f"{100 * public:.1f} %",
        "not covered by ε",
        "majority class 11.9 %",
        f"δ = {format_delta(run.released[-1]['delta'])}",
        "add-remove relation",
        "unit: user",
        "PLD accountant",
        "Simulated",
    ):
        assert part in head, part
    assert "Synthetic" not in head


@pytest.mark.slow
@pytest.mark.parametrize(
    ("made", "there", "absent"),
    [
        ({"synthetic": True, "rounds": 3, "planned": 9, "noise_multiplier": 0.3},
         ("Synthetic data", "No meaningful protection", "Simulated", "3 of 9 rounds"), ()),
        ({"noise_multiplier": None}, ("Not private", "∞", "this run protects no one"),
         ("planned total",)),
        ({"mode": "secure"}, ("public users: released",),
         ("Simulated", "rostered users: a diagnostic", "Diagnostics, not")),
    ],
)  # fmt: skip
def test_what_a_page_says_of_a_run(make_run, made, there, absent) -> None:
    page = words(_page(make_run(**made)))
    assert [part for part in there if part not in page] == []
    assert [part for part in absent if part in page] == []


def test_a_run_that_has_only_started_has_a_page(make_run) -> None:
    folder = make_run(rounds=1, planned=10)
    (folder / "rounds.jsonl").write_text("")
    (folder / "diagnostics.jsonl").unlink()
    page = words(_page(folder))
    assert "No round has been released yet" in page and "0 of 10 rounds" in page


def test_epsilon_is_never_printed_smaller_than_it_is(usual, usual_page) -> None:
    value = spent(read_run(usual)).value
    up = f"{math.ceil(value * 100) / 100:.2f}"
    # The case at hand is one that ordinary rounding would print smaller.
    assert up != f"{value:.2f}"
    assert up in _head(usual_page)
    assert f">{up}<" in usual_page and f">{value:.2f}<" not in usual_page


def test_a_measure_that_diverged_is_still_reported(make_run) -> None:
    folder = make_run(rounds=4, every=2)
    *lines, last = (folder / "rounds.jsonl").read_text().splitlines()
    lines.append(json.dumps(json.loads(last) | {"accuracy_public": math.nan}))
    (folder / "rounds.jsonl").write_text("".join(line + "\n" for line in lines))
    write_report(folder)


def test_every_string_of_the_folder_is_escaped(make_run) -> None:
    evil = "<script>alert(1)</script><img src=x onerror=alert(1)>\"'&$x^2$\x1b\u202e"
    folder = make_run(
        name=evil,
        options={"server": evil, evil: 1},
        corpus={"name": evil, "roster": evil, "credit": evil, evil: evil, "licence": [evil]},
    )
    reseal(folder, description=evil, backend=evil, versions={evil: evil})
    page = _page(folder)
    tags = _Parsed(page).tags
    assert not tags & {"script", "img"}
    assert "\x1b" not in page and "\u202e" not in page
    assert words(page).count("<script>alert(1)</script>") >= 8


def test_the_page_needs_nothing_but_itself(usual_page) -> None:
    page = usual_page
    parser = _Parsed(page)
    assert parser.links == []
    assert not parser.tags & {"script", "link", "img", "iframe", "object", "base", "form"}
    assert "http:" not in page and "https:" not in page and "@import" not in page
    assert re.findall(r"url\((?!#)", page) == []
    assert "default-src 'none'" in page


def test_redone_rounds_are_explained(make_run) -> None:
    folder = make_run(rounds=3)
    line = json.loads((folder / "rounds.jsonl").read_text().splitlines()[-1]) | {"attempt": 2}
    with (folder / "rounds.jsonl").open("a") as file:
        file.write(json.dumps(line) + "\n")
    assert "1 more than there are rounds" in words(_page(folder))


def test_replicates_give_a_mean_and_an_interval(make_run) -> None:
    folders = [make_run(f"r{seed}", seed=seed) for seed in range(4)]
    values = [read_run(folder).diagnosed[-1]["accuracy"] for folder in folders]
    head = _head(write_report(folders[0], replicates=folders[1:]).read_text())
    assert f"{100 * sum(values) / 4:.1f} %" in head
    assert "95 % t-interval over seeds" in head
    head = _head(write_report(folders[0], replicates=folders[1:3]).read_text())
    assert f"{100 * sum(values[:3]) / 3:.1f} %" in head
    assert "95 % t-interval over seeds" not in head


def test_replicates_must_differ_in_the_seed_alone(make_run) -> None:
    first, same = make_run("a"), make_run("b")
    other = make_run("c", seed=1, options={"bound.l2_clip_norm": 1.0})
    with pytest.raises(ValueError):
        write_report(first, replicates=[same])
    with pytest.raises(ValueError):
        write_report(first, replicates=[other])


def test_a_run_that_contradicts_its_ledger_is_refused(make_run) -> None:
    folder = make_run()
    good = (folder / "experiment.json").read_text()
    for old, new, message in [
        ('"noise_multiplier": 0.72', '"noise_multiplier": 2.0', ()),
        ('"mode": "simulation"', '"mode": "secure"', ()),
        ('"noise_multiplier": 0.72', '"noise_multiplier": -1', ("noise_multiplier",)),
    ]:
        assert old in good
        (folder / "experiment.json").write_text(good.replace(old, new))
        with pytest.raises(ValueError):
            _page(folder)
        reseal(folder)
        with refuses(ValueError, *message):
            _page(folder)


def test_lost_attempts_are_in_the_figure(make_run) -> None:
    folder = make_run(rounds=5, planned=20)
    before = spent(read_run(folder)).value
    with Ledger.open(folder / "ledger.jsonl") as ledger:
        ledger.resume()
        ledger.charge(6, 1)
    run = read_run(folder)
    after = spent(run).value
    assert after > before == spent(run, 5).value
    assert f"{math.ceil(after * 100 - 1e-7) / 100:.2f}" in _head(_page(folder))
    with refuses(ValueError, 6):
        spent(run, 6)


def test_a_run_without_its_ledger_is_refused(make_run) -> None:
    folder = make_run()
    (folder / "ledger.jsonl").unlink()
    with pytest.raises(ValueError):
        _page(folder)
