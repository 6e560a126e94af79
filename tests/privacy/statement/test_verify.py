"""`verify_run` believes nothing: every statement of a run folder is held against its ledger."""

import hashlib
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from fedpriv import json_lines
from fedpriv.checkpoints.store import CheckpointStore, save_state
from fedpriv.checkpoints.tensor_files import read_tensors, write_tensors
from fedpriv.hashes import document_sha256
from fedpriv.privacy.ledger.ledger import Ledger
from fedpriv.privacy.statement import verify
from fedpriv.privacy.statement.stated import gaps_of_rounds, round_values, summary_values
from fedpriv.privacy.statement.verify import verify_run
from tests.harness.refusals import refuses
from tests.harness.resealed import edit_json
from tests.harness.tag_runs import start
from tests.privacy.costing import cohort_plan
from tests.privacy.costing import plan as plan_of

PLAN = plan_of(num_rounds=8, target_epsilon=1.0)
VOCABULARY = b'{"words": ["a", "b"]}'


def kept(folder, round_num):
    return folder / "checkpoints" / f"round-{round_num:06d}.safetensors"


def checkpoint(folder, round_num, ledger, value=None):
    """Write the checkpoint of a round; return its path and what it says of itself."""
    path = kept(folder, round_num)
    metadata = {"ledger_head": ledger.head, "round_num": str(round_num)}
    tensors = {"w": np.full(3, value or round_num, np.float32)}
    write_tensors(path, tensors, metadata)
    return path, metadata


def write_run(folder, plan=PLAN, lose=(3,), rounds=6, mode="simulation", sealed=True):
    """A small run: round 3 loses an attempt, every round leaves a checkpoint."""
    (folder / "checkpoints").mkdir(parents=True)
    (folder / "vocabulary.json").write_bytes(VOCABULARY)
    document = {
        "format": "fedpriv-run",
        "version": 1,
        "name": "small",
        "plan": plan.to_json(),
        "mode": mode,
        "corpus": {"name": "made", "synthetic": True},
        "measures": [],
        "files": {"vocabulary.json": hashlib.sha256(VOCABULARY).hexdigest()},
    }
    extra = {"experiment_sha256": document_sha256(document)}
    (folder / "experiment.json").write_text(json.dumps(document))
    stated, ledger = [], folder / "ledger.jsonl"
    with Ledger.create(ledger, plan, mode=mode, extra=extra) as ledger:
        for round_num in range(1, rounds + 1):
            if round_num in lose:
                ledger.charge(round_num, 1)
                ledger.resume()
            attempt = ledger.attempts(round_num) + 1
            ledger.charge(round_num, attempt)
            path, metadata = checkpoint(folder, round_num, ledger)
            save_state(folder / "state.safetensors", {"w": np.zeros(3, np.float32)}, metadata)
            ledger.release(round_num, attempt, digest(path))
            values = round_values(plan, ledger.charges)
            stated.append({"round_num": round_num, "attempt": attempt, **values, "loss": 0.5})
        gaps = gaps_of_rounds(document, ledger.extra, mode)
        more = {"epsilon_does_not_cover": list(gaps)} if gaps else {}
        write_rows(folder / "rounds.jsonl", [row | more for row in stated])
        if mode == "simulation":
            seen = [{n: row[n] for n in ("round_num", "attempt")} for row in stated]
            rows = [{**row, "cohort_size": 20, "covered_by_epsilon": False} for row in seen]
            write_rows(folder / "diagnostics.jsonl", rows)
        summary = {**summary_values(ledger.state, document), "loss": 0.5}
        (folder / "summary.json").write_text(json.dumps(summary))
        if sealed:
            ledger.seal({n: digest(folder / n) for n in SEALED if (folder / n).exists()})
    return folder


SEALED = ("rounds.jsonl", "diagnostics.jsonl", "summary.json", "state.safetensors")


