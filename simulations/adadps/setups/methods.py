"""What the tables of AdaDPS compare: every method by its label, as options of an experiment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from fedpriv.experiments.composing.options import Option

#: Methods of one family see gradients of one scale, and so search the same learning rates.
Family = Literal["plain", "adaptive", "adagrad", "guided", "divided later"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """One row.

    Attributes:
        label: What it is called; with "(not private)" where it promises nothing.
        options: Of the experiment, but for clip norm, learning rate and what a setup adds.
        family: Whose learning rates it searches.
        public: Whether it looks at public gradients, in batches of the setup's size.
    """

    label: str
    options: Mapping[str, Option] = field(default_factory=dict)
    family: Family = "plain"
    public: bool = False

    @property
    def is_private(self) -> bool:
        """Whether it promises anything."""
        return "(not private)" not in self.label

    @property
    def divides(self) -> bool:
        """Whether it divides by moments, so that ε_s matters."""
        return self.options.get("guide", "none") not in (
            "none",
            "side-information",
            "mirror-descent",
        )


_PLAIN: Mapping[str, Option] = {"noise": "none", "bound": "none"}
_NORMALISED = {"bound": "normalise", "normalise-regulariser": 0.01}


def _guided(
    label: str, guide: str, more: Mapping[str, Option] | None = None, *, public: bool = True
) -> Method:
    return Method(
        label=label, options={**(more or {}), "guide": guide}, family="guided", public=public
    )


def _knowing(label: str, kind: str, more: Mapping[str, Option] | None = None) -> Method:
    return Method(
        label=label, options={**(more or {}), "guide": "side-information", "side-information": kind}
    )


METHODS: Mapping[str, Method] = {
    method.label: method
    for method in (
        Method(label="DP-SGD"),
        Method(label="DP-Adam", options={"optimizer": "adam"}, family="adaptive"),
        Method(label="DP-RMSProp", options={"optimizer": "rmsprop"}, family="adaptive"),
        Method(label="DP-AdaGrad", options={"optimizer": "adagrad"}, family="adagrad"),
        _guided("AdaDPS, public RMSProp", "public-rmsprop"),
        _guided("AdaDPS, public Adam", "public-adam"),
        _guided("AdaDPS, public AdaGrad", "public-adagrad"),
        _knowing("AdaDPS, token frequency", "frequency"),
        _knowing("AdaDPS, TF-IDF", "tf-idf"),
        _knowing("AdaDPS, mean magnitude", "magnitude"),
        _knowing("AdaDPS, word rank", "rank"),
        Method(label="DP-R-Pub", options={"guide": "r-pub"}, family="divided later", public=True),
        Method(
            label="DP-Adam-Pub",
            options={"guide": "adam-pub", "optimizer": "ema-momentum"},
            family="divided later",
            public=True,
        ),
        Method(label="PDA-DPMD", options={"guide": "mirror-descent"}),
        Method(label="DP-SGD, warm start", options={"warm-start-epochs": 20}),
        Method(label="DP²", options={"guide": "delayed"}),
        Method(
            label="Scale, then privatise",
            options={"guide": "past-releases", "optimizer": "adam"},
            family="adaptive",
        ),
        Method(label="DP-NSGD", options=_NORMALISED),
        Method(label="DP-NAdam", options={**_NORMALISED, "optimizer": "adam"}, family="adaptive"),
        _guided("ideal (not private)", "ideal", public=False),
        Method(label="SGD (not private)", options=_PLAIN),
        Method(
            label="Adam (not private)", options={**_PLAIN, "optimizer": "adam"}, family="adaptive"
        ),
        _guided("AdaS, public (not private)", "public-rmsprop", _PLAIN),
        _knowing("AdaS, token frequency (not private)", "frequency", _PLAIN),
        _knowing("AdaS, word rank (not private)", "rank", _PLAIN),
    )
}
