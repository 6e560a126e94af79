"""Recycling checkpoints of tag models of threads: what the studies rest on, and their commands."""

from dataclasses import replace

import numpy as np
import pytest

from fedpriv.checkpoints.aggregates import packed
from fedpriv.datasets.importers import locate
from fedpriv.datasets.importers.synthetic import Shape, synthesize
from fedpriv.experiments.build import build
from fedpriv.mechanisms.bounds import Clip
from fedpriv.report.bootstrap import Interval
from fedpriv.rng import Key
from fedpriv.runs.attendance import AllUsersFailedError
from fedpriv.runs.backends import serial
from fedpriv.training.algorithm import NO_CONTEXT, Context
from fedpriv.training.periodic_shift import SHARE
from simulations.checkpoint_recycling import corpora
from simulations.checkpoint_recycling.checkpoints import (
    LAST,
    Aggregates,
    averages,
    checkpoints,
    states,
)
from simulations.checkpoint_recycling.corpora import small_corpus
from simulations.checkpoint_recycling.tags import page, runs, study
from simulations.checkpoint_recycling.tags.page import Gain, Line, lines_of, verdict
from simulations.checkpoint_recycling.tags.runs import GROUPS, MAJORITY, Site
from simulations.checkpoint_recycling.tags.study import (
    AT,
    AT_LASTS,
    FAMILIES,
    KINDS,
    TINY,
    Case,
    Choice,
    accuracy_of,
    choose,
    one_half,
    options,
)
from simulations.reproduction.study import t_half
from tests.harness.refusals import refuses
from tests.harness.toys_of_training import answered

WHICH = Aggregates(decays=(0.8,), ks=(3,))


@pytest.fixture
def site(tiny_corpus):
    return Site(tiny_corpus, None)


def given(site, name, **more):
    return {**options(site, FAMILIES[name], TINY, 8.0, 1.0), **more}


@pytest.mark.slow
def test_a_round_has_the_share_that_it_is_given(site):
    made = build(site.experiment("adadps-tags", given(site, "dp-sgd")), site.corpus)
    every = np.ones(len(site.view().columns.labels), bool)
    work = site.components(made.experiment, "all", lambda: every).trainer
    params = made.init_params(Key.simulation(3))

    def total(context=NO_CONTEXT):
        return answered(
            work, params=params, bound=Clip(l2_clip_norm=2.0), data=made.task.data,
            user_ids=made.task.roster, key=Key.simulation(4), context=context,
        ).total["kernel"]  # fmt: skip

    none, everything = (Context(extra={SHARE: np.full(1, share, np.float32)}) for share in (0, 1))
    assert not total(none).any()
    assert np.array_equal(total(everything), total())


class TestAggregates:
    """What is made afterwards of kept checkpoints is, bit for bit, what the run itself makes."""

    @pytest.mark.slow
    @pytest.mark.parametrize("name", FAMILIES)
    @pytest.mark.parametrize(
        ("own", "more"),
        [
            ("EMA 0.8", {"aggregate": "ema", "ema-decay": 0.8, "ema-warmup": False}),
            ("UPA 3", {"aggregate": "upa", "aggregate-k": 3}),
        ],
    )
    def test_of_params(self, site, name, own, more, one_root):
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

    @pytest.mark.slow
    @pytest.mark.parametrize("rule", ["opa", "omv"])
    def test_of_outputs(self, site, rule):
        plain = site.experiment("adadps-tags", given(site, "dp-sgd"))
        made = site.components(plain)
        past = list(checkpoints(plain, made, 0))
        right = runs.measured(made.task, past, WHICH)[f"{rule.upper()} 3"]
        state = packed(rule, past[-3:])
        experiment = site.experiment(
            "adadps-tags", given(site, "dp-sgd", **{"aggregate": rule, "aggregate-k": 3})
        )
        frame = build(experiment, site.corpus)
        own = serial(experiment, frame).evaluate(state, public=False)
        assert own.get("accuracy") == pytest.approx(float(right.mean()), abs=1e-12)


class TestRows:
    @pytest.mark.slow
    def test_seeds_are_runs_of_their_own(self, site):
        one, two = (
            site.aggregated("adadps-tags", given(site, "dp-sgd"), seed, WHICH) for seed in (0, 1)
        )
        assert one["right"][LAST] != two["right"][LAST]

    def test_counts_are_of_groups_of_whole_threads(self, site):
        """Of validation threads all are one group, and are not those of test."""
        row = site.aggregated("adadps-tags", given(site, "dp-sgd"), 0, WHICH)
        view = site.view()
        n = sum(view.num_examples(user, "test") for user in view.roster)
        assert len(row["examples"]) == GROUPS and sum(row["examples"]) == n
        for right in row["right"].values():
            assert all(0 <= r <= of for r, of in zip(right, row["examples"], strict=True))
        assert set(row["right"]) == {LAST, "EMA 0.8", "UPA 3", "OPA 3", "OMV 3"}
        held = site.aggregated("adadps-tags", given(site, "dp-sgd"), 0, WHICH, validation=True)
        assert len(held["examples"]) == 1 and held["examples"] != [n]

    def test_a_run_that_diverged_is_never_chosen(self, site, monkeypatch):
        def diverged(*arguments):
            raise AllUsersFailedError("not finite")

        monkeypatch.setattr(runs, "measured", diverged)
        row = site.aggregated("adadps-tags", given(site, "dp-sgd"), 0, WHICH)
        assert row["right"] == {} and accuracy_of(row, LAST) == -np.inf


