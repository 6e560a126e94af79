"""The grid that the methods of Figure 6 were tuned on, committed so that anybody can count it.

Each form of AdaDPS gets four configurations where privacy is real (after a coarse search by hand,
of about a dozen runs in all) and two in the paper's setting, each baseline at least as many.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fedpriv.experiments.parts.options import Option
from fedpriv.reproduction import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """What is tried for one setting and one kind of input.

    A clip norm is worth trying where the noise it brings to a logit is of the order of one: about
    eight times lower in the paper's setting, whose noise on the mean is eight times higher, and
    lower for unit-norm inputs, which are about six times longer than TFF's. Pairs are of learning
    rates and clip norms; AdaDPS takes `gain` for the largest 1/A, its root where A acts twice.
    """

    gain: tuple[float, float]
    adadps: tuple[tuple[float, ...], tuple[float, ...]]
    fedavg: tuple[tuple[float, ...], tuple[float, ...]]
    adam_norms: tuple[float, ...]
    adam_rates: tuple[float, ...]
    normalise: tuple[float, ...]


_RANGES: Mapping[tuple[str, str], Range] = {
    ("private-8", "tff"): Range(
        gain=(200.0, 14.0),
        adadps=((30.0, 100.0), (150.0, 220.0)),
        fedavg=((3.0, 10.0, 30.0, 100.0), (30.0, 100.0)),
        adam_norms=(10.0, 30.0),
        adam_rates=(0.05, 0.2, 0.6),
        normalise=(3.0, 10.0, 30.0, 60.0),
    ),
    ("private-8", "unit-norm"): Range(
        gain=(20.0, 4.5),
        adadps=((30.0,), (20.0, 40.0, 60.0, 80.0)),
        fedavg=((10.0, 30.0), (20.0, 40.0)),
        adam_norms=(20.0, 40.0),
        adam_rates=(0.05, 0.2, 0.6),
        normalise=(10.0, 20.0, 30.0, 40.0),
    ),
    ("paper", "tff"): Range(
        gain=(50.0, 7.1),
        adadps=((10.0,), (20.0, 40.0)),
        fedavg=((10.0, 30.0), (5.0, 20.0)),
        adam_norms=(8.0,),
        adam_rates=(0.01, 0.03),
        normalise=(0.3, 1.0, 3.0),
    ),
    ("paper", "unit-norm"): Range(
        gain=(10.0, 3.2),
        adadps=((10.0,), (8.0, 16.0)),
        fedavg=((10.0, 30.0), (4.0, 8.0)),
        adam_norms=(8.0,),
        adam_rates=(0.01, 0.03),
        normalise=(4.0, 8.0, 12.0),
    ),
}
# Without privacy there is no clip norm to tune: the rate alone. By inputs and preconditioning.
_NONPRIVATE_RATES: Mapping[tuple[str, bool], tuple[float, ...]] = {
    ("tff", False): (1.0, 3.0, 10.0, 30.0),
    ("tff", True): (10.0, 30.0, 100.0),
    ("unit-norm", False): (10.0, 30.0),
    ("unit-norm", True): (1.0, 3.0, 10.0),
}


def grid(setting: str, inputs: str, method: Settings, *, private: bool) -> tuple[Settings, ...]:
    """Return the settings that a method is tuned over.

    Args:
        setting: One that is tuned anew: "private-8" or "paper".
        inputs: "tff" or "unit-norm".
        method: The options that make it this method.
        private: Whether it is bounded and noised.
    """
    span, precondition = _RANGES[setting, inputs], method.get("precondition")
    found: list[dict[str, Option]]
    if not private:
        rates = _NONPRIVATE_RATES[inputs, precondition is not None]
        found = [{"local-learning-rate": rate} for rate in rates]
    elif method.get("bound") == "normalise":
        found = [{"local-learning-rate": 30.0, "l2-clip-norm": norm} for norm in span.normalise]
    elif method.get("server-optimizer") == "adam":
        # Noise dominates every second moment, so the useful step is about the noise on the mean.
        found = [
            {
                "local-learning-rate": 100.0 if inputs == "tff" else 30.0,
                "l2-clip-norm": norm,
                "server-learning-rate": rate,
                "server-adaptivity": 1e-3,
            }
            for norm in span.adam_norms
            for rate in span.adam_rates
        ]
    else:
        rates, norms = span.fedavg if precondition is None else span.adadps
        found = [{"local-learning-rate": r, "l2-clip-norm": norm} for r in rates for norm in norms]
    if precondition is None:
        return tuple(found)
    gain = span.gain[precondition == "both"]
    return tuple({**settings, "preconditioner-gain": gain} for settings in found)
