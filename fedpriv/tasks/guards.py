"""Guards before a run: every tensor to be trained moves and matters, and the saved model is whole.

Noise moves every weight of a released model, so an untrained tensor looks trained there,
and a look at users' raw updates would be an answer that nothing is charged for. Both are therefore
looked for on public or synthetic examples, before anything is charged.

The second of two steps starts from params that were all moved at random, as noise does: the first
factor of a low-rank adapter has no gradient before the second one has left zero.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from itertools import product

import numpy as np

from fedpriv import tree
from fedpriv.checkpoints.tensor_files import read_tensor_bytes, released_models, tensor_bytes
from fedpriv.rng import Key
from fedpriv.tasks.task import BaseTask
from fedpriv.training.algorithm import Algorithm
from fedpriv.training.stopping import end_if_interrupted
from fedpriv.tree import Params, Tree

Outputs = Callable[[Params], np.ndarray | None]
"""From params to what the model answers to the same few examples; None where nothing does."""

_KEY = Key.simulation(0).fold("guards")
# How far tensors are moved, in their own lengths, until one step shows what is looked for: at the
# first a deep model is still itself, at the second a unit that was off may be on.
_FAR = (0.1, 1.0, 0.01)
# A start must not become too long for an algorithm that bounds it.
_NEAR = 0.01
_SAME = 1e-4


def moved(params: Params, far: float, stream: str, only: Collection[str] | None = None) -> Params:
    """Return float32 params of which tensors are moved at random, the same each time.

    Args:
        params: Not changed.
        far: l2 norm of a tensor's move, about, over that of the tensor, or over 1 where that is 0.
        stream: Other moves for another one.
        only: Which tensors; None for all.
    """
    found = dict(params)
    for name in params if only is None else only:
        array = params[name]
        size = far * (tree.l2_norm({name: array}) or 1.0) / math.sqrt(max(array.size, 1))
        draws = _KEY.fold(stream).fold(name).generator()
        found[name] = array + np.float32(size) * draws.standard_normal(array.shape, np.float32)
    return found


def refuse_untrained(
    update: Callable[[Params], Tree], params: Params, names: Collection[str]
) -> None:
    """Refuse training that leaves a tensor exactly where it is, in each of several steps.

    A tensor counts as moved by any number other than zero, so by the rows of the words that occur,
    say. Further steps are taken only where the first moved too little.

    Args:
        update: From params to an update, a gradient or a sum of these.
        params: Where training starts; not changed.
        names: Of the tensors to be trained; what updates are not of is no matter of this.

    Raises:
        Exception: What the first step raises.
        ValueError: Names the first tensor that does not move.
    """
    trained = [name for name in names if name in params]
    still = trained
    for far in (0.0, *_FAR):
        try:
            found = update(moved(params, far, "second step", trained) if far else params)
        except Exception as error:
            end_if_interrupted(error)
            if not far:
                raise
            continue  # of numbers that it need not take
        still = [name for name in still if name in found and _is_zero(found[name])]
        if not still:
            return
    if still:
        raise ValueError(
            f"no update moves tensor {_listed(still)}, which is to be trained: two steps on public "
            "or synthetic examples leave it exactly where it is, so that a run would give it noise "
            "alone; let the loss depend on it (no detach(), no no_grad(), no copy of it made "
            "beforehand, on another device say), try it on examples that use it (inputs that are "
            "all zero do not), or freeze it (requires_grad_(False)), as the bias of an attention's "
            "keys or before a normalisation, which moves no output"
        )


def _is_zero(tensor: tree.Tensor) -> bool:
    return not np.any(tree.to_dense_tensor(tensor))


def _listed(names: Collection[str]) -> str:
    first, *others = names
    return f"{first!r}" + (f" (and {len(others)} more)" if others else "")


def refuse_unused(task: BaseTask, params: Params) -> None:
    """Refuse a model that answers the same whatever one of its tensors is.

    Args:
        task: Says what it answers.
        params: Where training starts; not changed.

    Raises:
        ValueError: Names the first such tensor.
    """
    unused = list(params)
    for far in _FAR:
        at = moved(params, far, "second step")
        before = task.outputs(at)
        if before is None:
            return
        unused = [
            name
            for name in unused
            if (after := task.outputs(moved(at, far, "one alone", [name]))) is not None
            and np.array_equal(before, after, equal_nan=True)
        ]
        if not unused:
            return
    raise ValueError(
        f"the model answers the same whatever tensor {_listed(unused)} is, which is trained: its "
        "noise would be for nothing; let the model that is evaluated (in evaluation mode) use it, "
        "or freeze it (requires_grad_(False)), so that it is not among the params"
    )


def refuse_unsaved(algorithm: Algorithm, params: Params, outputs: Outputs) -> None:
    """Refuse a model that is another one after it was saved and loaded, or exported.

    Args:
        algorithm: Whose state is saved.
        params: Where training starts; not changed.
        outputs: What the model answers.

    Raises:
        ValueError: Names the first tensor that is lost or changed; or says that what the model
            computes with is not all in its tensors.
    """
    start = {name: array.copy() for name, array in params.items()}
    state = algorithm.init(moved(params, _NEAR, "saved"))
    result = algorithm.result(state)
    released, rest = (read_tensor_bytes(tensor_bytes(held)) for held in state.save())
    loaded = algorithm.init(start).load(state.round_num, released, rest, state.numbers)
    exported = next(iter(released_models(released).values()))
    found = {"exported": exported, "of a run that is resumed": algorithm.result(loaded)}
    for (name, array), (what, other) in product(result.items(), found.items()):
        if name not in other or not np.array_equal(array, other[name], equal_nan=True):
            raise ValueError(
                f"tensor {name!r} of the result is missing or another one in the model {what}: "
                "that is of the released tensors without '/' in their names; have the state's "
                "save() return them all, its load() take them, and result() return the params"
            )
    before = outputs(result)
    if before is None:
        return
    cause = None
    try:
        after = outputs(exported)
    except Exception as error:
        end_if_interrupted(error)
        after, cause = None, error
    if after is None or not _near(before, after):
        raise ValueError(
            "the model answers otherwise after it was saved and loaded: some of what it computes "
            "with is in no tensor that is saved, or it takes tensors by their order and not by "
            "their names; register its layers and constants (nn.ModuleList instead of a list, "
            "register_buffer instead of an attribute), and look params up by name"
        ) from cause


def _near(left: np.ndarray, right: np.ndarray) -> bool:
    if left.shape != right.shape:
        return False
    size = _SAME * float(np.max(np.abs(left), initial=0.0))
    return bool(np.allclose(left, right, rtol=_SAME, atol=size, equal_nan=True))
