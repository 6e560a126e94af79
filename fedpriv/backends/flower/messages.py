"""Messages between server and nodes, as Flower records, and strictly back again.

A request carries public things (params, context, bound, round and attempt), the ids of the
node's own drawn users and a key folded for this round and attempt. It never carries the root key,
the noise key, or an id that lives elsewhere. An answer carries one bounded sum, a count, and the
grid that the node's own code rounded to: whole numbers of another granularity would be added as if
they were ours, so the server refuses them.

A dense tensor travels as one npy array under `dense/<name>`; a row-sparse one as two, under
`rows/<name>` and `values/<name>`. What arrives was written by somebody else, so nothing of it is
believed: the npy header is read under a size limit and compared with what the template says the
tensor must be *before* a byte of data is touched, no array of objects is ever built (no pickle),
and data is viewed in place, so a payload cannot make the reader allocate more than it sent.

>>> import numpy as np
>>> record = encode({"bias": np.arange(3, dtype=np.float32)})
>>> decode(record, {"bias": np.zeros(3, np.float32)})["bias"]
array([0., 1., 2.], dtype=float32)
>>> decode(record, {"bias": np.zeros(4, np.float32)})
Traceback (most recent call last):
...
fedpriv.backends.flower.messages.MalformedRecordError: 'dense/bias' has shape (3,), expected (4,)
"""

from __future__ import annotations

import io
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from numpy.lib import format as npy

from fedpriv.backends.backend import shapes_of
from fedpriv.json_lines import parse_object
from fedpriv.mechanisms.bounds import Bound
from fedpriv.rng import Key
from fedpriv.sums import PartialSum
from fedpriv.training.algorithm import Context, Line, SumRequest
from fedpriv.training.stopping import end_if_interrupted
from fedpriv.training.work import Attempt
from fedpriv.tree import Params, RowSparse, Tensor, Tree
from fedpriv.untrusted_text import plain

_FLOATS = (np.dtype("<f4"), np.dtype("<f8"))
_INDEX = (np.dtype("<i8"),)
_WHOLE = (np.dtype("<i4"), np.dtype("<i8"))
_STYPE = "numpy.ndarray"
_MAX_HEADER_BYTES = 1024
_DENSE, _ROWS, _VALUES = "dense/", "rows/", "values/"


class MalformedRecordError(ValueError):
    """An unexpected message; its sender contributes zero."""


def encode(tree: Tree, dtype: type[np.floating] | None = None) -> ArrayRecord:
    """Return the array record of a tree.

    Args:
        tree: Dense or row-sparse tensors of float32 or float64, or of int32 or int64.
        dtype: Float type to send the values as; by default their own type.
    """
    record = ArrayRecord()
    for name, tensor in tree.items():
        if isinstance(tensor, RowSparse):
            record[_ROWS + name] = Array(np.asarray(tensor.rows, "<i8", order="C"))
            record[_VALUES + name] = Array(_values(tensor.values, dtype))
        else:
            record[_DENSE + name] = Array(_values(tensor, dtype))
    return record


def _values(values: np.ndarray, dtype: type[np.floating] | None) -> np.ndarray:
    # Overflow to infinity is what the receiver looks for, so it needs no warning here.
    with np.errstate(over="ignore"):
        return np.asarray(values, dtype or values.dtype, order="C")


def decode(record: object, template: Tree, *, whole: bool = False) -> dict[str, Tensor]:
    """Return the tree in a record that anybody may have written.

    Guarantees:
        * The result has exactly the template's names and shapes, float32 or float64 values (int32
          or int64 where whole numbers were asked for), and, where row-sparse, strictly increasing
          rows within the tensor.
        * Nothing is unpickled, and no more memory is taken than the record already holds.
        * Values may still be NaN or infinite: look before you add.

    Args:
        record: What arrived.
        template: The tensors that were asked for, such as the params.
        whole: Whether they were asked for as whole numbers, not as floats.

    Returns:
        Read-only views of the record's bytes.

    Raises:
        MalformedRecordError: Naming the first thing that is wrong.
    """
    if not isinstance(record, ArrayRecord):
        raise MalformedRecordError(f"expected an ArrayRecord, found {type(record).__name__}")
    found, dtypes = set(record), _WHOLE if whole else _FLOATS
    out: dict[str, Tensor] = {}
    expected: set[str] = set()
    for name, tensor in template.items():
        shape = tuple(tensor.shape)
        if _DENSE + name in found:
            keys = (_DENSE + name,)
            out[name] = _read(record, keys[0], shape, dtypes)
        else:
            keys = (_ROWS + name, _VALUES + name)
            if not found.issuperset(keys) or not shape:
                raise MalformedRecordError(f"tensor {name!r} is missing")
            out[name] = _read_rows(record, name, shape, dtypes)
        expected.update(keys)
    if extra := sorted(found - expected):
        raise MalformedRecordError(f"found {len(extra)} unexpected arrays: {extra[0]!r:.80}")
    return out


