"""A data set of single examples, as the centralised methods take it, and its public part.

The public part is cut off the training set by a rule that does not look at any example, and it is
*removed*: no example is both public and private.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
from scipy import sparse

from fedpriv.datasets.digests import fingerprint
from fedpriv.rng import Key

Inputs = np.ndarray | sparse.csr_matrix
"""One row an example: pixels, sequences of ids, or sparse features."""


def shape_of(x: Inputs) -> tuple[int, ...]:
    """Return the shape of inputs; scipy's own type leaves open whether there is one."""
    return cast(tuple[int, ...], x.shape)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Dataset:
    """Examples to train on, to test on, and, where there are any, public ones.

    Attributes:
        name: For tables. A reduced or lossy copy has another name.
        x_train: Private training inputs, n rows.
        y_train: Their labels, int64 (n,).
        x_test: Test inputs.
        y_test: Their labels.
        provenance: Files, checksums, licence and how it was prepared; JSON values.
            `provenance["private_side_information"]` lists what was taken from private examples,
            so that a statement can say that no ε covers it.
        synthetic: Whether a generator made it; every table and plot then says so.
        x_public: Public inputs, or None.
        y_public: Their labels, or None.

    Raises:
        ValueError: If inputs and labels differ in number, or only half of the public set is given.
    """

    name: str
    x_train: Inputs
    y_train: np.ndarray
    x_test: Inputs
    y_test: np.ndarray
    provenance: Mapping[str, Any]
    synthetic: bool = False
    x_public: Inputs | None = None
    y_public: np.ndarray | None = None

    def __post_init__(self) -> None:
        if (self.x_public is None) != (self.y_public is None):
            raise ValueError(f"{self.name}: give public inputs and public labels, or neither")
        parts = (
            ("training", self.x_train, self.y_train),
            ("test", self.x_test, self.y_test),
            ("public", self.x_public, self.y_public),
        )
        for part, x, y in parts:
            if x is not None and y is not None and y.shape != (shape_of(x)[0],):
                raise ValueError(
                    f"{self.name}: {shape_of(x)[0]:,} {part} examples but labels of shape "
                    f"{y.shape}; give one label an example"
                )

    @property
    def num_train(self) -> int:
        """Number of private training examples."""
        return shape_of(self.x_train)[0]

    @property
    def num_public(self) -> int:
        """Number of public examples."""
        return 0 if self.x_public is None else shape_of(self.x_public)[0]

    def sha256(self) -> dict[str, str]:
        """Return digests of the "private" training set and of the "public" one, where there is one.

        Inputs and labels are read whole. They tell of private examples: see `fingerprint`.
        """
        found = {"private": fingerprint(self.x_train, self.y_train)}
        if self.x_public is not None:
            found["public"] = fingerprint(self.x_public, self.y_public)
        return found


def split_public(n: int, share: float = 0.01, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return which of n examples are private and which are public.

    The choice depends on n, share and seed alone, so it reveals nothing about any example, and a
    larger share contains a smaller one.

    Args:
        n: Number of examples.
        share: Share of them that is public, above 0 and below 1; rounded to whole examples, at
            least one.
        seed: Another choice of the same size.

    Returns:
        (private positions, public positions): both int64, increasing, disjoint, n in all.

    Raises:
        ValueError: If the share is out of range or leaves no private example.

    >>> private, public = split_public(25_000)
    >>> len(private), len(public)
    (24750, 250)
    """
    if not 0.0 < share < 1.0:
        raise ValueError(f"a public share of {share} is not between 0 and 1; give one such as 0.01")
    size = max(1, math.floor(share * n + 0.5))
    if size >= n:
        raise ValueError(
            f"a public share of {share} of {n:,} examples leaves no private one; give a smaller one"
        )
    key = Key.simulation(0).fold("public").fold("examples").fold(seed)
    # Raw words, because only those are guaranteed to be the same in every version of NumPy.
    order = np.argsort(key.generator().bit_generator.random_raw(n), kind="stable")
    return np.sort(order[size:]), np.sort(order[:size])


def hold_out_public(data: Dataset, share: float = 0.01, seed: int = 0) -> Dataset:
    """Return the data set with a share of its training examples made public, and so removed.

    Raises:
        ValueError: If it has public examples already, or as `split_public`.
    """
    if data.x_public is not None:
        raise ValueError(
            f"{data.name} already has {data.num_public:,} public examples; hold out from the one "
            "without"
        )
    private, public = split_public(data.num_train, share, seed)
    x, y = data.x_train, data.y_train
    return replace(
        data,
        x_train=x[private],
        y_train=y[private],
        x_public=x[public],
        y_public=y[public],
        provenance={**data.provenance, "public": describe_public_part(len(public), share, seed)},
    )


def limit_public(data: Dataset, size: int) -> Dataset:
    """Return the data set with the first so many of its public examples, and the same private ones.

    Raises:
        ValueError: If it has not got as many.
    """
    if not 1 <= size <= data.num_public:
        raise ValueError(
            f"{size} public examples of {data.name}: it has {data.num_public:,}; give 1 to as many"
        )
    assert data.x_public is not None and data.y_public is not None
    return replace(data, x_public=data.x_public[:size], y_public=data.y_public[:size])


def hold_out_validation(data: Dataset, share: float = 0.1) -> Dataset:
    """Return the data set with a share of its private training examples in the place of the test.

    What is chosen by looking at these is not chosen on test; but they are private, so no ε covers
    the choice. It depends on the number of examples alone.

    Raises:
        ValueError: If the share is not between 0 and 1.
    """
    if not 0.0 < share < 1.0:
        raise ValueError(f"a validation share of {share} is not between 0 and 1; give one as 0.1")
    order = Key.simulation(0).fold("validation").generator().permutation(data.num_train)
    cut = int(share * data.num_train)
    seen, kept = np.sort(order[:cut]), np.sort(order[cut:])
    x, y = data.x_train, data.y_train
    return replace(data, x_train=x[kept], y_train=y[kept], x_test=x[seen], y_test=y[seen])


def describe_public_part(size: int, share: float, seed: int) -> dict[str, Any]:
    """Return what a provenance says of a public part that `split_public` chose."""
    return {"from": "training set, removed from it", "size": size, "share": share, "seed": seed}
