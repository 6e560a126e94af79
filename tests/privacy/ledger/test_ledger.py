"""The ledger: charged before anything is drawn, chained, never under-counting."""

import errno
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time

import pytest

from fedpriv.privacy.ledger.chain import decode, encode
from fedpriv.privacy.ledger.ledger import BudgetSpentError, Ledger, LedgerError, read_ledger
from fedpriv.privacy.plan import cohort_plan

PLAN = cohort_plan(
    num_users=400,
    expected_cohort_size=20,
    num_rounds=10,
    bound="clip",
    l2_bound=0.5,
    noise="gaussian",
    noise_multiplier=2.0,
)
DIGEST = "ab" * 32


@pytest.fixture
def path(tmp_path):
    return tmp_path / "ledger.jsonl"


def create(path, plan=PLAN, **extra):
    return Ledger.create(path, plan, mode="simulation", extra=extra)


def filled(path, rounds=5):
    with create(path) as ledger:
        for round_num in range(1, rounds + 1):
            ledger.charge(round_num, 1)
            ledger.release(round_num, 1, hashlib.sha256(b"%d" % round_num).hexdigest())
    return path.read_bytes()


def test_a_run_is_charged_released_and_accounted(path):
    with create(path, note="hello") as ledger:
        assert (ledger.charges, ledger.plan, ledger.mode) == (0, PLAN, "simulation")
        assert ledger.extra == {"note": "hello"} and len(ledger.run_id) == 32
        for round_num in (1, 2, 3):
            assert ledger.attempts(round_num) == 0
            ledger.charge(round_num, 1)
            assert ledger.has_charge(round_num, 1) and not ledger.has_release(round_num, 1)
            ledger.release(round_num, 1, DIGEST)
            assert ledger.has_release(round_num, 1) and not ledger.has_charge(round_num, 2)
        assert ledger.lost == ()
        assert ledger.epsilon() == PLAN.epsilon(3)
        head = ledger.head
    records, state, torn = read_ledger(path)
    assert records[-1].hash == head and torn == 0
    assert [charge.round_num for charge in state.charges] == [1, 2, 3]


def test_the_line_is_on_the_disk_before_charge_returns(path, monkeypatch):
    """Write, then sync, then return; so nothing can be drawn for an unsynced charge."""
    order = []
    write, sync = os.write, os.fsync
    ledger = create(path)
    monkeypatch.setattr(os, "write", lambda *args: (order.append("write"), write(*args))[1])
    monkeypatch.setattr(os, "fsync", lambda *args: (order.append("sync"), sync(*args))[1])
    ledger.charge(1, 1)
    order.append("returned")
    assert order == ["write", "sync", "returned"]
    assert json.loads(path.read_bytes().splitlines()[-1])["kind"] == "charge"
    ledger.close()


def test_creation_syncs_file_and_folder(path, monkeypatch):
    synced = []
    sync = os.fsync
    monkeypatch.setattr(
        os, "fsync", lambda fd: (synced.append(os.readlink(f"/proc/self/fd/{fd}")), sync(fd))[1]
    )
    create(path).close()
    assert str(path) in synced and str(path.parent) in synced


def test_a_lost_attempt_is_spent_and_redone_under_another_number(path):
    with create(path) as ledger:
        ledger.charge(1, 1)
        ledger.release(1, 1, DIGEST)
        ledger.charge(2, 1)
    with Ledger.open(path) as ledger:
        ledger.resume()
        assert [(charge.round_num, charge.attempt) for charge in ledger.lost] == [(2, 1)]
        assert ledger.attempts(2) == 1
        with pytest.raises(LedgerError, match="attempt 1 of round 2"):
            ledger.charge(2, 1)
        ledger.charge(2, 2)
        ledger.release(2, 2, DIGEST)
        assert ledger.charges == 3
        assert ledger.epsilon() == PLAN.epsilon(3)


