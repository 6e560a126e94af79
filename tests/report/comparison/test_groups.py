"""Which runs are one row, what the rows are called, and in which parts they are read."""

import html
import json
import re
import shutil

import pytest

import fedpriv as fp
from fedpriv.report.comparison.groups import differences, find_groups, read_groups, sections_of
from fedpriv.report.comparison.page import render, render_with_files
from fedpriv.report.comparison.plots import epsilon_svg, points_of
from fedpriv.report.comparison.tables import as_rows
from tests.harness.resealed import reseal


def _labels(*folders) -> list[tuple[str, int]]:
    return [(group.label, len(group.runs)) for group in read_groups(folders)]


def test_runs_at_epsilon_0_are_said_to_be_left_out_of_the_plot(make_run) -> None:
    """A logarithmic axis has no place for them."""
    drawn = make_run("a", name="drawn", rounds=4, every=2, noise_multiplier=2.0)
    zero = make_run("b", name="quiet", rounds=1, every=1, noise_multiplier=90.0, delta=0.4)
    groups = read_groups([drawn, zero])
    assert [group.epsilon for group in groups][1] == 0.0
    [section] = sections_of(groups)
    assert [point.label.partition(":")[0] for point in points_of(section)] == ["drawn"]
    for text in (render(groups), epsilon_svg(section)):
        said = " ".join(html.unescape(re.sub(r"<[^>]+>", " ", text)).split())
        assert "at ε 0: quiet with" in said
    [alone] = sections_of(read_groups([drawn]))
    assert "Not drawn" not in epsilon_svg(alone)


def test_runs_are_compared_with_their_own_public_only_values(make_run) -> None:
    values = {"one": 0.219, "other": 0.224}
    groups = read_groups([make_run(n, name=n, public_only=v) for n, v in values.items()])
    [section] = sections_of(groups)
    page, files = render_with_files(groups)
    assert all(shown in section.public_only_note and shown in page for shown in ("21.9", "22.4"))
    differences = files["comparison-differences.csv"].decode()
    assert "public-only" in differences and len(differences.splitlines()) == 4


def of_epsilon(epsilon, cohort):
    return {"options": {"target_epsilon": epsilon, "cohort": cohort}}


def options_of(**changes):
    """Every option of an experiment, as its run folder has them."""
    return {"options": dict(fp.experiment("adadps-tags", seed=0, **changes).options())}


@pytest.mark.parametrize(
    ("made", "rows"),
    [
        # The same seed again is no second sample: it is told by its backend, or by its folder.
        ([{}, {"backend": "ray"}], {"backend serial": 1, "backend ray": 1}),
        ([{}, {}, {"seed": 1}], {"0": 2, "1": 1}),
        ([{"seed": s, "backend": e} for s in (0, 1) for e in ("serial", "ray")],
         {"backend serial": 2, "backend ray": 2}),
        ([{"mode": "simulation"}, {"mode": "secure"}], {"mode simulated": 1, "mode secure": 1}),
        # The fewest options that differ.
        ([of_epsilon(2.0, 100.0), of_epsilon(8.0, 200.0)],
         {"target_epsilon 2": 1, "target_epsilon 8": 1}),
        ([of_epsilon(2.0, 100.0), of_epsilon(8.0, 200.0), of_epsilon(8.0, 300.0)],
         {"cohort 100": 1, "cohort 200": 1, "cohort 300": 1}),
        # What is not private is named by its noise.
        ([{"options": {"noise": "none", "target_epsilon": None}},
          {"options": {"noise": "gaussian", "target_epsilon": 2.0}}],
         {"noise none": 1, "noise gaussian": 1}),
        # An option that only some have comes after one that all have.
        ([{"options": {"bands": 4, "trainer": "fast"}}, {"options": {"trainer": "dense"}}],
         {"trainer fast": 1, "trainer dense": 1}),
        # A chosen part names a run, and not an option that it leaves out.
        ([options_of(), options_of(bound="normalise"), options_of(bound="adaptive")],
         {"bound clip": 1, "bound normalise": 1, "bound adaptive": 1}),
    ],
)  # fmt: skip
def test_rows_are_named_by_what_was_chosen_and_tells_them_apart(make_run, made, rows):
    runs = [make_run(str(place), **given) for place, given in enumerate(made)]
    assert _labels(*runs) == [(f"adadps-tags · {name}", number) for name, number in rows.items()]


@pytest.mark.slow
def test_unfinished_runs_are_marked_and_kept_apart(make_run) -> None:
    whole, part = make_run("a", planned=20), make_run("b", rounds=5, planned=20, seed=1)
    groups = read_groups([whole, part])
    assert [(len(g.runs), g.finished) for g in groups] == [(1, True), (1, False)]
    assert groups[1].unfinished_mark == "unfinished: 5 of 20 rounds"
    assert [row["finished"] for row in as_rows(groups)] == [True, False]
    page = render(groups)
    assert "Unfinished: 5 of 20 rounds" in page and "Hollow: unfinished" in page


