"""Recycling Scraps (Shejwalkar et al., PoPETs 2025) in plain NumPy: aggregates of checkpoints.

θ_0, θ_1, ... are flat vectors. What is drawn is an argument.
"""

import numpy as np


def ema(thetas, decay, warmup=False):
    """Return the moving average after each θ; `decay` weights the past, and begins with θ_0."""
    average, found = thetas[0], []
    for t, theta in enumerate(thetas):
        if t:
            kept = min(decay, (1 + t) / (10 + t)) if warmup else decay
            average = kept * average + (1 - kept) * theta
        found.append(average)
    return found


def upa(thetas, k):
    """Return the mean of the last k, of fewer at the beginning."""
    return [np.mean(thetas[max(0, t + 1 - k) : t + 1], axis=0) for t in range(len(thetas))]


def weighted(thetas, weights):
    """Return the weighted mean of the last k, the newest weight last; of fewer by theirs alone."""
    found = []
    for t in range(len(thetas)):
        past = thetas[max(0, t + 1 - len(weights)) : t + 1]
        found.append(np.average(past, axis=0, weights=weights[-len(past) :]))
    return found


def opa(probabilities):
    """Return the class of the largest mean probability; k models' (n, classes)."""
    return np.mean(probabilities, axis=0).argmax(axis=1)


def omv(probabilities):
    """Return the class that most of k models answer; of equal votes the first class."""
    answers = np.argmax(probabilities, axis=2)
    classes = np.shape(probabilities)[2]
    return np.array([np.bincount(a, minlength=classes).argmax() for a in answers.T])


def train_over(w, step, rounds, f_agg, *, start, replace):
    """Algorithm 1: each step is taken at the aggregate of what was released by then.

    Args:
        step: From where updates are made, and the round, to the step that is added.
        f_agg: From θ_0 ... θ_t to each one's aggregate.
        start: τ, the number of rounds before aggregates are used.
        replace: Whether the step is added to the aggregate, or to θ_t (as DP-FTRL's sums have it).
    """
    thetas, at = [w], w
    for t in range(rounds):
        moved = step(at, t)
        thetas.append((at if replace else thetas[-1]) + moved)
        at = f_agg(thetas)[-1] if t + 1 >= start else thetas[-1]
    return thetas[1:]


def shift_share(t, period, smooth):
    """Return the first kind's share in round t: a square wave, or (1 + cos(2πt/period))/2."""
    if smooth:
        return 0.5 * (1 + np.cos(2 * np.pi * t / period))
    return float(t % period < period / 2)


def ftrl(w, g, prefix_noise, *, rate, momentum=0.0, restart=None):
    """DP-FTRL with momentum: v ← μ v + S_t, θ_t = θ_0 + rate · v (Kairouz et al. 2021).

    Args:
        g: From where updates are made, and the round, to their sum over its denominator.
        prefix_noise: On each *prefix* sum S_t of these, likewise, of all rounds.
        restart: After so many rounds θ_0 becomes θ, and v and S begin with zero.
    """
    theta, total, v, before, iterates = w, 0.0, 0.0, 0.0, []
    for t, z in enumerate(prefix_noise):
        if t and restart and t % restart == 0:
            w, total, v, before = theta, 0.0, 0.0, prefix_noise[t - 1]
        total = total + g(theta, t)
        v = momentum * v + total + z - before
        theta = w + rate * v
        iterates.append(theta)
    return iterates


def tree_node(draws, height, place, efficient, rows=None):
    """Return the noise of a node's estimate, and its variance over a draw's.

    The efficient one weighs the node's own answer and its children's sum by inverse variance, as
    far down as there are rows (Honaker 2015, from below); weights are multiples of 2^-16.

    Args:
        rows: After which rows of nothing follow, which have no noise; None where none do.
    """
    if rows is not None and place << height >= rows:
        return 0.0, 0.0
    if not (efficient and height):
        return draws[height, place], 1.0
    (left, v), (right, u) = (
        tree_node(draws, height - 1, 2 * place + i, True, rows) for i in (0, 1)
    )
    share = round((v + u) / (1 + v + u) * 2**16) / 2**16
    noise = share * draws[height, place] + (1 - share) * (left + right)
    return noise, share**2 + (1 - share) ** 2 * (v + u)


def tree_prefix(draws, t, efficient=False):
    """Return the noise on the prefix of t rows: the sum of the fewest nodes that cover it.

    Args:
        draws: From (height, place) to a node's draw.
    """
    total, start = 0.0, 0
    for height in reversed(range(t.bit_length())):
        if t >> height & 1:
            total = total + tree_node(draws, height, start >> height, efficient)[0]
            start += 1 << height
    return total


def tree_nodes(rows, restart=None, completed=False):
    """Return (tree, height, place) of every node that is answered, tree by tree.

    A tree has its complete nodes. One that is completed has every node with at least one real row
    below it, up to its root. The last tree is never completed.
    """
    found, size = [], restart or rows
    for tree in range(-(-rows // size)):
        steps = min(size, rows - tree * size)
        whole = completed and (tree + 1) * size < rows
        for height in range((steps - 1 if whole else steps // 2).bit_length() + 1):
            number = -(-steps // 2**height) if whole else steps >> height
            found += [(tree, height, place) for place in range(number)]
    return found


def tree_matrix(rows, restart=None, completed=False):
    """Return C of binary trees: a line for each node, of ones below it."""
    row, size = np.arange(rows), restart or rows
    return np.array([
        (row // size == tree) & (row % size >> height == place)
        for tree, height, place in tree_nodes(rows, restart, completed)
    ], float)  # fmt: skip


def banded_matrix(rows, coefficients):
    """Return C of a few bands: c_j on diagonal j."""
    return sum(np.diag(np.full(rows - j, c), -j) for j, c in enumerate(coefficients))


def blt_matrix(rows, omegas, decays):
    """Return C of a buffered linear Toeplitz strategy: 1, then Σ ω λ^(j-1) on diagonal j."""
    first = [1.0, *(np.dot(omegas, np.power(decays, j - 1)) for j in range(1, rows))]
    return sum(np.diag(np.full(rows - j, c), -j) for j, c in enumerate(first))


def sensitivity(C, separation, times):
    """Return by how much one user moves C x: the largest over patterns at least so far apart.

    Coefficients are not negative, so that contributions in one direction are the worst.
    """

    def patterns(start, left):
        yield ()
        if left:
            for row in range(start, C.shape[1]):
                for rest in patterns(row + separation, left - 1):
                    yield (row, *rest)

    return max(np.linalg.norm(C[:, list(p)].sum(axis=1)) for p in patterns(0, times))


# -- uncertainty ------------------------------------------------------------------------------


def variance_of_combination(values, weights):
    """Return the estimate of Var(Σ w f): Σ w² times the sample variance."""
    return np.sum(np.square(weights)) * np.var(values, ddof=1)


def interval(values, quantile):
    """Return mean and half-width of a t-interval of k values."""
    return np.mean(values), quantile * np.sqrt(np.var(values, ddof=1) / len(values))


def variance_ratio(a, k):
    """Return E[S] over the variance, of k neighbours with correlation a^|i - j|: below 1."""
    R = a ** np.abs(np.subtract.outer(np.arange(k), np.arange(k)))
    return (np.trace(R) - R.sum() / k) / (k - 1)
