"""`fedpriv account --noise tree|banded|blt` and `fedpriv calibrate` of the same."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from fedpriv.cli.terminal.grouped import grouped
from fedpriv.cli.terminal.output import console, fail, print_json
from fedpriv.experiments.options import renamed

NoiseName = Annotated[
    str,
    typer.Option(
        help="gaussian (drawn anew every round), or with a memory: tree, banded, blt; of those "
        "sampling earns nothing, and users and cohort are left out."
    ),
]
#: What the API calls numbers to their flags.
FLAGS_OF = {"noise_multiplier": "noise-multiplier", "target_epsilon": "target-epsilon"}
_OF_STREAMS: Mapping[str, tuple[type, str]] = {
    "min_separation": (int, "Noise with a memory: how many rounds apart one user's are at least."),
    "max_participations": (
        int, "Noise with a memory: a user's rounds at most; by default all that fit."
    ),
    "steps_per_tree": (int, "Trees: rounds until one begins anew."),
    "trees": (int, "Trees: how many."),
    "estimate": (str, "Trees: how prefix sums are estimated, efficient or vanilla."),
    "completion": (bool, "Trees: one that ends is completed, to leave one node's noise."),
    "bands": (int, "Banded noise: how many, by default as apart."),
    "coefficients": (str, "Banded noise: optimised or square-root."),
    "buffers": (int, "BLT: how many, 0 to 6; by default 3."),
    "momentum": (
        float, "Bands and BLT: of the server, that coefficients are optimised for, as runs do."
    ),
}  # fmt: skip
#: Gives a command what else a stream is, as its parameter `pattern`.
with_memory = grouped(
    "pattern",
    [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=None,
            annotation=Annotated[
                kind | None,
                typer.Option(*([f"--{name}"] if kind is bool else []), help=text),
            ],
        )
        for name, (kind, text) in _OF_STREAMS.items()
    ],
)


def refuse_sampling(noise: str, given: dict[str, Any]) -> None:
    """Refuse options of drawn cohorts for noise with a memory."""
    others = [name for name, value in given.items() if value not in (None, False, 1, "poisson")]
    if others:
        fail(
            f"--{others[0]} says nothing of {noise} noise, which costs the same whoever else is "
            "drawn; leave it out"
        )


def refuse_memory(pattern: dict[str, Any]) -> None:
    """Refuse options of noise with a memory for noise without one."""
    for name in pattern:
        fail(
            f"--{name.replace('_', '-')} is of noise with a memory; give --noise tree, or leave it"
        )


def price_stream(
    noise: str,
    *,
    noise_multiplier: float | None = None,
    target_epsilon: float | None = None,
    delta: float | None,
    relation: str | None,
    rounds: int | None,
    pattern: dict[str, Any],
    as_json: bool,
) -> None:
    """Print what a stream costs, or how much of it a target ε asks for; and what it comes to."""
    from fedpriv.api.stream_account import account_stream, calibrate_stream

    if delta is None:
        fail("without users there is no default δ; give --delta, such as 1e-6")
    given: dict[str, Any] = {"noise": noise, "delta": delta, "relation": relation or "zero-out"}
    given |= pattern if rounds is None else {"rounds": rounds, **pattern}
    try:
        if target_epsilon is not None:
            found = calibrate_stream(target_epsilon=target_epsilon, **given)
        elif noise_multiplier is None:
            fail("missing option '--noise-multiplier'")
        else:
            found = account_stream(noise_multiplier=noise_multiplier, **given)
    except ValueError as error:
        fail(renamed(str(error), FLAGS_OF))
    if as_json:
        return print_json(found.to_json())
    return console.print(str(found), markup=False, highlight=False, soft_wrap=True)
