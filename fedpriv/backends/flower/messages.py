"""What the server asks of a node, and what the node answers, as Flower records.

A request carries public things (params, bound, preconditioner, round and attempt), the ids of the
node's own drawn users and a key folded for this round and attempt. It never carries the root key,
the noise key, or an id that lives elsewhere. An answer carries one bounded sum, a count, and the
grid that the node's own code rounded to: whole numbers of another granularity would be added as if
they were ours, so the server refuses them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, RecordDict

from fedpriv.backends.flower import records
from fedpriv.backends.flower.records import MalformedRecordError
from fedpriv.mechanisms import Bound, Clip, Normalise, Preconditioned, Rounded, Unbounded
from fedpriv.rng import Key
from fedpriv.sums import PartialSum
from fedpriv.training.local.trainer import Schedule
from fedpriv.tree import Params

_PARAMS, _EVERY_STEP, _BEFORE_BOUND = "params", "multiplier-every-step", "multiplier-before-bound"
_WORK, _TOTAL, _REPORT = "work", "total", "report"
_GRANULARITY = "granularity"


class StaleAnswerError(MalformedRecordError):
    """An answer to an attempt that is over; it must never count towards another."""


class OtherGridError(MalformedRecordError):
    """A sum on another grid than the round's; its whole numbers mean something else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One node's part of a round.

    Attributes:
        params: The global params, float32.
        bound: The public per-user bound.
        user_ids: The drawn users that live on the node.
        key: The key of this round and attempt; it opens nothing else.
        schedule: How much each user works.
        multiplier: 1/A for local steps, by tensor name; empty for none.
        round_num: From 1.
        attempt: From 1.
    """

    params: Params = field(repr=False)
    bound: Bound
    user_ids: tuple[str, ...] = field(repr=False)
    key: Key
    schedule: Schedule
    multiplier: Params = field(repr=False)
    round_num: int
    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedRecords:
    """The part of a round's requests that is the same for every node, encoded once."""

    arrays: Mapping[str, ArrayRecord] = field(repr=False)
    work: Mapping[str, Any] = field(repr=False)

    @classmethod
    def of(
        cls,
        *,
        params: Params,
        bound: Bound,
        key: Key,
        schedule: Schedule,
        multiplier: Mapping[str, np.ndarray],
        round_num: int,
        attempt: int,
    ) -> SharedRecords:
        """Encode a round; the arguments are those of a `Request` but for its users.

        Raises:
            ValueError: If the bound is of a kind no node knows.
        """
        before_bound: Mapping[str, np.ndarray] = {}
        exact = isinstance(bound, Rounded)
        if isinstance(bound, Rounded):
            bound = bound.bound
        if isinstance(bound, Preconditioned):
            if bound.mixture is not None:
                raise ValueError(
                    "a mixture with a public update is not sent to nodes; run on one machine, or "
                    "precondition by second moments alone"
                )
            before_bound, bound = bound.multiplier, bound.bound
        return cls(
            arrays={
                _PARAMS: records.encode(params),
                _BEFORE_BOUND: records.encode(before_bound),
                _EVERY_STEP: records.encode(multiplier),
            },
            work={
                **_bound_config(bound),
                "exact-sum": exact,
                "learning-rate": float(schedule.learning_rate),
                "batch-size": schedule.batch_size,
                "epochs": schedule.epochs,
                "max-examples": schedule.max_examples,
                "round-num": round_num,
                "attempt": attempt,
                "key": key.to_bytes(),
                "key-mode": key.mode,
            },
        )

    def request(self, user_ids: Sequence[str]) -> RecordDict:
        """Return one node's request; the large records are shared, not copied."""
        work = ConfigRecord({**self.work, "user-ids": list(user_ids)})
        return RecordDict({**self.arrays, _WORK: work})


def read_request(content: RecordDict) -> Request:
    """Return what a node was asked.

    Raises:
        MalformedRecordError: If it does not come from a server of this version.
    """
    work = _config(content, _WORK)
    user_ids = work.get("user-ids")
    key, mode = work.get("key"), work.get("key-mode")
    if not isinstance(user_ids, list):
        raise MalformedRecordError("the request names no users")
    if not isinstance(key, bytes) or mode not in ("simulation", "secure"):
        raise MalformedRecordError("the request carries no key")
    bound, before_bound = _read_bound(work), records.decode_params(content.get(_BEFORE_BOUND))
    if before_bound:
        bound = Preconditioned(multiplier=before_bound, bound=bound)
    if work.get("exact-sum"):
        bound = Rounded(bound=bound)
    return Request(
        params=records.decode_params(content.get(_PARAMS)),
        bound=bound,
        user_ids=tuple(str(item) for item in user_ids),
        key=Key.from_bytes(key, mode),
        schedule=_read_schedule(work),
        multiplier=records.decode_params(content.get(_EVERY_STEP)),
        round_num=_count(work, "round-num", low=1),
        attempt=_count(work, "attempt", low=1),
    )