class TestChoice:
    """Rates are chosen for each method alone."""

    @pytest.fixture
    def chosen(self, site, monkeypatch):
        """The last iterate is best at rate .5, OPA at 1, and training at twice the rate."""

        def row(**right):
            return {"examples": [100], "right": {name: [n] for name, n in right.items()}}

        def aggregated(name, options, seed, which, *, validation=False):
            assert validation and seed in TINY.tuning_seeds
            if options["server-learning-rate"] == 0.5:
                return row(**{LAST: 50, "EMA 0.8": 51, "UPA 3": 52, "OPA 3": 50, "OMV 3": 50})
            return row(**{LAST: 40, "EMA 0.8": 50, "UPA 3": 52, "OPA 3": 60, "OMV 3": 0})

        def trained_over(name, options, seed, *, validation=False):
            assert validation and options["aggregate-start"] == TINY.rounds // 2
            return row(released=round(10 * options["server-learning-rate"]))

        monkeypatch.setattr(site, "aggregated", aggregated)
        monkeypatch.setattr(site, "trained_over", trained_over)
        return choose(site, FAMILIES["tree"], TINY, 8.0)

    def test_of_each_method(self, chosen):
        found = {kind: (own.name, own.rate) for kind, own in chosen.items()}
        assert found == {
            LAST: (LAST, 0.5), "EMA": ("EMA 0.8", 0.5),
            "UPA": ("UPA 3", 0.5),  # the lower rate of equals
            "OPA": ("OPA 3", 1.0), "OMV": ("OMV 3", 0.5),
            **{
                f"{kind}{AT}{reading}": (f"{name}{AT}{reading}", 1.0)
                for kind, name in (("EMA", "EMA 0.8"), ("UPA", "UPA 3"))
                for reading in study.READINGS
            },
        }  # fmt: skip
        assert all(own.on_edge for own in chosen.values()) and chosen["OPA"].accuracy == 0.6

    def test_one_in_the_middle_is_on_no_edge(self, site, monkeypatch):
        size = replace(TINY, rates=(0.5, 1.0, 2.0))
        right = {0.5: 1, 1.0: 3, 2.0: 2}

        def aggregated(name, options, seed, which, *, validation=False):
            count = right[options["server-learning-rate"]]
            names = (LAST, *(f"{kind} 3" for kind in KINDS))
            return {"examples": [4], "right": {name: [count] for name in names}}

        monkeypatch.setattr(site, "aggregated", aggregated)
        monkeypatch.setattr(
            site, "trained_over", lambda *given, **more: {"examples": [4], "right": {}}
        )
        chosen = choose(site, FAMILIES["tree"], size, 8.0)
        assert chosen[LAST].rate == 1.0 and not chosen[LAST].on_edge


@pytest.mark.slow
def test_the_tree_and_bands_differ_in_the_noise_alone(site):
    tree, bands = (
        site.experiment("adadps-ftrl-tags", given(site, name)) for name in ("tree", "bands")
    )
    for name, kind in ((tree, "tree"), (bands, "banded")):
        assert build(name, site.corpus).plan.live_mechanism.privatizer.name == kind
    one, other = tree.options(), bands.options()
    assert {k.partition(".")[0] for k in {*one, *other} if one.get(k) != other.get(k)} == {"noise"}
    free = [
        site.experiment("adadps-ftrl-tags", options(site, FAMILIES[name], TINY, None, 1.0))
        for name in ("tree", "bands")
    ]
    assert free[0].options() == free[1].options()
    assert list(study.settings((8, None), ("bands",))) == [("bands", 8.0), ("tree", None)]
    assert list(study.settings((None,), tuple(FAMILIES))) == [("tree", None), ("dp-sgd", None)]
    with refuses(ValueError, "branches"):
        list(study.settings((8.0,), ("branches",)))


def case(right, examples):
    choice = Choice(name=LAST, rate=1.0, on_edge=False, accuracy=0.5)
    return Case(chosen={LAST: choice}, right=right, examples=np.array(examples))


def test_gains_are_paired():
    """20 groups of 10 examples and an empty one, 3 seeds."""
    rng = np.random.default_rng(0)
    examples = [10] * 20 + [0]
    last = np.vstack([rng.integers(3, 8, (20, 3)), [[0, 0, 0]]])
    better = last + np.vstack([rng.integers(0, 3, (20, 3)), [[0, 0, 0]]])
    levels = {"right": {MAJORITY: [2] * 20 + [0], page.PUBLIC: [3] * 20 + [0]}}
    found = lines_of(case({LAST: last, "UPA": better}, examples), levels)
    gain = found["UPA"].gain
    apart = 100 * (better.sum(axis=0) - last.sum(axis=0)) / 200
    assert gain.value == pytest.approx(apart.mean()) and gain.by_seed == pytest.approx(
        t_half(apart)
    )
    assert gain.by_thread.low <= gain.value / 100 <= gain.by_thread.high
    assert found[LAST].gain is None and found[MAJORITY].accuracy == pytest.approx(20.0)


