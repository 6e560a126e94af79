"""Intervals over users: of one run's gain and headline, and of two runs side by side."""

import json
from dataclasses import asdict, replace

import numpy as np
import pytest

import fedpriv as fp
from fedpriv.checkpoints.tensor_files import BY_USER, read_tensors, write_tensors
from fedpriv.measures import LOSS
from fedpriv.report.comparison.groups import find_groups, sections_of
from fedpriv.report.comparison.paired import BY_USER_ALONE, PUBLIC_ONLY, paired_differences
from fedpriv.report.estimate import read_user_sums, user_interval
from fedpriv.report.head import key_figures
from fedpriv.report.page import write_report
from fedpriv.report.run_record import read_run
from tests.harness.resealed import edit_json, reseal
from tests.harness.toy_users import examples, experiment, users

USERS = 300


@pytest.fixture
def measured(make_run):
    """Make a run of which every user was measured."""

    def make(folder="a", **given):
        folder = make_run(folder, public_only=0.18, **given)
        reached = read_run(folder).summary["accuracy"]
        rng = np.random.default_rng(3)
        count = rng.integers(0, 30, USERS)
        habits = rng.normal(0, 0.15, USERS)
        sums = {}
        for key, mean, spread in (("value", reached, 0.05), ("public_value", 0.18, 0.02)):
            values = count * (habits + rng.normal(0, spread, USERS))
            sums[key] = values + count * (mean - values.sum() / count.sum())
        write_tensors(folder / BY_USER, {"count": count, **sums}, {})
        return folder

    return make


def gain_of(folder):
    """The gain over public-only of a run, as comparisons state it."""
    groups, _ = find_groups([folder])
    return groups[0].gain


def test_the_gain_of_one_run_has_the_interval_of_users_drawn_anew(measured):
    """4,000 replicates made here by hand; ends differ by less than a tenth of the interval."""
    folder = measured()
    run = read_run(folder)
    sums, _ = read_tensors(folder / BY_USER)
    drawn = np.random.default_rng(8).integers(0, USERS, (4000, USERS))
    gains = (sums["value"] - sums["public_value"])[drawn].sum(1) / sums["count"][drawn].sum(1)
    low, high = np.quantile(gains, (0.025, 0.975))
    found = gain_of(folder)
    assert found is not None and found.by_user and found.mean == run.gain
    assert found.interval == pytest.approx((low, high), abs=0.1 * (high - low))
    figures = {name: remarks for name, _, remarks in key_figures(run)}
    remarks = figures["Gain over public-only"]
    assert remarks[0].startswith("95\u202f% interval over users +")
    assert "one run: other noise may move it" in remarks
    assert figures["Accuracy"][0].startswith("95\u202f% interval over users ")


def test_of_a_loss_the_gain_and_its_interval_are_what_it_fell_by(make_run):
    folder = make_run(public_only=0.18)
    loss = asdict(replace(LOSS, diagnostic_only=False))
    reseal(folder, measures=[loss])
    summary = {"loss": 1.5, "loss_public_only": 2.0, "gain": 0.5}
    (folder / "summary.json").write_text(json.dumps(summary), "utf-8")
    count, apart = np.full(40, 5), np.tile([-1.0, 1.0], 20)
    sums = {"count": count, "value": 5 * 1.5 + apart, "public_value": 5 * 2.0 - apart}
    write_tensors(folder / BY_USER, sums, {})
    found = gain_of(folder)
    assert found.by_user and 0.2 < found.interval[0] < 0.5 < found.interval[1] < 0.8


def test_replicates_have_it_over_users_and_seeds_where_all_were_measured(measured, make_run):
    folders = [measured(f"r{seed}", seed=seed) for seed in range(2)]
    [of_both] = [r for n, _, r in key_figures(*_runs(folders)) if n == "Accuracy"]
    assert of_both[0] == "mean over 2 seeds"
    assert of_both[1].startswith("95\u202f% interval over users and seeds ")
    (folders[1] / BY_USER).unlink()
    [of_both] = [r for n, _, r in key_figures(*_runs(folders)) if n == "Accuracy"]
    assert of_both[:2] == ["mean over 2 seeds", "no interval of fewer than 4 seeds"]


def _runs(folders):
    first, *others = [read_run(folder) for folder in folders]
    return first, others


def test_two_runs_of_one_seed_are_compared_over_users(measured):
    folders = [measured("a"), measured("b", name="dp-fedavg-tags", ceiling=0.2)]
    groups, _ = find_groups(folders)
    [section] = sections_of(groups)
    assert all(group.over_users for group in groups)
    found = paired_differences(section)
    assert {(d.second == PUBLIC_ONLY, d.clusters) for d in found} == {
        (False, BY_USER_ALONE), (True, BY_USER_ALONE)
    }  # fmt: skip


