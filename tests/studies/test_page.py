"""The page of a study: what it shows, what it says of privacy, and the files in it."""

import base64
import csv
import io
import json
import re
from dataclasses import replace
from xml.etree import ElementTree

import numpy as np
import pytest

from fedpriv.checkpoints.tensor_files import BY_USER as BY_USER_FILE
from fedpriv.checkpoints.tensor_files import read_tensors, write_tensors
from fedpriv.measures import UserSums
from fedpriv.report.comparison.groups import sections_of, unlike
from fedpriv.report.comparison.paired import (
    BY_SEED,
    BY_USER,
    BY_USER_ALONE,
    PUBLIC_ONLY,
    paired_differences,
)
from fedpriv.report.comparison.tables import as_latex, escaped
from fedpriv.report.estimate import estimate
from fedpriv.studies.page import FILES, render_page, write_page
from fedpriv.studies.record import read_study
from fedpriv.studies.tables import differences_frame, groups_of, results_frame, trials_frame
from tests.harness.shown import words
from tests.studies.conftest import edit_summary, write_study

FAILED = {("DP-FedAvg", 2.0, 1): "ValueError: <b>diverged</b> in round 3"}


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    folder = tmp_path_factory.mktemp("studies") / "study"
    return write_study(folder, failures=FAILED)


@pytest.fixture(scope="module")
def page(study):
    return render_page(study)[0]


def downloads(page):
    """The files of a page: name to type and content."""
    found = re.findall(r'download="([^"]+)" href="data:([^;]+);base64,([^"]+)"', page)
    return {name: (kind, base64.b64decode(text)) for name, kind, text in found}


@pytest.mark.slow
def test_the_page_shows_every_trial_and_what_was_private(page):
    text = words(page)
    for part in (
        "which method", "ValueError: <b>diverged</b> in round 3", "11 finished 1 failed",
        "fedpriv study which-method.toml --out runs/which-method", "torch 2.13.0", "ε = 8: AdaDPS,",
        "δ = ", "add-remove relation", "unit: user", "PLD accountant",
        "Synthetic data: no real person is in it.", "Simulated: noise and cohorts",
        "Runs without privacy guarantee nothing", "their ε add up",
        "Privacy statement of AdaDPS, ε = 8", "a diagnostic, not covered by ε",
    ):  # fmt: skip
        assert part in text, part
    for label in ("non-private 2", "public-only 18.0", "majority class 11.9"):
        assert page.count(label) >= 2, label  # in the plot, wide and narrow


@pytest.mark.slow
def test_nothing_is_fetched_and_every_string_is_escaped(page):
    assert "http:" not in page.replace("http://www.w3.org/2000/svg", "") and "https:" not in page
    assert page.count("<script") == 1 and "<b>diverged" not in page
    assert "default-src 'none'" in page and "script-src 'sha256-" in page


def test_every_download_is_a_file_of_its_type(page, study):
    files = downloads(page)
    kinds = {name: kind for name, (kind, _) in files.items()}
    assert kinds == {
        "study.csv": "text/csv",
        "study-differences.csv": "text/csv",
        "study.tex": "application/x-tex",
        "study.json": "application/json",
        "trials.csv": "text/csv",
        "study.svg": "image/svg+xml",
    }
    content = {name: data for name, (_, data) in files.items()}
    rows = list(csv.DictReader(io.StringIO(content["study.csv"].decode())))
    assert [(r["method"], r["target_epsilon"], r["private"]) for r in rows[:3]] == [
        ("AdaDPS", "2.0", "true"), ("AdaDPS", "8.0", "true"), ("AdaDPS", "", "false"),
    ]  # fmt: skip
    trials = list(csv.DictReader(io.StringIO(content["trials.csv"].decode())))
    assert len(trials) == 12 and {t["state"] for t in trials} == {"finished", "failed"}
    document = json.loads(content["study.json"])
    assert len(document["rows"]) == 6 and len(document["trials"]) == 12
    assert document["study"]["name"] == "which method" and document["differences"]
    assert str(study.directory) not in content["study.json"].decode()
    assert ElementTree.fromstring(content["study.svg"]).tag.endswith("svg")
    assert rb"\begin{tabular}{lrrr}" in content["study.tex"]


