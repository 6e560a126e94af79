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
from dataclasses import replace

import pytest

from fedpriv.mechanisms import Clip
from fedpriv.noise.privatizer import Cost
from fedpriv.privacy.accounting import epsilon
from fedpriv.privacy.event import NONPRIVATE, Event, cohort_event
from fedpriv.privacy.ledger.chain import decode, encode
from fedpriv.privacy.ledger.file import LedgerError
from fedpriv.privacy.ledger.ledger import BudgetSpentError, Ledger
from fedpriv.privacy.ledger.reading import read_ledger
from fedpriv.privacy.ledger.state import LedgerState
from fedpriv.privacy.mechanism import Mechanism
from fedpriv.privacy.plans.adaptive import AdaptivePlan
from fedpriv.privacy.plans.cohort_plan import cohort_plan
from fedpriv.privacy.plans.plan import Plan
from fedpriv.privacy.recorded import RecordedMechanism
from fedpriv.privacy.sampling import Everybody
from fedpriv.privacy.statement.verify import verify_run

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
SAMPLED = cohort_event(num_users=400, expected_cohort_size=20, noise_multiplier=50.0)


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
            assert ledger.attempts(round_num) == 1 and not ledger.has_release(round_num, 1)
            ledger.release(round_num, 1, DIGEST)
            assert ledger.has_release(round_num, 1) and ledger.attempts(round_num) == 1
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


# What one ledger may hold besides a charge and a release a round: other costs, several queries,
# one charge for a whole run.


class Answer:
    """A privatizer of any cost."""

    name = "made up"
    after_crash = "retry"

    def __init__(self, kind, value, whole_run=False):
        self.cost = Cost(kind=kind, value=value, whole_run=whole_run)


def plan_of(kind, value, *, rounds=10, whole_run=False, **rest):
    """A plan in which everybody takes part and an answer costs so much."""
    mechanism = Mechanism(
        sampler=Everybody(num_users=400),
        bound=Clip(l2_clip_norm=0.5),
        privatizer=Answer(kind, value, whole_run),
    )
    return Plan(mechanism=mechanism, num_rounds=rounds, **rest)


def rewritten(path, change):
    """Write a ledger again, its lines (kind and fields) changed and well chained."""
    previous, data = "0" * 64, b""
    kinds = [(record.kind, dict(record.fields)) for record in decode(path.read_bytes()).records]
    for number, (kind, fields) in enumerate(change(kinds)):
        record, line = encode(number, previous, kind, fields)
        previous, data = record.hash, data + line
    path.write_bytes(data)


def pairs(charges):
    return [(charge.round_num, charge.attempt) for charge in charges]


