"""Sensitivity and noise of an aggregation, as an attacker and an auditor would look at them.

Each check returns whether it holds and what was measured. Statistical ones say their sample size;
their false-alarm rate is 1e-6.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from tests.conformance.subject import SHAPES, Arrays, Sent, Subject

CLIP, EXPECTED = 1.0, 10
ALPHA = 1e-6


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What a check found.

    Attributes:
        ok: Whether it holds.
        text: What was measured.
    """

    ok: bool
    text: str


Check = Callable[[Subject], Verdict]


def update(norm: float, seed: int) -> Arrays:
    """Return a random update of a norm."""
    rng = np.random.default_rng(seed)
    made = {name: rng.standard_normal(shape) for name, shape in SHAPES.items()}
    scale = norm / math.sqrt(sum(float(np.square(a).sum()) for a in made.values()))
    return {name: (scale * a).astype(np.float32) for name, a in made.items()}


def users(number: int, norm: float = 3.0, **more: float) -> list[Sent]:
    """Return users who sent updates of a norm."""
    return [Sent(arrays=update(norm, seed), **more) for seed in range(number)]


def clipped(subject: Subject, sent: Sequence[Sent]) -> list[Sent]:
    """Return what honest users would send: clipped where the subject leaves that to them."""
    if not subject.clips_on_clients:
        return list(sent)
    found = []
    for one in sent:
        if one.arrays is None:
            found.append(one)
            continue
        norm = math.sqrt(sum(float(np.square(a).sum()) for a in one.arrays.values()))
        scale = min(1.0, CLIP / norm) if norm else 1.0
        arrays = {name: (scale * a).astype(np.float32) for name, a in one.arrays.items()}
        found.append(Sent(arrays=arrays, num_examples=one.num_examples))
    return found


def released(
    subject: Subject, sent: Sequence[Sent], noise_multiplier: float = 0.0
) -> Arrays | None:
    """Return what a round releases; what it raises is raised."""
    return subject.release(
        sent, clip_norm=CLIP, noise_multiplier=noise_multiplier, expected=EXPECTED
    )


def distance(one: Arrays | None, other: Arrays | None) -> float:
    """Return how far two released means lie apart, times the denominator and over C."""
    if one is None or other is None:
        return math.inf
    squares = sum(float(np.square(np.asarray(one[n], float) - other[n]).sum()) for n in SHAPES)
    return math.sqrt(squares) * EXPECTED / CLIP


def _at_most(found: float, limit: float = 1.0) -> Verdict:
    text = "the round is lost" if math.isinf(found) else f"moves the sum by {found:.3g} C"
    return Verdict(ok=found <= limit * (1 + 1e-5), text=text)


def one_user_more(subject: Subject) -> Verdict:
    """Adding one user to nine moves the sum by at most C."""
    sent = clipped(subject, users(EXPECTED))
    return _at_most(distance(released(subject, sent), released(subject, sent[:-1])))


def example_counts(subject: Subject) -> Verdict:
    """A user that claims a million examples moves the sum by at most C."""
    sent = clipped(subject, users(EXPECTED))
    boast = [*sent[:-1], Sent(arrays=sent[-1].arrays, num_examples=1e6)]
    return _at_most(distance(released(subject, boast), released(subject, sent[:-1])))


