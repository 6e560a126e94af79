"""Noise with a memory beside independent noise, by user, threads held out, at equal ε.

    python -m simulations.threads.by_stream --corpus onstartups --folds 1
    python -m simulations.threads.by_stream --corpus onstartups --folds 1 --start zero

Independent noise comes twice: over Poisson cohorts, whose amplification ε counts, and over groups
that take turns, where nothing may be claimed for sampling (one band). The streams are all of the
second kind, but for one of bands over independent draws within groups, which amplify it. Each comes
with the fixed preconditioner of public words and without. Settings were chosen on validation
threads of one fold at ε 8 from the public start, one clip norm and min-separation a stream.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from fedpriv.experiments.options import Option
from simulations.threads.compared import compare
from simulations.threads.methods import ABLATION, METHODS, Method
from simulations.threads.study import PUBLIC, Study, model_name

_OTHERWISE = (
    "Streams and one band: zero-out, one charge a run, no assumption on how cohorts are drawn, "
    "except for the amplified bands, whose draws within groups are independent and secret."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Chosen:
    """Settings of a stream.

    Attributes:
        apart: Min-separation, and the number of groups.
        norm: The clip norm.
    """

    apart: int
    norm: float


_CHOSEN: Mapping[str, _Chosen] = {
    "tree": _Chosen(apart=4, norm=60.0),
    "banded": _Chosen(apart=4, norm=60.0),
    "blt": _Chosen(apart=4, norm=60.0),
}
_DRAWN = 0.15  # of the roster a round: six tenths of a group
_LABELS = {
    "tree": "binary tree",
    "banded": "optimised bands",
    "blt": "BLT, three buffers",
}


def _stream(
    noise: str, label: str, chosen: _Chosen, *, drawn: float | None = None, **more: Option
) -> Method:
    options: dict[str, Option] = {
        "noise": noise,
        "min-separation": chosen.apart,
        "l2-clip-norm": chosen.norm,
        "rounds": 80,
        "local-learning-rate": 30.0,
        "start-factor": 0.5,
        **more,
    }
    return Method(
        label=label,
        experiment="adadps-ftrl-tags",
        options={epsilon: {"target-epsilon": epsilon, **options} for epsilon in (2.0, 8.0)},
        cohort=drawn,
    )


BY_STREAM: Mapping[str, Method] = {
    "Poisson": replace(METHODS["public start"], label="independent noise, Poisson cohorts"),
    "Poisson plain": replace(ABLATION["not adaptive"], label="the same without the preconditioner"),
    "one band": _stream(
        "banded", "independent noise, nothing claimed for sampling", _CHOSEN["banded"], bands=1
    ),
    **{name: _stream(name, _LABELS[name], chosen) for name, chosen in _CHOSEN.items()},
    "amplified": _stream(
        "banded", "optimised bands, draws within groups", _CHOSEN["banded"], drawn=_DRAWN
    ),
    **{
        f"{name} plain": _stream(
            name, f"{_LABELS[name]}, without the preconditioner", chosen, precondition="none"
        )
        for name, chosen in _CHOSEN.items()
    },
}


def _from_zero(method: Method) -> Method:
    """Return the method with its start taken away."""
    options = {
        epsilon: {name: value for name, value in given.items() if name != "start-factor"}
        | {"start": "fresh"}
        for epsilon, given in method.options.items()
    }
    return replace(method, options=options)


STARTS: Mapping[str, Mapping[str, Method]] = {
    "public": BY_STREAM,
    "zero": {name: _from_zero(method) for name, method in BY_STREAM.items()},
}


def pairs(study: Study) -> list[tuple[str, str]]:
    """Return which models are compared: streams with three others."""
    known = {name for name, *_ in study.trained}
    found = []
    for name, _, epsilon in study.trained:
        if name.startswith(("tree", "banded", "blt", "one band", "amplified")):
            others = [PUBLIC, *(model_name(own, epsilon) for own in ("one band", "Poisson"))]
            found += [(name, o) for o in others if o != name and (o == PUBLIC or o in known)]
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Train what is missing and print the page."""
    compare(
        arguments,
        described=__doc__,
        program="simulations.threads.by_stream",
        methods=STARTS,
        pairs=pairs,
        otherwise=_OTHERWISE,
    )


if __name__ == "__main__":
    main()