class TestOtherCosts:
    def test_pure_answers_are_charged_and_added_up_at_delta_zero(self, path):
        made = plan_of("pure", 0.25)
        assert made.delta == 0.0
        with create(path, made) as ledger:
            for round_num in range(1, 11):
                ledger.charge(round_num, 1)
            spent = ledger.epsilon()
            assert (spent.value, spent.delta, spent.accountant) == (2.5, 0.0, "composition")
            with pytest.raises(BudgetSpentError, match="all 10 charges are spent"):
                ledger.charge(1, 2)
        _, state, _ = read_ledger(path)
        assert state.epsilon() == made.total() == spent
        # What is read is the event and the words, not the objects; it accounts all the same.
        assert isinstance(state.plan.mechanism, RecordedMechanism)
        assert state.plan.event == made.event and state.plan.to_json() == made.to_json()
        assert json.loads(path.read_bytes().splitlines()[1])["event"] == {
            "kind": "pure",
            "epsilon": 0.25,
        }

    def test_a_target_of_pure_answers(self, path):
        made = plan_of("pure", 0.25, target_epsilon=1.1)
        with create(path, made) as ledger:
            for round_num in range(1, 5):
                ledger.charge(round_num, 1)
            assert not ledger.pays_for_more
            with pytest.raises(BudgetSpentError, match=r"take ε to 1.2500, above the target 1.1"):
                ledger.charge(5, 1)

    def test_another_event_than_the_plans_is_refused(self, path):
        with create(path, plan_of("pure", 0.25)) as ledger:
            for event in (Event(kind="pure", epsilon=0.2), Event(kind="zcdp", rho=0.1), NONPRIVATE):
                with pytest.raises(BudgetSpentError, match="it is charged for"):
                    ledger.charge(1, 1, event)
            ledger.charge(1, 1, Event(kind="pure", epsilon=0.25))

    def test_a_charge_without_noise_is_written_as_what_it_is(self, path):
        with create(path, cohort_plan(num_users=4, expected_cohort_size=2, num_rounds=3)) as ledger:
            ledger.charge(1, 1)
        assert json.loads(path.read_bytes().splitlines()[1])["event"] == {"kind": "nonprivate"}

    def test_prices_decided_on_the_way(self, path):
        made = AdaptivePlan(num_users=400, rho=1.0, delta=1e-5)
        with create(path, made) as ledger:
            with pytest.raises(LedgerError, match="give its event"):
                ledger.charge(1, 1)
            ledger.charge(1, 1, Event(kind="gaussian", noise_multiplier=1.0))
            ledger.charge(1, 1, Event(kind="pure", epsilon=0.5), query="best")
            before = path.read_bytes()
            for event in (Event(kind="zcdp", rho=0.4), SAMPLED, NONPRIVATE):
                with pytest.raises(BudgetSpentError):
                    ledger.charge(2, 1, event)
            assert path.read_bytes() == before and ledger.pays_for_more
            ledger.charge(2, 1, Event(kind="zcdp", rho=0.375))
            with pytest.raises(BudgetSpentError, match="above the 1 of the plan"):
                ledger.charge(3, 1, Event(kind="zcdp", rho=1e-6))
            assert ledger.plan.left(ledger.state.spent) == 0.0
            assert ledger.epsilon() == made.total()
        with Ledger.open(path) as ledger:  # nothing that was spent comes back
            assert ledger.plan == made and ledger.plan.left(ledger.state.spent) == 0.0

    def test_a_run_that_has_ended_is_charged_no_further(self, path):
        made, event = AdaptivePlan(num_users=400, rho=1.0, delta=1e-5), Event(kind="zcdp", rho=0.25)
        with create(path, made) as ledger:
            ledger.charge(1, 1, event)
            ledger.release(1, 1, DIGEST)
            assert ledger.pays_for_more
            with pytest.raises(LedgerError, match="reason 'tired' of an end is unknown"):
                ledger.end("tired")
            ledger.end("refused")
        for _ in range(2):
            with Ledger.open(path) as ledger:
                assert ledger.state.ended is not None and not ledger.pays_for_more
                with pytest.raises(BudgetSpentError, match="the run has ended"):
                    ledger.charge(2, 1, event)
                with pytest.raises(LedgerError, match=r"ended \(refused\); nothing follows"):
                    ledger.end("finished")
                ledger.resume()
        assert verify_run(path.parent).ok
        charge = {"round_num": 2, "attempt": 1, "event": event.to_json()}
        rewritten(path, lambda lines: [*lines, ("charge", charge)])
        with pytest.raises(LedgerError, match="nothing follows"):
            read_ledger(path)

    @pytest.mark.parametrize("fields", [{}, {"reason": "tired"}, {"reason": "refused", "more": 1}])
    def test_an_end_that_could_not_have_been_written(self, fields, path):
        create(path, AdaptivePlan(num_users=400, rho=1.0)).close()
        rewritten(path, lambda lines: [*lines, ("end", fields)])
        with pytest.raises(LedgerError, match="line 2"):
            read_ledger(path)

    def test_more_than_the_total_is_refused_when_it_is_read(self, path):
        with create(path, AdaptivePlan(num_users=400, rho=1.0, delta=1e-5)) as ledger:
            ledger.charge(1, 1, Event(kind="zcdp", rho=0.9))
        rewritten(path, lambda lines: [*lines, (lines[1][0], {**lines[1][1], "round_num": 2})])
        with pytest.raises(LedgerError, match=r"line 3: round 2 cannot be charged: ρ = 0.9 more"):
            read_ledger(path)


