"""What a statement says of where noise comes from, and of its last bits."""

from __future__ import annotations

import math

from fedpriv.privacy.epsilon import Epsilon
from fedpriv.privacy.plans.adaptive import AnyPlan
from fedpriv.privacy.unit_words import words_of


def randomness(plan: AnyPlan, spent: Epsilon, simulated: bool, hardened: bool) -> list[str]:
    """Return who could know the noise, and what its last bits betray, as paragraphs."""
    if not plan.is_private:
        return []
    words = words_of(plan.unit)
    if simulated:
        return [
            "This is a seeded simulation, and its ε is simulated: anyone with the seed can "
            f"subtract the noise and redraw the {words.draws}. It is the ε the same plan would "
            "have in secure mode.",
            f"Floating point: not hardened. {_drawn(plan)} can betray the sum.",
        ]
    after = "retry" if plan.mechanism is None else plan.mechanism.privatizer.after_crash
    kept = "nowhere" if after == "retry" else "in the run folder's secret/, which must stay secret"
    keys = (
        f"Keys come from the operating system's entropy and are kept {kept}; noise and "
        f"{words.draws} are drawn from ChaCha20 key streams, whose bits are taken to be uniform."
    )
    if not hardened:
        return [
            keys,
            f"Floating point: NOT hardened. {_drawn(plan)} can betray the sum; ε is that of exact "
            "arithmetic, which this run did not have.",
        ]
    choice = (  # of an adaptive plan
        "What is chosen among sums is drawn from whole numbers and these bits alone, exactly. "
        if plan.mechanism is None
        else ""
    )
    return [
        keys,
        "Floating point: hardened. Sums are of whole numbers, and noise is a Gaussian rounded "
        "exactly to whole numbers: an answer is a rounding of what the Gaussian mechanism answers. "
        f"{choice}The sampler's error adds at most (1 + e^ε) · answers · coordinates · 2^-256 to "
        f"δ, for 10^12 of them together below 10^{_added_to_delta(spent)}.",
    ]


def _added_to_delta(spent: Epsilon) -> int:
    """Return the power of ten above what 10^12 rounded Gaussians add to δ."""
    return math.ceil(12 + math.log10(2) * (1 - 256) + spent.value / math.log(10))


def _drawn(plan: AnyPlan) -> str:
    """Return what of the noise is not exact; of a privatizer of one's own no type is known."""
    mechanism = plan.mechanism
    if mechanism is not None and mechanism.privatizer.name == "gaussian":
        return "Noise is drawn in float32, whose last bits"
    return "The last bits of noise in floating point"
