"""A clip norm that follows a quantile of the users' update norms, paid for by the same noise.

With the clip norm C of the round a user sends two things as one vector of length at most one,

    ( a Δ min(1, C / ‖Δ‖) / C ,  ± h ),   a² + h² = 1,

where the sign says whether ‖Δ‖ <= C. The server clips the vector to one, sums, adds noise of
standard deviation σ to every coordinate and divides by the expected cohort m: one Gaussian
mechanism of σ, whatever C is. Of the answer (u, q) the mean update is C u / a, with noise
σ C / (a m), and ½ + q / 2h is the noisy share of users below C; then C moves geometrically,

    C <- C exp(-rate (½ + q / 2h - quantile)),

down where more than the quantile are below it, and stays within public limits.

Guarantees: one charge of the plan's mechanism a round pays for both; C is post-processing of what
was released; noise is that of the C under which the sum was made. The share is of the expected
cohort, so that neither dropouts nor the cohort's size are revealed. Noise that is correlated over
rounds would have to begin anew with every C and is refused.

Reference: Andrew et al., "Differentially Private Learning with Adaptive Clipping" (2021),
Algorithm 1, whose two noises of z_Δ and σ_b are σ / a and σ / 2h here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from fedpriv import tree
from fedpriv.mechanisms.preconditioners import NoPreconditioner, RoundContext
from fedpriv.mechanisms.privatizer import NoisedMean
from fedpriv.privacy.plan import AnyPlan
from fedpriv.training.federated_averaging import FederatedAveraging, ServerState
from fedpriv.training.work import UserTransform
from fedpriv.tree import Params

CLIP = "clip norm"
"""The name of the tensor that brings C to users, and the count back."""

_GROUP = "clip"
_NO_CONTEXT = RoundContext()


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptiveClip(UserTransform):
    """Rule by which the clip norm moves, which is public, and what users send under it.

    A user sends its update over the clip norm, and on which side of it the update is. Given params
    without a clip norm it sends the update.

    Attributes:
        initial: The clip norm of the first round.
        least: It never falls below.
        most: It never rises above.
        quantile: Share of users whose updates are to be shorter than it.
        rate: Of the geometric step.
        count_weight: h, what the count takes of the vector's length.

    Raises:
        ValueError: If the limits do not hold the initial norm.
    """

    brought: ClassVar[str] = CLIP
    summed: ClassVar[bool] = True

    initial: float
    least: float
    most: float
    quantile: float = 0.5
    rate: float = 0.2
    count_weight: float = 0.2

    def __post_init__(self) -> None:
        if not 0.0 < self.least <= self.initial <= self.most < math.inf:
            raise ValueError(
                f"clip norm {self.initial!r} must lie within its limits {self.least!r} and "
                f"{self.most!r}, which must be above 0; set clip-least and clip-most"
            )

    @property
    def update_weight(self) -> float:
        """a, the share of the bounded vector's length that the update gets."""
        return math.sqrt(1.0 - self.count_weight**2)

    def sent(
        self, tensor: np.ndarray | None, norm: Callable[[], float]
    ) -> tuple[float, Mapping[str, np.ndarray]]:
        """Return the factor a / max(norm, C) of the update, and the user's ± h.

        Raises:
            ValueError: If the update is not finite.
        """
        if tensor is None:
            return 1.0, {}
        length, clip_norm = norm(), float(tensor[0])
        if not math.isfinite(length):
            raise ValueError("an update is not finite")
        count = self.count_weight if length <= clip_norm else -self.count_weight
        factor = self.update_weight / max(length, clip_norm)
        return factor, {CLIP: np.array([count], np.float32)}

    def moved(self, norm: float, count: float) -> float:
        """Return the clip norm of the next round, from the released share.

        Args:
            norm: Of the round.
            count: The released mean of the users' ± h.
        """
        share = 0.5 + count / (2.0 * self.count_weight)
        exponent = min(max(-self.rate * (share - self.quantile), -50.0), 50.0)
        return min(max(norm * math.exp(exponent), self.least), self.most)


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptivelyClipped(FederatedAveraging):
    """Federated averaging whose clip norm follows the users' norms.

    Attributes:
        clip: How it moves.

    Raises:
        ValueError: If updates are preconditioned before they are bounded.
    """

    clip: AdaptiveClip

    def __post_init__(self) -> None:
        FederatedAveraging.__post_init__(self)
        if not isinstance(self.preconditioner, NoPreconditioner):
            raise ValueError(
                "clip-norm 'adaptive' counts norms of updates as users make them: use precondition "
                "'local' or 'none' and no release-preconditioner, or clip-norm 'fixed'"
            )

    def check_plan(self, plan: AnyPlan) -> None:
        """Refuse noise of a whole run, and what plain averaging refuses.

        Raises:
            ValueError: If one charge pays for all rounds, or as the plain method.
        """
        FederatedAveraging.check_plan(self, plan)
        if plan.charged_once:
            raise ValueError(
                "clip-norm 'adaptive': noise of a whole run is correlated over rounds, and would "
                "have to begin anew with every clip norm; use clip-norm 'fixed'"
            )

    def init(self, params: Params) -> ServerState:
        """Return the state before the first round."""
        state = FederatedAveraging.init(self, params)
        return replace(state, preconditioner=_state_of(self.clip.initial))

    def round_tensors(self, state: ServerState) -> Params:
        """Return the clip norm, and the other tensors of the coming round."""
        others = FederatedAveraging.round_tensors(self, state)
        return {**others, CLIP: np.array([clip_norm_of(state)], np.float32)}

    def next(
        self, state: ServerState, answer: NoisedMean, context: RoundContext = _NO_CONTEXT
    ) -> ServerState:
        """Return the state after a release; everything here is post-processing."""
        norm = clip_norm_of(state)
        mean = dict(answer.update)
        count = float(mean.pop(CLIP)[0])
        mean = tree.to_dense(tree.scale(mean, norm / self.clip.update_weight))
        noised = NoisedMean(update=mean, squared_norm=tree.l2_norm(mean) ** 2)
        following = FederatedAveraging.next(self, state, noised, context)
        return replace(following, preconditioner=_state_of(self.clip.moved(norm, count)))


def clip_norm_of(state: ServerState) -> float:
    """Return the clip norm of the coming round."""
    return float(state.preconditioner[_GROUP]["norm"][0])


def _state_of(norm: float) -> dict[str, dict[str, np.ndarray]]:
    # float32, as it is sent to users: both sides divide by and multiply with the same number.
    return {_GROUP: {"norm": np.array([norm], np.float32)}}