@pytest.mark.slow
def test_the_tables_of_the_page_lie_next_to_it(make_study):
    study = make_study(noise={8.0: 0.72}, seeds=1, nonprivate=False)
    planned = (study.directory / "study.json").read_bytes()
    write_page(study, study.directory / "index.html")
    held = downloads((study.directory / "index.html").read_text("utf-8"))
    for name in FILES:
        assert (study.directory / name).read_bytes() == held[name][1], name
    assert (study.directory / "study.json").read_bytes() == planned
    none = replace(study, trials=())
    write_page(none, study.directory / "index.html")
    assert not (study.directory / "study-differences.csv").exists()


@pytest.mark.slow
def test_equal_folders_give_equal_pages(study, page):
    assert render_page(read_study(study.directory))[0] == page


def test_the_table_of_a_paper_has_methods_by_epsilon(study):
    text = as_latex(groups_of(study))
    rows = [line for line in text.splitlines() if line.endswith(r"\\")]
    assert rows[0].startswith(r"method & \ensuremath{\varepsilon} = ") and "not private" in rows[0]
    assert rows[1].startswith("AdaDPS & \\textbf{") and r"\textbf" not in rows[2]
    assert rows[3].startswith("majority class & \\multicolumn{3}{c}{11.9")
    assert r"\ensuremath{\delta} = " in text


@pytest.mark.slow
def test_a_column_of_a_paper_never_states_less_than_was_spent(make_study):
    study = make_study(noise={2.0: 0.6}, nonprivate=False, seeds=1)
    [group, _] = groups_of(study)
    assert group.epsilon > group.level == 2.0
    assert r"\ensuremath{\varepsilon} = 2 " not in as_latex(groups_of(study))


@pytest.fixture(scope="module")
def found(study):
    [section] = sections_of(groups_of(study))
    return paired_differences(section, replicates=400)


