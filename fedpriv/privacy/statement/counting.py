"""What a statement says of how ε was counted: who was drawn, what was added, by whom accounted."""

from __future__ import annotations

from fedpriv.measures import grouped
from fedpriv.privacy.epsilon import Epsilon
from fedpriv.privacy.event import Event, Relation
from fedpriv.privacy.mechanism import Mechanism
from fedpriv.privacy.plans.adaptive import AnyPlan
from fedpriv.privacy.recorded import RecordedMechanism
from fedpriv.privacy.sampling import FixedSizeSampler, PoissonSampler
from fedpriv.privacy.statement.wording import short
from fedpriv.privacy.unit_words import words_of

#: Privatizers of a finished result, by name.
PERTURBING = ("sphere", "output-gaussian")


def how_counted(
    plan: AnyPlan, spent: Epsilon, num_charges: int, num_lost: int, *, adaptive: bool = False
) -> list[str]:
    """Return the paragraphs on what each charge did and how they were added up.

    Args:
        plan: The promise.
        spent: ε of the charges.
        num_charges: Charges spent.
        num_lost: Of these, attempts that released nothing.
        adaptive: Whether the clip norm follows the users' norms.
    """
    if not plan.is_private:
        return []
    words = words_of(plan.unit)
    lost = f"; {num_lost} of them lost to interruptions and spent all the same" if num_lost else ""
    rdp = (
        f" Rényi accounting (RDP) gives {short(spent.rdp)}."
        if spent.rdp is not None and spent.accountant != "RDP"
        else ""
    )
    how = {
        "PLD": "privacy loss distributions (PLD), rounded up",
        "RDP": "Rényi accounting (RDP)",
        "composition": "adding up the ε of every answer, with no δ",
    }[spent.accountant]
    relation = f"ε is computed by {how}, with the {plan.relation.value} relation.{rdp}"
    before = (
        f"was charged on disk before its {words.contributor}s and its noise were drawn, and "
        "everything computed from released values is free."
    )
    mechanism = plan.mechanism
    if mechanism is None:  # every query brought its own
        return [
            f"What each answer costs was decided on the way, as long as all together stayed within "
            f"{plan.budget} of zero-concentrated DP. ε is that of the whole, whatever was spent "
            f"of it. {num_charges:,} answers are charged{lost}; every one {before}",
            relation,
        ]
    if plan.charged_once:
        charged = (
            f"One charge pays for all {plan.planned_rounds:,} rows of noise together. It {before} "
            "Every row is used once; one that an interruption left open is lost, and its users "
            "count as having taken part."
        )
    else:
        charged = (
            f"{num_charges:,} of {plan.planned_rounds:,} planned {words.turn}s are charged{lost}. "
            f"Every {words.turn} {before}"
        )
    counted = [_COUNTED] if adaptive else []
    return [*_what_was_done(plan, mechanism), *counted, charged, relation, *_chosen(plan)]


_COUNTED = (
    "The clip norm adapts. What is called an update here is a vector of two parts: the update, "
    "over the clip norm of the round, and on which side of that norm it was. Both get the noise "
    "above in one answer and under one charge; the next clip norm is computed from the noisy "
    "count alone."
)


def _chosen(plan: AnyPlan) -> list[str]:
    if plan.trials is None:
        return []
    return [
        f"This run is the best of a study: a random number of runs of this plan ({plan.trials.name}"
        "), each with settings drawn anew by chance. How many there were was drawn once, before "
        "the first, and is not published; of the others nothing is. Settings were compared by "
        "figures that are public or charged. ε is that of the whole study, this choice included "
        "(Papernot and Steinke 2022), for every round of the run alike, because the choice looked "
        "at the last. How long the study took is not hidden, and tells about how many runs there "
        "were."
    ]


def _what_was_done(plan: AnyPlan, mechanism: Mechanism | RecordedMechanism) -> list[str]:
    if plan.unit == "owner" and mechanism.event.is_private:
        return [f"What was charged: {RecordedMechanism.of(mechanism).description}.", _owned(plan)]
    if mechanism.privatizer.name in PERTURBING:
        described = f"What was charged: {RecordedMechanism.of(mechanism).description}."
        return [described, _perturbed(plan)]
    if mechanism.privatizer.name.startswith("objective-"):
        described = f"What was charged: {RecordedMechanism.of(mechanism).description}."
        return [described, _OBJECTIVE]
    if mechanism.event.kind == "cyclic-poisson-gaussian":
        described = f"What was charged: {RecordedMechanism.of(mechanism).description}."
        return [described, _drawn_in_turn(plan, mechanism.event)]
    if isinstance(mechanism, RecordedMechanism):
        return [f"What was charged: {mechanism.description}."]
    if mechanism.event.noise_multiplier is None or mechanism.charged_once:
        return [f"What was charged: {RecordedMechanism.of(mechanism).description}."]
    return [_drawn(plan, mechanism), _noised(plan, mechanism)]


