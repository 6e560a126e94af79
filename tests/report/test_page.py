"""The report page: what it must say, escaping, self-containment, contrast."""

import json
import math
import re
from html.parser import HTMLParser

import pytest

from fedpriv.mechanisms import Clip
from fedpriv.mechanisms.gaussian import Unprotected
from fedpriv.privacy.epsilon import format_delta
from fedpriv.privacy.ledger.ledger import Ledger
from fedpriv.privacy.mechanism import Mechanism
from fedpriv.privacy.plan import Plan
from fedpriv.privacy.sampling import Everybody
from fedpriv.report.export import model_card
from fedpriv.report.page import render, write_report
from fedpriv.report.run_record import last_value, points, read_run, spent, total_epsilon
from tests.harness.refusals import refuses
from tests.harness.resealed import reseal
from tests.harness.shown import head, words
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
    said = head(usual_page)
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
        assert part in said, part
    assert "Synthetic" not in said


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
    assert up in head(usual_page)
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


def test_replicates_give_a_mean_and_an_interval(make_run) -> None:
    folders = [make_run(f"r{seed}", seed=seed) for seed in range(4)]
    values = [read_run(folder).diagnosed[-1]["accuracy"] for folder in folders]
    for others, interval in ((folders[1:], True), (folders[1:3], False)):
        said, number = (
            head(write_report(folders[0], replicates=others).read_text()),
            len(others) + 1,
        )
        assert f"{100 * sum(values[:number]) / number:.1f} %" in said
        assert ("95 % t-interval over seeds" in said) == interval


def test_replicates_must_differ_in_the_seed_alone(make_run) -> None:
    first, same = make_run("a"), make_run("b")
    other = make_run("c", seed=1, options={"bound.l2_clip_norm": 1.0})
    for folder in (same, other):
        with pytest.raises(ValueError):
            write_report(first, replicates=[folder])


def test_a_run_that_contradicts_its_ledger_or_has_none_is_refused(make_run) -> None:
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
    (folder / "ledger.jsonl").unlink()
    with pytest.raises(ValueError):
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
    assert f"{math.ceil(after * 100 - 1e-7) / 100:.2f}" in head(_page(folder))
    with refuses(ValueError, 6):
        spent(run, 6)


def test_of_a_redone_round_the_last_attempt_counts_and_it_is_explained(make_run) -> None:
    folder = make_run(rounds=3, every=1)
    lines = (folder / "rounds.jsonl").read_text().splitlines()
    redone = json.loads(lines[1]) | {"attempt": 2, "epsilon": 5.0}
    with (folder / "rounds.jsonl").open("a") as file:
        file.write(json.dumps(redone) + "\n")
    run = read_run(folder)
    assert len(run.attempts) == 4
    assert [row["round_num"] for row in run.released] == [1, 2, 3]
    assert run.released[1]["epsilon"] == 5.0
    assert "1 more than there are rounds" in words(_page(folder))


def test_values_that_were_not_measured_are_left_out() -> None:
    rows = (
        {"round_num": 1, "x": None},
        {"round_num": 2, "x": 0.5},
        {"round_num": 3, "x": math.nan},
        {"round_num": 4},
    )
    assert points(rows, "x") == ([2], [0.5])
    assert last_value(rows, "x") == 0.5
    assert last_value(rows, "y") is None


def test_a_mechanism_of_ones_own_without_noise_is_not_private(make_run, tmp_path) -> None:
    mechanism = Mechanism(
        sampler=Everybody(num_users=12), bound=Clip(l2_clip_norm=1.0), privatizer=Unprotected()
    )
    plan = Plan(mechanism=mechanism, num_rounds=3, delta=1e-3)
    Ledger.create(tmp_path / "ledger.jsonl", plan, mode="simulation").close()
    assert not read_run(tmp_path).private and read_run(make_run(rounds=3)).private


def test_epsilon_of_a_run(make_run) -> None:
    assert spent(read_run(make_run("a", noise_multiplier=None))).value == math.inf
    run = read_run(make_run("b", rounds=5, planned=20))
    assert 0 < spent(run).value < total_epsilon(run).value
    assert (run.rounds_done, run.rounds_planned) == (5, 20)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{}", ("None",)),
        ('{"format":"fedpriv-run","version":2}', (2,)),
        ("[]", ("list",)),
        ("{", ()),
    ],
)
def test_what_is_not_a_run_is_refused(tmp_path, content: str, message: str) -> None:
    with refuses(ValueError, "experiment.json"):
        read_run(tmp_path)
    (tmp_path / "experiment.json").write_text(content)
    with refuses(ValueError, *message):
        read_run(tmp_path)


CENTRAL = {
    "unit": "example",
    "corpus": {"roster": "training set", "num_public_users": 0, "provenance": {}},
}
USER = re.compile(r"\busers?\b|_users?\b", re.IGNORECASE)


def visible(page):
    """The words of a page, and what is read aloud of its pictures."""
    return words(page) + " ".join(re.findall(r'aria-label="([^"]*)"', page))


@pytest.mark.parametrize("mode", ["simulation", "secure"])
def test_a_page_of_examples_speaks_of_no_user(make_run, mode):
    text = visible(render(read_run(make_run(mode=mode, **CENTRAL))))
    assert USER.search(text) is None and "test examples" in text


@pytest.mark.parametrize("more", [{}, {"synthetic": True}])
def test_a_card_of_examples_speaks_of_no_user(make_run, more):
    card = model_card(read_run(make_run(**more, **CENTRAL)), 20, {"kernel": (5, 3)})
    assert "7,055" in card and ("synthetic" in card) == bool(more)
    assert USER.search(card) is None
