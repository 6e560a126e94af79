"""Privacy events: what one charge does, as a kind and its numbers, and the neighbouring relation.

==========================  =====================  ==============================================
kind                        numbers                one charge is
==========================  =====================  ==============================================
gaussian                    σ                      Gaussian noise on the sum over everybody
poisson-gaussian            σ, q                   the same over a Poisson cohort
truncated-poisson-gaussian  σ, q, n, cap           the same over a Poisson cohort with a cap
fixed-size-gaussian         σ, n, size             the same over a cohort of fixed size
poisson-devices-gaussian    σ, q, devices          the same over a Poisson cohort of devices, each
                                                   bounded alone; a person has so many of them
cyclic-poisson-gaussian     σ, q, rows             a whole run of correlated noise over groups that
                                                   take turns, each with a Poisson cohort
objective-gaussian          σ, shift               Gaussian noise within a minimised objective
pure                        ε                      any ε-DP answer, δ = 0
zcdp                        ρ                      any ρ-zCDP answer (Bun and Steinke 2016)
nonprivate                  (none)                 an answer that nothing protects: ε = ∞
==========================  =====================  ==============================================

σ is the noise multiplier: the standard deviation of the noise on the *sum* over its sensitivity. σ,
ε and ρ are prices of one user who is there or not. Where events are priced under replace-one, which
is one who leaves and one who comes, they become σ/2, 2ε and 4ρ (Bun and Steinke 2016, 1.9). A
charge may be of a whole run: noise that is correlated over rounds is charged once, for all of its
rows together. Events are values; what they cost is computed in `fedpriv.privacy.accounting`. They
travel as JSON of known kinds, never as dp-accounting's named tuples, whose reader imports and calls
whatever the data names.
"""

# pyright: reportMissingTypeStubs=false
# (dp-accounting brings none, and its events are what callers get)

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any, Literal

from fedpriv.libraries import library
from fedpriv.parts import Part, PositiveFloat, PositiveInt, UnknownKindError
from fedpriv.ranges import json_object, positive_float, positive_int

# Loading it takes a second, and workers that train price nothing: it is loaded where it is called.
if TYPE_CHECKING:
    import dp_accounting

FIELDS: dict[str, tuple[str, ...]] = {
    "gaussian": ("noise_multiplier",),
    "poisson-gaussian": ("noise_multiplier", "sampling_prob"),
    "truncated-poisson-gaussian": ("noise_multiplier", "sampling_prob", "num_users", "cap"),
    "fixed-size-gaussian": ("noise_multiplier", "num_users", "size"),
    "poisson-devices-gaussian": ("noise_multiplier", "sampling_prob", "devices"),
    "cyclic-poisson-gaussian": ("noise_multiplier", "sampling_prob", "rows"),
    "objective-gaussian": ("noise_multiplier", "shift"),
    "pure": ("epsilon",),
    "zcdp": ("rho",),
    "nonprivate": (),
}
"""The numbers of each kind. Its accounting is in `fedpriv.privacy.accounting`."""
SMALLEST_NOISE_MULTIPLIER = 0.01
LARGEST_NOISE_MULTIPLIER = 1e5
MOST_DEVICES = 1000
"""Beyond it a person is better grouped."""


class Relation(Enum):
    """Neighbouring relation: which two data sets the guarantee compares."""

    ADD_REMOVE = "add-remove"
    """One rostered user's records are there, or not."""
    REPLACE_ONE = "replace-one"
    """One rostered user's records are replaced by any others."""
    ZERO_OUT = "zero-out"
    """One rostered user contributes zero wherever it takes part, or what its records make of it;
    who takes part when is the same in either case. Correlated noise is accounted under it."""

    @classmethod
    def of(cls, value: Relation | str) -> Relation:
        """Return the relation of a name.

        Raises:
            ValueError: If there is no such relation.
        """
        try:
            return cls(value)
        except ValueError:
            raise ValueError(
                f"relation {value!r} is unknown; give 'add-remove', 'replace-one' or 'zero-out'"
            ) from None

    @property
    def moved(self) -> float:
        """Factor on the sensitivity to one user's presence: 2 where a user is replaced, else 1."""
        return 2.0 if self is Relation.REPLACE_ONE else 1.0

    @property
    def dp_relation(self) -> dp_accounting.NeighboringRelation:
        """dp-accounting's name of it."""
        import dp_accounting

        # A blanked user is priced as one who is not there: nothing that is priced here hangs on how
        # long the roster is, and what does (a cohort of fixed size) is refused.
        return (
            dp_accounting.NeighboringRelation.REPLACE_ONE
            if self is Relation.REPLACE_ONE
            else dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE
        )