class TestDifferences:
    """Intervals are over users and seeds where each user's sums are known, or else over seeds."""

    def test_methods_and_public_only_are_compared_at_each_epsilon(self, found):
        assert [(d.level, d.first, d.second, d.seeds) for d in found[:3]] == [
            (2.0, "AdaDPS", "DP-FedAvg", 1),  # of the other seed one failed
            (2.0, "AdaDPS", PUBLIC_ONLY, 2),
            (2.0, "DP-FedAvg", PUBLIC_ONLY, 1),
        ]
        assert len(found) == 9
        assert {(d.seeds, d.clusters) for d in found} == {(1, BY_USER_ALONE), (2, BY_USER)}

    def test_a_difference_is_that_of_the_values_shown(self, found, study):
        values = {(g.method, g.level): g for g in groups_of(study)}
        for one in found:
            if one.second != PUBLIC_ONLY and one.seeds == 2:
                first, second = (values[name, one.level] for name in (one.first, one.second))
                reached = [
                    [run.summary["accuracy"] for run in group.runs] for group in (first, second)
                ]
                assert one.value == pytest.approx(np.mean(reached[0]) - np.mean(reached[1]))
            assert one.low <= one.value <= one.high

    def test_the_interval_is_that_of_users_drawn_anew(self, study):
        """With one seed it is the percentile interval of a ratio, made here by hand."""
        [section] = sections_of(groups_of(study))
        for group in section.groups:
            value, gain = group.measure(section.lead), group.gain
            assert value.by_user and gain.by_user
        alone = next(g for g in section.groups if len(g.runs) == 1)
        [sums] = alone.by_user
        drawn = np.random.default_rng(5).integers(0, len(sums.count), (4000, len(sums.count)))

        def interval(values):
            means = values[drawn].sum(1) / sums.count[drawn].sum(1)
            return np.quantile(means, (0.025, 0.975))

        low, high = interval(sums.value)
        found = alone.measure(section.lead)
        assert 2 * found.half_width == pytest.approx(high - low, rel=0.1)
        low, high = interval(sums.value - sums.public_value)
        one = next(
            d
            for d in paired_differences(section)
            if (d.level, d.first, d.second) == (alone.level, alone.method, PUBLIC_ONLY)
        )
        assert (one.low, one.high) == pytest.approx((low, high), abs=0.1 * (high - low) + 1e-6)

    def test_equal_methods_differ_by_exactly_nothing(self, make_study):
        study = make_study(methods={"one": 0.25, "other": 0.25}, noise={8.0: 0.72})
        [section] = sections_of(groups_of(study))
        same = [d for d in paired_differences(section) if d.second == "other"]
        assert [(d.value, d.low, d.high, d.excludes_zero) for d in same] == [(0, 0, 0, False)] * 2

    def test_reversed_is_the_other_way_round(self, found):
        back = found[0].reversed()
        assert (back.first, back.second) == ("DP-FedAvg", "AdaDPS")
        assert (back.value, back.low, back.high) == (
            -found[0].value, -found[0].high, -found[0].low,
        )  # fmt: skip
        assert back.reversed() == found[0]

    @pytest.mark.slow
    def test_without_users_it_is_a_t_interval(self, make_study):
        study = make_study(by_user=False, seeds=4, noise={8.0: 0.72}, nonprivate=False)
        [section] = sections_of(groups_of(study))
        one, *from_public = paired_differences(section)
        assert [(d.second, d.seeds, d.clusters) for d in from_public] == [
            (PUBLIC_ONLY, 4, BY_SEED)
        ] * 2
        reached = [[r.summary["accuracy"] for r in g.runs] for g in section.groups]
        wanted = estimate([a - b for a, b in zip(*reached, strict=True)])
        assert one.clusters == BY_SEED and (one.low, one.high) == wanted.interval
        wanted = estimate([value - 0.18 for value in reached[0]])
        assert from_public[0].first == "AdaDPS" and from_public[0].low == wanted.interval[0]

    @pytest.mark.slow
    def test_of_one_seed_without_users_there_is_no_interval(self, make_study):
        study = make_study(by_user=False, seeds=1, noise={8.0: 0.72}, nonprivate=False)
        assert set(differences_frame(study)["interval_over"]) == {""}
        file = downloads(render_page(study)[0])["study-differences.csv"][1].decode()
        assert {row["interval_over"] for row in csv.DictReader(io.StringIO(file))} == {""}

    @pytest.mark.slow
    def test_other_held_out_examples_are_no_clusters(self, make_study):
        """Of seeds that hold out other examples, users are not the same sample."""
        study = make_study(noise={8.0: 0.72}, seeds=4)
        [section] = sections_of(groups_of(study))
        group = next(g for g in section.groups if g.level == 8.0)
        first, second, *others = group.by_user
        other = UserSums(count=second.count + 1, value=second.value)
        assert first.count.shape == other.count.shape
        changed = replace(group, by_user=(first, other, *others))
        groups = tuple(changed if g is group else g for g in section.groups)
        found = paired_differences(replace(section, groups=groups), replicates=200)
        of_it = [d for d in found if d.level == 8.0 and d.second == "DP-FedAvg"]
        assert [d.clusters for d in of_it] == [BY_SEED]


@pytest.mark.slow
def test_public_only_has_an_interval_over_seeds_where_it_varies(make_study):
    study = make_study(by_user=False, seeds=4, noise={8.0: 0.72})
    [section] = sections_of(groups_of(study))
    assert section.public_only.half_width is None
    for trial in study.trials:
        edit_summary(trial.run.folder, accuracy_public_only=0.18 + 0.01 * trial.seed)
    study = read_study(study.directory)
    [section] = sections_of(groups_of(study))
    # Eight trials of four seeds are four samples of it.
    wanted = estimate([0.18, 0.19, 0.2, 0.21])
    assert section.public_only.half_width == pytest.approx(wanted.half_width)
    assert (section.public_only.mean, section.public_only.count) == (wanted.mean, 4)
    assert "19.5 % ± 2.1" in words(render_page(study)[0])