def write_rows(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def digest(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    """A run that is not at its end: no last line has the digests of its files."""
    return write_run(tmp_path_factory.mktemp("run") / "run", sealed=False)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    return write_run(tmp_path_factory.mktemp("finished") / "run")


@pytest.fixture
def run(original, tmp_path):
    return shutil.copytree(original, tmp_path / "run")


def failed(run):
    return {check.name for check in verify_run(run).checks if not check.ok}


def test_a_sound_run_passes_every_check(run):
    found = verify_run(run)
    assert found.ok, found.checks
    names = "ledger charges budget experiment rounds diagnostics summary checkpoints digests files"
    assert {check.name for check in found.checks} == {*names.split(), "audit"}
    assert (found.num_charges, found.num_releases, found.num_lost) == (7, 6, 1)
    assert found.epsilon == PLAN.epsilon(7)
    assert json.loads(json.dumps(found.to_json(), allow_nan=False))["ok"] is True


def test_a_run_without_noise_passes(tmp_path):
    found = verify_run(
        write_run(tmp_path / "run", cohort_plan(num_users=4, expected_cohort_size=2, num_rounds=8))
    )
    assert found.ok and found.to_json()["epsilon"] is None


def edit_row(run, number, name="rounds.jsonl", **changes):
    """Change what a row says; without changes it is dropped."""
    rows = [json.loads(line) for line in (run / name).read_text().splitlines()]
    row = rows.pop(number)
    write_rows(run / name, rows[:number] + ([row | changes] if changes else []) + rows[number:])


def say_twice(path, name, value):
    """Write a name of a JSON object a second time: readers differ in which one they take."""
    said = f"{{{json.dumps(name)}: {json.dumps(value)}, "
    rewrite(path, lambda text: said + text.removeprefix("{"))


def add_one(path):
    tensors, metadata = read_tensors(path)
    write_tensors(path, {name: array + 1 for name, array in tensors.items()}, metadata)


def cut(run, lines, name="ledger.jsonl"):
    rewrite(run / name, lambda text: "".join(text.splitlines(True)[:lines]))


def rewrite(path, change):
    path.write_text(change(path.read_text()))


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        (lambda run: edit_row(run, 2, epsilon=0.1), "rounds"),
        (lambda run: edit_row(run, 2, delta=1e-9), "rounds"),
        (lambda run: edit_row(run, 2, epsilon=None), "rounds"),
        (lambda run: edit_row(run, 2, epsilon_charges=1), "rounds"),
        (lambda run: edit_row(run, 2, epsilon_charges=1, epsilon=PLAN.epsilon(1).value), "rounds"),
        (lambda run: edit_row(run, 2, epsilon_charges=10**9), "rounds"),
        (lambda run: edit_row(run, 2, epsilon_charges="4"), "rounds"),
        (lambda run: edit_row(run, 2, epsilon_does_not_cover=["nothing"]), "rounds"),
        (lambda run: edit_row(run, 2, round_num=3.0), "rounds"),
        (lambda run: edit_row(run, 2), "rounds"),
        (lambda run: edit_row(run, 2, "diagnostics.jsonl", round_num=9), "diagnostics"),
        (lambda run: edit_row(run, 2, "diagnostics.jsonl", covered_by_epsilon=True), "diagnostics"),
        (lambda run: edit_row(run, 2, "diagnostics.jsonl", round_num=2), "diagnostics"),
        (lambda run: say_twice(run / "summary.json", "epsilon", 0.1), "summary"),
        (lambda run: say_twice(run / "experiment.json", "mode", "secure"), "experiment"),
        (lambda run: say_twice(run / "rounds.jsonl", "epsilon", 0.1), "rounds"),
        (lambda run: (run / "experiment.json").unlink(), "experiment"),
        (lambda run: (run / "summary.json").write_text("[" * 100_000), "summary"),
        (lambda run: (run / "vocabulary.json").write_bytes(b'{"words": ["b", "a"]}'), "files"),
        (lambda run: add_one(run / "state.safetensors"), "checkpoints"),
        (lambda run: add_one(kept(run, 2)), "digests"),
        (lambda run: shutil.copy(kept(run, 3), kept(run, 2)), "digests"),
        (lambda run: shutil.copy(kept(run, 6), kept(run, 7)), "digests"),
        (lambda run: edit_row(run, 2, attempt=1), "rounds"),
        (lambda run: edit_row(run, 5, round_num=7, attempt=1), "rounds"),
        (lambda run: edit_row(run, 5, round_num=1), "rounds"),
        (lambda run: (run / "rounds.jsonl").write_text("{}\n"), "rounds"),
        (lambda run: edit_json(run / "summary.json", epsilon=0.1), "summary"),
        (lambda run: edit_json(run / "summary.json", delta=1e-9), "summary"),
        (lambda run: edit_json(run / "summary.json", rounds=8), "summary"),
        (lambda run: edit_json(run / "summary.json", charges=6), "summary"),
        (lambda run: edit_json(run / "summary.json", relation="replace-one"), "summary"),
        (lambda run: (run / "summary.json").write_text("[]"), "summary"),
        (lambda run: edit_json(run / "experiment.json", mode="secure"), "experiment"),
        (lambda run: edit_json(run / "experiment.json", corpus={"name": "other"}), "experiment"),
        (lambda run: edit_json(run / "experiment.json", plan={}), "experiment"),
        (lambda run: (run / "experiment.json").write_text("{"), "experiment"),
        (lambda run: (run / "state.safetensors").write_bytes(b"\x00" * 40), "checkpoints"),
        (
            lambda run: save_state(run / "state.safetensors", {}, {"ledger_head": "f" * 64}),
            "checkpoints",
        ),
    ],
)
def test_a_false_statement_is_found(run, wrong, named):
    wrong(run)
    assert failed(run) == {named}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("mode", "secure"),
        ("noise_multiplier", 20.0),
        ("users", 4_000_000),
        ("target_epsilon", 0.1),
        ("unit", "example"),
        ("synthetic", False),
        ("epsilon", None),
        ("epsilon_rdp", 0.01),
        ("accountant", "RDP"),
        ("experiment", "another"),
        ("rounds_planned", 6),
        ("stopped_early", "nothing-left"),
        ("budget_used", "nothing"),
        ("corpus", "another"),
        ("start", {"kind": "public"}),
        ("measures", None),
        ("epsilon_does_not_cover", ["everything"]),
        ("with_start", {"epsilon": 0.1}),
    ],
)
def test_a_summary_states_what_ledger_and_document_give(run, name, value):
    edit_json(run / "summary.json", **{name: value})
    assert failed(run) == {"summary"}
    text = next(check.text for check in verify_run(run).checks if check.name == "summary")
    assert name in text
    stated = json.loads((run / "summary.json").read_text())
    del stated[name]
    (run / "summary.json").write_text(json.dumps(stated))
    assert failed(run) == {"summary"}


