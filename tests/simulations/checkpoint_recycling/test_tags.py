"""Recycling checkpoints of tag models of threads: what the studies rest on, and their commands."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fedpriv.checkpoints.aggregates import packed
from fedpriv.experiments.build import build
from fedpriv.mechanisms.bounds import Clip, Rounded
from fedpriv.rng import Key
from fedpriv.runs.backends import serial
from fedpriv.training.periodic_shift import SHARE
from fedpriv.training.work import UserByUser
from simulations.checkpoint_recycling import checkpoints as made_of
from simulations.checkpoint_recycling.checkpoints import (
    LAST,
    Aggregates,
    averages,
    checkpoints,
    states,
)
from simulations.checkpoint_recycling.tags import command, runs, study
from simulations.checkpoint_recycling.tags.page import MAJORITY, Gain, Line, lines_of, verdict
from simulations.checkpoint_recycling.tags.runs import Site, Together, columns_of
from simulations.checkpoint_recycling.tags.study import FAMILIES, TINY, one_half, options
from simulations.reproduction.study import (
    t_half,
)

WHICH = Aggregates(decays=(0.8,), ks=(3,))


@pytest.fixture
def site(tiny_corpus, tmp_path):
    return Site(tiny_corpus, None, tmp_path)


@pytest.fixture
def one_noise(monkeypatch):
    """Noise of the seed alone, where it would be of all options too."""
    monkeypatch.setattr("fedpriv.runs.loop.unkept_noise_root", lambda root, *given: root)


def given(site, name, **more):
    return {**options(site, FAMILIES[name], TINY, 8.0, 1.0), **more}


class TestTogether:
    @pytest.mark.parametrize(
        ("norm", "grid"),
        [
            (2.0, True),
            (1e6, False),
            pytest.param(2.0, False, marks=pytest.mark.slow),
            pytest.param(1e6, True, marks=pytest.mark.slow),
        ],
    )
    def test_it_is_the_frames_sum(self, site, norm, grid):
        made = build(site.experiment("adadps-tags", given(site, "DP-SGD")), site.corpus)
        bound = Rounded(bound=Clip(l2_clip_norm=norm)) if grid else Clip(l2_clip_norm=norm)
        params = made.init_params(Key.simulation(3))
        asked = {
            "params": params, "bound": bound, "data": made.task.data,
            "user_ids": made.task.roster, "key": Key.simulation(4),
        }  # fmt: skip
        mine = Together(trainer=made.trainer, columns=columns_of(site.view())).partial_sum(**asked)
        whole = UserByUser(trainer=made.trainer).partial_sum(**asked)
        assert (mine.num_users, mine.num_failed) == (whole.num_users, whole.num_failed)
        assert mine.granularity == whole.granularity
        for name, array in whole.total.items():
            if grid:
                assert np.abs(mine.total[name] - array).max() <= 1
            np.testing.assert_allclose(mine.total[name], array, rtol=1e-6, atol=1.0 if grid else 0)
            assert np.abs(np.asarray(array)).max() > 0

    def test_a_round_has_the_share_that_it_is_given(self, site):
        made = build(site.experiment("adadps-tags", given(site, "DP-SGD")), site.corpus)
        every = np.ones(len(site.view().columns.labels), bool)
        work = Together(trainer=made.trainer, columns=columns_of(site.view(), every))
        params = made.init_params(Key.simulation(3))

        def total(**more):
            return work.partial_sum(
                params={**params, **more}, bound=Clip(l2_clip_norm=2.0), data=None,
                user_ids=made.task.roster, key=Key.simulation(4),
            ).total["kernel"]  # fmt: skip

        assert not total(**{SHARE: np.zeros(1, np.float32)}).any()
        assert np.array_equal(total(**{SHARE: np.ones(1, np.float32)}), total())


class TestAggregates:
    """What is made afterwards of kept checkpoints is, bit for bit, what the run itself makes."""

    @pytest.mark.parametrize("name", FAMILIES)
    @pytest.mark.parametrize(
        ("own", "more"),
        [
            ("EMA 0.8", {"aggregate": "ema", "ema-decay": 0.8, "ema-warmup": False}),
            ("UPA 3", {"aggregate": "upa", "aggregate-k": 3}),
        ],
    )
    def test_of_params(self, site, name, own, more, one_noise):
        plain = site.experiment(FAMILIES[name].experiment, given(site, name), seed=1)
        past = list(checkpoints(plain, site.components(plain), 1))
        made_after = averages(past, WHICH).models()[own]
        during = site.experiment(FAMILIES[name].experiment, given(site, name, **more), seed=1)
        frame = build(during, site.corpus)  # and by the frame's own training
        *_, end = states(during, frame, 1)
        result = frame.algorithm.result(end)
        for tensor, array in result.items():
            assert np.array_equal(made_after[tensor], array)
        assert any((made_after[tensor] != past[-1][tensor]).any() for tensor in past[-1])

    @pytest.mark.parametrize("rule", ["opa", "omv"])
    def test_of_outputs(self, site, rule):
        plain = site.experiment("adadps-tags", given(site, "DP-SGD"))
        made = site.components(plain)
        past = list(checkpoints(plain, made, 0))
        right = runs.measured(made.task, past, WHICH)[f"{rule.upper()} 3"]
        state = packed(rule, past[-3:])
        experiment = site.experiment(
            "adadps-tags", given(site, "DP-SGD", **{"aggregate": rule, "aggregate-k": 3})
        )
        frame = build(experiment, site.corpus)
        own = serial(experiment, frame).evaluate(state, public=False)
        assert own.get("accuracy") == pytest.approx(float(right.mean()), abs=1e-12)


class TestFigures:
    def test_seeds_are_runs_of_their_own_and_kept(self, site, monkeypatch):
        one, two = (
            site.aggregated("adadps-tags", given(site, "DP-SGD"), seed, WHICH) for seed in (0, 1)
        )
        assert (one[LAST] != two[LAST]).any()

        def trained(*arguments, **more):
            raise AssertionError("trained again")

        monkeypatch.setattr(made_of, "rounds", trained)
        again = site.aggregated("adadps-tags", given(site, "DP-SGD"), 1, WHICH)
        assert np.array_equal(again[LAST], two[LAST])

    def test_gains_are_paired(self, site):
        view = site.view()
        n = sum(view.num_examples(user, "test") for user in view.roster)
        rng = np.random.default_rng(0)
        last = (rng.random((3, n)) < 0.5).astype(np.uint8)
        better = last.copy()
        better[:, rng.permutation(n)[: n // 10]] = 1
        found = lines_of(site, {LAST: last, "UPA 3": better}, last[0])
        gain = found["UPA 3"].gain
        apart = 100 * (better.mean(axis=1) - last.mean(axis=1))
        assert gain.value == pytest.approx(apart.mean()) and gain.by_seed == t_half(apart)
        assert gain.by_thread.low <= gain.value / 100 <= gain.by_thread.high
        assert found[LAST].gain is None and {MAJORITY, "public-only"} < set(found)

    def test_nothing_is_said_where_there_is_no_signal(self):
        from simulations.evaluation.bootstrap import Interval

        clear = Gain(value=1.0, by_seed=0.5, by_thread=Interval(low=0.002, high=0.02))
        dim = replace(clear, by_seed=1.5)
        assert (clear.clear, dim.clear, replace(clear, by_thread=None).clear) == (1, 0, 0)
        lines = {
            LAST: Line(accuracy=20, stddev=0.1, gain=None, over_majority=clear),
            "EMA 0.8": Line(accuracy=21, stddev=0.1, gain=clear, over_majority=clear),
        }
        assert verdict(lines, ["EMA 0.8"]) == "better: EMA 0.8 (+1.00)"
        lines[LAST] = replace(lines[LAST], over_majority=dim)
        assert verdict(lines, ["EMA 0.8"]).startswith("no signal")


def test_half_of_the_text_is_that_of_askers(site):
    view = site.view()
    found = one_half(site, "questions")
    rows = np.concatenate(list(view.rows(view.roster, "train")))
    assert 0 < found[rows].sum() < len(rows)
    tags = one_half(site, "tags")
    assert set(np.unique(np.asarray(view.columns.labels)[tags]) % 2) == {0}


def test_widths_of_two_samples_of_one_law_are_alike():
    """Chains without correlation: ratios are what chance makes of them, and centred."""
    rng = np.random.default_rng(1)
    logits = rng.normal(size=(10, 10, 400, 3)) * 0.1 + [2.0, 0.0, 0.0]
    chains = np.exp(logits) / np.exp(logits).sum(axis=-1, keepdims=True)
    found = study._widths(chains, list(range(10)), 10, 1)
    assert found.within_two == pytest.approx(found.chance, abs=0.03)
    assert found.ratio == pytest.approx(1, abs=0.05) and 0.4 < found.below < 0.6
    still = chains.copy()
    still[:, :-1] = still[:, -1:] + 0.05 * (still[:, :-1] - still[:, -1:])  # hardly move
    assert study._widths(still, list(range(10)), 10, 1).within_two < 0.1


@pytest.mark.parametrize("what", ["aggregates", "shift"])
def test_the_page_of_what_is_kept(what, tiny_corpus, tmp_path, monkeypatch):
    given = {
        "what": what, "corpus": str(tiny_corpus.directory), "tiny": True,
        "results": tmp_path / "kept.jsonl", "out": tmp_path / "page.md",
    }  # fmt: skip
    command.reproduce(**given)
    text = (tmp_path / "page.md").read_text("utf-8")
    for said in ("user-level", "δ = n^-1.1", "zero-out", "add-remove", "PLD",
                 "simulated", "another", "not covered"):  # fmt: skip
        assert said in text

    def trained(*arguments, **more):
        raise AssertionError("trained again")

    monkeypatch.setattr(made_of, "rounds", trained)
    command.reproduce(**given, kept=True)
    assert (tmp_path / "page.md").read_text("utf-8") == text


def test_each_pair_of_halves_has_columns_of_its_own(site):
    """Seen red: the second study of one process had the first one's halves."""
    experiment = site.experiment("adadps-tags", given(site, "DP-SGD"))
    questions, tags = (
        site.components(experiment, name, lambda name=name: one_half(site, name)).trainer.columns
        for name in ("questions", "tags")
    )
    assert (questions.asked != tags.asked).any()
    assert site.components(experiment).trainer.columns.asked is None
