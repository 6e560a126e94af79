"""A start from a file: what it was trained on before is said, added up, or refused."""

import json
import shutil

import numpy as np
import pytest

import fedpriv as fp
from fedpriv.checkpoints.tensor_files import read_tensors, write_tensors
from fedpriv.privacy.statement.coverage import coverage_of
from fedpriv.privacy.statement.statement import run_statement
from fedpriv.privacy.statement.verify import verify_run
from fedpriv.report.export import export_run
from tests.harness.command_line import fedpriv
from tests.harness.refusals import refuses
from tests.harness.tag_runs import start

UNKNOWN = "a start from a file, whose training data are unknown"
SMALL = {"rounds": 2, "aggregate": "none"}


@pytest.fixture(scope="module")
def runs(tiny_corpus, tmp_path_factory):
    """Runs to start from, and `go`, which starts one more from a file."""
    place = tmp_path_factory.mktemp("before")

    def go(out, file=None, *, secure=False, **options):
        started = {} if file is None else {"start": "file", "start_file": str(file)}
        start(tiny_corpus, out, secure=secure, **SMALL, **started, **options).run()
        return out

    go.place = place
    go(place / "bare", noise="none")
    go(place / "simulated")
    go(place / "secure", secure=True)
    go(place / "fewer-bare", noise="none", users=20)
    go(place / "fewer", secure=True, users=20)
    return go


def last(folder):
    return max((folder / "checkpoints").glob("*.safetensors"))


def exported(folder, to):
    export_run(folder, to)
    return to / "model.safetensors"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bare", "simulated", "fewer-bare"])
@pytest.mark.parametrize("form", ["checkpoint", "export", "link"])
def test_a_secure_run_refuses_a_start_without_privacy(runs, tmp_path, name, form):
    file = last(runs.place / name)
    if form == "export":
        file = exported(runs.place / name, tmp_path / "model")
    elif form == "link":
        (tmp_path / "link.safetensors").symlink_to(file)
        file = tmp_path / "link.safetensors"
    with refuses(ValueError, "start-without-privacy"):
        runs(tmp_path / "r", file, secure=True)
    assert not (tmp_path / "r").exists()


@pytest.mark.slow
@pytest.mark.parametrize(("name", "said"), [
    ("bare", "a start that was trained without privacy on the same users"),
    ("simulated", "a start whose noise was simulated, of a known seed, on the same users"),
    ("fewer-bare", "a start that was trained without privacy on another roster: a user on both "
                   "is not protected"),
])  # fmt: skip
def test_asked_for_by_name_it_is_said_everywhere(runs, tmp_path, name, said):
    folder = tmp_path / name
    runs(folder, last(runs.place / name), secure=True, start_without_privacy=True)
    statement = run_statement(folder)
    assert statement.not_covered[0] == said and f"does NOT cover: {said}" in statement.headline
    assert statement.to_json()["with_start"] is None
    summary = json.loads((folder / "summary.json").read_text("utf-8"))
    assert summary["epsilon_does_not_cover"][0] == said and summary["with_start"] is None
    for command in ("verify", "status", "compare"):
        assert said in " ".join(fedpriv(command, folder).stdout.split()), command
    fp.load(folder).report()
    assert said in " ".join((folder / "report.html").read_text("utf-8").split())
    # And what goes on from that is no better.
    with refuses(ValueError, "start-without-privacy"):
        runs(tmp_path / f"{name}-next", last(folder), secure=True)


@pytest.mark.slow
@pytest.mark.parametrize("secure", [False, True])
def test_the_same_users_epsilons_add_up(runs, tmp_path, secure):
    before = runs.place / ("secure" if secure else "simulated")
    folder = runs(tmp_path / f"r{secure}", last(before), secure=secure)
    first, own = verify_run(before).epsilon, verify_run(folder).epsilon
    statement = run_statement(folder)
    both = statement.to_json()["with_start"]
    assert both["epsilon"] == pytest.approx(first.value + own.value, rel=1e-12)
    assert both["delta"] == pytest.approx(first.delta + own.delta, rel=1e-12)
    assert both["relation"] == own.relation.value and both["unit"] == "user"
    assert "claimed" not in both and both["accountant"]
    [said, *_] = statement.not_covered
    assert ("simulated ε = " in said) is not secure
    assert f"ε = {both['epsilon']:.2f}"[:5] in str(statement)
    assert json.loads((folder / "summary.json").read_text("utf-8"))["with_start"] == both
    assert coverage_of(json.loads((folder / "experiment.json").read_text("utf-8"))).not_covered
    edited = shutil.copytree(folder, tmp_path / f"edited{secure}")
    summary = json.loads((edited / "summary.json").read_text("utf-8"))
    (edited / "summary.json").write_text(json.dumps(summary | {"with_start": None}), "utf-8")
    wrong = {check.name: check.text for check in verify_run(edited).checks if not check.ok}
    assert wrong.keys() == {"summary", "files"} and "with_start" in wrong["summary"]
    # A third one has all three.
    third = runs(tmp_path / f"t{secure}", last(folder), secure=secure)
    all_three = run_statement(third).to_json()["with_start"]["epsilon"]
    assert all_three == pytest.approx(both["epsilon"] + verify_run(third).epsilon.value, rel=1e-12)


