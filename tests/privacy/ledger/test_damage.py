"""Ledgers that were damaged, forged or torn."""

import hashlib
import json
import random

import pytest

from fedpriv.privacy.ledger.chain import LedgerError
from fedpriv.privacy.ledger.ledger import Ledger
from fedpriv.privacy.ledger.state import read_ledger
from tests.harness.refusals import refuses
from tests.privacy.ledger.kept import create, filled, rewritten


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


LESS = {"round_num": 6, "event": {"kind": "gaussian", "noise_multiplier": 50.0}}
FORGED = {
    "a release without its charge": lambda lines: lines[:1] + lines[2:],
    "a charge again": lambda lines: [*lines, ("charge", lines[1][1])],
    "an unknown line": lambda lines: [*lines, ("gift", {})],
    "no plan": lambda lines: lines[1:],
    "another event": lambda lines: [*lines, ("charge", lines[1][1] | LESS)],
}


@pytest.mark.parametrize("forge", FORGED.values(), ids=FORGED)
def test_a_forged_but_well_chained_ledger_still_has_to_make_sense(path, forge):
    """Rules are replayed: hashes made right do not make a release without a charge right."""
    filled(path)
    rewritten(path, forge)
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
    with pytest.raises(LedgerError):
        Ledger.open(path)
    create(path).close()
    create(path).close()  # started, never charged: starting anew loses nothing
    with create(path) as ledger:
        ledger.charge(1, 1)
    with refuses(LedgerError, path):
        create(path)
    path.write_text("something else\n")
    with refuses(LedgerError, path):
        create(path)