def decode_params(record: object) -> Params:
    """Return the dense float32 tensors of a record whose shapes are not known beforehand.

    Returns:
        Fresh, writable arrays in the record's order.

    Raises:
        MalformedRecordError: If it is not a record of dense float32 tensors only.
    """
    if not isinstance(record, ArrayRecord):
        raise MalformedRecordError(f"expected an ArrayRecord, found {type(record).__name__}")
    if not all(key.startswith(_DENSE) for key in record):
        raise MalformedRecordError(f"expected dense tensors only, found {sorted(record)}")
    return {
        key.removeprefix(_DENSE): _read(record, key, None, _FLOATS[:1]).copy() for key in record
    }


def _read_rows(
    record: ArrayRecord, name: str, shape: tuple[int, ...], dtypes: tuple[np.dtype, ...]
) -> RowSparse:
    rows = _read(record, _ROWS + name, None, _INDEX)
    if rows.ndim != 1 or len(rows) > shape[0]:
        raise MalformedRecordError(f"'rows/{name}' has shape {rows.shape}, at most ({shape[0]},)")
    values = _read(record, _VALUES + name, (len(rows), *shape[1:]), dtypes)
    try:
        return RowSparse(rows=rows, values=values, num_rows=shape[0]).validate()
    except ValueError as error:
        raise MalformedRecordError(f"tensor {name!r}: {error}") from None


def _read(
    record: ArrayRecord,
    key: str,
    shape: tuple[int, ...] | None,
    dtypes: tuple[np.dtype, ...],
) -> np.ndarray:
    array = record[key]
    data = array.data
    if array.stype != _STYPE or not isinstance(data, bytes):
        raise MalformedRecordError(f"{key!r} is serialised as {array.stype!r:.40}, not as npy")
    stream = io.BytesIO(data)
    try:
        if npy.read_magic(stream) != (1, 0):
            raise MalformedRecordError(f"{key!r} is not in npy format 1.0")
        found, fortran, dtype = npy.read_array_header_1_0(stream, max_header_size=_MAX_HEADER_BYTES)
    except MalformedRecordError:
        raise
    except Exception as error:  # NumPy parses the header with eval's grammar: anything may come.
        end_if_interrupted(error)
        raise MalformedRecordError(f"{key!r} has no readable npy header: {error!s:.80}") from None
    if dtype not in dtypes or fortran:
        allowed = " or ".join(str(item) for item in dtypes)
        raise MalformedRecordError(f"{key!r} holds {dtype!s:.40}, expected C-ordered {allowed}")
    if shape is not None and found != shape:
        raise MalformedRecordError(f"{key!r} has shape {found!s:.80}, expected {shape}")
    start = stream.tell()
    if min(found, default=0) < 0 or len(data) - start != math.prod(found) * dtype.itemsize:
        raise MalformedRecordError(
            f"{key!r} holds {len(data) - start} bytes, not those of shape {found!s:.80}"
        )
    return np.frombuffer(data, dtype, offset=start).reshape(found)


_PARAMS, _MULTIPLIER, _EXTRA, _DIRECTION = "params", "multiplier", "extra", "direction"
_SIZES, _RATE, _CLIP_NORM = "step-sizes", "rate", "clip-norm"
_WORK, _TOTAL, _REPORT = "work", "total", "report"
_PLAN, _CONFIG, _BOUND = "plan", "config", "bound"
_FIRST_ERROR, _LONGEST_ERROR = "first-error", 400
_LONGEST_REASON = 400
_GRANULARITY, _NONCE, _SECONDS = "granularity", "nonce", "seconds"
_LARGEST = float(np.finfo(np.float32).max)


class StaleAnswerError(MalformedRecordError):
    """An answer to an attempt that is over; it must never count towards another."""