def returning_public(study, *trials):
    """A study some of whose trials returned what public examples alone made."""
    for trial in trials:
        judged = {"public-only": {"value": 0.1, "gain": 0, "stderr": 0, "lower": 0}}
        selection = {
            "selected": "public-only", "public": True, "reason": "", "judged": judged,
            "examples": 9, "groups": 9, "level": 0.95,
        }  # fmt: skip
        edit_summary(trial.run.folder, selection=selection, accuracy=0.18, gain=0.0)
        file = trial.run.folder / BY_USER_FILE
        if file.exists():
            tensors, _ = read_tensors(file)
            write_tensors(file, {**tensors, "value": tensors["public_value"]}, {})
    return read_study(study.directory)


class TestIntervals:
    """± is one thing in all that is read side by side, and is named wherever it stands."""

    def test_public_only_has_that_of_the_method_which_returns_it(self, make_study):
        study = make_study(noise={8.0: 0.72}, seeds=2, nonprivate=False)
        mine = [trial for trial in study.trials if trial.method == "AdaDPS"]
        groups = groups_of(returning_public(study, *mine))
        [section] = sections_of(groups)
        measured = groups[0].measure(section.lead)
        assert measured.by_user and measured.half_width > 0.01
        assert section.public_only == measured
        half = f"{100 * measured.half_width:.1f}"
        assert as_latex(groups).count(rf"18.0 \% \ensuremath{{\pm}} {half}") == 1  # the row
        assert rf"18.0 \%* \ensuremath{{\pm}} {half}" in as_latex(groups)  # of the method

    @pytest.mark.slow
    def test_one_kind_is_over_users_of_the_headline_alone(self, study, page):
        kind = "95 % interval of a bootstrap over users and seeds"
        assert kind in words(page) and "t-interval" not in words(page)
        results = results_frame(study)
        assert results["accuracy_public_interval"].isna().all()
        assert results["gain_interval"].notna().all()
        assert set(results["interval_over"]) == {kind}
        assert kind in downloads(page)["study.svg"][1].decode()
        [section] = sections_of(groups_of(study))
        assert section.public_only.by_user

    @pytest.mark.slow
    def test_where_users_of_one_method_are_not_known_all_are_over_seeds(self, make_study):
        study = make_study(noise={8.0: 0.72}, seeds=4, nonprivate=False)
        assert results_frame(study)["accuracy_public_interval"].isna().all()  # no t beside it
        for trial in study.trials[4:]:
            (trial.run.folder / BY_USER_FILE).unlink()
        groups = groups_of(read_study(study.directory))
        [section] = sections_of(groups)
        found = [*(group.measure(section.lead) for group in groups), section.public_only]
        assert not any(one.by_user for one in found)
        assert found[0] == estimate([run.summary["accuracy"] for run in groups[0].runs])
        assert "bootstrap" not in as_latex(groups)
        of_all = results_frame(read_study(study.directory))
        assert of_all["accuracy_public_interval"].notna().all()

    def test_of_one_seed_it_is_over_users_alone_and_the_caption_says_so(self, make_study):
        text = as_latex(groups_of(make_study(noise={8.0: 0.72}, seeds=1)))
        assert "over users," in text and "seeds" not in text


@pytest.mark.slow
def test_a_winner_that_is_the_public_model_is_called_so(make_study):
    study = make_study(noise={2.0: 1.4, 8.0: 0.72}, methods={"a": 0.19, "b": 0.14})
    some = [t for t in study.trials if (t.method, t.epsilon) == ("a", 2.0)]
    one = [t for t in study.trials if (t.method, t.epsilon, t.seed) == ("b", 8.0, 1)]
    study = returning_public(study, *some, *one)
    text = words(render_page(study)[0])
    best = text.partition("Best at each ε")[2].partition("Where they ended")[0]
    assert "ε = 2: a, 18.0 % (this is the public model)" in best
    rows = text.partition("Where they ended")[2].partition("Paired differences")[0]
    assert rows.count("this is the public model") == 2 and "in 1 of 2 runs" in rows
    table = as_latex(groups_of(study))
    assert table.count(r"\%}*") + table.count(r"\%*") == 2
    found = results_frame(study)["returns_public_model"]
    assert found.loc[("onstartups", "a", 2.0)] == 2
    assert found.loc[("onstartups", "b", 8.0)] == 1 and found.sum() == 3


