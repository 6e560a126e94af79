"""`verify_run` believes nothing: every statement of a run folder is held against its ledger."""

import hashlib
import json
import random
import shutil

import numpy as np
import pytest
from safetensors.numpy import save_file

from fedpriv.hashes import document_sha256
from fedpriv.privacy.ledger.ledger import Ledger
from fedpriv.privacy.plan import cohort_plan
from fedpriv.privacy.statement.verify import verify_run

PLAN = cohort_plan(
    num_users=400,
    expected_cohort_size=20,
    num_rounds=8,
    bound="clip",
    l2_bound=0.5,
    noise="gaussian",
    noise_multiplier=2.0,
    target_epsilon=1.0,
)


def write_run(folder, plan=PLAN, lose=(3,), rounds=6):
    """A small run: round 3 loses an attempt, every round leaves a checkpoint."""
    (folder / "checkpoints").mkdir(parents=True)
    document = {"plan": plan.to_json(), "mode": "simulation", "corpus": {}}
    extra = {"experiment_sha256": document_sha256(document)}
    (folder / "experiment.json").write_text(json.dumps(document))
    stated = []
    with Ledger.create(folder / "ledger.jsonl", plan, mode="simulation", extra=extra) as ledger:
        for round_num in range(1, rounds + 1):
            if round_num in lose:
                ledger.charge(round_num, 1)
                ledger.resume()
            attempt = ledger.attempts(round_num) + 1
            ledger.charge(round_num, attempt)
            path = folder / "checkpoints" / f"round-{round_num:06d}.safetensors"
            save_file(
                {"w": np.full(3, round_num, np.float32)},
                path,
                {"ledger_head": ledger.head, "round_num": str(round_num)},
            )
            ledger.release(round_num, attempt, digest(path))
            spent = plan.epsilon(ledger.charges)
            stated.append(
                {
                    "round_num": round_num,
                    "attempt": attempt,
                    "epsilon": spent.value if plan.is_private else None,
                    "delta": spent.delta,
                }
            )
        save_file(
            {"w": np.zeros(3, np.float32)},
            folder / "state.safetensors",
            {"ledger_head": ledger.head, "round_num": str(rounds)},
        )
        final = ledger.epsilon()
        (folder / "summary.json").write_text(
            json.dumps({**final.to_json(), "rounds": rounds, "charges": ledger.charges})
        )
    (folder / "rounds.jsonl").write_text("".join(json.dumps(row) + "\n" for row in stated))
    return folder


def digest(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    return write_run(tmp_path_factory.mktemp("run") / "run")


@pytest.fixture
def run(original, tmp_path):
    return shutil.copytree(original, tmp_path / "run")


def failed(run):
    return {check.name for check in verify_run(run).checks if not check.ok}


def test_a_sound_run_passes_every_check(run):
    found = verify_run(run)
    assert found.ok, found.checks
    assert {check.name for check in found.checks} == {
        "ledger",
        "charges",
        "budget",
        "experiment",
        "rounds",
        "summary",
        "checkpoints",
        "digests",
        "audit",
    }
    assert (found.num_charges, found.num_releases, found.num_lost) == (7, 6, 1)
    assert found.epsilon == PLAN.epsilon(7)
    assert json.loads(json.dumps(found.to_json(), allow_nan=False))["ok"] is True


def test_a_run_without_noise_passes(tmp_path):
    found = verify_run(
        write_run(tmp_path / "run", cohort_plan(num_users=4, expected_cohort_size=2, num_rounds=8))
    )
    assert found.ok and found.to_json()["epsilon"] is None


def edit_json(path, **changes):
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def edit_row(run, number, **changes):
    rows = [json.loads(line) for line in (run / "rounds.jsonl").read_text().splitlines()]
    rows[number].update(changes)
    (run / "rounds.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def cut(run, lines):
    data = (run / "ledger.jsonl").read_bytes().splitlines(keepends=True)
    (run / "ledger.jsonl").write_bytes(b"".join(data[:lines]))


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        (lambda run: edit_row(run, 2, epsilon=0.1), "rounds"),
        (lambda run: edit_row(run, 2, delta=1e-9), "rounds"),
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
        (
            lambda run: save_file(
                {"w": np.zeros(3, np.float32)}, run / "checkpoints" / "round-000006.safetensors"
            ),
            "digests",
        ),
        (lambda run: (run / "state.safetensors").write_bytes(b"\x00" * 40), "checkpoints"),
        (
            lambda run: save_file(
                {"w": np.zeros(1, np.float32)}, run / "state.safetensors", {"ledger_head": "f" * 64}
            ),
            "checkpoints",
        ),
        (
            lambda run: save_file(
                {"w": np.zeros(1, np.float32)},
                run / "state.safetensors",
                {"ledger_head": "0" * 64, "round_num": "9"},
            ),
            "checkpoints",
        ),
    ],
)
def test_a_false_statement_is_found(run, wrong, named):
    wrong(run)
    assert failed(run) == {named}


def test_a_rolled_back_ledger_is_older_than_its_checkpoints(run, original):
    """Cut anywhere, on a whole line: the chain is whole, but checkpoints know later lines."""
    whole = len((run / "ledger.jsonl").read_bytes().splitlines())
    for lines in range(1, whole):
        cut(run, lines)
        names = failed(run)
        assert "ledger" not in names and "checkpoints" in names, lines
        # Even with every statement that could contradict it removed.
        for name in ("rounds.jsonl", "summary.json"):
            (run / name).rename(run / f"{name}.away")
        assert "checkpoints" in failed(run), lines
        for name in ("rounds.jsonl", "summary.json"):
            (run / f"{name}.away").rename(run / name)
        shutil.copy(original / "ledger.jsonl", run)


def test_another_run_of_the_same_plan_is_not_this_run(run, tmp_path):
    other = write_run(tmp_path / "other")
    shutil.copy(other / "ledger.jsonl", run / "ledger.jsonl")
    # Everything it states is right, ε included; only the checkpoints know that it is another's.
    assert failed(run) == {"checkpoints", "digests"}


@pytest.mark.slow
def test_100_of_100_random_manipulations_are_found(run):
    rng = random.Random(17)
    data = (run / "ledger.jsonl").read_bytes()
    lines = data.splitlines(keepends=True)
    for trial in range(100):
        way = rng.choice(["cut", "edit", "swap", "drop"])
        changed = list(lines)
        if way == "cut":
            changed = changed[: rng.randrange(1, len(lines))]
        elif way == "drop":
            del changed[rng.randrange(len(lines))]
        elif way == "swap":
            first, second = rng.sample(range(len(lines)), 2)
            changed[first], changed[second] = changed[second], changed[first]
        else:
            place = rng.randrange(len(data) - 1)
            while data[place] == 10:
                place = rng.randrange(len(data) - 1)
            changed = [data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]]
        (run / "ledger.jsonl").write_bytes(b"".join(changed))
        assert not verify_run(run).ok, (trial, way)
    (run / "ledger.jsonl").write_bytes(data)
    assert verify_run(run).ok


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
        path = run / "checkpoints" / "round-000006.safetensors"
        save_file(
            {"w": np.full(3, 66, np.float32)}, path, {"ledger_head": ledger.head, "round_num": "6"}
        )
        ledger.release(6, 2, digest(path))
    (run / "summary.json").unlink()
    found = verify_run(run)
    assert found.ok and found.num_charges == 8 and found.epsilon == PLAN.epsilon(8)


def test_no_run_is_refused(tmp_path):
    for folder in (tmp_path / "missing", tmp_path):
        with pytest.raises(ValueError, match="fedpriv run"):
            verify_run(folder)
