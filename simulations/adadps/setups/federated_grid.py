"""The grid that the methods of Figure 6 were tuned on, committed so that anybody can count it.

Where privacy is real each form of AdaDPS gets four configurations (after a coarse search by hand,
of about a dozen runs in all), each baseline at least as many. In the paper's setting grids were
extended until the best lies inside; the page names what still lies on an edge. DP-FedAdam was tried
there with an adaptivity of 0.001, too, in 24 configurations of the same shape: 4.4 % at best with
TFF inputs, 15.3 % with unit-norm inputs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fedpriv.experiments.composing.options import Option
from simulations.reproduction.items import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """What is tried for one setting and one kind of input.

    A clip norm is worth trying where the noise it brings to a logit is of the order of one: about
    eight times lower in the paper's setting, whose noise on the mean is eight times higher, and
    lower for unit-norm inputs, which are about six times longer than TFF's. Pairs are of learning
    rates and clip norms, of DP-FedAdam of clip norms and the server's rates; AdaDPS takes `gain`
    for the largest 1/A, its root where A acts twice. `local` is a wider range of its local form;
    its other forms, which end within a tenth of a point of that, are tried on the narrower one.
    """

    gain: tuple[float, float]
    adadps: tuple[tuple[float, ...], tuple[float, ...]]
    fedavg: tuple[tuple[float, ...], tuple[float, ...]]
    adam: tuple[tuple[float, ...], tuple[float, ...]]
    adam_settings: Settings
    normalise: tuple[float, ...]
    normalise_rates: tuple[float, ...] = (30.0,)
    local: tuple[tuple[float, ...], tuple[float, ...]] | None = None


_RANGES: Mapping[tuple[str, str], Range] = {
    ("private-8", "tff"): Range(
        gain=(200.0, 14.0),
        adadps=((30.0, 100.0), (150.0, 220.0)),
        fedavg=((3.0, 10.0, 30.0, 100.0), (30.0, 100.0)),
        adam=((10.0, 30.0), (0.05, 0.2, 0.6)),
        adam_settings={"local-learning-rate": 100.0, "server-adaptivity": 1e-3},
        normalise=(3.0, 10.0, 30.0, 60.0),
    ),
    ("private-8", "unit-norm"): Range(
        gain=(20.0, 4.5),
        adadps=((30.0,), (20.0, 40.0, 60.0, 80.0)),
        fedavg=((10.0, 30.0), (20.0, 40.0)),
        adam=((20.0, 40.0), (0.05, 0.2, 0.6)),
        adam_settings={"local-learning-rate": 30.0, "server-adaptivity": 1e-3},
        normalise=(10.0, 20.0, 30.0, 40.0),
    ),
    ("paper", "tff"): Range(
        gain=(50.0, 7.1),
        adadps=((10.0,), (20.0, 40.0)),
        local=((3.0, 10.0, 30.0), (10.0, 20.0, 40.0)),
        fedavg=((3.0, 10.0, 30.0), (5.0, 10.0, 20.0)),
        adam=((1.25, 2.5, 5.0, 10.0), (1.0, 3.0, 9.0)),
        adam_settings={"local-learning-rate": 10.0, "server-adaptivity": 1.0},
        normalise=(0.03, 0.1, 0.3, 1.0, 3.0),
        normalise_rates=(3.0, 10.0, 30.0),
    ),
    ("paper", "unit-norm"): Range(
        gain=(10.0, 3.2),
        adadps=((10.0,), (8.0, 16.0)),
        local=((3.0, 10.0, 30.0), (4.0, 8.0, 16.0)),
        fedavg=((10.0 / 3, 10.0, 30.0), (2.0, 4.0, 8.0)),
        adam=((1.0, 2.0, 4.0, 8.0), (1.0 / 3, 1.0, 3.0, 9.0)),
        adam_settings={"local-learning-rate": 10.0, "server-adaptivity": 1.0},
        normalise=(3.5, 8.0 / 1.5, 8.0, 12.0),
        normalise_rates=(3.0, 10.0, 30.0),
    ),
}
# Without privacy there is no clip norm to tune: the rate alone. By setting, inputs and
# preconditioning.
_NONPRIVATE_RATES: Mapping[tuple[str, str, bool], tuple[float, ...]] = {
    ("private-8", "tff", False): (1.0, 3.0, 10.0, 30.0),
    ("private-8", "tff", True): (10.0, 30.0, 100.0),
    ("private-8", "unit-norm", False): (10.0, 30.0),
    ("private-8", "unit-norm", True): (1.0, 3.0, 10.0),
    ("paper", "tff", False): (3.0, 10.0, 30.0, 90.0),
    ("paper", "tff", True): (30.0, 100.0, 300.0, 900.0),
    ("paper", "unit-norm", False): (10.0, 30.0, 100.0, 300.0),
    ("paper", "unit-norm", True): (3.0, 10.0, 30.0, 90.0, 270.0),
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
        rates = _NONPRIVATE_RATES[setting, inputs, precondition is not None]
        found = [{"local-learning-rate": rate} for rate in rates]
    elif method.get("bound") == "normalise":
        rates, norms = span.normalise_rates, span.normalise
        found = [{"local-learning-rate": r, "l2-clip-norm": norm} for r in rates for norm in norms]
    elif method.get("server-optimizer") == "adam":
        # Noise dominates every second moment, so the useful step is about the noise on the mean;
        # an adaptivity above that noise makes it momentum.
        norms, rates = span.adam
        found = [
            {**span.adam_settings, "l2-clip-norm": norm, "server-learning-rate": rate}
            for norm in norms
            for rate in rates
        ]
    else:
        rates, norms = span.fedavg if precondition is None else span.adadps
        if precondition == "local" and span.local is not None:
            rates, norms = span.local
        found = [{"local-learning-rate": r, "l2-clip-norm": norm} for r in rates for norm in norms]
    if precondition is None:
        return tuple(found)
    gain = span.gain[precondition == "both"]
    return tuple({**settings, "preconditioner-gain": gain} for settings in found)