class OtherGridError(MalformedRecordError):
    """A sum on another grid than the round's; its whole numbers mean something else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRequest:
    """One node's part of a round.

    Attributes:
        request: What is asked.
        attempt: By which bound, and under which key of this round; it opens nothing else.
        user_ids: The drawn users that live on the node.
        nonce: Random word that the answer repeats; unknown before the attempt.
        seconds: Time after which an answer is not waited for; None without a limit.
        plan: Digest of the plan and roster that the round is charged under; "" if unnamed.
        config: What the server tells the users' training function.
    """

    request: SumRequest
    attempt: Attempt
    user_ids: tuple[str, ...] = field(repr=False)
    nonce: str = ""
    seconds: float | None = None
    plan: str = ""
    config: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedRecords:
    """The part of a round's requests that is the same for every node, encoded once."""

    arrays: Mapping[str, ArrayRecord] = field(repr=False)
    work: Mapping[str, Any] = field(repr=False)
    config: ConfigRecord | None = field(default=None, repr=False)

    @classmethod
    def of(
        cls,
        request: SumRequest,
        attempt: Attempt,
        *,
        nonce: str = "",
        plan: str = "",
        config: ConfigRecord | None = None,
    ) -> SharedRecords:
        """Encode a round.

        Raises:
            ValueError: If the bound has no JSON, or updates are mixed.
        """
        context = request.context
        if context.mixture is not None:
            raise ValueError(
                "a mixture with a public update is not sent to nodes; run on one machine, or "
                "precondition by second moments alone"
            )
        named: dict[str, Any] = {_PLAN: plan} if plan else {}
        if context.clip_norm is not None:
            named[_CLIP_NORM] = float(context.clip_norm)
        arrays = {_PARAMS: request.params, _MULTIPLIER: context.multiplier, _EXTRA: context.extra}
        if context.line is not None:
            arrays[_DIRECTION] = context.line.direction
            named[_SIZES] = [float(size) for size in context.line.sizes]
        return cls(
            config=config,
            arrays={name: encode(tensors) for name, tensors in arrays.items()},
            work={
                _BOUND: json.dumps(attempt.bound.to_json()),
                "work": request.work,
                "round-num": attempt.round_num,
                "attempt": attempt.number,
                _RATE: float(context.rate),
                _NONCE: nonce,
                "key": attempt.key.to_bytes(),
                "key-mode": attempt.key.mode,
                **named,
            },
        )

    def request(self, user_ids: Sequence[str], seconds: float | None = None) -> RecordDict:
        """Return one node's request; the large records are shared, not copied.

        Args:
            user_ids: Of its own.
            seconds: It has for its answer.
        """
        work = ConfigRecord({**self.work, "user-ids": list(user_ids)})
        if seconds is not None:
            work[_SECONDS] = float(seconds)
        config = {} if self.config is None else {_CONFIG: self.config}
        return RecordDict({**self.arrays, _WORK: work, **config})


def read_request(content: RecordDict) -> NodeRequest:
    """Return what a node was asked.

    Raises:
        MalformedRecordError: If it does not come from a server of this version, or its bound is of
            a class that this process does not know (`Bound.kinds`).
    """
    work = _config(content, _WORK)
    user_ids, key, mode = work.get("user-ids"), work.get("key"), work.get("key-mode")
    if not isinstance(user_ids, list):
        raise MalformedRecordError("the request names no users")
    if not isinstance(key, bytes) or mode not in ("simulation", "secure"):
        raise MalformedRecordError("the request carries no key")
    words: dict[str, Any] = {name: work.get(name, "") for name in (_WORK, _BOUND, _NONCE, _PLAN)}
    for name, word in words.items():
        if not isinstance(word, str):
            raise MalformedRecordError(f"the request's {name} is not a word")
    seconds = work.get(_SECONDS)
    if seconds is not None and not (type(seconds) is float and seconds >= 0.0):
        raise MalformedRecordError(f"{_SECONDS} is {seconds!r:.40}, not a time")
    try:
        bound = Bound.from_json(parse_object(words[_BOUND]))
    except (ValueError, RecursionError) as error:
        raise MalformedRecordError(f"the request's bound: {error!s:.400}") from error
    params = decode_params(content.get(_PARAMS))
    return NodeRequest(
        request=SumRequest(
            params=params,
            context=_read_context(content, work, params),
            work=words[_WORK],
        ),
        attempt=Attempt(
            bound=bound,
            key=Key.from_bytes(key, mode),
            round_num=_count(work, "round-num", low=1),
            number=_count(work, "attempt", low=1),
        ),
        user_ids=tuple(str(item) for item in user_ids),
        nonce=words[_NONCE],
        seconds=seconds,
        plan=words[_PLAN],
        config=dict(_config(content, _CONFIG)) if _CONFIG in content else {},
    )


def _read_context(content: RecordDict, work: ConfigRecord, params: Params) -> Context:
    """Return the public facts of a round.

    Raises:
        MalformedRecordError: If a number is none.
    """
    numbers = {name: work.get(name) for name in (_RATE, _CLIP_NORM) if name in work}
    for name, number in numbers.items():
        if not (type(number) is float and math.isfinite(number) and number > 0.0):
            raise MalformedRecordError(f"{name} is {number!r:.40}, not a number above 0")
    return Context(
        rate=cast("float", numbers.get(_RATE, 1.0)),
        clip_norm=cast("float | None", numbers.get(_CLIP_NORM)),
        multiplier=decode_params(content.get(_MULTIPLIER)),
        line=_read_line(content, work, params),
        extra=decode_params(content.get(_EXTRA)),
    )