def test_the_budget_stops_before_the_charge(path):
    with create(path) as ledger:
        for attempt in range(1, 11):
            ledger.charge(1, attempt)
        before = path.read_bytes()
        with pytest.raises(BudgetSpentError, match="10 charges"):
            ledger.charge(2, 1)
        assert path.read_bytes() == before


def test_the_target_stops_before_the_charge(tmp_path):
    made = cohort_plan(**{**PLAN.to_json(), "target_epsilon": 0.15})
    path = tmp_path / "ledger.jsonl"
    with create(path, made) as ledger:
        for round_num in range(1, made.affordable_rounds + 1):
            ledger.charge(round_num, 1)
        assert 0 < ledger.charges < 10 and ledger.epsilon().value <= 0.15
        before = path.read_bytes()
        with pytest.raises(BudgetSpentError, match="above the target"):
            ledger.charge(ledger.charges + 1, 1)
        assert path.read_bytes() == before


@pytest.mark.parametrize(
    "call",
    [
        lambda ledger: ledger.charge(0, 1),
        lambda ledger: ledger.charge(1, 0),
        lambda ledger: ledger.charge(11, 1),
        lambda ledger: ledger.charge(1, 3),
        lambda ledger: ledger.charge(1, 1),
        lambda ledger: ledger.charge("1", 1),
        lambda ledger: ledger.charge(True, 1),
        lambda ledger: ledger.charge(1.0, 2),
        lambda ledger: ledger.release(2, 1, DIGEST),
        lambda ledger: ledger.release(1, 2, DIGEST),
        lambda ledger: ledger.release(1, 1, DIGEST),
        lambda ledger: ledger.release(1, 1, "short"),
    ],
)
def test_what_does_not_follow_is_refused_and_nothing_is_written(path, call):
    with create(path) as ledger:
        ledger.charge(1, 1)
        ledger.release(1, 1, DIGEST)
        before = path.read_bytes()
        with pytest.raises(LedgerError):
            call(ledger)
        assert path.read_bytes() == before
        ledger.charge(2, 1)  # still alive


def test_only_the_attempt_charged_last_can_be_released(path):
    with create(path) as ledger:
        ledger.charge(1, 1)
        ledger.charge(1, 2)
        with pytest.raises(LedgerError, match="charged last"):
            ledger.release(1, 1, DIGEST)
        ledger.release(1, 2, DIGEST)


def damage(data, rng):
    """Return the ledger damaged in one of five ways, all of whole lines."""
    lines = data.splitlines(keepends=True)
    way = rng.choice(["edit", "drop", "swap", "repeat", "forge"])
    if way == "edit":  # one bit of one character, but the newline that ends a line
        place = rng.choice([i for i, char in enumerate(data) if char != 10])
        changed = data[place] ^ (1 << rng.randrange(7))
        return data[:place] + bytes([changed]) + data[place + 1 :]
    if way == "drop":  # a line inside; cutting lines off the end is seen by checkpoints
        del lines[rng.randrange(len(lines) - 1)]
    elif way == "swap":
        first, second = rng.sample(range(len(lines)), 2)
        lines[first], lines[second] = lines[second], lines[first]
    elif way == "repeat":
        number = rng.randrange(len(lines))
        lines.insert(number, lines[number])
    else:  # a change with its own hash made right, but not those after
        number = rng.randrange(1, len(lines) - 1)
        body = json.loads(lines[number])
        body["round_num"] += 1
        del body["hash"]
        text = json.dumps(body, sort_keys=True, separators=(",", ":")).encode()
        body["hash"] = hashlib.sha256(text).hexdigest()
        lines[number] = json.dumps(body, sort_keys=True, separators=(",", ":")).encode() + b"\n"
    return b"".join(lines)


def test_damage_is_detected_100_times_of_100(path):
    data, rng = filled(path), random.Random(13)
    for trial in range(100):
        damaged = damage(data, rng)
        assert damaged != data
        path.write_bytes(damaged)
        with pytest.raises(LedgerError):
            Ledger.open(path)
        assert path.read_bytes() == damaged, f"trial {trial}: opening changed a damaged ledger"
        with pytest.raises(LedgerError):
            read_ledger(path)