class TestQueries:
    """A round may ask several things; each is charged, and counts its own attempts."""

    def test_attempts_are_of_a_query(self, path):
        with create(path) as ledger:
            ledger.charge(1, 1)
            ledger.charge(1, 1, query="count")
            with pytest.raises(LedgerError, match="its next attempt is 2"):
                ledger.charge(1, 1, query="count")
            ledger.charge(1, 2, query="count")
            assert [ledger.attempts(1, query) for query in ("update", "count", "else")] == [1, 2, 0]
            assert ledger.attempts(1, "count") == 2 and ledger.attempts(1) == 1
            assert ledger.state.number_of(1, 2, "count") == 3
            assert ledger.charges == 3 and ledger.epsilon() == PLAN.epsilon(3)

    def test_a_release_is_of_the_last_attempt_of_every_query(self, path):
        with create(path) as ledger:
            for attempt, query in ((1, "update"), (1, "count"), (2, "count")):
                ledger.charge(1, attempt, query=query)
            ledger.release(1, 2, DIGEST)
            assert ledger.state.releases[-1].charges == ((1, 1), (3, 3))
            assert [(c.query, c.attempt) for c in ledger.lost] == [("count", 1)]
            for attempt, query in ((1, "update"), (1, "count")):
                ledger.charge(2, attempt, query=query)
            ledger.release(2, 1, DIGEST)
            assert ledger.state.releases[-1].charges == ((4, 5),)
            said = [charge.query for charge in ledger.state.charges]
            assert said == ["update", "count", "count", "update", "count"]
            head = ledger.head
        with Ledger.open(path) as ledger:
            assert ledger.head == head and [c.attempt for c in ledger.lost] == [1]

    def test_an_empty_name_is_refused(self, path):
        with create(path) as ledger, pytest.raises(LedgerError, match="query ''"):
            ledger.charge(1, 1, query="")


class TestReleasedCharges:
    """A release names the charges it is made of; whatever none names is lost."""

    def lines(self, path, kind):
        return [r.fields for r in decode(path.read_bytes()).records if r.kind == kind]

    def test_every_release_names_its_own(self, path):
        filled(path)
        named = [line["charges"] for line in self.lines(path, "release")]
        assert named == [[[number, number]] for number in range(1, 6)]

    def test_attempts_that_came_to_nothing_are_in_none(self, path):
        with create(path) as ledger:
            for attempt in (1, 2, 3):
                ledger.charge(1, attempt)
            ledger.release(1, 3, DIGEST)
            ledger.charge(2, 1)
            ledger.release(2, 1, DIGEST)
            ledger.charge(3, 1)
            assert pairs(ledger.lost) == [(1, 1), (1, 2), (3, 1)]
        assert [line["charges"] for line in self.lines(path, "release")] == [[[3, 3]], [[4, 4]]]

    @pytest.mark.parametrize("named", [[[7, 7]], [[1, 9]], [], [[2, 1]], [[0, 1]], 3, "1"], ids=str)
    def test_charges_that_are_not_there_are_refused(self, path, named):
        filled(path)
        rewritten(
            path, lambda lines: [*lines[:-1], (lines[-1][0], {**lines[-1][1], "charges": named})]
        )
        for opened in (read_ledger, Ledger.open):
            with pytest.raises(LedgerError, match="line 11"):
                opened(path)


class TestOldLedgers:
    """Null for a charge without noise, and releases that name nothing."""

    def old(self, path):
        def change(lines):
            for kind, fields in lines:
                if kind == "charge" and fields["event"] == {"kind": "nonprivate"}:
                    fields["event"] = None
                fields.pop("charges", None)
            return lines

        rewritten(path, change)

    def test_releases_stand_for_their_own_attempts(self, path):
        with create(path) as ledger:
            for attempt in (1, 2):
                ledger.charge(1, attempt)
            ledger.release(1, 2, DIGEST)
            ledger.charge(2, 1)
        self.old(path)
        assert b"charges" not in path.read_bytes()
        with Ledger.open(path) as ledger:
            assert pairs(ledger.lost) == [(1, 1), (2, 1)] and ledger.charges == 3
            assert ledger.epsilon() == PLAN.epsilon(3)
            ledger.resume()
            ledger.charge(2, 2)
            ledger.release(2, 2, DIGEST)  # a line of now beside lines of then
            assert pairs(ledger.lost) == [(1, 1), (2, 1)]
            assert ledger.state.releases[-1].charges == ((4, 4),)
        assert pairs(read_ledger(path)[1].lost) == [(1, 1), (2, 1)]

    def test_in_centralised_training_for_every_step_since_the_one_before(self, path):
        made = cohort_plan(**{**PLAN.to_json(), "unit": "example"})
        with create(path, made) as ledger:
            for pair in ((1, 1), (2, 1), (3, 1)):
                ledger.charge(*pair)
            ledger.release(3, 1, DIGEST)
            for pair in ((4, 1), (5, 1), (4, 2)):
                ledger.charge(*pair)
            ledger.release(4, 2, DIGEST)
            now = pairs(ledger.lost)
        self.old(path)
        assert pairs(read_ledger(path)[1].lost) == now == [(4, 1), (5, 1)]
        with Ledger.open(path) as ledger:
            ledger.charge(5, 2)
            ledger.charge(6, 1)
            ledger.release(6, 1, DIGEST)
            assert ledger.state.releases[-1].charges == ((7, 8),)
            assert pairs(ledger.lost) == [(4, 1), (5, 1)]

    def test_null_events_are_charges_without_noise(self, path):
        made = cohort_plan(num_users=4, expected_cohort_size=2, num_rounds=3)
        with create(path, made) as ledger:
            ledger.charge(1, 1)
            ledger.release(1, 1, DIGEST)
        self.old(path)
        assert b'"event":null' in path.read_bytes()
        with Ledger.open(path) as ledger:
            assert ledger.state.charges[0].event == NONPRIVATE and ledger.lost == ()
            assert ledger.epsilon().to_json()["epsilon"] is None
            ledger.charge(2, 1)

    def test_a_null_event_buys_nothing_where_noise_was_promised(self, path):
        filled(path)
        rewritten(path, lambda lines: [*lines[:1], (lines[1][0], {**lines[1][1], "event": None})])
        with pytest.raises(LedgerError, match="line 2: round 1 cannot be charged"):
            read_ledger(path)