def test_nothing_is_said_where_there_is_no_signal():
    clear = Gain(value=1.0, by_seed=0.5, by_thread=Interval(low=0.002, high=0.02))
    dim = replace(clear, by_seed=1.5)
    assert (clear.clear, dim.clear, replace(clear, by_thread=None).clear) == (1, 0, 0)
    lines = {
        LAST: Line(accuracy=20, stddev=0.1, gain=None, over_majority=clear),
        "EMA": Line(accuracy=21, stddev=0.1, gain=clear, over_majority=clear),
    }
    assert verdict(lines, {"EMA": "EMA 0.8"}) == "better: EMA 0.8 (+1.00)"
    lines[LAST] = replace(lines[LAST], over_majority=dim)
    assert verdict(lines, {"EMA": "EMA 0.8"}).startswith("no signal")


def test_half_of_the_text_is_that_of_askers(site):
    view = site.view()
    found = one_half(site, "questions")
    rows = np.concatenate(list(view.rows(view.roster, "train")))
    assert 0 < found[rows].sum() < len(rows)
    tags = one_half(site, "tags")
    assert set(np.unique(np.asarray(view.columns.labels)[tags]) % 2) == {0}


def test_widths_of_two_samples_of_one_law_are_alike():
    """Chains without correlation: ratios are what chance makes of them, and centred.

    10 chains of 10 checkpoints, 400 examples: 4,000 ratios.
    """
    rng = np.random.default_rng(1)
    chains = 1 / (1 + np.exp(-(rng.normal(size=(10, 10, 400)) * 0.1 + 1.0)))
    found = study.widths_of(chains, list(range(10)), 10, 1)
    assert found.within_two == pytest.approx(found.chance, abs=0.03)
    assert found.ratio == pytest.approx(1, abs=0.05) and 0.4 < found.below < 0.6
    still = chains.copy()
    still[:, :-1] = still[:, -1:] + 0.05 * (still[:, :-1] - still[:, -1:])  # hardly move
    assert study.widths_of(still, list(range(10)), 10, 1).within_two < 0.1


@pytest.mark.slow
def test_methods_at_the_last_iterates_rate_stand_beside_those_at_their_own(tiny_corpus):
    site = Site(tiny_corpus, None)
    found = study.case(site, FAMILIES["tree"], TINY, 8.0)
    apart = [kind for kind in KINDS if found.chosen[kind].rate != found.chosen[LAST].rate]
    assert {name for name in found.right if AT_LASTS in name} == {k + AT_LASTS for k in apart}
    for name, right in found.right.items():
        assert right.shape == (GROUPS, TINY.seeds), name


class TestCorpus:
    @pytest.mark.slow
    def test_reduced_without_a_corpus_is_small_and_synthetic(self, tmp_path, monkeypatch):
        """The reduced size takes a small corpus where none is named."""
        monkeypatch.setenv("FEDPRIV_CACHE", str(tmp_path))
        corpus = small_corpus(None, tiny=True)
        view = corpus.view()
        assert corpus.synthetic
        assert len(view.tags) * (len(view.words) + 1) <= corpora.MAX_TAGS * (corpora.MAX_WORDS + 1)

    def test_a_dump_is_imported_with_few_words_and_not_found_by_its_name(
        self, tmp_path, monkeypatch
    ):
        cache = tmp_path / "cache"
        monkeypatch.setenv("FEDPRIV_CACHE", str(cache))
        monkeypatch.delenv("FEDPRIV_DATA", raising=False)
        seen = {}

        def imported(path, target, **options):
            seen.update(options, path=path)
            return synthesize(target, shape=Shape(num_users=4, num_sentences=40, public_users=2))

        monkeypatch.setattr(corpora, "import_stackexchange", imported)
        raw = cache / "onstartups.Posts.xml.xz"
        raw.parent.mkdir(parents=True)
        raw.write_bytes(b"posts")
        corpus = small_corpus(None)
        assert (seen["max_words"], seen["max_tags"], seen["name"]) == (200, 20, "onstartups")
        assert seen["path"] == raw and small_corpus(str(raw)).directory == corpus.directory
        assert not [found for found in locate.find_candidates("onstartups") if found.prepared]

    def test_a_name_without_a_dump(self, tmp_path, monkeypatch):
        monkeypatch.setenv("FEDPRIV_CACHE", str(tmp_path))
        with refuses(ValueError, "elsewhere", "--corpus"):
            small_corpus("elsewhere")


def test_each_pair_of_halves_is_kept_by_its_name(site):
    """Each study of one process has halves of its own."""
    experiment = site.experiment("adadps-tags", given(site, "dp-sgd"))
    questions, tags = (
        site.components(experiment, name, lambda name=name: one_half(site, name)).trainer.first
        for name in ("questions", "tags")
    )
    assert (questions != tags).any()
    assert not hasattr(site.components(experiment).trainer, "first")
