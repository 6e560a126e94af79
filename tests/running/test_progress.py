"""Progress: a line that is rewritten, lines where none can be, nothing where nobody looks."""

import io
import sys
import threading
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
from rich.console import Console

from fedpriv.measures import UNNAMED
from fedpriv.privacy.epsilon import rounded_up
from fedpriv.privacy.ledger.ledger import Ledger
from fedpriv.runs.progress import Pace, PlainLines, follow, is_watched, plain_lines
from tests.harness.waiting import Clock
from tests.privacy.plans.clipped import clipped


def console(**how):
    return Console(file=io.StringIO(), width=120, color_system=None, **how)


class Prepared:
    """A run of thirty rounds that trains nobody; each takes a second of its clock."""

    def __init__(self, folds=0):
        self.clock, self.folds = Clock(), folds  # seconds that each takes
        plan = self.plan()
        self.components = SimpleNamespace(plan=plan, task=SimpleNamespace(measures=UNNAMED))
        self.experiment = SimpleNamespace(name="[b]old", description="of [markup]", eval_every=5)
        self.begun = SimpleNamespace(params={"w": np.zeros(1234)})
        self.cautions = ()
        self.ledger = Ledger.in_memory(plan, mode="simulation")
        corpus = {"name": "toys", "num_users": 100, "synthetic": True}
        document = {"plan": plan.to_json(), "experiment": {}, "corpus": corpus}
        self.folder = SimpleNamespace(document=document)

    def plan(self):
        return clipped(
            num_users=100, expected_cohort_size=10, num_rounds=30, l2_bound=1.0,
            noise_multiplier=1.0, delta=0.001,
        )  # fmt: skip

    def tell_of(self, on_round, number, epsilon=1.001, accuracy=None):
        released = SimpleNamespace(round_num=number, epsilon=epsilon, delta=0.001)
        figures = {"accuracy": accuracy}
        on_round(SimpleNamespace(released=released, figure=figures.get, diagnostics=None))

    def run(self, on_round=lambda record: None, tell=lambda text: None):
        while self.ledger.pays_for_more:
            number = self.ledger.charges + 1
            self.ledger.charge(number, 1)
            self.clock.now += 1
            self.tell_of(on_round, number, accuracy=None if number % 5 else 0.5)
        for number in range(2):
            self.clock.now += self.folds
            tell(f"selecting: fold {number + 1} of 2") if self.folds else None
        return {"rounds": 30}


@pytest.fixture
def widgets(monkeypatch):
    """What a notebook has to show a bar with; returns what was displayed."""
    displayed = []

    class Output:
        def __enter__(self):
            return self

        def __exit__(self, *error):
            return None

        def clear_output(self, wait):
            displayed.append("cleared")

    found = {
        "IPython": {},
        "IPython.display": {"display": lambda *shown: displayed.extend(map(str, shown))},
        "ipywidgets": {"Output": Output},
    }
    for name, names in found.items():
        module = ModuleType(name)
        module.__spec__ = ModuleSpec(name, None)
        vars(module).update(names)
        monkeypatch.setitem(sys.modules, name, module)
    return displayed


def printed(to):
    return to.file.getvalue()


def test_a_terminal_gets_a_line_that_is_rewritten_and_stays_as_it_was_last():
    to, prepared = console(force_terminal=True), Prepared()
    assert follow(prepared, console=to) == {"rounds": 30}
    assert "1,234 params on SYNTHETIC corpus toys, 100 users" in printed(to)
    assert "\r" in printed(to) and printed(to).splitlines()[-2].endswith(
        "round 30 of 30, ε ≤ 1.01 at δ = 0.001, accuracy 50.0%"
    )


def test_what_public_examples_alone_reach_is_next_to_the_metric_from_the_start():
    prepared = Prepared()
    prepared.folder.document["baseline"] = {"accuracy_public_only": 0.25}
    first, *_, last = lines_of(prepared)
    assert "public-only 25.0% (not covered by ε)" in first
    assert last.endswith("accuracy 50.0%, public-only 25.0%")


def test_elsewhere_nothing_is_printed_unless_asked_for():
    to = console()
    assert follow(Prepared(), console=to) == {"rounds": 30} and printed(to) == ""
    assert not is_watched(to, "auto") and is_watched(to, True)


def lines_of(prepared):
    to = console()
    follow(prepared, console=to, shown=True, clock=prepared.clock)
    return [line for line in printed(to).splitlines() if line.startswith("[b]old (synthetic): ")]


