"""Small problems, of five unequal users and of forty examples, in plain NumPy.

Data, gradients, and how closely a run is to follow what is computed of them.

Softmax regression; a model is one flat vector, classes by features and then a bias for each class.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

Tensors = Mapping[str, np.ndarray]
FEATURES, CLASSES = 4, 3


def examples(number: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Inputs of unequal scales, and labels that depend on them; float32 and int64."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(number, FEATURES)) * [3.0, 1.0, 0.3, 0.05]
    return x.astype(np.float32), (rng.random(number) * CLASSES + x[:, 0]).astype(int) % CLASSES


USERS = {f"u{n}": examples(size, n) for n, size in enumerate([3, 7, 1, 10, 5])}
TRAIN, PUBLIC = examples(40, 20), examples(12, 21)
SCALE = np.array([4.0, 1.0, 0.5, 0.1])
"""A of each feature, as side information."""


def flat(tensors: Tensors) -> np.ndarray:
    """All tensors as one vector: the bias last, and classes by features before it."""
    weight = tensors["weight"] if "weight" in tensors else tensors["kernel"].T
    return np.concatenate([np.ravel(weight), np.ravel(tensors["bias"])])


def gradient(x: np.ndarray, y: np.ndarray, w: np.ndarray) -> np.ndarray:
    """Mean gradient of softmax cross-entropy at one vector of weights and biases."""
    weight, bias = w[: CLASSES * FEATURES].reshape(CLASSES, FEATURES), w[CLASSES * FEATURES :]
    logits = x @ weight.T + bias
    shares = np.exp(logits - logits.max(axis=1, keepdims=True))
    shares /= shares.sum(axis=1, keepdims=True)
    shares[np.arange(len(y)), y] -= 1.0
    return np.concatenate([(shares.T @ x).ravel(), shares.sum(axis=0)]) / len(y)


def loss(x: np.ndarray, y: np.ndarray, w: np.ndarray) -> float:
    """Mean softmax cross-entropy at one vector of weights and biases."""
    weight, bias = w[: CLASSES * FEATURES].reshape(CLASSES, FEATURES), w[CLASSES * FEATURES :]
    logits = x @ weight.T + bias
    most = logits.max(axis=1)
    own = np.log(np.exp(logits - most[:, None]).sum(axis=1)) + most - logits[np.arange(len(y)), y]
    return float(own.mean())


def gradient_of(examples: tuple[np.ndarray, np.ndarray]) -> Any:
    """From a vector and positions to the mean gradient of these examples."""
    x, y = np.asarray(examples[0], float), np.asarray(examples[1])

    def grad(w: np.ndarray, index: Any) -> np.ndarray:
        chosen = np.atleast_1d(np.asarray(index, int))
        return gradient(x[chosen], y[chosen], w)

    return grad


def of_shortened(w: np.ndarray, row: int) -> np.ndarray:
    """Gradient of one example whose input, with a constant 1, is shortened to length 1."""
    x, label = np.append(TRAIN[0][row].astype(float), 1.0), TRAIN[1][row]
    x /= max(1.0, np.linalg.norm(x))
    cut = CLASSES * FEATURES
    logits = np.column_stack([w[:cut].reshape(CLASSES, FEATURES), w[cut:]]) @ x
    shares = np.exp(logits - logits.max())
    shares /= shares.sum()
    shares[label] -= 1.0
    own = np.outer(shares, x)
    return np.concatenate([own[:, :-1].ravel(), own[:, -1]])


def of_user(function: Any, w: np.ndarray, user: str) -> Any:
    """`gradient` or `loss` of all examples of a user."""
    return function(np.asarray(USERS[user][0], float), USERS[user][1], w)


def of_example(function: Any, w: np.ndarray, row: int) -> Any:
    """The same of one example."""
    return function(np.asarray(TRAIN[0][[row]], float), TRAIN[1][[row]], w)


def users_gradient(w: np.ndarray, batch: tuple[str, np.ndarray]) -> np.ndarray:
    """Mean gradient of a batch, which is a user and positions among its examples."""
    user, index = batch
    return gradient_of(USERS[user])(w, index)


# -- what a run drew and released, for NumPy ------------------------------------------------------


def cohorts_of(played: Sequence[Any]) -> list[list[list[tuple[str, np.ndarray]]]]:
    """Of each round its users, of each its local batches."""
    return [
        [[(user, batch) for batch in one.batches[user]] for user in one.present] for one in played
    ]


def noise_of(played: Sequence[Any]) -> list[np.ndarray]:
    """What was added to each round's sum of updates; on a sum of gradients it counts negatively."""
    return [flat(one.draws[-1]) for one in played]


def groups_of(played: Sequence[Any]) -> list[list[np.ndarray]]:
    """Of each round the groups of examples that were bounded as one."""
    return [one.groups or [np.array([int(example)]) for example in one.cohort] for one in played]


def check(played: Sequence[Any], expected: Sequence[np.ndarray], most: float = 1e-6) -> None:
    """Every round's params, to a part in a million."""
    assert len(played) == len(expected)
    for one, w in zip(played, expected, strict=True):
        assert np.linalg.norm(flat(one.params) - w) <= most * np.linalg.norm(w)


def check_results(played: Sequence[Any], expected: Sequence[np.ndarray]) -> None:
    """What each round would return, to a part in a million."""
    for one, w in zip(played, expected, strict=True):
        assert np.linalg.norm(flat(one.result) - w) <= 1e-6 * np.linalg.norm(w)


def check_scores(played: Sequence[Any], expected: Sequence[np.ndarray]) -> None:
    """The sums that each choice was made of, to a part in a million."""
    seen = [scores for one in played for scores in one.scores]
    assert len(seen) == len(expected)
    for scores, omega in zip(seen, expected, strict=True):
        np.testing.assert_allclose(scores, omega, rtol=1e-6)
