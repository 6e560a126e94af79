"""Randomness: keys folded by words and numbers, from a seed or from the operating system.

Nothing in fedpriv draws from a global generator. A `Key` is 32 bytes; folding a word or a number
into it gives an unrelated key (BLAKE2b, one way), so the cohort, the noise, the initial params and
each user's local training have streams of their own, the same in every carrier, and a node that is
handed its round key learns neither the noise nor the cohort.

Two modes, chosen explicitly. `Key.simulation(seed)` is reproducible: whoever knows the seed can
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
import secrets
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20

Mode = Literal["simulation", "secure"]
_BLOCK = 1 << 18


@dataclass(frozen=True, slots=True, repr=False)
class Key:
    """A secret from which streams of random numbers are derived.

    Guarantees:
        * The same key gives the same numbers, in any process and on any number of threads.
        * `fold` is one way: a folded key tells nothing about its parent or its siblings.
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
        # The value is a digest already: half of it is a Philox key as it stands.
        return np.random.Generator(np.random.Philox(key=int.from_bytes(self._value[:16], "little")))

    def normal(self, shape: tuple[int, ...], dtype: Any = np.float32) -> np.ndarray:
        """Return standard Gaussians of a shape, float32 or float64.

        Simulation mode draws by the ziggurat method from Philox; secure mode by Box-Muller from a
        ChaCha20 key stream, 53 bits a uniform.
        """
        if self.mode == "simulation":
            return self.generator().standard_normal(shape, dtype=dtype)
        out = np.empty(int(np.prod(shape)), dtype)
        stream = Cipher(ChaCha20(self._value, bytes(16)), mode=None).encryptor()
        for start in range(0, out.size, 2 * _BLOCK):
            block = out[start : start + 2 * _BLOCK]
            half = (block.size + 1) // 2
            bits = np.frombuffer(stream.update(bytes(16 * half)), np.uint64) >> np.uint64(11)
            uniform = (bits.astype(np.float64) + 0.5) * 2.0**-53
            radius = np.sqrt(-2.0 * np.log(uniform[:half]))
            angle = 2.0 * np.pi * uniform[half:]
            block[:half] = radius * np.cos(angle)
            block[half:] = (radius * np.sin(angle))[: block.size - half]
        return out.reshape(shape)

    def __repr__(self) -> str:
        return f"Key(mode={self.mode!r}, value=hidden)"