class TestWholeRun:
    """Noise with memory: one charge for all rows, each of which meets one sum at most."""

    ROWS = plan_of("gaussian", 3.0, rounds=4, whole_run=True, delta=1e-5)

    def test_it_is_charged_once_for_all_its_rows(self, path):
        with create(path, self.ROWS) as ledger:
            assert ledger.pays_for_more and ledger.plan.charged_once
            with pytest.raises(LedgerError, match="before the run was charged"):
                ledger.row(1)
            ledger.charge(1, 1)
            spent = ledger.epsilon()
            assert (
                spent
                == self.ROWS.total()
                == epsilon(self.ROWS.event, 1, delta=1e-5, relation="add-remove")
            )
            for number in range(1, 5):
                assert ledger.row(number).row == number == ledger.rows == ledger.last_attempt
                ledger.release(number, number, DIGEST)
                assert ledger.epsilon() == spent
            assert ledger.charges == 1 and not ledger.pays_for_more
            with pytest.raises(BudgetSpentError, match="all 4 rows of noise are used up"):
                ledger.row(5)
            for again in ((1, 2), (2, 1)):
                with pytest.raises(BudgetSpentError, match="charged for all of its rows"):
                    ledger.charge(*again)
        _, state, _ = read_ledger(path)
        assert [(row.row, row.round_num) for row in state.rows] == [(n, n) for n in range(1, 5)]
        assert state.releases[0].charges == ((1, 1),) and state.lost == ()
        assert state.rounds_done == 4 and state.epsilon() == spent

    def test_a_target_is_kept(self, path):
        """All rows are charged with the first: a target below their ε admits none."""
        spent = self.ROWS.total().value
        kept = replace(self.ROWS, target_epsilon=spent * 1.01)
        with create(path, kept) as ledger:
            ledger.charge(1, 1)
            assert ledger.row(1).row == 1
        path.unlink()
        with pytest.raises(ValueError, match="target"):
            replace(self.ROWS, target_epsilon=spent * 0.99)

    def test_a_row_that_a_crash_left_open_is_burned(self, path):
        with create(path, self.ROWS) as ledger:
            ledger.charge(1, 1)
            ledger.row(1)
            ledger.release(1, 1, DIGEST)
            ledger.row(2)  # and the process dies
        with Ledger.open(path) as ledger:
            ledger.resume()
            assert ledger.row(2).row == 3  # another row for the same round
            ledger.release(2, 3, DIGEST)
            assert ledger.reached(2, 3) and ledger.reached(2, 2) and not ledger.reached(2, 1)
            ledger.row(3)
            assert not ledger.pays_for_more  # the burned row is gone from the four
        assert [(r.row, r.round_num) for r in read_ledger(path)[1].rows] == [
            (1, 1), (2, 2), (3, 2), (4, 3)
        ]  # fmt: skip

    def test_a_row_is_on_the_disk_before_it_may_be_drawn(self, path, monkeypatch):
        order, write, sync = [], os.write, os.fsync
        ledger = create(path, self.ROWS)
        ledger.charge(1, 1)
        monkeypatch.setattr(os, "write", lambda *args: (order.append("write"), write(*args))[1])
        monkeypatch.setattr(os, "fsync", lambda *args: (order.append("sync"), sync(*args))[1])
        ledger.row(1)
        order.append("returned")
        assert order == ["write", "sync", "returned"]
        monkeypatch.setattr(os, "write", failing(write, 0, errno.ENOSPC))
        with pytest.raises(LedgerError, match="No space left"):
            ledger.row(2)
        with pytest.raises(LedgerError, match="takes no further line"):
            ledger.row(2)
        assert ledger.rows == 1
        ledger.close()

    @pytest.mark.parametrize(
        ("row", "said"),
        [
            ({"row": 2, "round_num": 3}, "row 2 cannot be used; the next row is 3"),
            ({"row": 1, "round_num": 3}, "row 1 cannot be used"),
            ({"row": 4, "round_num": 3}, "row 4 cannot be used"),
            ({"row": 3.0, "round_num": 3}, "row 3.0"),
            ({"row": True, "round_num": 3}, "row True"),
            ({"row": 3, "round_num": 3, "gift": 1}, "gift"),
            ({"row": 3}, "round_num"),
        ],
        ids=str,
    )
    def test_a_forged_row_is_refused(self, path, row, said):
        with create(path, self.ROWS) as ledger:
            ledger.charge(1, 1)
            ledger.row(1)
            ledger.row(2)
        rewritten(path, lambda lines: [*lines, ("row", row)])
        with pytest.raises(LedgerError, match=said) as refusal:
            read_ledger(path)
        assert "line 5" in str(refusal.value)

    def test_more_rows_than_were_made_are_refused_when_they_are_read(self, path):
        with create(path, self.ROWS) as ledger:
            ledger.charge(1, 1)
            for number in range(1, 5):
                ledger.row(number)
        rewritten(path, lambda lines: [*lines, ("row", {"row": 5, "round_num": 5})])
        with pytest.raises(LedgerError, match="row 5 is beyond the 4 rows of the plan"):
            read_ledger(path)

    @pytest.mark.parametrize("made", [PLAN, AdaptivePlan(num_users=4, rho=1.0)], ids=["fixed", "ρ"])
    def test_a_run_that_is_charged_round_by_round_has_no_rows(self, path, made):
        event = Event(kind="gaussian", noise_multiplier=1.0) if made is not PLAN else None
        with create(path, made) as ledger:
            ledger.charge(1, 1, event)
            with pytest.raises(LedgerError, match="charged round by round"):
                ledger.row(1)

    def test_a_result_needs_a_row_of_its_own(self, path):
        with create(path, self.ROWS) as ledger:
            ledger.charge(1, 1)
            ledger.row(1)
            with pytest.raises(LedgerError, match="without a row of its own"):
                ledger.release(2, 1, DIGEST)
            ledger.release(1, 1, DIGEST)
            with pytest.raises(LedgerError, match="released twice"):
                ledger.release(1, 1, DIGEST)