_OBJECTIVE = (
    "A secret random linear term was added to the objective, and what was released is where its "
    "minimum was found, with noise for what was not exact about it. That is proved of a "
    "regularised linear model with inputs of bounded length, whose loss is smooth and falls with "
    "the margin, and of a gradient that was measured to be short; and of nothing else: no "
    "checkpoint, and no figure measured on private data on the way, may leave."
)


def _perturbed(plan: AnyPlan) -> str:
    """Return what the ε of a perturbed result takes for granted."""
    words = words_of(plan.unit)
    trusted = (
        " Every other user's device must do the prescribed work, and no other, in either case: a "
        "hostile one may drive two runs apart. Whoever fails or is missing where training starts "
        "counts as not there in every update; whoever does so later ends the run unreleased, and "
        "that it ended is covered by no ε."
        if plan.unit == "user"
        else ""
    )
    empty = (
        f" Under add-remove one that is not there leaves its place in the order empty: "
        f"how many {words.contributor}s there are is public, and the same in either case."
        if plan.relation is Relation.ADD_REMOVE
        else ""
    )
    return (
        f"Training itself adds no noise. Its result is perturbed once, by how far one "
        f"{words.contributor} can move it; that is proved of permutation SGD on a convex loss "
        "with inputs of bounded length, and of nothing else: no clipped update, no momentum, no "
        "checkpoint and no figure measured on private data on the way may leave." + trusted + empty
    )


def _drawn_in_turn(plan: AnyPlan, event: Event) -> str:
    """Return what the price of draws within groups takes for granted."""
    words = words_of(plan.unit)
    return (
        f"Groups of {words.contributor}s take turns, and every {words.turn} draws each "
        f"{words.contributor} of its group independently of the others with probability "
        f"{event.sampling_prob:.4g}. That makes ε smaller; the {words.who} draws, and ε holds as "
        f"long as the {words.drawn} stays secret. Which group is in turn need not."
    )


def _owned(plan: AnyPlan) -> str:
    """Return how an owner's examples are accounted together; an event of one has no devices."""
    event = plan.event
    assert event is not None
    most, prob = event.devices or 1, event.sampling_prob or 1.0
    return (
        f"Every step draws each of {plan.num_users:,} listed examples independently, with "
        f"probability {prob:.4g}, and bounds each alone. An owner has at most {most:,} of them, "
        "and how many of those are drawn is binomial: blanking them moves the sum by at most that "
        "many times the bound, and each step is accounted as that mixture of Gaussians. A blanked "
        "example keeps its place in the list and contributes zero, as one that is not drawn: the "
        "sum moves as under add-remove, and the number of examples, the probability and the "
        "denominator do not."
    )


def _drawn(plan: AnyPlan, mechanism: Mechanism) -> str:
    sampler, words = mechanism.sampler, words_of(plan.unit)
    mean = grouped(mechanism.expected_cohort_size)
    if isinstance(sampler, FixedSizeSampler):
        drawn = (
            f"Every {words.turn} draws {mean} of {plan.num_users:,} "
            f"{words.contributor}s without replacement. {words.draws.capitalize()} of fixed size "
            f"earn much less than independent draws, and are accounted as what they are, "
            f"under replacement of one {plan.unit}."
        )
    elif isinstance(sampler, PoissonSampler):
        drawn = (
            f"Every {words.turn} draws each {words.contributor} independently of the others with "
            f"probability {sampler.sampling_prob:.4g} ({mean} of "
            f"{plan.num_users:,} on average; Poisson sampling); the {words.who} draws, and ε "
            f"holds as long as the {words.drawn} stays secret."
        )
        if sampler.cap is not None:
            drawn += (
                f" When more than {sampler.cap:,} are drawn a uniform subset takes part; ε "
                "includes that."
            )
    else:
        drawn = f"{RecordedMechanism.of(mechanism).description}."
    return drawn


def _noised(plan: AnyPlan, mechanism: Mechanism) -> str:
    verb = "clipped to" if mechanism.bound.name == "clip" else "normalised to"
    updates = (
        f"Each {words_of(plan.unit).contributor}'s update is"
        if mechanism.micro_batch == 1
        else f"Means over about {mechanism.micro_batch} examples, each drawn into its own by "
        "chance, are"
    )
    divisor = "number of means" if mechanism.micro_batch > 1 else "cohort, whoever replied"
    if plan.unit != "user" and mechanism.micro_batch == 1:
        divisor = "number of examples, however many were drawn"
    noised = (
        f"{updates} {verb} an l2 norm of {mechanism.l2_bound:g}, the updates are "
        f"summed unweighted, and Gaussian noise of standard deviation {mechanism.stddev:.4g} "
        f"(noise multiplier {mechanism.noise_multiplier:.4g}) is added to the sum once. The sum "
        f"is divided by the planned {divisor}."
    )
    if mechanism.micro_batch > 1:
        noised += (
            f" One example changes the mean it is in, and so moves the sum by up to twice the "
            f"bound, {mechanism.sensitivity:g}: the noise multiplier is taken to that."
        )
    return noised
