"""A plan, and ledgers of it, as they are and rewritten."""

import hashlib

from fedpriv.privacy.ledger.chain import decode, encode
from fedpriv.privacy.ledger.ledger import Ledger
from fedpriv.privacy.plan import Plan
from tests.privacy.costing import EVERYBODY, Costing, mechanism
from tests.privacy.costing import plan as changed

PLAN = changed()
DIGEST = "ab" * 32


def create(path, plan=PLAN, **extra):
    return Ledger.create(path, plan, mode="simulation", extra=extra)


def filled(path, rounds=5):
    with create(path) as ledger:
        for round_num in range(1, rounds + 1):
            ledger.charge(round_num, 1)
            ledger.release(round_num, 1, hashlib.sha256(b"%d" % round_num).hexdigest())
    return path.read_bytes()


# What one ledger may hold besides a charge and a release a round: other costs, several queries,
# one charge for a whole run.


def plan_of(kind, value, *, rounds=10, whole_run=False, **rest):
    """A plan in which everybody takes part and an answer costs so much."""
    noise = Costing(kind, value, whole_run=whole_run)
    made = mechanism(sampler=EVERYBODY, privatizer=noise)
    return Plan(mechanism=made, num_rounds=rounds, **rest)


def rewritten(path, change):
    """Write a ledger again, its lines (kind and fields) changed and well chained."""
    previous, data = "0" * 64, b""
    kinds = [(record.kind, dict(record.fields)) for record in decode(path.read_bytes()).records]
    for number, (kind, fields) in enumerate(change(kinds)):
        record, line = encode(number, previous, kind, fields)
        previous, data = record.hash, data + line
    path.write_bytes(data)
