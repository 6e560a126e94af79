"""Randomness: keys folded by words and numbers, from a seed or from the operating system.

Nothing in fedpriv draws from a global generator. A `Key` is 32 bytes; folding a word or a number
into it gives an unrelated key (BLAKE2b, one way), so the cohort, the noise, the initial params and
each user's local training have streams of their own, the same in every backend, and a node that is
handed its round key learns neither the noise nor the cohort.

Two modes, chosen explicitly. `Key.simulation(seed)` is reproducible: anyone who knows the seed can
subtract the noise, so ε is labelled simulated. `Key.secure()` takes 32 bytes of entropy from the
operating system and draws its Gaussians from a ChaCha20 key stream.

>>> root = Key.simulation(7)
>>> root.fold("noise").fold(1) == root.fold("noise").fold(1)
True
>>> root.fold("noise").fold(1) == root.fold("noise").fold(2)
False
>>> root
Key(mode='simulation', value=hidden)
"""

from __future__ import annotations

import hashlib
import math
import os
import secrets
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from numpy.random.bit_generator import ISeedSequence

Mode = Literal["simulation", "secure"]
_BLOCK = 1 << 16


def _usable_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1  # where the system does not say what this process may use


def fill_blocks(
    out: np.ndarray, fill: Callable[[int, np.ndarray], None], threads: int | None = None
) -> None:
    """Fill a flat array block by block, each by its number, on several threads.

    Args:
        out: `(n,)`, overwritten.
        fill: Given a block's number and the block, an even number of places but for the last.
        threads: As of `Key.normal`.
    """
    blocks = [(number, out[at : at + _BLOCK]) for number, at in _starts(out.size)]
    if threads is None:
        threads = max(1, _usable_cores() - 1)
    if threads == 1 or len(blocks) == 1:
        for number, block in blocks:
            fill(number, block)
    else:
        with ThreadPoolExecutor(threads) as pool:
            deque(pool.map(lambda item: fill(*item), blocks), maxlen=0)


def _starts(size: int) -> Iterator[tuple[int, int]]:
    return enumerate(range(0, size, _BLOCK))


class _Given(ISeedSequence):
    """A bit generator's key as it is: a folded value is a digest and needs no stretching.

    Given as `key=`, NumPy asks the operating system for entropy first and then throws it away.
    """

    def __init__(self, value: bytes) -> None:
        self._value = value

    def generate_state(self, n_words: int, dtype: Any = np.uint32) -> np.ndarray:
        return np.frombuffer(self._value, dtype, n_words)


