"""The parts that an experiment whose unit is a user is composed of, and their options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from fedpriv.checkpoints.aggregates import RULES
from fedpriv.datasets.stackexchange.splits import Kind, Measured, Owners, PublicText, Split
from fedpriv.experiments.composing.composition import Slot
from fedpriv.experiments.composing.options import option
from fedpriv.experiments.parts import guides, precondition, shared, steps
from fedpriv.experiments.parts.aggregates import AGGREGATE
from fedpriv.experiments.parts.clip_norm import CLIP_NORM
from fedpriv.experiments.parts.methods import bolt_on
from fedpriv.experiments.parts.methods.agd import AgdOfUsers
from fedpriv.experiments.parts.methods.bolt_on import BoltOnOfUsers
from fedpriv.experiments.parts.methods.own import method_slot
from fedpriv.experiments.parts.noise import NOISE
from fedpriv.experiments.parts.separated import COHORTS_APART, promise_slots
from fedpriv.experiments.parts.start import START
from fedpriv.mechanisms import Bound, Rounded
from fedpriv.privacy.sampling import Sampler, sampler_of
from fedpriv.ranges import Range

# torch takes seconds to import, and declarations are read for `fedpriv --help`: tasks and trainers
# are imported where one is made.
if TYPE_CHECKING:
    from fedpriv.datasets.stackexchange.corpus import Corpus
    from fedpriv.datasets.stackexchange.tag_view import TagView
    from fedpriv.tasks.tag_prediction import TagPrediction
    from fedpriv.training.local.trainer import Schedule


class MissingCorpusError(ValueError):
    """A task needs a corpus and none was named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TagPredictionTask:
    """Makes the tag-prediction task of a corpus, seen through a roster."""

    roster: str | None = option(None, "A roster of the corpus; none for the corpus's own.")
    users: int | None = option(
        None, "Only the roster's first so many users, for quick trials.", Range.AT_LEAST_ONE
    )
    inputs: Literal["tff", "unit-norm", "tf-idf"] = option(
        "tff", "How a sentence's words are weighted; tf-idf by their rarity in public text."
    )
    tf_idf_power: float = option(
        0.5,
        "Inputs tf-idf: exponent of the inverse document frequency.",
        Range.AT_LEAST_ZERO,
        before=0.5,
    )
    pairs: int = option(
        0,
        "Rows of the model that pairs of a sentence's words are hashed into; not with inputs tff.",
        Range.AT_LEAST_ZERO,
        before=0,
    )
    pair_weight: float = option(
        0.25,
        "Weight of a pair, times the geometric mean of its words' values.",
        Range.ABOVE_ZERO,
        before=0.25,
    )
    split: Kind = option(
        "by-thread",
        "What is held out: whole threads; by-sentence as the papers did, threads in common.",
        before="by-sentence",
    )
    fold: int = option(
        0, "Which fifth of the threads is for testing, 0 to 4.", Range.AT_LEAST_ZERO, before=0
    )
    measured_on: Measured = option(
        "test",
        "validation holds threads out of training too, and measures on those: for tuning.",
        before="test",
    )
    public_users: int | None = option(
        None,
        "How many users outside the roster count as public; none for all.",
        Range.AT_LEAST_ZERO,
        before=None,
    )
    public_text: PublicText = option(
        "public-threads",
        "What public models learn from; all-posts has rostered users' titles and tags.",
        before="public-threads",
    )

    owners: Owners = option(
        "account",
        "Whose words the unit is: all drops training examples another rostered user asked.",
        before="account",
    )
    select: Literal["last", "public"] = option(
        "last",
        "What a run returns: the last released model (its aggregate, where there is one), or the "
        "model that public examples show to be best, of those and of models that public examples "
        "alone make.",
        before="last",
    )

    def __call__(self, experiment: object, corpus: Corpus | None) -> TagPrediction:
        """Return the task.

        Raises:
            MissingCorpusError: If there is no corpus.
            ValueError: If it has no such roster or so few users, or several models would answer
                together where one is to be selected.
        """
        from fedpriv.tasks.tag_prediction import TagPrediction

        if corpus is None:
            raise MissingCorpusError(
                "tag prediction needs a corpus; give the path of one, or see `fedpriv data list`"
            )
        aggregate = getattr(experiment, "aggregate", None)
        if self.select == "public" and aggregate in RULES:
            raise ValueError(
                f"aggregate {aggregate!r} answers with several models, and select 'public' returns "
                "one; set select last, or aggregate to none, ema or upa"
            )
        split = Split(
            kind=self.split,
            fold=self.fold,
            measured_on=self.measured_on,
            public_users=self.public_users,
            owners=self.owners,
            # All posts have rostered users' titles and tags: what they teach may not be returned
            # as made of public examples. By sentence users train on the threads that would judge.
            selecting=self.select == "public"
            and self.split != "by-sentence"
            and self.public_text != "all-posts",
        )

        def choosing() -> TagView:
            return corpus.view(roster=self.roster, users=self.users, split=split.choosing())

        return TagPrediction(
            corpus.view(roster=self.roster, users=self.users, split=split),
            inputs=self.inputs,
            tf_idf_power=self.tf_idf_power,
            pairs=self.pairs,
            pair_weight=self.pair_weight,
            choosing=None if split.shares_threads else choosing,
            public_text=self.public_text,
            data_sha256=lambda: {"prepared": corpus.content_sha256},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Rounds:
    """How long."""

    rounds: int = option(100, "How many rounds are planned and paid for.", Range.AT_LEAST_ONE)


@dataclass(frozen=True, slots=True, kw_only=True)
class PoissonCohorts:
    """Every user's own independent Bernoulli draw."""

    cohort: float | None = option(
        None, "Expected cohort size; none for a twentieth of the roster.", Range.ABOVE_ZERO
    )
    cohort_cap: int | None = option(None, "Largest cohort; none for no cap.", Range.AT_LEAST_ONE)

    def sampler(self, num_users: int, num_rounds: int) -> Sampler:
        """Return who draws.

        Raises:
            ValueError: If there are not so many users.
        """
        return sampler_of("poisson", num_users, _size(self.cohort, num_users), self.cohort_cap)


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedCohorts:
    """So many users each round."""

    cohort: float | None = option(
        None, "Cohort size; none for a twentieth of the roster.", Range.ABOVE_ZERO
    )

    def sampler(self, num_users: int, num_rounds: int) -> Sampler:
        """Return who draws.

        Raises:
            ValueError: If there are not so many users, or the size is not whole.
        """
        return sampler_of("fixed", num_users, _size(self.cohort, num_users))


def _size(cohort: float | None, num_users: int) -> float:
    return max(1.0, num_users / 20) if cohort is None else cohort


@dataclass(frozen=True, slots=True, kw_only=True)
class ExactSum:
    """Sums of integers."""

    exact_sum: bool = option(
        True, "Round updates to a grid: the same bits for any order, backend and workers."
    )

    def rounded(self, bound: Bound) -> Bound:
        """Return a bound, on a grid where sums are exact."""
        return Rounded(bound=bound) if self.exact_sum else bound


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalSgd:
    """What a user does."""

    local_learning_rate: float = option(1.0, "Step size of local SGD.", Range.ABOVE_ZERO)
    local_batch_size: int = option(100, "Examples a local step.", Range.AT_LEAST_ONE)
    local_epochs: int = option(1, "Local passes.", Range.AT_LEAST_ONE)
    max_examples_per_user: int = option(256, "Cap of a user's work.", Range.AT_LEAST_ONE)

    def schedule(self) -> Schedule:
        """Return how much each user works."""
        from fedpriv.training.local.trainer import Schedule

        return Schedule(
            learning_rate=self.local_learning_rate,
            batch_size=self.local_batch_size,
            epochs=self.local_epochs,
            max_examples=self.max_examples_per_user,
        )


_SERVER: Mapping[str, float] = {"learning_rate": 1.0, "adaptivity": 1e-3}

TAG_PREDICTION = Slot(
    name="task", help="Tag prediction: whose sentences.", choices={"": TagPredictionTask}
)
_SAMPLING: Mapping[str, type] = {
    "poisson": PoissonCohorts,
    "fixed": FixedCohorts,
    **COHORTS_APART,
}
SLOTS = (
    START,
    method_slot(agd=AgdOfUsers, bolt_on=BoltOnOfUsers),
    *bolt_on.SLOTS,
    Slot(name="length", help="How long.", choices={"": Rounds}, within=shared.AVERAGING),
    Slot(
        name="sampling",
        help="How cohorts are drawn.",
        choices=_SAMPLING,
        within=shared.AVERAGING,
    ),
    shared.BOUND,
    CLIP_NORM,
    NOISE,
    Slot(
        name="sum",
        help="Of bounded updates.",
        choices={"": ExactSum},
        # Without noise a bound may be so high that it never binds, and its grid would be coarse.
        within=("noise", frozenset(NOISE.choices) - {"none"}),
    ),
    *promise_slots(_SAMPLING, "agd", "bolt-on"),
    Slot(
        name="local work", help="What a user does.", choices={"": LocalSgd}, within=shared.AVERAGING
    ),
    Slot(
        name="precondition",
        help="Where A of side information acts: in local steps, on the update, or both.",
        choices=precondition.PLACES,
        within=shared.AVERAGING,
    ),
    Slot(
        name="side-information",
        help="What A is made of: what is known of public words, or the task's own multipliers.",
        choices=precondition.KINDS,
        within=("precondition", frozenset(precondition.PLACES) - {"none"}),
    ),
    Slot(
        name="guide",
        help="A preconditioner made of past releases.",
        choices=guides.OF_USERS,
        within=shared.AVERAGING,
    ),
    Slot(
        name="server-optimizer",
        help="What the server makes of the released mean.",
        choices=steps.OF_USERS,
        prefix="server-",
        defaults=_SERVER,
        within=shared.AVERAGING,
    ),
    AGGREGATE,
    shared.RUN,
)