EDITS = {
    "a measured value": lambda run: edit_json(run / "summary.json", loss=0.1),
    "a value of a round": lambda run: edit_row(run, 2, loss=0.1),
    "a diagnostic": lambda run: edit_row(run, 2, "diagnostics.jsonl", cohort_size=3),
    "the last round": lambda run: cut(run, -1, "rounds.jsonl"),
    "the order of rounds": lambda run: rewrite(
        run / "rounds.jsonl", lambda text: "".join(sorted(text.splitlines(True), reverse=True))
    ),
    "a blank": lambda run: rewrite(run / "rounds.jsonl", lambda text: text + "\n"),
    "the state": lambda run: shutil.copy(kept(run, 6), run / "state.safetensors"),
    "another run's": lambda run: shutil.copy(run / "diagnostics.jsonl", run / "rounds.jsonl"),
    "half a line": lambda run: rewrite(
        run / "diagnostics.jsonl", lambda text: text + '{"round_num": 7'
    ),
}


@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS)
def test_a_finished_run_has_the_files_that_it_wrote(finished, tmp_path, edit):
    run = shutil.copytree(finished, tmp_path / "run")
    assert not verify_run(run).not_checked[1:]
    edit(run)
    assert "files" in failed(run)


@pytest.mark.parametrize(("number", "pruned"), [(1, True), (10, False)])
def test_a_checkpoint_that_a_run_prunes_is_said_to_be_that(tmp_path, tiny_corpus, number, pruned):
    run = Path(start(tiny_corpus, tmp_path / "run", rounds=12).run()["run_dir"])
    store = CheckpointStore(run / "checkpoints")
    assert [*store.rounds()] == [*range(3, 13)]
    store.path(number).unlink(missing_ok=True)
    [said] = [line for line in verify_run(run).not_checked if "checkpoints/round" in line]
    assert ("on purpose" in said) == pruned


def test_what_no_digest_names_is_called_unchecked(finished, tmp_path):
    run = shutil.copytree(finished, tmp_path / "run")
    (run / "best.json").write_text("{}")
    (run / "frozen.safetensors").write_bytes(b"x")
    (run / "notes").mkdir()
    (run / "summary.json").unlink()
    found = verify_run(run)
    assert found.ok and found.to_json()["not_checked"] == list(found.not_checked)
    said = "\n".join(found.not_checked)
    for name in ("best.json", "frozen.safetensors", "notes/", "summary.json: no longer"):
        assert name in said
    # With its last line cut off or void, what is measured is not the ledger's.
    for more in (lambda: cut(run, -1), lambda: resume(run)):
        shutil.rmtree(run)
        shutil.copytree(finished, run)
        more()
        found = verify_run(run)
        assert found.ok
        for name in SEALED:
            assert any(name in said for said in found.not_checked), name


def resume(run):
    with Ledger.open(run / "ledger.jsonl") as ledger:
        ledger.resume()


def test_a_secure_run_has_no_diagnostics(tmp_path):
    run = write_run(tmp_path / "run", mode="secure")
    assert verify_run(run).ok and not (run / "diagnostics.jsonl").exists()
    row = {"round_num": 1, "attempt": 1, "covered_by_epsilon": False}
    write_rows(run / "diagnostics.jsonl", [row])
    assert failed(run) == {"diagnostics"}