@dataclass(frozen=True, slots=True, repr=False)
class Key:
    """A secret from which streams of random numbers are derived.

    Attributes:
        mode: "secure", from the operating system's entropy, or "simulation", from a seed.

    Guarantees:
        * The same key gives the same numbers, in any process and on any number of threads.
        * `fold` is one way: a folded key reveals nothing about its parent or its siblings.
        * The value never appears in `repr`, so not in logs or tracebacks either.
    """

    _value: bytes
    mode: Mode

    @classmethod
    def simulation(cls, seed: int) -> Key:
        """Return the reproducible root key of a seed.

        Raises:
            ValueError: If the seed is not an integer.
        """
        if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)):
            raise ValueError(f"seed {seed!r} is not an integer; give one such as 0")
        return cls(
            hashlib.blake2b(b"fedpriv seed %d" % int(seed), digest_size=32).digest(), "simulation"
        )

    @classmethod
    def secure(cls) -> Key:
        """Return a root key made of fresh entropy from the operating system."""
        return cls(secrets.token_bytes(32), "secure")

    @classmethod
    def from_bytes(cls, value: bytes, mode: Mode = "simulation") -> Key:
        """Return the key that `to_bytes` wrote.

        Raises:
            ValueError: If there are not exactly 32 bytes.
        """
        if not isinstance(value, bytes) or len(value) != 32:
            raise ValueError("a key is exactly 32 bytes; use what Key.to_bytes() returned")
        return cls(value, mode)

    def to_bytes(self) -> bytes:
        """Return the secret itself. Only ever send a folded key, never a root."""
        return self._value

    def fold(self, part: str | int) -> Key:
        """Return the child key named by a word or a number ("1" and 1 name different children)."""
        if isinstance(part, bool) or not isinstance(part, (str, int, np.integer)):
            raise ValueError(f"cannot fold {part!r} into a key; fold a word or a whole number")
        kind = b"w" if isinstance(part, str) else b"n"
        message = kind + (part if isinstance(part, str) else str(int(part))).encode()
        return Key(hashlib.blake2b(message, key=self._value, digest_size=32).digest(), self.mode)

    def generator(self) -> np.random.Generator:
        """Return a fresh NumPy generator of this key's stream (Philox, counter based).

        In secure mode the generator starts from entropy of the operating system but is not
        itself cryptographic; noise uses `normal`, which is.
        """
        return np.random.Generator(np.random.Philox(_Given(self._value)))  # type: ignore[arg-type]

    def normal(
        self,
        shape: tuple[int, ...],
        dtype: Any = np.float32,
        *,
        stddev: float = 1.0,
        threads: int | None = None,
    ) -> np.ndarray:
        """Return Gaussians of a shape.

        The stream is made of blocks that depend on the key and on their own number only, so that
        several threads fill them at once and the numbers are the same for any number of threads.
        Both modes use the Box-Muller transform: simulation mode of 32 bits a uniform from
        Philox4x32-10, in single precision; secure mode of 53 bits from a ChaCha20 key stream, in
        double.

        Args:
            shape: Of the array.
            dtype: float32 or float64. Simulation mode in float64 draws by the ziggurat method, in
                one thread: nothing large asks for it.
            stddev: Their standard deviation; of a size that the dtype holds.
            threads: How many fill blocks at once; None for one a core this process may use, less
                the one on which users are trained meanwhile.
        """
        if self.mode == "simulation" and dtype != np.float32:
            drawn = np.asarray(self.generator().standard_normal(shape, dtype=dtype))
            drawn *= stddev
            return drawn
        out = np.empty(math.prod(shape), dtype)
        fill = self._simulated_block if self.mode == "simulation" else self._secure_block
        fill_blocks(out, lambda number, block: fill(number, block, stddev), threads)
        return out.reshape(shape)

    def words(self, count: int, stream: int = 0) -> np.ndarray:
        """Return uniform bits, uint64 `(count,)`: the beginning of a ChaCha20 key stream.

        In secure mode they are computationally indistinguishable from random bits to anyone without
        the key, which is what cohorts and noise rest on.

        Args:
            count: How many words of 64 bits.
            stream: Which of the key's 2^64 streams.
        """
        # The first half of the 16 bytes counts within a key stream, the second separates streams.
        nonce = bytes(8) + stream.to_bytes(8, "little")
        cipher = Cipher(ChaCha20(self._value, nonce), mode=None).encryptor()
        return np.frombuffer(cipher.update(bytes(8 * count)), "<u8")

    def _simulated_block(self, number: int, out: np.ndarray, stddev: float) -> None:
        from fedpriv.kernels.normals import box_muller, philox

        words = np.frombuffer(self._value, np.uint32)
        counter = np.array([0, number, words[2], words[3]], np.uint32)
        bits = np.empty(-(-out.size // 4) * 4, np.uint32)
        philox(words[:2], counter, bits)
        whole = out if out.size == bits.size else np.empty(bits.size, np.float32)
        box_muller(bits, np.float32(stddev), whole)  # type: ignore[arg-type]
        if whole is not out:
            out[:] = whole[: out.size]

    def _secure_block(self, number: int, out: np.ndarray, stddev: float) -> None:
        half = (out.size + 1) // 2
        bits = self.words(2 * half, number) >> np.uint64(11)
        uniform = (bits.astype(np.float64) + 0.5) * 2.0**-53
        radius = np.sqrt(-2.0 * np.log(uniform[:half])) * stddev
        angle = 2.0 * np.pi * uniform[half:]
        out[:half] = radius * np.cos(angle)
        out[half:] = (radius * np.sin(angle))[: out.size - half]

    def __repr__(self) -> str:
        return f"Key(mode={self.mode!r}, value=hidden)"


def check_key(key: Any) -> Key:
    """Return a key; refuse generators and seeds, whose numbers can be foretold.

    Raises:
        TypeError: If it is anything else.
    """
    if not isinstance(key, Key):
        raise TypeError(
            f"noise is drawn with a fedpriv.rng.Key, not with {type(key).__name__}: a generator's "
            "numbers can be foretold from those before; give Key.secure()"
        )
    return key
