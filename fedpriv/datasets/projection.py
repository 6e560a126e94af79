"""Gaussian random projection of rows to a few dimensions, by a matrix that no row has a part in.

Noise on a finished result grows with the number of its coordinates, d times in length for pure ε
and √d times for Gaussian noise; lengths and angles of rows survive in far fewer (Johnson and
Lindenstrauss 1984). The matrix comes from a seed that is stated, so that it is public, the same for
every data set of that width, and made again wherever the model predicts.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace

import numpy as np
from scipy import sparse

from fedpriv.datasets.dataset import Dataset, Inputs, shape_of
from fedpriv.ranges import positive_int
from fedpriv.rng import Key

FILE = "projection.json"
"""File that goes with a model of projected rows, into the run folder and every export."""
_KIND = "gaussian-projection"
_UNITS = 2.0**-53


@dataclass(frozen=True, slots=True, kw_only=True)
class GaussianProjection:
    """Rows times a matrix of independent N(0, 1/d'), then shortened to the unit ball.

    Attributes:
        inputs: d, columns of a row.
        outputs: d', at most d.
        seed: Of the matrix, public.
        matrix: float64 (d, d').

    Guarantees:
        * The matrix depends on the three numbers alone: no row, nor how many there are, moves it,
          so that what is learnt of projected rows is as private as it is of rows.
        * ‖output‖₂ <= 1, of every row by itself; one that is not finite becomes zero.
    """

    inputs: int
    outputs: int
    seed: int = 0
    matrix: np.ndarray = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        d, into = positive_int("inputs", self.inputs), positive_int("outputs", self.outputs)
        if into > d:
            raise ValueError(f"outputs {into} is above the {d} inputs; a projection has fewer")
        key = Key.simulation(self.seed).fold("projection").fold(d).fold(into)
        # Box-Muller of raw words, which are the same in every version of NumPy.
        half = -(-d * into // 2)
        units = ((key.words(2 * half) >> np.uint64(11)).astype(np.float64) + 0.5) * _UNITS
        length = np.sqrt(-2.0 * np.log(units[:half]))
        angle = 2.0 * np.pi * units[half:]
        drawn = np.concatenate([length * np.cos(angle), length * np.sin(angle)])[: d * into]
        object.__setattr__(self, "matrix", drawn.reshape(d, into) / np.sqrt(into))

    def apply(self, x: Inputs) -> np.ndarray:
        """Return projected rows, float32 (n, d').

        Raises:
            ValueError: If rows have another number of columns.
        """
        if len(shape_of(x)) != 2 or shape_of(x)[1] != self.inputs:
            raise ValueError(
                f"rows of shape {shape_of(x)} but a projection of {self.inputs} columns; give it "
                "the rows that it was made for"
            )
        given = x.astype(np.float64)
        with np.errstate(invalid="ignore", over="ignore"):
            found = np.asarray(given @ self.matrix)
            norms = np.sqrt(np.square(found).sum(axis=1, keepdims=True))
        whole = np.isfinite(norms)
        # A part in 2^20 for the rounding to float32.
        scale = np.minimum(1.0, (1.0 - 2.0**-20) / np.where(whole & (norms > 0), norms, 1.0))
        return (np.where(whole, found, 0.0) * scale).astype(np.float32)

    def to_bytes(self) -> bytes:
        """Return the content of `projection.json`."""
        return json.dumps(self._numbers(), indent=2).encode()

    def _numbers(self) -> dict[str, str | int]:
        return {"kind": _KIND, "inputs": self.inputs, "outputs": self.outputs, "seed": self.seed}

    @classmethod
    def from_bytes(cls, content: bytes) -> GaussianProjection:
        """Return the projection that a `projection.json` describes.

        Raises:
            ValueError: If it describes none.
        """
        try:
            found = json.loads(content)
            numbers = {name: found[name] for name in ("inputs", "outputs", "seed")}
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"the content of {FILE} is not a projection; restore it") from error
        if found.get("kind") != _KIND:
            raise ValueError(f"{FILE} describes {found.get('kind')!r}, which is unknown")
        return cls(**numbers)


def project(data: Dataset, outputs: int, seed: int = 0) -> Dataset:
    """Return a data set of rows projected to d' dimensions, within the unit ball, float32 CSR.

    Its provenance says how, and a task of it brings `projection.json`.
    """
    projection = GaussianProjection(inputs=shape_of(data.x_train)[1], outputs=outputs, seed=seed)

    def rows(x: Inputs) -> sparse.csr_matrix:
        return sparse.csr_matrix(projection.apply(x))

    return replace(
        data,
        name=f"{data.name}, projected to {outputs} dimensions",
        x_train=rows(data.x_train),
        x_test=rows(data.x_test),
        x_public=None if data.x_public is None else rows(data.x_public),
        provenance={**data.provenance, "projection": projection._numbers()},
    )


def projection_files(data: Dataset) -> dict[str, bytes]:
    """Return the files that a model of a data set needs where it predicts, by name."""
    made = data.provenance.get("projection")
    return {} if made is None else {FILE: json.dumps(made, indent=2).encode()}