def test_what_is_no_run_is_named_and_left_out(make_run, tmp_path) -> None:
    run, nothing, page = make_run("a"), tmp_path / "notes", tmp_path / "compare.html"
    nothing.mkdir()
    page.write_text("")
    damaged = make_run("b", seed=1)
    (damaged / "ledger.jsonl").unlink()
    shutil.copytree(run, tmp_path / "copy")
    groups, left_out = find_groups([nothing, run, page, damaged, tmp_path / "copy", run])
    assert [len(group.runs) for group in groups] == [1]
    assert [str(nothing) in left_out[0], str(page) in left_out[1]] == [True, True]
    assert "ledger" in left_out[2] and len(left_out) == 5
    assert f"{tmp_path / 'copy'} is the run of {run}" in left_out[3]
    with pytest.raises(ValueError):
        find_groups([nothing, page])
    with pytest.raises(ValueError):
        read_groups([run, run])


# Values that must not be compared are in separate parts.


@pytest.mark.slow
def test_a_corpus_each_and_a_split_each(make_run):
    folders = [
        make_run("a"),
        make_run("b", synthetic=True),
        make_run("c", options={"task.split": "by-thread", "task.measured_on": "test"}),
        make_run("d", options={"task.split": "by-thread", "task.measured_on": "validation"}),
    ]
    sections = sections_of(read_groups(folders))
    assert [section.title for section in sections] == [
        "onstartups: accuracy",
        "onstartups (synthetic): accuracy",
        "onstartups, split by-thread: accuracy",
        "onstartups, split by-thread, measured on validation: accuracy",
    ]
    page = render(read_groups(folders))
    assert "In 4 parts" in page and page.count("Where they ended") == 4


def test_majority_public_only_and_non_private_are_read_against(make_run):
    folders = [
        make_run("a", ceiling=0.24, public_only=0.18),
        make_run("b", ceiling=0.25, noise_multiplier=None, public_only=0.18, name="free"),
        make_run("c", ceiling=0.27, noise_multiplier=None, public_only=0.18, name="best"),
    ]
    [section] = sections_of(groups := read_groups(folders))
    best = json.loads((folders[2] / "summary.json").read_text())["accuracy"]
    assert [(r.label, r.value) for r in section.references(nonprivate=True)] == [
        ("majority class", 0.119),
        ("public-only", 0.18),
        ("non-private", best),
    ]
    rows = as_rows(groups)
    assert rows[0]["accuracy_public_only"] == 0.18
    assert rows[0]["gain"] == pytest.approx(rows[0]["accuracy"] - 0.18)
    assert rows[0]["gap_closed"] == pytest.approx(rows[0]["gain"] / (best - 0.18))
    assert rows[1]["gap_closed"] is None  # not private: it is what the gap is measured to


@pytest.mark.slow
def test_without_public_only_nothing_is_claimed(make_run):
    groups = read_groups([make_run("a"), make_run("b", noise_multiplier=None, name="free")])
    [row, _] = as_rows(groups)
    assert (row["accuracy_public_only"], row["gain"], row["gap_closed"]) == (None, None, None)
    page = render(groups)
    assert "Public-only was not measured." in page and "gap closed" not in page
    part = make_run("c", noise_multiplier=None, rounds=3, planned=9, name="free")
    [section] = sections_of(read_groups([make_run("d"), part]))
    assert section.nonprivate is None  # an unfinished run is no yardstick


def test_a_simulated_epsilon_is_never_beside_a_secure_one_unsaid(make_run) -> None:
    groups = read_groups([make_run("a", mode="simulation"), make_run("b", mode="secure")])
    assert differences([[group] for group in groups])["mode"] == ["simulated", "secure"]
    groups = read_groups([make_run("c"), make_run("d")])
    assert "mode" not in differences([[group] for group in groups])


def test_noise_names_a_run_before_the_sampling_that_it_needs(make_run):
    banded = {"noise": "banded", "sampling": "separated"}
    runs = [make_run("a"), make_run("b")]
    for run, changes in zip(runs, ({}, banded), strict=True):
        reseal(run, experiment=options_of(**changes)["options"])  # in the order that they have
    assert _labels(*runs) == [
        ("adadps-tags · noise gaussian", 1),
        ("adadps-tags · noise banded", 1),
    ]


def test_labels_name_runs_and_keep_them_apart(make_run):
    wide = [make_run(f"a{seed}", label="wide", seed=seed) for seed in (0, 1)]
    narrow = make_run("b", label="narrow", seed=2)
    assert _labels(*wide, narrow) == [("wide", 2), ("narrow", 1)]