def dropouts(subject: Subject) -> Verdict:
    """Where half of the users drop out, one user moves the sum by at most C still."""
    sent = clipped(subject, users(EXPECTED // 2))
    return _at_most(distance(released(subject, sent), released(subject, sent[:-1])))


def an_error(subject: Subject) -> Verdict:
    """A user that fails contributes zero, and the round goes on."""
    sent = clipped(subject, users(EXPECTED))
    failed = [*sent[:-1], Sent(arrays=None)]
    return _at_most(distance(released(subject, failed), released(subject, sent)))


def a_lie(subject: Subject) -> Verdict:
    """A user that sends a hundred times C, whatever it claimed, moves the sum by at most C."""
    sent = clipped(subject, users(EXPECTED))
    liar = [*sent[:-1], Sent(arrays=update(100.0 * CLIP, 99))]
    return _at_most(distance(released(subject, liar), released(subject, sent[:-1])))


def _whole(value: float) -> Arrays:
    return {name: np.full(shape, value, np.float32) for name, shape in SHAPES.items()}


HOSTILE: Mapping[str, Arrays] = {
    "NaN": _whole(np.nan),
    "one infinity": {**_whole(0.0), "bias": np.array([np.inf, 0, 0], np.float32)},
    "all zeros": _whole(0.0),
    "1e38": _whole(1e38),
    "denormal": _whole(1e-45),
    "integers": {name: np.ones(shape, np.int64) for name, shape in SHAPES.items()},
    "booleans": {name: np.ones(shape, bool) for name, shape in SHAPES.items()},
    "complex": {name: np.full(shape, 1j) for name, shape in SHAPES.items()},
    "another shape": {**_whole(1.0), "kernel": np.ones((1, 3), np.float32)},
    "another rank": {**_whole(1.0), "bias": np.ones((3, 1), np.float32)},
    "an array too few": {"kernel": np.ones(SHAPES["kernel"], np.float32)},
    "an array too many": {**_whole(1.0), "more": np.ones(2, np.float32)},
    "another name": {"kernel": np.ones((5, 3), np.float32), "b": np.ones(3, np.float32)},
    "empty": {name: np.zeros((0,), np.float32) for name in SHAPES},
}


def hostile(subject: Subject) -> Verdict:
    """Of malformed updates none raises, loses the round or moves the sum by more than C."""
    sent = clipped(subject, users(EXPECTED - 1))
    without = released(subject, sent)
    bad = []
    for name, arrays in HOSTILE.items():
        try:
            found = released(subject, [*sent, Sent(arrays=arrays)])
            moved = distance(found, without)
            if not moved <= 1 + 1e-5:
                bad.append(f"{name} ({'lost' if math.isinf(moved) else f'{moved:.3g} C'})")
        except Exception as error:  # what a subject raises is what is asked about
            bad.append(f"{name} ({type(error).__name__})")
    text = f"{len(HOSTILE) - len(bad)} of {len(HOSTILE)} kinds harmless"
    return Verdict(ok=not bad, text=text + (f"; not: {', '.join(bad)}" if bad else ""))


def _noise(subject: Subject, sent: Sequence[Sent], rounds: int, multiplier: float) -> np.ndarray:
    plain = released(subject, sent)
    found = [released(subject, sent, multiplier) for _ in range(rounds)]
    if plain is None or any(one is None for one in found):
        return np.empty(0)
    return np.stack(
        [
            np.concatenate([np.ravel(np.asarray(one[n], float) - plain[n]) for n in sorted(SHAPES)])
            for one in found
        ]
    )


ROUNDS = 400


def noise_scale(subject: Subject) -> Verdict:
    """Noise on the sum has standard deviation σ C to five per cent (7,200 numbers, 1e-6)."""
    return _scale(subject, clipped(subject, users(EXPECTED)))


def noise_after_dropouts(subject: Subject) -> Verdict:
    """The same where half of the users drop out: neither less noise nor another denominator."""
    return _scale(subject, clipped(subject, users(EXPECTED // 2)))


def _scale(subject: Subject, sent: Sequence[Sent]) -> Verdict:
    drawn = _noise(subject, sent, ROUNDS, 2.0)
    if not drawn.size:
        return Verdict(ok=False, text="the round is lost")
    found = float(drawn.std()) * EXPECTED / CLIP / 2.0
    low, high = np.sqrt(stats.chi2.ppf([ALPHA / 2, 1 - ALPHA / 2], drawn.size) / drawn.size)
    return Verdict(ok=bool(low < found < high), text=f"{found:.3f} σ C")


def noise_of_two_processes(subject: Subject) -> Verdict:
    """Whoever seeds NumPy's global generator, as a task's own code may, repeats no noise."""
    sent, drawn = clipped(subject, users(EXPECTED)), []
    for _ in range(2):
        np.random.seed(7)
        drawn.append(_noise(subject, sent, 1, 2.0))
    equal = drawn[0].size > 0 and np.array_equal(drawn[0], drawn[1])
    return Verdict(ok=not equal, text="the same noise twice" if equal else "new noise")


def nobody(subject: Subject) -> Verdict:
    """Where nobody answers, noise is released all the same: silence would tell who was drawn."""
    try:
        found = released(subject, [], 2.0)
    except Exception as error:  # what a subject raises is what is asked about
        return Verdict(ok=False, text=type(error).__name__)
    ok = found is not None and all(np.any(np.asarray(found[n])) for n in SHAPES)
    return Verdict(ok=ok, text="noise" if ok else "nothing is released")


def adaptive_clipping(subject: Subject) -> Verdict:
    """An adaptive clip norm settles at the median of the norms, from above and from below."""
    norms = [0.5, 0.8, 1.0, 1.25, 2.0] * 2
    found = subject.clip_norms(norms, 60)
    if found is None:
        return Verdict(ok=True, text="the clip norm is fixed")
    return Verdict(ok=0.7 < found[-1] < 1.4, text=f"after 60 rounds {found[-1]:.3g}, median 1")


CHECKS: Mapping[str, Check] = {
    "one user more or less": one_user_more,
    "claimed example counts": example_counts,
    "half of the users drop out": dropouts,
    "a user fails": an_error,
    "a user lies about its norm": a_lie,
    "malformed updates": hostile,
    "noise: standard deviation": noise_scale,
    "noise: after dropouts": noise_after_dropouts,
    "noise: a seeded global generator": noise_of_two_processes,
    "nobody answers": nobody,
    "adaptive clipping": adaptive_clipping,
}


def judged(check: Check, subject: Subject) -> Verdict:
    """Return what a check finds; what the subject raises is a failure of it."""
    try:
        return check(subject)
    except Exception as error:  # what a subject raises is what is asked about
        return Verdict(ok=False, text=f"raises {type(error).__name__}")
