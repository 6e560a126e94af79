"""The pages about the API: their code, as it stands there, run in a folder of its own."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import fedpriv as fp
from fedpriv.privacy.statement.verify import verify_run

PAGE = Path(__file__).parents[2] / "docs" / "python-api.md"
OWN_LOOP = "## A training loop of your own"


def blocks(text):
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


@pytest.fixture(scope="module")
def page():
    return PAGE.read_text("utf-8")


@pytest.fixture
def at_work(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_describing_running_and_reading(page, at_work, tiny_corpus, monkeypatch, capsys):
    monkeypatch.setenv("FEDPRIV_DATA", str(tiny_corpus.directory))
    names = {}
    for code in blocks(page[: page.index(OWN_LOOP)]):
        exec(compile(code, str(PAGE), "exec"), names)
    run = names["run"]
    assert run.path == Path("runs/first") and run.summary["rounds"] == 3
    assert run.epsilon.value <= 8.0 and names["noisier"].epsilon.value <= 2.0
    assert Path("runs/first/report.html").is_file()
    said = capsys.readouterr().out
    # What the page says is printed there.
    (first,) = re.findall(r"print\(price\)  # (.*)", page)
    assert first in said and "SYNTHETIC corpus" in said


@pytest.fixture
def own(page, at_work):
    """The names of the section about one's own loop, its last block not run yet."""
    names = {"fp": fp}
    first, second = blocks(page[page.index(OWN_LOOP) :])
    exec(compile(first, str(PAGE), "exec"), names)
    return names, second


def test_a_loop_of_ones_own_keeps_its_books(page, own, at_work):
    names, _ = own
    loop = page[page.index("plan = fp.plan") : page.index('    print(params["center"]')]
    assert len(loop.splitlines()) <= 11
    plan = names["plan"]
    spent = names["ledger"].epsilon()
    assert spent == plan.epsilon(10) and spent.value <= 8.0
    # Three coordinates of the mean of twenty noised updates, ten times: far from where it began.
    assert np.linalg.norm(names["params"]["center"]) > 1.0
    with pytest.raises(ValueError, match="takes no further line"):
        names["ledger"].charge(11, 1)
    assert fp.Ledger.open("own-ledger.jsonl").charges == 10


@pytest.mark.parametrize("killed_after", [1, 4, 10])
def test_a_loop_that_is_killed_goes_on(own, at_work, killed_after, monkeypatch):
    names, code = own
    real, charged = fp.Ledger.charge, []

    def killed(self, *numbers):
        charge = real(self, *numbers)
        charged.append(numbers)
        if len(charged) == killed_after:
            raise SystemExit
        return charge

    with monkeypatch.context() as patched:
        patched.setattr(fp.Ledger, "charge", killed)
        with pytest.raises(SystemExit):
            exec(compile(code, str(PAGE), "exec"), names)
    exec(compile(code, str(PAGE), "exec"), names)
    assert names["state"].round_num == 9  # the lost attempt has used up one of the ten charges
    found = verify_run(at_work / "runs" / "loop")
    assert found.ok and (found.num_charges, found.num_lost) == (10, 1)
    with pytest.raises(ValueError, match="takes no further line"):
        names["folder"].ledger.charge(10, 1)


class TestPlan:
    def test_it_costs_what_the_account_says(self):
        numbers = {"users": 400, "cohort": 20, "rounds": 100, "noise_multiplier": 1.0}
        plan = fp.plan(**numbers, l2_clip_norm=0.5)
        assert plan.epsilon(100) == fp.account(**numbers).epsilon
        assert plan.live_mechanism.stddev == 0.5

    def test_fixed_cohorts_are_accounted_by_replacement(self):
        numbers = {"users": 400, "cohort": 20, "rounds": 10, "noise_multiplier": 2.0}
        plan = fp.plan(**numbers, sampling="fixed", l2_clip_norm=0.5)
        assert plan.epsilon(10) == fp.account(**numbers, sampling="fixed").epsilon

    @pytest.mark.parametrize("noise", [{}, {"noise_multiplier": 1.0, "target_epsilon": 2.0}])
    def test_noise_is_said_once(self, noise):
        with pytest.raises(ValueError, match="exactly one of the two"):
            fp.plan(users=10, cohort=2, rounds=1, l2_clip_norm=1.0, **noise)

    def test_what_no_plan_may_be_is_refused_as_it_was_typed(self, subtests):
        for wrong, said in [
            ({"rounds": 0}, "^rounds 0 must be"),
            ({"users": 0}, "^users 0 must be"),
            ({"cohort": -1}, "^cohort -1"),
            ({"cohort": 50}, "50 is above the 40 users"),
            ({"cap": 0}, "^cap 0 must be"),
            ({"cap": 3}, "^cap 3 is below 8, twice the expected"),
            ({"cap": 50}, "^cap 50 is above the 40 users"),
            ({"cap": 9, "sampling": "fixed"}, "^cap 9 has no meaning"),
            ({"cohort": 4.5, "sampling": "fixed"}, "4.5 users is not whole"),
            ({"delta": 1.0}, "^delta 1"),
            ({"relation": "add-remove", "sampling": "fixed"}, "'add-remove'"),
        ]:
            for asked in ["plan", "account", "calibrate"]:
                with subtests.test(wrong=wrong, said=said, asked=asked):
                    numbers = {"users": 40, "cohort": 4, "rounds": 10, **wrong}
                    noise = {
                        "plan": {"l2_clip_norm": 1.0, "noise_multiplier": 1.0},
                        "account": {"noise_multiplier": 1.0},
                        "calibrate": {"target_epsilon": 2.0},
                    }[asked]
                    with pytest.raises(ValueError, match=said):
                        getattr(fp, asked)(**numbers, **noise)


class TestBoundedSum:
    bound = fp.plan(
        users=10, cohort=2, rounds=1, l2_clip_norm=0.5, noise_multiplier=1.0
    ).live_mechanism.bound
    like = {"w": np.zeros(3, np.float32)}  # noqa: RUF012

    def summed(self, *updates):
        return fp.bounded_sum(
            ({"w": np.array(u, float)} for u in updates), self.bound, like=self.like
        )

    def test_each_is_clipped_and_counted_once(self):
        done = self.summed([30.0, 0.0, 40.0], [0.1, 0.0, 0.0])
        np.testing.assert_allclose(done.real()["w"], [0.4, 0.0, 0.4], atol=1e-6)
        assert (done.num_users, done.num_failed) == (2, 0)

    def test_what_is_not_finite_is_zero(self):
        done = self.summed([np.nan, 0.0, 0.0], [0.1, 0.0, 0.0])
        np.testing.assert_allclose(done.real()["w"], [0.1, 0.0, 0.0], atol=1e-6)
        assert (done.num_users, done.num_failed) == (2, 1)

    def test_a_wrong_shape_is_an_error_of_the_loop(self):
        with pytest.raises(ValueError, match="has shape"):
            self.summed([1.0])