def test_a_forged_but_well_chained_ledger_still_has_to_make_sense(path):
    """Rules are replayed: hashes made right do not make a release without a charge right."""
    filled(path)
    chain = decode(path.read_bytes())
    kinds = [(record.kind, dict(record.fields)) for record in chain.records]
    for forged in (
        kinds[:1] + kinds[2:],
        [*kinds, ("charge", kinds[1][1])],
        [*kinds, ("gift", {})],
        kinds[1:],
        [
            *kinds,
            (
                "charge",
                {
                    **kinds[1][1],
                    "round_num": 6,
                    "event": {"kind": "gaussian", "noise_multiplier": 50.0},
                },
            ),
        ],
    ):
        previous, data = "0" * 64, b""
        for number, (kind, fields) in enumerate(forged):
            record, line = encode(number, previous, kind, fields)
            previous, data = record.hash, data + line
        path.write_bytes(data)
        with pytest.raises(LedgerError):
            Ledger.open(path)


@pytest.mark.parametrize("kept", ["half", "all but the newline", "one byte", "zeros"])
def test_a_torn_last_line_is_cut_off(path, kept):
    whole = filled(path)
    with Ledger.open(path) as ledger:
        ledger.charge(6, 1)
    line = path.read_bytes()[len(whole) :]
    torn = {
        "half": line[: len(line) // 2],
        "all but the newline": line[:-1],
        "one byte": line[:1],
        "zeros": bytes(200),
    }[kept]
    path.write_bytes(whole + torn)
    records, _, skipped = read_ledger(path)
    assert skipped == len(torn) and path.read_bytes() == whole + torn
    with Ledger.open(path) as ledger:
        assert path.read_bytes() == whole
        assert ledger.head == records[-1].hash
        ledger.charge(6, 1)
    assert path.read_bytes() == whole + line
    Ledger.open(path).close()


def test_a_ledger_without_a_whole_line_was_never_charged(path):
    path.write_bytes(b'{"event":nul')
    with pytest.raises(LedgerError, match="nothing was ever charged"):
        Ledger.open(path)
    create(path).close()
    create(path).close()  # started, never charged: starting anew loses nothing
    with create(path) as ledger:
        ledger.charge(1, 1)
    with pytest.raises(LedgerError, match="already holds"):
        create(path)
    path.write_text("something else\n")
    with pytest.raises(LedgerError, match="already holds"):
        create(path)


def failing(real, after, error):
    calls = {"left": after}

    def write(*args):
        if calls["left"] == 0:
            raise OSError(error, os.strerror(error))
        calls["left"] -= 1
        return real(*args)

    return write


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EROFS, errno.EIO])
@pytest.mark.parametrize("name", ["write", "fsync"])
def test_a_failed_write_refuses_and_breaks_the_ledger_for_good(path, monkeypatch, name, error):
    ledger = create(path)
    ledger.charge(1, 1)
    before = path.read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(os, name, failing(getattr(os, name), 0, error))
        with pytest.raises(LedgerError, match="Nothing was drawn"):
            ledger.charge(2, 1)
    for call in (lambda: ledger.charge(2, 1), lambda: ledger.release(1, 1, DIGEST), ledger.resume):
        with pytest.raises(LedgerError, match="takes no further line"):
            call()
    ledger.close()
    with Ledger.open(path) as ledger:
        # Never fewer than were acknowledged; an unsynced line may count once too often.
        assert path.read_bytes().startswith(before)
        assert ledger.charges == (1 if name == "write" else 2)