def _read_line(content: RecordDict, work: ConfigRecord, params: Params) -> Line | None:
    """Return where losses are evaluated; None where none are.

    Raises:
        MalformedRecordError: If step sizes are no numbers, or the direction is none of the params.
    """
    sizes = work.get(_SIZES)
    if sizes is None and _DIRECTION not in content:
        return None
    listed: list[Any] = sizes if isinstance(sizes, list) else []
    if not listed or not all(type(n) is float and abs(n) <= _LARGEST for n in listed):
        raise MalformedRecordError(f"{_SIZES} is {sizes!r:.40}, not a list of numbers")
    direction = decode_params(content.get(_DIRECTION))
    shapes = [{name: array.shape for name, array in one.items()} for one in (direction, params)]
    if shapes[0] != shapes[1]:
        raise MalformedRecordError("the direction has other names or shapes than the params")
    return Line(direction=direction, sizes=np.array(sizes, np.float32))


def naming_plan(plan: str) -> RecordDict:
    """Return what a question, which asks for no work, names of a plan; "" names none."""
    return RecordDict({_WORK: ConfigRecord({_PLAN: plan})} if plan else {})


def named_plan(content: RecordDict) -> str:
    """Return the digest of the plan that a message is sent under; "" if it names none.

    Nothing else of the message is read, so that one that is not allowed here ends here.
    """
    work = content.get(_WORK)
    found = work.get(_PLAN, "") if isinstance(work, ConfigRecord) else ""
    return found if isinstance(found, str) else ""


def in_one_line(text: str) -> str:
    """Return a node's words in one line of plain characters."""
    return " ".join(plain(text).split())


def reason_of(reply: Message) -> str:
    """Return why a node failed, in its own words; of many the end, where a traceback says why.

    It begins with a whole line, or with a whole word where one line alone is as long.
    """
    reason = reply.error.reason or "no reason given"
    lines = [line for line in map(in_one_line, reason.splitlines()) if line]
    text = lines.pop() if lines else ""
    if len(text) > _LONGEST_REASON:
        return f"... {text[-_LONGEST_REASON:].partition(' ')[2]}"
    while lines and len(text) + len(lines[-1]) < _LONGEST_REASON:
        text = f"{lines.pop()} {text}"
    return f"... {text}" if lines else text


def answer(request: NodeRequest, done: PartialSum) -> RecordDict:
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
            "round-num": request.attempt.round_num,
            "attempt": request.attempt.number,
            _NONCE: request.nonce,
            "num-failed": done.num_failed,
        }
    )
    if done.first_error is not None:  # of a simulation; it names places in the code
        report[_FIRST_ERROR] = done.first_error[:_LONGEST_ERROR]
    if done.granularity is None:
        dtype = np.float32 if len(request.user_ids) <= 1 else np.float64
        return RecordDict({_TOTAL: encode(total, dtype), _REPORT: report})
    report[_GRANULARITY] = float(done.granularity)
    return RecordDict({_TOTAL: encode(total), _REPORT: report})


def read_answer(
    content: RecordDict,
    request: SumRequest,
    attempt: Attempt,
    *,
    num_users: int,
    nonce: str = "",
) -> PartialSum:
    """Return what a node answered, structurally sound but not yet bounded or known to be finite.

    Args:
        content: What arrived. Anybody may have written it.
        request: What was asked.
        attempt: The attempt that is open.
        num_users: Number of users that the node was asked for.
        nonce: Of this attempt's requests.

    Raises:
        StaleAnswerError: If it answers another attempt, or repeats another's nonce.
        OtherGridError: If the node rounded to another grid; names both granularities.
        MalformedRecordError: If it is not an answer or not of this shape.
    """
    granularity = attempt.bound.granularity
    report = _config(content, _REPORT)
    if set(content) != {_TOTAL, _REPORT}:
        raise MalformedRecordError(f"found records {sorted(content)}, expected total and report")
    if (report.get("round-num"), report.get("attempt")) != (attempt.round_num, attempt.number):
        raise StaleAnswerError("the answer is to another round or attempt")
    if report.get(_NONCE, "") != nonce:
        raise StaleAnswerError("the answer does not repeat this attempt's nonce")
    _check_grid(report, granularity)
    first_error = report.get(_FIRST_ERROR)
    if not isinstance(first_error, str | None):
        raise MalformedRecordError(f"{_FIRST_ERROR} is not a text")
    return PartialSum(
        total=decode(content[_TOTAL], shapes_of(request, attempt), whole=granularity is not None),
        granularity=granularity,
        num_users=num_users,
        num_failed=_count(report, "num-failed", low=0, high=num_users),
        first_error=first_error and in_one_line(first_error[:_LONGEST_ERROR]),
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
