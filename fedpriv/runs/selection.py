"""The model that a run returns, selected on public examples after its last round.

Candidates are the public models (what public examples alone make, and where training started), and
the released ones: the last, its average where there is one, and both moved back towards the start.
None of it sees a private example beyond what was released, so it costs no privacy.

Public examples made the start, and so cannot judge it. They are cross-fitted: for each fold of them
the public models are trained again without it, and from a released model what that fold made of the
start is taken out as far as it is still there (`without_fold`).

Few public examples can show a gain of a few points only where it is large. Where settings were
chosen from the data's size and the noise is short (`Settings.expects_clear_gain`), the first
released model is returned unless they show it to be behind; elsewhere one has to be shown to be
better.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedpriv.checkpoints.tensor_files import (
    PUBLIC_MODEL,
    PUBLIC_MODELS,
    START,
    candidates,
    params_sha256,
)
from fedpriv.experiments.experiment import Components
from fedpriv.experiments.start import PublicOnly, Start, public_only
from fedpriv.rng import Key
from fedpriv.training.public_selection import FEWEST_GROUPS, Judgement, judge
from fedpriv.tree import Params

_KEY = Key.simulation(0).fold("selection")  # the choice is a function of what it chooses among


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The model that a run returns.

    Attributes:
        params: float32 tensors.
        judgement: Of the public examples; None where there were too few, or none.
        name: Of the selected model among the candidates.
        reason: Why nothing was judged, else "".
        expected: The released model that is returned unless it is behind; None for none.
    """

    params: Params = field(repr=False)
    judgement: Judgement | None
    name: str
    reason: str = ""
    expected: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values, for `summary.json`."""
        judged = {} if self.judgement is None else self.judgement.to_json()
        return {
            "selected": self.name,
            "public": self.name in PUBLIC_MODELS,  # no private training went into it
            "sha256": params_sha256(self.params),
            "reason": self.reason,
            "expected": self.expected,
            **judged,
        }


def select(
    components: Components,
    start: Start,
    public: PublicOnly | None,
    released: Mapping[str, Params],
    *,
    key: Key | None = None,
    tell: Callable[[str], None] = lambda text: None,
) -> Selection:
    """Return a released or public model, selected on public examples.

    Args:
        components: Of the experiment; its task has public examples that no user trained on.
        start: Where the run started.
        public: What public examples alone make; None to make it.
        released: Released models by name, in order of preference.
        key: Orders the public examples where it is made; None for a fixed one.
        tell: Called with what is done, in a few words.

    Guarantees:
        * A function of released models, public examples, the length of the roster, ε, δ and the
          number of parameters alone.
    """
    preferred, task = next(iter(released)), components.task
    kind = start.facts["kind"]
    folds = task.public_folds()
    why = ""
    if kind == "file":
        folds = None
        why = "training started from a file, which may know the public examples that would judge"
    elif folds is None:
        why = (
            "no public example can judge it: split by-sentence shares their threads with training, "
            "and public-text all-posts has rostered users' titles and tags"
        )
    elif public is None:
        tell("selecting the returned model: public examples alone")
        public = public_only(task, _KEY if key is None else key)
    if folds is None or public is None:
        why = why or "there are no public examples to select on"
        return Selection(params=released[preferred], judgement=None, name=preferred, reason=why)
    made, groups = public, [fold.groups for fold in folds]
    enough = sum(len(np.unique(one)) for one in groups) >= FEWEST_GROUPS
    alone: list[PublicOnly | None] = []
    for number, fold in enumerate(folds if enough else (), start=1):
        tell(f"selecting the returned model: fold {number} of {len(folds)}")
        alone.append(public_only(fold, _KEY))
    settings = components.settings
    clear = settings is not None and settings.expects_clear_gain
    expected = preferred if clear and preferred in candidates(released, None) else None
    if not enough or None in alone:
        if expected is not None:
            return Selection(
                params=released[preferred],
                judgement=None,
                name=preferred,
                reason="too few public examples to judge it, and little noise for so many users",
                expected=preferred,
            )
        return Selection(
            params=made.model,
            judgement=None,
            name=PUBLIC_MODEL,
            reason="too few public examples to show that a released model is better",
        )
    first = {START: start.params} if kind == "public" else {}
    models = candidates(released, start.params) | first | {PUBLIC_MODEL: made.model}
    values: dict[str, list[np.ndarray]] = {name: [] for name in models}
    for fold, found in zip(folds, alone, strict=True):
        assert found is not None
        begun = start.params
        if kind == "public" and components.start is not None:
            begun = components.start(fold, _KEY, found).params
        moved = {name: without_fold(one, start.params, begun) for name, one in released.items()}
        made_without = candidates(moved, begun) | {START: begun, PUBLIC_MODEL: found.model}
        for name in models:
            values[name].append(fold.values(made_without[name]))
    judgement = judge(
        {name: np.concatenate(parts) for name, parts in values.items()},
        np.concatenate(groups),
        reference=PUBLIC_MODEL,
        key=_KEY.fold("resamples"),
        expected=expected,
        higher_is_better=task.measures[0].higher_is_better,
    )
    chosen = judgement.selected
    return Selection(params=models[chosen], judgement=judgement, name=chosen, expected=expected)


def without_fold(params: Params, start: Params, begun: Params) -> Params:
    """Return a released model without what a fold of public examples made of the run's start.

    The fold made r = `start` - `begun`. Private training may have unlearnt any part of that, so
    not r is subtracted, but each row's component along r, of at most r: what is left points no
    further along r than `begun` does, where the fold had no part. A row is what belongs to one
    index of a tensor's first axis, such as a word; a vector is one row.

    Args:
        params: Released.
        start: Where the run started; the fold's examples were among those that made it.
        begun: The start that was made without the fold.
    """
    found: Params = {}
    for name, array in params.items():
        shape = (len(array), -1) if array.ndim > 1 else (1, -1)
        left = begun[name].reshape(shape)
        made = start[name].reshape(shape) - left
        moved = array.reshape(shape) - left
        square = np.sum(made * made, axis=1, keepdims=True)
        along = np.sum(moved * made, axis=1, keepdims=True) / np.where(square > 0.0, square, 1.0)
        found[name] = (array.reshape(shape) - np.clip(along, 0.0, 1.0) * made).reshape(array.shape)
    return found