def test_a_disk_that_fills_up_within_a_line_leaves_a_readable_ledger(path, monkeypatch):
    ledger, real = create(path), os.write
    before = path.read_bytes()

    def full(descriptor, data):
        if len(data) < 60:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(descriptor, data[:50])

    for broken_cut in (False, True):
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", full)
            if broken_cut:
                patch.setattr(os, "ftruncate", failing(os.ftruncate, 0, errno.EIO))
            with pytest.raises(LedgerError, match="No space left"):
                ledger.charge(1, 1)
        if broken_cut:
            assert len(path.read_bytes()) > len(before)
        else:
            assert path.read_bytes() == before
        ledger.close()
        ledger = Ledger.open(path)
        assert path.read_bytes() == before and ledger.charges == 0
    ledger.charge(1, 1)
    ledger.close()


def test_short_writes_are_continued(path, monkeypatch):
    real = os.write
    with create(path) as ledger:
        monkeypatch.setattr(os, "write", lambda fd, data: real(fd, data[:7]))
        ledger.charge(1, 1)
    assert read_ledger(path)[1].charges[0].round_num == 1


def test_a_place_that_cannot_be_written_is_refused(tmp_path):
    with pytest.raises(LedgerError, match="cannot open"):
        create(tmp_path / "missing" / "ledger.jsonl")
    with pytest.raises(LedgerError, match="cannot open"):
        Ledger.open(tmp_path / "ledger.jsonl")
    with pytest.raises(LedgerError):
        create(tmp_path)


def test_creation_on_a_full_disk_leaves_nothing_to_stumble_over(path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", failing(os.write, 0, errno.ENOSPC))
        with pytest.raises(LedgerError, match="No space left"):
            create(path)
    create(path).close()


def test_two_writers_are_one_too_many(path):
    first = create(path)
    first.charge(1, 1)
    for take in (lambda: Ledger.open(path), lambda: create(path)):
        with pytest.raises(LedgerError, match="in use by another process"):
            take()
    read_ledger(path)  # readers need no lock
    first.close()
    with pytest.raises(LedgerError, match="closed"):
        first.charge(1, 2)
    Ledger.open(path).close()


CHILD = """
import sys
from fedpriv.privacy.ledger.ledger import Ledger
ledger = Ledger.open(sys.argv[1])
attempt = ledger.attempts(1)
while True:
    attempt += 1
    ledger.charge(1, attempt)
    print(attempt, flush=True)
"""


def test_a_killed_writer_frees_the_lock_and_never_under_counts(tmp_path):
    """Three kills at arbitrary moments: every acknowledged charge is there, at most one more."""
    path = tmp_path / "ledger.jsonl"
    create(path, cohort_plan(**{**PLAN.to_json(), "num_rounds": 100_000})).close()
    rng, counted = random.Random(5), 0
    for _ in range(3):
        child = subprocess.Popen([sys.executable, "-c", CHILD, str(path)], stdout=subprocess.PIPE)
        assert child.stdout is not None
        assert child.stdout.readline().strip() == str(counted + 1).encode()
        with pytest.raises(LedgerError, match="in use"):
            Ledger.open(path)
        time.sleep(rng.uniform(0.0, 0.05))
        child.send_signal(signal.SIGKILL)
        said = child.stdout.read().split(b"\n")[:-1]
        child.wait()
        child.stdout.close()
        acknowledged = int(said[-1]) if said else counted + 1
        with Ledger.open(path) as ledger:
            assert acknowledged <= ledger.charges <= acknowledged + 1
            counted = ledger.charges


def test_plans_without_noise_are_kept_too(path):
    made = cohort_plan(num_users=4, expected_cohort_size=2, num_rounds=3)
    with create(path, made) as ledger:
        ledger.charge(1, 1)
        ledger.release(1, 1, DIGEST)
        assert ledger.epsilon().to_json()["epsilon"] is None
    assert Ledger.open(path).charges == 1


def test_other_modes_and_values_json_cannot_hold_are_refused(path):
    with pytest.raises(ValueError, match="mode"):
        Ledger.create(path, PLAN, mode="public")
    with pytest.raises(LedgerError):
        create(path, bad=float("nan"))
    with pytest.raises(LedgerError):
        create(path, bad=object())