def test_without_users_one_run_has_no_interval(make_run):
    folder = make_run(public_only=0.18)
    run = read_run(folder)
    assert read_user_sums(run) is None and gain_of(folder).interval is None
    remarks = dict((n, r) for n, _, r in key_figures(run))["Gain over public-only"]
    assert "one run, no interval: other noise may move it" in remarks


@pytest.mark.parametrize(
    "changed",
    [
        {"value": np.full(USERS, np.nan)},
        {"value": None},
        {"count": np.ones((USERS, 1))},
        {"value": np.ones(USERS, bool)},
        {"value": np.ones(USERS - 1)},
        {"value": np.zeros(USERS)},
    ],
)
def test_sums_that_no_run_wrote_are_left_out_and_no_report_fails(measured, changed, caplog):
    folder = measured()
    sums, _ = read_tensors(folder / BY_USER)
    sums = {name: array for name, array in {**sums, **changed}.items() if array is not None}
    write_tensors(folder / BY_USER, sums, {})
    assert read_user_sums(read_run(folder)) is None and "is left out" in caplog.text
    (folder / BY_USER).write_bytes(b"damaged")
    assert read_user_sums(read_run(folder)) is None
    assert write_report(folder).is_file()


def test_runs_of_other_rosters_are_not_compared_by_user(measured):
    folders = [measured("a"), measured("b", ceiling=0.2, corpus={"roster_sha256": "cd" * 32})]
    sums, _ = read_tensors(folders[1] / BY_USER)
    fewer = {name: np.append(array[:-2], array[-2:].sum()) for name, array in sums.items()}
    write_tensors(folders[1] / BY_USER, fewer, {})
    groups, _ = find_groups(folders)
    assert not any(group.over_users for group in groups)
    for section in sections_of(groups):
        assert all(
            one.second == PUBLIC_ONLY or one.clusters == "" for one in paired_differences(section)
        )


def test_an_interval_of_a_share_ends_within_it(make_run):
    folder = make_run(public_only=0.18)
    edit_json(folder / "summary.json", accuracy=0.975)
    count = np.full(20, 10)
    value = np.append(np.full(19, 10.0), 5.0)
    write_tensors(folder / BY_USER, {"count": count, "value": value}, {})
    sums = read_user_sums(read_run(folder))
    ends = user_interval([sums.count], [sums.value])
    assert ends is not None and ends.high <= 1.0
    assert user_interval([sums.count[:19]], [sums.value[:19]]) is None  # too few users


@pytest.mark.slow
def test_sums_of_an_own_task_are_its_headline_and_say_that_no_epsilon_covers_them(tmp_path):
    run = fp.run(held_out(), tmp_path / "run", rounds=2, progress=False)
    sums, facts = read_tensors(tmp_path / "run" / BY_USER)
    assert facts == {"covered_by_epsilon": "false"} and sums["count"].tolist() == [3] * 24
    for name, reached in (("value", "accuracy"), ("public_value", "accuracy_public_only")):
        assert sums[name].sum() / 72 == pytest.approx(run.summary[reached], abs=1e-6)
    assert gain_of(tmp_path / "run").by_user
    # A resumed run writes them again.
    file = tmp_path / "run" / BY_USER
    before = file.read_bytes()
    file.unlink()
    (tmp_path / "run" / "summary.json").unlink()
    fp.resume(tmp_path / "run", experiment=held_out(), progress=False)
    assert file.read_bytes() == before


@pytest.mark.slow
def test_a_secure_run_writes_none(tmp_path):
    fp.run(held_out(), tmp_path / "run", secure=True, rounds=2, progress=False)
    assert (tmp_path / "run" / "summary.json").is_file()
    assert not (tmp_path / "run" / BY_USER).exists()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["raises", "lists", "other sums"])
def test_a_task_that_cannot_tell_users_apart_ends_no_run(kind, tmp_path):
    made, whole = [], held_out()

    def task(given):
        made.append(whole.task(given))
        wrong = {
            "raises": lambda params: 1 / 0,
            "lists": lambda params: ([3] * 24, [1.0] * 24),
            "other sums": lambda params: (np.full(24, 3), np.zeros(24)),
        }
        made[-1].held_out_by_user = wrong[kind]
        return made[-1]

    run = fp.run(replace(whole, task=task), tmp_path / "run", progress=False)
    assert run.summary["accuracy"] > 0 and not (tmp_path / "run" / BY_USER).exists()
    assert (tmp_path / "run" / "summary.json").is_file()


def held_out():
    """Twenty-four users with three held-out examples each."""
    return experiment(
        users=users(24, 4), test=users(24, 3, first=24), public=examples(98, 8),
        public_train=examples(99, 16),
    )  # fmt: skip