class TestInMemory:
    """The ledger of a run that is not kept goes by the same rules, and touches no disk."""

    def test_nothing_is_written(self, monkeypatch, tmp_path):
        monkeypatch.chdir(tmp_path)
        for name in ("open", "write", "fsync"):
            monkeypatch.setattr(os, name, lambda *args, **named: pytest.fail("it was written"))
        with Ledger.in_memory(PLAN, mode="simulation") as ledger:
            for round_num in range(1, 11):
                ledger.charge(round_num, 1)
                ledger.release(round_num, 1, DIGEST)
            assert (ledger.path, ledger.mode, ledger.plan) == (None, "simulation", PLAN)
            assert ledger.epsilon() == PLAN.total() and not ledger.pays_for_more
            with pytest.raises(BudgetSpentError):
                ledger.charge(1, 2)
        monkeypatch.undo()
        assert list(tmp_path.iterdir()) == []

    def test_the_same_is_refused(self):
        ledger = Ledger.in_memory(PLAN, mode="secure")
        ledger.charge(1, 1)
        for call in (
            lambda: ledger.charge(1, 1),
            lambda: ledger.charge(11, 1),
            lambda: ledger.release(2, 1, DIGEST),
            lambda: ledger.row(1),
        ):
            with pytest.raises(LedgerError):
                call()
        assert ledger.charges == 1
        ledger.close()
        with pytest.raises(LedgerError, match="closed"):
            ledger.charge(1, 2)
        with pytest.raises(ValueError, match="mode"):
            Ledger.in_memory(PLAN, mode="public")

    def test_runs_have_ids_of_their_own(self):
        one, two = (Ledger.in_memory(PLAN, mode="simulation") for _ in range(2))
        assert one.run_id != two.run_id