def test_another_roster_or_relation_does_not_add_up(runs, tmp_path):
    folder = runs(tmp_path / "r", last(runs.place / "fewer"), secure=True)
    statement = run_statement(folder)
    assert statement.to_json()["with_start"] is None
    assert "another roster" in statement.not_covered[0]
    assert "a user on both has both" in statement.not_covered[0]


@pytest.mark.slow
def test_an_exported_file_says_itself_where_it_is_from(runs, tmp_path):
    file = exported(runs.place / "secure", tmp_path / "model")
    alone = shutil.copy(file, tmp_path / "alone.safetensors")
    folder = runs(tmp_path / "r", alone, secure=True)
    statement = run_statement(folder)
    assert "as the file says" in statement.not_covered[0]
    both = statement.to_json()["with_start"]
    assert both["epsilon"] > verify_run(folder).epsilon.value and both["claimed"] is True
    summary = json.loads((folder / "summary.json").read_text("utf-8"))
    assert summary["with_start"] == both
    # So it is for whoever goes on from that run, and for nobody whose start has a ledger.
    third = runs(tmp_path / "t", last(folder), secure=True)
    assert run_statement(third).to_json()["with_start"]["claimed"] is True
    told = summary | {"with_start": {n: v for n, v in both.items() if n != "claimed"}}
    (folder / "summary.json").write_text(json.dumps(told), "utf-8")
    wrong = [check.name for check in verify_run(folder).checks if not check.ok]
    assert wrong == ["summary", "files"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "damage", ["{", "[]", '{"epsilon": "x"}', '{"protects": true, "epsilon": -3}']
)
def test_a_file_that_says_nonsense_is_of_unknown_origin(runs, tmp_path, damage):
    tensors, metadata = read_tensors(exported(runs.place / "secure", tmp_path / "model"))
    write_tensors(tmp_path / "odd.safetensors", tensors, metadata | {"trained": damage})
    folder = runs(tmp_path / "r", tmp_path / "odd.safetensors", secure=True)
    assert run_statement(folder).not_covered == (UNKNOWN,)


@pytest.mark.parametrize("name", ["bare", "secure"])
@pytest.mark.parametrize("secure", [False, True])
def test_a_copy_of_a_checkpoint_is_a_file_of_unknown_origin(runs, tmp_path, name, secure):
    alone = shutil.copy(last(runs.place / name), tmp_path / "alone.safetensors")
    folder = runs(tmp_path / "r", alone, secure=secure)
    assert run_statement(folder).not_covered == (UNKNOWN,)
    assert run_statement(folder).to_json()["with_start"] is None


@pytest.mark.slow
def test_so_is_what_a_run_never_released(runs, tmp_path):
    """A file put into the checkpoints of a run with privacy is not that run's."""
    before = shutil.copytree(runs.place / "secure", tmp_path / "before")
    tensors, metadata = read_tensors(last(runs.place / "bare"))
    write_tensors(last(before), tensors, metadata)
    folder = runs(tmp_path / "r", last(before), secure=True)
    assert run_statement(folder).not_covered == (UNKNOWN,)
    own = runs.place / "secure"
    tensors, _ = read_tensors(last(own))
    write_tensors(own / "start.safetensors", {k: np.array(v) for k, v in tensors.items()}, {})
    folder = runs(tmp_path / "s", own / "start.safetensors", secure=True)
    (own / "start.safetensors").unlink()
    assert run_statement(folder).not_covered == (UNKNOWN,)


def test_a_run_folder_that_does_not_verify_is_no_place_to_start_from(runs, tmp_path):
    before = shutil.copytree(runs.place / "bare", tmp_path / "before")
    ledger = before / "ledger.jsonl"
    ledger.write_bytes(ledger.read_bytes().replace(b'"simulation"', b'"secure"', 1))
    with refuses(ValueError, "ledger"):
        runs(tmp_path / "r", last(before), secure=True)
    assert not (tmp_path / "r").exists()