def _noise_multiplier(name: str, value: Any) -> float:
    sigma = positive_float(name, value)
    if sigma < SMALLEST_NOISE_MULTIPLIER:
        raise ValueError(
            f"{name} {sigma} is below {SMALLEST_NOISE_MULTIPLIER}, where ε runs into the thousands "
            "a round; raise it, or ask for noise 'none'"
        )
    if sigma > LARGEST_NOISE_MULTIPLIER:
        raise ValueError(
            f"{name} {sigma} is above {LARGEST_NOISE_MULTIPLIER:g}, where nothing but noise is "
            "left; lower it"
        )
    return sigma


def _sampling_prob(name: str, value: Any) -> float:
    prob = positive_float(name, value)
    if prob > 1.0:
        raise ValueError(f"{name} {prob} is above 1; give expected cohort over users")
    return prob


def _devices(name: str, value: Any) -> int:
    number = positive_int(name, value)
    if number > MOST_DEVICES:
        raise ValueError(
            f"{name} {number} is above {MOST_DEVICES}; bound what a person's devices send "
            "together, as one user"
        )
    return number


@dataclass(frozen=True, slots=True, kw_only=True)
class Event(Part):
    """The event of one charge: how the cohort was drawn and how the answer was protected.

    Attributes:
        kind: One of the kinds above; nothing else can be written or read.
        noise_multiplier: σ, between 0.01 and 100000 (the Gaussian kinds).
        sampling_prob: Probability that a user is drawn, or a device (the Poisson kinds).
        num_users: Size of the roster (truncated and fixed-size kinds).
        cap: Largest cohort (truncated kind).
        size: Cohort size (fixed-size kind).
        devices: How many devices of the roster a person has at most, 1 to 1000 (devices kind); σ is
            the standard deviation over the bound of one device.
        rows: In how many rows of a run a user may be drawn (cyclic kind); one charge is of all.
        shift: What an answer of the objective kind may lose besides, above 0.
        epsilon: ε of a pure answer, of one user who is there or not.
        rho: ρ of a zCDP answer.

    Raises:
        ValueError: If a number is missing, superfluous, not finite or out of range.
    """

    kind: str
    noise_multiplier: Annotated[float, _noise_multiplier] | None = None
    sampling_prob: Annotated[float, _sampling_prob] | None = None
    num_users: PositiveInt | None = None
    cap: PositiveInt | None = None
    size: PositiveInt | None = None
    devices: Annotated[int, _devices] | None = None
    rows: PositiveInt | None = None
    shift: PositiveFloat | None = None
    epsilon: PositiveFloat | None = None
    rho: PositiveFloat | None = None

    def check(self) -> None:
        """Refuse other numbers than those of the kind, and cohorts above the roster."""
        if self.kind not in FIELDS:
            raise ValueError(
                f"event kind {self.kind!r} is unknown; give one of {', '.join(FIELDS)}"
            )
        given = {item.name for item in fields(self) if getattr(self, item.name) is not None}
        if given != {"kind", *FIELDS[self.kind]}:
            raise ValueError(
                f"a {self.kind} event has the numbers {FIELDS[self.kind]}, not those of {self!r}"
            )
        for name in ("cap", "size"):
            value = getattr(self, name)
            if value is not None and self.num_users is not None and value > self.num_users:
                raise ValueError(f"{name} {value} is above the {self.num_users} users; lower it")

    @property
    def is_private(self) -> bool:
        """Whether its ε is finite."""
        return self.kind != "nonprivate"

    @property
    def is_sampled(self) -> bool:
        """Whether its cost relies on amplification by a secret cohort."""
        return self.sampling_prob is not None or self.size is not None

    @property
    def sigma(self) -> float:
        """σ of a Gaussian kind.

        Raises:
            ValueError: If it is of another kind.
        """
        if self.noise_multiplier is None:
            raise ValueError(f"a {self.kind} event has no noise multiplier")
        return self.noise_multiplier

    def to_json(self) -> dict[str, Any]:
        """Return the event as plain JSON values, the given fields only.

        >>> Event(kind="gaussian", noise_multiplier=2).to_json()
        {'kind': 'gaussian', 'noise_multiplier': 2.0}
        """
        return {"kind": self.kind, **{name: getattr(self, name) for name in FIELDS[self.kind]}}

    @classmethod
    def from_json(cls, value: Any) -> Event:
        """Return the event that `to_json` wrote; nothing in it is ever imported or called.

        Raises:
            UnknownKindError: If its kind is not known here.
            ValueError: If it is not an object with exactly its kind's fields.
        """
        given = json_object(value) or {}
        if isinstance(kind := given.get("kind"), str) and kind not in FIELDS:
            raise UnknownKindError(
                f"kind {kind!r} of event is unknown here: load the file that adds it (add_kind), "
                "on the command line by `fedpriv --load FILE ...`"
            )
        names = {"kind", *FIELDS.get(str(kind), ())}
        if set(given) != names:
            raise ValueError(f"{value!r} is not an event; one has the fields {sorted(names)}")
        return cls(**given)

    def to_dp_event(
        self, relation: Relation = Relation.ADD_REMOVE, *, accountant: Literal["PLD", "RDP"] = "PLD"
    ) -> dp_accounting.DpEvent:
        """Return dp-accounting's event, made of built-in floats and ints.

        Args:
            relation: The neighbouring relation it will be accounted under.
            accountant: Who will price it. RDP under replace-one gets half the noise multiplier:
                it leaves out the doubled sensitivity.
        """
        import dp_accounting

        moved = relation.moved

        numbers: dict[str, Any] = {name: getattr(self, name) for name in FIELDS[self.kind]}
        sigma = (self.noise_multiplier or 0.0) / (moved if accountant == "RDP" else 1.0)
        gaussian = dp_accounting.GaussianDpEvent(sigma)

        def drawn() -> dp_accounting.DpEvent:
            return dp_accounting.PoissonSampledDpEvent(
                sampling_probability=numbers["sampling_prob"], event=gaussian
            )

        match self.kind:
            case "nonprivate":
                return dp_accounting.NonPrivateDpEvent()
            case "zcdp":
                return dp_accounting.ZCDpEvent(rho=moved**2 * numbers["rho"])
            case "pure":
                # ε-DP is ε²/2-zCDP (Bun and Steinke 2016, Proposition 1.4).
                return dp_accounting.ZCDpEvent(rho=0.5 * (moved * numbers["epsilon"]) ** 2)
            case "gaussian":
                return gaussian
            case "poisson-gaussian":
                return drawn()
            case "cyclic-poisson-gaussian":
                return dp_accounting.SelfComposedDpEvent(drawn(), numbers["rows"])
            case "truncated-poisson-gaussian":
                return dp_accounting.dp_event.TruncatedSubsampledGaussianDpEvent(
                    dataset_size=numbers["num_users"],
                    sampling_probability=numbers["sampling_prob"],
                    truncated_batch_size=numbers["cap"],
                    noise_multiplier=sigma,
                )
            case "poisson-devices-gaussian":
                sums, probs = device_sums(numbers["devices"], numbers["sampling_prob"])
                return dp_accounting.dp_event.MixtureOfGaussiansDpEvent(sigma, sums, probs)
            case "fixed-size-gaussian":
                return dp_accounting.SampledWithoutReplacementDpEvent(
                    source_dataset_size=numbers["num_users"],
                    sample_size=numbers["size"],
                    event=gaussian,
                )
            case _:  # priced by its privacy loss alone
                return dp_accounting.UnsupportedDpEvent()


def device_sums(devices: int, sampling_prob: float) -> tuple[list[float], list[float]]:
    """Return how far a person's devices may move a sum, over one device's bound, and how likely.

    Each is drawn independently, so how many take part is binomial; at worst all push the same way.

    Args:
        devices: How many the person has, K.
        sampling_prob: q, the probability that one is drawn.

    Returns:
        Numbers of devices and their probabilities, both of one length, at most K + 1.
    """
    binom = library("scipy.stats").binom
    probs = [float(p) for p in binom.pmf(range(devices + 1), devices, sampling_prob)]
    kept = [number for number, prob in enumerate(probs) if prob > 0.0]
    return [float(number) for number in kept], [probs[number] for number in kept]


NONPRIVATE = Event(kind="nonprivate")
"""The event of a charge without noise: ε = ∞."""