def test_a_private_file_that_is_not_readable_is_called_so(finished, tmp_path, monkeypatch):
    run = shutil.copytree(finished, tmp_path / "run")
    read = Path.open

    def refused(path, *arguments, **options):
        if path.name == "diagnostics.jsonl":
            raise PermissionError(13, "Permission denied", str(path))
        return read(path, *arguments, **options)

    monkeypatch.setattr(Path, "open", refused)
    found = verify_run(run)
    assert found.ok, found.checks
    assert any("diagnostics.jsonl: not readable" in said for said in found.not_checked)


def test_a_run_that_goes_on_is_never_called_forged(tmp_path, monkeypatch):
    """Before each read of a file the run charges, keeps and releases another round."""
    plan = cohort_plan(num_users=4, expected_cohort_size=2, num_rounds=300)  # prices take a while
    run = write_run(tmp_path / "run", plan=plan, lose=(), rounds=1, sealed=False)
    (run / "summary.json").unlink()
    monkeypatch.setattr("os.fsync", lambda descriptor: None)
    ledger, values = Ledger.open(run / "ledger.jsonl"), round_values(plan, 0)

    def steps():
        for round_num in range(2, 300):
            ledger.charge(round_num, 1)
            yield
            path, metadata = checkpoint(run, round_num, ledger)
            kept(run, round_num - 3).unlink(missing_ok=True)
            yield
            save_state(run / "state.safetensors", {"w": np.zeros(3, np.float32)}, metadata)
            yield
            ledger.release(round_num, 1, digest(path))
            yield
            row = {"round_num": round_num, "attempt": 1, **values}
            json_lines.append(run / "rounds.jsonl", row)
            yield

    going, calls = steps(), 0

    def step(function):
        def called(*arguments):
            nonlocal calls
            calls += 1
            if calls % 3:
                next(going, None)
            return function(*arguments)

        return called

    for name in ("read_ledger", "read_metadata", "load_state", "file_sha256"):
        monkeypatch.setattr(verify, name, step(getattr(verify, name)))
    with ledger:
        for _ in range(15):
            found = verify_run(run)
            assert found.ok, [check for check in found.checks if not check.ok]
    assert found.num_releases > 12


def test_a_rolled_back_ledger_is_older_than_its_checkpoints(run, original):
    """Cut anywhere, on a whole line: the chain is whole, but checkpoints know later lines."""
    whole = len((run / "ledger.jsonl").read_bytes().splitlines())
    for lines in range(1, whole):
        cut(run, lines)
        names, released = failed(run), lines == whole - 1  # only the last release is cut off
        assert "ledger" not in names and ("rounds" if released else "checkpoints") in names, lines
        # Even with every statement that could contradict it removed.
        for name in ("rounds.jsonl", "diagnostics.jsonl", "summary.json"):
            (run / name).unlink()
        assert released or "checkpoints" in failed(run), lines
        shutil.copytree(original, run, dirs_exist_ok=True)


def test_another_run_of_the_same_plan_is_not_this_run(run, tmp_path):
    other = write_run(tmp_path / "other")
    shutil.copy(other / "ledger.jsonl", run / "ledger.jsonl")
    # Everything it states is right, ε included; only what its files hold is another's.
    assert failed(run) == {"checkpoints", "digests", "files"}


def test_a_torn_line_is_told_and_left_alone(run):
    with (run / "ledger.jsonl").open("ab") as file:
        file.write(b'{"attempt":1,"ev')
    with (run / "rounds.jsonl").open("ab") as file:
        file.write(b'{"round_num": 7, "epsi')
    before = (run / "ledger.jsonl").read_bytes()
    found = verify_run(run)
    assert found.ok and "torn" in found.checks[0].text
    assert (run / "ledger.jsonl").read_bytes() == before


def test_a_run_in_progress_can_be_verified(run):
    with Ledger.open(run / "ledger.jsonl") as ledger:
        ledger.charge(7, 1)
        found = verify_run(run)
        # The summary states the ε before this charge: only that is out of date.
        assert {check.name for check in found.checks if not check.ok} == {"summary"}
        assert found.num_charges == 8


def test_a_round_done_again_counts_twice(run):
    with Ledger.open(run / "ledger.jsonl") as ledger:
        ledger.charge(6, 2)
        ledger.release(6, 2, digest(checkpoint(run, 6, ledger, 66)[0]))
    (run / "summary.json").unlink()
    found = verify_run(run)
    assert found.ok and found.num_charges == 8 and found.epsilon == PLAN.epsilon(8)


def test_no_run_is_refused(tmp_path):
    for folder in (tmp_path / "missing", tmp_path):
        with refuses(ValueError, folder, "fedpriv run"):
            verify_run(folder)