def _bound_config(bound: Bound) -> dict[str, str | float]:
    match bound:
        case Clip():
            return {"bound": "clip", "l2-clip-norm": bound.l2_clip_norm}
        case Normalise():
            return {
                "bound": "normalise",
                "l2-clip-norm": bound.l2_clip_norm,
                "normalise-regulariser": float(bound.regulariser),
            }
        case Unbounded():
            return {"bound": "none"}
    raise ValueError(
        f"bound {bound!r} cannot be sent to nodes; use Clip, Normalise or Unbounded, "
        "or teach fedpriv.backends.flower.messages to write and read it"
    )


def _read_bound(work: Mapping[str, Any]) -> Bound:
    kind = work.get("bound")
    norm, regulariser = work.get("l2-clip-norm"), work.get("normalise-regulariser", 0.0)
    if kind == "none":
        return Unbounded()
    if not isinstance(norm, float) or not isinstance(regulariser, float):
        raise MalformedRecordError(f"bound {kind!r} has no number for its norm")
    if kind == "clip":
        return Clip(l2_clip_norm=norm)
    if kind == "normalise":
        return Normalise(l2_clip_norm=norm, regulariser=regulariser)
    raise MalformedRecordError(f"bound {kind!r} is unknown here; update fedpriv on this node")


def _read_schedule(work: Mapping[str, Any]) -> Schedule:
    rate = work.get("learning-rate")
    if not isinstance(rate, float):
        raise MalformedRecordError(f"learning-rate is {rate!r:.40}, not a number")
    return Schedule(
        learning_rate=rate,
        batch_size=_count(work, "batch-size", low=1),
        epochs=_count(work, "epochs", low=1),
        max_examples=_count(work, "max-examples", low=1),
    )


def answer(request: Request, done: PartialSum) -> RecordDict:
    """Return the record of a node's partial sum.

    On a grid the sum is sent as the integers it is, in the smaller form of each tensor, together
    with the granularity that the node rounded to, for the server to compare with its own. Without
    one, a single user's sum is sent in float32, as its update was computed: the server bounds that
    user again, which absorbs the rounding. The sum of several is sent in float64, because rounding
    it coarsely could move it by more than one user's bound allows.
    """
    total = done.compact().total
    report = ConfigRecord(
        {
            "round-num": request.round_num,
            "attempt": request.attempt,
            "num-failed": done.num_failed,
        }
    )
    if done.granularity is None:
        dtype = np.float32 if len(request.user_ids) <= 1 else np.float64
        return RecordDict({_TOTAL: records.encode(total, dtype), _REPORT: report})
    report[_GRANULARITY] = float(done.granularity)
    return RecordDict({_TOTAL: records.encode(total), _REPORT: report})


def read_answer(
    content: RecordDict,
    *,
    params: Params,
    granularity: float | None,
    num_users: int,
    round_num: int,
    attempt: int,
) -> PartialSum:
    """Return what a node answered, structurally sound but not yet bounded or known to be finite.

    Args:
        content: What arrived. Anybody may have written it.
        params: The template.
        granularity: The round's grid; None for a sum of floats.
        num_users: How many users the node was asked for.
        round_num: The round that is open.
        attempt: The attempt that is open.

    Raises:
        StaleAnswerError: If it answers another attempt.
        OtherGridError: If the node rounded to another grid; names both granularities.
        MalformedRecordError: If it is not an answer or not of this shape.
    """
    report = _config(content, _REPORT)
    if set(content) != {_TOTAL, _REPORT}:
        raise MalformedRecordError(f"found records {sorted(content)}, expected total and report")
    if (report.get("round-num"), report.get("attempt")) != (round_num, attempt):
        raise StaleAnswerError("the answer is to another round or attempt")
    _check_grid(report, granularity)
    return PartialSum(
        total=records.decode(content[_TOTAL], params, whole=granularity is not None),
        granularity=granularity,
        num_users=num_users,
        num_failed=_count(report, "num-failed", low=0, high=num_users),
    )


def _check_grid(report: Mapping[str, Any], granularity: float | None) -> None:
    """Refuse an answer that does not say it is on the round's grid, to the last bit."""
    if granularity is None:
        if _GRANULARITY in report:
            raise MalformedRecordError("the answer is on a grid, but the round's sum is of floats")
        return
    found = report.get(_GRANULARITY)
    if type(found) is not float or not math.isfinite(found) or found <= 0.0:
        raise MalformedRecordError(f"{_GRANULARITY} is {found!r:.40}, not a positive number")
    if found != granularity:
        raise OtherGridError(
            f"the node rounds to multiples of {found!r}, this round to multiples of "
            f"{granularity!r}; run the same version of fedpriv on the server and on every node"
        )


def _config(content: RecordDict, name: str) -> ConfigRecord:
    record = content.get(name)
    if not isinstance(record, ConfigRecord):
        raise MalformedRecordError(f"record {name!r} is missing")
    return record


def _count(record: Mapping[str, Any], name: str, *, low: int, high: int | None = None) -> int:
    value = record.get(name)
    if type(value) is not int or value < low or (high is not None and value > high):
        raise MalformedRecordError(f"{name} is {value!r:.40}, not a whole number of at least {low}")
    return value