def test_lines_come_every_few_seconds_and_end_with_the_last_round():
    prepared = Prepared()
    prepared.ledger.charge(1, 1)  # as of a run that was killed in its first round
    spent = prepared.components.plan.epsilon(5).value
    lines = lines_of(prepared)
    rounds = [line.partition("round ")[2].partition(" ")[0] for line in lines]
    assert rounds == ["0", "6", "11", "16", "21", "26", "30"]
    # An earlier figure is not said of a later round, and ε is said of each.
    first, second, *_, last = lines
    assert "1 of 30 charges" in first and f"ε ≤ {rounded_up(spent, 2):.2f} at δ = 0.001" in first
    assert "24 s" in second  # of rounds that take a second each
    assert second.endswith("round 5: accuracy 50.0%")
    for part in ("[b]old (synthetic)", "30 of 30", "ε ≤ 1.01 at δ = 0.001", "accuracy 50.0%"):
        assert part in last


def test_what_is_done_after_the_last_round_is_said():
    *_, first, second, last = lines_of(Prepared(folds=10))
    for number, line in enumerate((first, second), start=1):
        assert "round 30 of 30" in line and f"fold {number} of 2" in line
    assert "round 30 of 30" in last and "fold" not in last
    to = console(force_terminal=True)
    follow(Prepared(folds=10), console=to)
    assert "fold 2 of 2" in printed(to)


def test_what_is_done_before_the_first_round_is_said_until_it_ends():
    to, prepared = console(force_terminal=True), Prepared()

    def stopped(on_round, tell):
        tell("loading an encoder")
        prepared.ledger.charge(1, 1)
        prepared.tell_of(on_round, 1)
        raise KeyboardInterrupt

    prepared.run = stopped
    with pytest.raises(KeyboardInterrupt):
        follow(prepared, console=to)
    before, name, after = printed(to).rpartition("[b]old")
    assert "loading an encoder" in before and "encoder" not in after
    assert name and "round 1 of 30" in after, after


def test_a_notebook_with_widgets_gets_a_line_that_is_rewritten(widgets):
    follow(Prepared(), console=console(force_jupyter=True))
    assert "cleared" in widgets


def test_a_notebook_without_widgets_gets_lines(widgets, monkeypatch, recwarn):
    monkeypatch.setitem(sys.modules, "ipywidgets", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    follow(Prepared(), console=console(force_jupyter=True))
    assert (
        "cleared" not in widgets and len(widgets) == 5
    )  # three lines of head, the first, the last
    assert not recwarn.list


@pytest.fixture
def clock(monkeypatch):
    """A clock, and no thread that could look at it between two lines of a test."""
    monkeypatch.setattr(PlainLines, "_beat", lambda self: None)
    return Clock()


@pytest.fixture
def said():
    return []


@pytest.mark.parametrize(("hours", "pause"), [(0.1, 5), (0.5, 18), (1, 36), (10, 60)])
def test_long_work_is_said_less_often_and_each_minute_at_least(clock, said, hours, pause):
    with PlainLines(said.append, clock=clock) as tell:
        clock.now = 3600 * hours
        tell("first")
        for second in range(200):
            clock.now = 3600 * hours + second
            tell(f"after {second}")
    # A hundredth of the time that has passed when a line is due, so it may be a second longer.
    assert pause <= int(said[1].split()[1]) <= pause + 1


@pytest.mark.slow
def test_a_thread_reminds_and_is_gone_afterwards(said):
    before = threading.active_count()
    clock, heard = Clock(), threading.Event()

    def say(line):
        said.append(line)
        if len(said) == 2:
            heard.set()

    with PlainLines(say, clock=clock) as tell:
        tell("waiting")
        clock.now = 7
        assert heard.wait(60)
    assert said == ["waiting", "waiting (7 s so far)"]
    assert threading.active_count() == before


def test_lines_hold_no_control_characters_and_are_one_line_each():
    to = Console(file=io.StringIO(), width=20, color_system=None)
    with plain_lines(to) as tell:
        tell("[bold]a\x1b[31m\r\nlong name, longer than the console is wide")
    (line,) = to.file.getvalue().splitlines()
    assert line.isprintable() and line.startswith("[bold]a") and line.endswith("is wide")


def test_counted_work_is_said_before_it_is_done_and_how_long_the_rest_takes(capsys):
    now, rows = [0.0], []
    pace = Pace(4, of="cells", rows=rows, clock=lambda: now[0])
    assert pace.work("first", lambda: "made") == "made"  # adds no row: it was there
    now[0] = 30.0
    pace.work("second", lambda: rows.append(1))
    pace.work("third", lambda: rows.append(1))
    pace.keep()
    assert (pace.done, pace.kept) == (4, 2) and "4 of 4 cells" in str(pace)
    first, second, third = capsys.readouterr().err.splitlines()
    assert "first (0 of 4 cells)" in first and "second (1 of 4 cells)" in second
    for part in ("third", "2 of 4 cells", "30 s", "1:00 min"):  # so far, and left
        assert part in third