class TestUnlikeMethods:
    """A comparison of methods that start or end differently is not one of methods alone."""

    @pytest.mark.slow
    def test_the_page_and_the_table_say_so_once(self, make_study):
        options = {
            "AdaDPS": {"task.select": "public", "start": "public", "start.factor": None},
            "DP-FedAvg": {"start": "fresh"},
        }
        study = make_study(noise={8.0: 0.72}, options=options)
        said = "start is public for AdaDPS, fresh for DP-FedAvg"
        assert words(render_page(study)[0]).count(said) == 1
        assert escaped(said) in as_latex(groups_of(study))

    @pytest.mark.parametrize(
        ("methods", "said"),
        [
            ([{}, {}], ""),
            ([{}, {"start": "fresh", "task.select": "last"}], ""),
            ([{"start": "public", "start.factor": 0.5}, {"start": "public"}],
             "start.factor is 0.5 for m0, – for m1."),
            ([{"start": "public", "start.factor": 0.5}, {"start": "file", "start.file": "x"}, {}],
             "start is public for m0, file for m1, fresh for m2."),
            ([{"task.public_users": 10}, {"task.public_users": None}, {"task.public_users": 10}],
             "public-users is 10 for m0 and m2, – for m1."),
        ],
    )  # fmt: skip
    def test_what_is_said_is_what_differs(self, methods, said):
        found = unlike({f"m{n}": options for n, options in enumerate(methods)})
        assert found.rpartition(": ")[2] == said


def test_sums_by_user_of_another_run_are_left_out(make_study):
    study = make_study(noise={8.0: 0.72}, seeds=1)
    file = study.trials[0].run.folder / BY_USER_FILE
    tensors, _ = read_tensors(file)
    write_tensors(file, {**tensors, "value": tensors["value"] + 0.1 * tensors["count"]})
    assert not any(group.over_users for group in groups_of(read_study(study.directory)))


@pytest.mark.slow
def test_what_a_search_tried_is_a_table_and_its_cost_is_said_once(make_study):
    tried = [
        {"method": "AdaDPS", "epsilon": 8.0, "data": "", "options": {"l2": 0.5}, "score": 0.21},
        {"method": "AdaDPS", "epsilon": None, "data": "", "options": {"l2": 2.0}, "score": None},
    ]
    document = {"searched": tried, "privacy": ["The ε of all runs together is 31."]}
    text = words(render_page(make_study(noise={8.0: 0.72}, seeds=1, document=document))[0])
    assert "l2 0.5" in text and "0.21" in text
    assert "The ε of all runs together is 31." in text and "their ε add up" not in text


@pytest.mark.slow
def test_a_study_under_way_shows_what_there_is(make_study):
    study = make_study(noise={8.0: 0.72})
    lines = (study.directory / "trials.jsonl").read_text().splitlines(keepends=True)
    (study.directory / "trials.jsonl").write_text("".join(lines[:2]))
    for trial in study.trials[2:]:
        folder = study.directory / "trials" / trial.key
        (folder / "experiment.json").unlink()
    part = read_study(study.directory)
    write_page(part, part.directory / "index.html")
    text = words((part.directory / "index.html").read_text())
    assert "6 trials to go" in text


def test_the_data_frames_hold_what_the_page_shows(study):
    results, trials = results_frame(study), trials_frame(study)
    assert results.index.names == ["data", "method", "epsilon_target"] and len(results) == 6
    assert results.loc[("onstartups", "AdaDPS", np.inf), "private"] == np.False_
    assert list(trials["state"]).count("failed") == 1 and len(trials) == 12
    assert list(results)[:4] == ["epsilon", "accuracy", "accuracy_public", "gain"]
    assert list(trials)[:6] == [
        "method", "data", "target_epsilon", "accuracy", "accuracy_public", "gain",
    ]  # fmt: skip
    assert list(results)[-1].startswith("seconds") and list(trials)[-1] == "seconds"
    differences = differences_frame(study)
    assert len(differences) == 9 and set(differences["interval_over"]) == {BY_USER, BY_USER_ALONE}
