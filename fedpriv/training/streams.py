"""Global generators of Python, NumPy and PyTorch, from which a user's code may draw.

Nothing of fedpriv draws from them. Code of others does, such as dropout: seeded for each user, what
it draws follows from that user's own key, no matter who trained and seeded before.

Other threads draw from Python's and NumPy's too, at any moment, so that a user's draws from these
are not the same twice. Where two trainings are compared they are seeded otherwise each time
(`unlike_streams`): code that draws from them is found whatever other threads do, and other code is
never mistaken for it.
"""

from __future__ import annotations

import itertools
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import numpy as np

from fedpriv.rng import Key

if TYPE_CHECKING:
    import torch

_COUNTED = itertools.count(1)
_NUMBER: ContextVar[int] = ContextVar("number of a compared training", default=0)


@contextmanager
def own_stream(key: Key | None, device: str | torch.device | None = "cpu") -> Iterator[None]:
    """Seed the global generators from a key within the `with`; restore them afterwards.

    Args:
        key: Whose stream; None for one that is the same for everybody, where nothing is drawn.
        device: PyTorch's generator of it is seeded too, where it has one of its own; None for that
            of the GPU in use, if one is. Where PyTorch was never loaded, none of its is.
    """
    seed = 0 if key is None else int(key.fold("torch").generator().integers(2**62))
    torch = sys.modules.get("torch")
    with kept_generators(), nullcontext() if torch is None else _seeded(torch, seed, device):
        random.seed(seed + _NUMBER.get())
        np.random.seed([seed & 0xFFFFFFFF, seed >> 32, _NUMBER.get()])
        yield


@contextmanager
def kept_generators() -> Iterator[None]:
    """Restore Python's and NumPy's global generators after the `with`."""
    python, numpy = random.getstate(), np.random.get_state()
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)


@contextmanager
def unlike_streams() -> Iterator[None]:
    """Seed Python's and NumPy's generators within the `with` as in no other, whatever the key."""
    number = _NUMBER.set(next(_COUNTED))
    try:
        yield
    finally:
        _NUMBER.reset(number)


@contextmanager
def _seeded(torch: Any, seed: int, device: Any) -> Iterator[None]:
    if device is None:
        device = "cuda" if torch.cuda.is_initialized() else "cpu"
    device = torch.device(device)
    on_gpu = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=on_gpu):
        torch.default_generator.manual_seed(seed)
        if on_gpu:
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seed)
        yield
