"""The pages about the API: their code, as it stands there, run in a folder of its own."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch

import fedpriv as fp
from fedpriv.privacy.statement.verify import verify_run
from tests.docs.shell_blocks import execute, python
from tests.harness.kills import killed
from tests.harness.refusals import refuses

PAGE = Path(__file__).parents[2] / "docs" / "python-api.md"
LOOP = PAGE.parents[1] / "examples" / "own-loop" / "loop.py"
OWN_LOOP = "## A training loop of your own"


@pytest.fixture(scope="module")
def page():
    return PAGE.read_text("utf-8")


@pytest.fixture
def at_work(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.slow
def test_describing_running_and_reading(page, at_work, tiny_corpus, monkeypatch, capsys):
    monkeypatch.setenv("FEDPRIV_DATA", str(tiny_corpus.directory))
    names = execute(python(page[: page.index(OWN_LOOP)]), {})
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
    """The names of the section about one's own loop."""
    return execute(python(page[page.index(OWN_LOOP) :]), {"fp": fp})


@pytest.mark.slow
def test_a_loop_of_ones_own_keeps_its_books(page, own, at_work):
    names = own
    loop = page[page.index("plan = fp.Rounds") : page.index('    print(params["center"]')]
    assert len(loop.splitlines()) <= 11
    plan = names["plan"]
    spent = names["ledger"].epsilon()
    assert spent == plan.epsilon(10) and spent.value <= 8.0
    # Three coordinates of the mean of twenty noised updates, ten times: far from where it began.
    assert np.linalg.norm(names["params"]["center"]) > 1.0
    with pytest.raises(ValueError):
        names["ledger"].charge(11, 1)
    assert fp.Ledger.open("own-ledger.jsonl").charges == 10


@pytest.mark.slow
@pytest.mark.parametrize("killed_after", [1, 4, 10])
def test_a_loop_that_is_killed_goes_on(at_work, killed_after):
    names, code = {}, LOOP.read_text("utf-8")
    with killed(fp.Ledger, "charge", killed_after, after=True):
        execute([code], names)
    execute([code], names)
    assert names["state"].round_num == 9  # the lost attempt has used up one of the ten charges
    found = verify_run(at_work / "runs" / "loop")
    assert found.ok and (found.num_charges, found.num_lost) == (10, 1)
    with pytest.raises(ValueError):
        names["folder"].ledger.charge(10, 1)


class TestRounds:
    @pytest.mark.slow
    @pytest.mark.parametrize(
        "rounds", [{"rounds": 100}, {"rounds": 10, "sampling": "fixed"}], ids=str
    )
    def test_a_plan_costs_what_the_account_says(self, rounds):
        asked = fp.Rounds(users=400, cohort=20, **rounds)
        plan, price = asked.plan(l2_clip_norm=0.5, noise_multiplier=2.0), asked.account(2.0)
        assert plan.total() == price.epsilon
        assert plan.live_mechanism.stddev == 1.0

    @pytest.mark.parametrize("noise", [{}, {"noise_multiplier": 1.0, "target_epsilon": 2.0}])
    def test_noise_is_said_once(self, noise):
        with pytest.raises(ValueError):
            fp.Rounds(users=10, cohort=2, rounds=1).plan(l2_clip_norm=1.0, **noise)

    @pytest.mark.parametrize(
        ("wrong", "said"),
        [
            ({"rounds": 0}, (0,)),
            ({"users": 0}, (0,)),
            ({"cohort": -1}, ()),
            ({"cohort": float("nan")}, ("nan",)),
            ({"cohort": 50}, (50, 40)),
            ({"cap": 0}, (0,)),
            ({"cap": 3}, (3, 8)),
            ({"cap": 50}, (50, 40)),
            ({"cap": 9, "sampling": "fixed"}, (9,)),
            ({"cohort": 4.5, "sampling": "fixed"}, (4.5,)),
            ({"delta": 1.0}, ("delta",)),
            ({"relation": "add-remove", "sampling": "fixed"}, ("add-remove",)),
        ],
        ids=str,
    )
    def test_what_no_plan_may_be_is_refused_as_it_was_typed(self, wrong, said):
        for price in ("account", "calibrate", "noise_grid"):
            with refuses(ValueError, *said):
                asked = fp.Rounds(**{"users": 40, "cohort": 4, "rounds": 10, **wrong})
                getattr(asked, price)(2.0)


class TestBoundedSum:
    rounds = fp.Rounds(users=10, cohort=2, rounds=1)
    bound = rounds.plan(l2_clip_norm=0.5, noise_multiplier=1.0).live_mechanism.bound
    like = {"w": np.zeros(3, np.float32)}  # noqa: RUF012

    def summed(self, *updates):
        return fp.bounded_sum(
            ({"w": np.array(u, float)} for u in updates), self.bound, like=self.like
        )

    def test_each_is_clipped_and_counted_once(self):
        done = self.summed([30.0, 0.0, 40.0], [0.1, 0.0, 0.0])
        np.testing.assert_allclose(done.real()["w"], [0.4, 0.0, 0.4], atol=1e-6)
        assert (done.num_users, done.num_failed) == (2, 0)

    @pytest.mark.parametrize(
        "odd",
        [
            {"w": np.ones(3, np.int64)}, {"w": np.ones(4)}, {"w": np.ones((1, 3))}, {}, None, 7.0,
            {"w": np.ones(3), "b": np.ones(1)}, {"v": np.ones(3)}, {"w": [1.0, 1.0, 1.0]},
            {"w": np.array(["a", "b", "c"])}, {"w": np.ones(3) * 1j}, {"w": torch.ones(4)},
            {"w": torch.ones(3, dtype=torch.int32)}, {"w": np.array([np.nan, 0.0, 0.0])},
        ],
        ids=repr,
    )  # fmt: skip
    def test_an_update_that_does_not_fit_contributes_zero_alone(self, odd):
        others = [{"w": np.array([0.1 * n, 0.0, 0.3], np.float32)} for n in range(5)]
        without = fp.bounded_sum(others, self.bound, like=self.like)
        done = fp.bounded_sum([*others[:2], odd, *others[2:]], self.bound, like=self.like)
        np.testing.assert_array_equal(done.total["w"], without.total["w"])
        assert (done.num_users, done.num_failed, done.l2_bound) == (6, 1, 0.5)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.half])
    def test_torch_tensors_are_taken(self, dtype):
        values = torch.tensor([0.25, 0.0, -0.125], dtype=dtype, requires_grad=True)
        done = fp.bounded_sum([{"w": values}], self.bound, like=self.like)
        np.testing.assert_allclose(done.real()["w"], [0.25, 0.0, -0.125], atol=1e-6)

    def test_a_sum_of_nothing_but_failures_is_warned_of(self):
        with pytest.warns(RuntimeWarning, match="check_like"):
            assert self.summed([1.0], [2.0]).num_failed == 2
        assert fp.bounded_sum([], self.bound, like=self.like).num_users == 0