def steps_of(call):
    """How many lines of fedpriv a call goes through; loops count once a turn."""
    steps = 0

    def within(frame, event, argument):
        nonlocal steps
        steps += 1
        return within

    def trace(frame, event, argument):
        return within(frame, event, argument) if "fedpriv" in frame.f_code.co_filename else None

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return steps


@pytest.mark.parametrize("kind", ["rounds", "lost", "steps", "queries", "rows", "prices"])
def test_reading_a_ledger_takes_time_linear_in_its_lines(tmp_path, kind):
    """Counted in lines of Python gone through, not by a clock: four times as many for four times.

    Hashing is done by C, a line at a time; here is what the lines add up to.
    """

    def records(number):
        rounds = {"rows": number + 1}.get(kind, 10 * number)
        made = cohort_plan(**{**PLAN.to_json(), "num_rounds": rounds})
        if kind == "steps":
            made = cohort_plan(**{**made.to_json(), "unit": "example"})
        if kind == "rows":
            made = plan_of("gaussian", 3.0, rounds=rounds, whole_run=True, delta=1e-5)
        if kind == "prices":
            made = AdaptivePlan(num_users=400, rho=1e6, delta=1e-5)
        path = tmp_path / f"{number}.jsonl"
        event = PLAN.event.to_json()

        def lines(first):
            yield first
            if kind == "rows":
                yield "charge", {"round_num": 1, "attempt": 1, "event": made.event.to_json()}
            for n in range(1, number + 1):
                released = {"round_num": n, "attempt": 1, "digest": DIGEST}
                if kind == "rounds":
                    yield "charge", {"round_num": n, "attempt": 1, "event": event}
                    yield "release", {**released, "charges": [[n, n]]}
                elif kind == "lost":
                    yield "charge", {"round_num": 1, "attempt": n, "event": event}
                elif kind == "steps":
                    yield "charge", {"round_num": n, "attempt": 1, "event": event}
                    if n % 100 == 0:
                        yield "release", released
                elif kind == "queries":
                    yield "charge", {"round_num": n, "attempt": 1, "event": event}
                    yield "charge", {"round_num": n, "attempt": 1, "event": event, "query": "b"}
                    yield "release", {**released, "charges": [[2 * n - 1, 2 * n]]}
                elif kind == "rows":
                    yield "row", {"row": n, "round_num": n}
                    yield "release", {**released, "attempt": n}
                else:
                    price = {"kind": "zcdp", "rho": 1.0}
                    yield "charge", {"round_num": n, "attempt": 1, "event": price}

        create(path, made).close()
        rewritten(path, lambda first: lines(first[0]))
        return decode(path.read_bytes()).records

    def read(lines):
        state = LedgerState.replay(lines)
        assert len(state.lost) + len(state.charges) + state.rounds_done > 0

    few, many = records(500), records(2000)
    read(few)  # what is computed once and kept
    one, four = (steps_of(lambda lines=lines: read(lines)) for lines in (few, many))
    assert len(many) > 3.9 * len(few) and one > 5000
    assert four <= 4.1 * one


def test_events_of_a_ledger_are_checked_once(tmp_path, monkeypatch):
    """A ledger repeats one event by the ten thousand; to check it each time was its cost."""
    made = 0
    check = Event.__post_init__

    def counted(self):
        nonlocal made
        made += 1
        check(self)

    path = tmp_path / "ledger.jsonl"
    create(path, cohort_plan(**{**PLAN.to_json(), "num_rounds": 2000})).close()
    charge = {"attempt": 1, "event": {**PLAN.event.to_json(), "sampling_prob": 0.05}}
    rewritten(
        path,
        lambda lines: [*lines, *(("charge", {"round_num": n, **charge}) for n in range(1, 2001))],
    )
    monkeypatch.setattr(Event, "__post_init__", counted)
    assert len(read_ledger(path)[1].charges) == 2000
    assert made < 20


def test_writing_a_charge_does_not_read_those_before(path, monkeypatch):
    """As many lines of Python for the 2000th round as for the 100th."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    steps = []
    with create(path, cohort_plan(**{**PLAN.to_json(), "num_rounds": 3000})) as ledger:
        for number in range(1, 2001):

            def play(number=number):
                ledger.charge(number, 1)
                ledger.release(number, 1, DIGEST)

            if number in (100, 2000):
                steps.append(steps_of(play))
            else:
                play()
    assert steps[0] == steps[1] > 10
