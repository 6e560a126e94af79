"""The rows of the scoreboard: what is claimed, the tests that would go red, and mutants."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Twin:
    """A fault that turns a row red.

    Attributes:
        name: Of `twins.breaks`.
        tests: Where it shows, the fewest that do.
    """

    name: str
    tests: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A claim.

    Attributes:
        number: From 1.
        claim: In a sentence.
        tests: Files, folders and tests below `tests/`; of these the default suite's.
        long: Tests marked slow that belong to it too, left out of the quick form.
        twins: At least one.
    """

    number: int
    claim: str
    tests: tuple[str, ...]
    twins: tuple[Twin, ...]
    long: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """As in tables."""
        return f"R{self.number}"


_GOLDEN = "golden/test_privacy_golden.py"
_SAMPLING = "privacy/test_sampling.py"
_NOISE = "laws/test_noise.py"
_EVERY_NOISE = "laws/test_noise_of_every_privatizer.py"
_ROUNDED = "mechanisms/test_rounded.py"
_CHECKPOINT_ATTACK = "mechanisms/test_checkpoint_attack.py"
_BOUNDS = "laws/bounds"
_KILLS = "running/loop/test_kills.py"
_RANDOM_KILLS = f"{_KILLS}::test_killed_at_random_moments_and_resumed"
_BUDGET = "running/loop/test_budget.py"
_TRIALS = "privacy/selection/test_trials.py::test_epsilon_is_golden"
_STUDY = "studies/test_private_selection.py"
_RELEASED = f"{_STUDY}::test_the_best_is_released_and_no_loser"
_DRAWN_ONCE = f"{_STUDY}::test_the_number_is_drawn_once"
_HOSTILE = "backends/flower/hostile"
_DEVICE = "laws/test_device_path.py"
_REAL = "backends/flower/real"
_KILLED = "trust/kills/test_kills.py"
_LEDGER = "privacy/ledger"
_PLAN = "privacy/plans/test_plan.py"
_KEYS = "running/door/test_draws.py"
_NOISY_MIN = "mechanisms/test_noisy_min.py"
_EVERY_WAY = f"{_NOISY_MIN}::test_indices_have_their_probabilities_exactly"
_CAPPED = "mechanisms/test_capped.py"
_SETTINGS = "experiments/test_settings.py"
_ASKERS_SET = f"{_SETTINGS}::test_no_rostered_askers_titles_and_tags_move_a_setting"
_WITHOUT = "test_without_a_rostered_users_records_the_settings_are_the_same"
_SELECTED = "running/selected/test_laws.py"
_ASKERS_JUDGE = f"{_SELECTED}::test_no_rostered_askers_titles_and_tags_judge"

ROWS = (
    Row(
        number=1,
        claim="The accountants agree with committed values of other libraries, never below",
        tests=(_GOLDEN, _TRIALS),
        long=(_GOLDEN,),
        twins=(
            Twin(name="rate_squared", tests=(f"{_GOLDEN}::test_epsilon_by_delta",)),
            Twin(name="fixed_size_not_doubled", tests=(f"{_GOLDEN}::test_epsilon_is_golden",)),
            Twin(name="trials_not_paid", tests=(_TRIALS,)),
        ),
    ),
    Row(
        number=2,
        claim="A wrong number, a mixed relation or an impossible line is refused, never priced",
        tests=("privacy/test_json.py", "privacy/plans", "test_ranges.py"),
        twins=(Twin(name="numbers_unchecked", tests=("privacy/test_json.py",)),),
    ),
    Row(
        number=3,
        claim="Nobody moves the sum by more than the bound, whatever weights or dropouts",
        tests=(_BOUNDS, "test_sums.py", "training/per_example/linear/test_rounded_sums.py"),
        long=(_BOUNDS,),
        twins=(
            Twin(name="bound_one_percent_long", tests=(f"{_BOUNDS}/test_sensitivity.py",)),
            Twin(name="bounded_before_preconditioned", tests=(f"{_BOUNDS}/test_norm.py",)),
            Twin(name="weighted_by_examples", tests=(f"{_BOUNDS}/test_sensitivity.py",)),
            Twin(name="divided_by_survivors", tests=(f"{_BOUNDS}/test_denominator.py",)),
        ),
    ),
    Row(
        number=4,
        claim="Noise has its standard deviation to a part in a hundred, its shape, no correlation",
        tests=(_NOISE, f"{_ROUNDED}::TestDistribution", _EVERY_NOISE),
        twins=(
            Twin(name="noise_one_percent_short", tests=(_NOISE,)),
            Twin(name="rounded_noise_one_percent_short", tests=(f"{_ROUNDED}::TestDistribution",)),
            Twin(name="noise_in_half_precision", tests=(_NOISE,)),
            Twin(name="length_of_noise_a_tenth_short", tests=(_EVERY_NOISE,)),
            Twin(name="correlated_noise_a_tenth_short", tests=(_EVERY_NOISE,)),
        ),
    ),
    Row(
        number=5,
        claim="A hostile answer contributes nothing, alone, and stops nothing",
        tests=(_HOSTILE, "backends/flower/test_records.py", f"{_BOUNDS}/test_sensitivity.py"),
        twins=(
            Twin(name="nan_passes", tests=(f"{_BOUNDS}/test_sensitivity.py",)),
            Twin(name="longer_sums_let_through", tests=(_HOSTILE,)),
        ),
    ),
    Row(
        number=6,
        claim="Nodes that crash, hang or trickle cost a round their own users, and no time",
        tests=("backends/flower/silent",),
        long=(
            "backends/flower/silent",
            f"{_REAL}/test_silent_supernodes.py",
            f"{_REAL}/test_hostile_uploads.py",
        ),
        twins=(
            Twin(
                name="waits_for_everybody",
                tests=("backends/flower/silent/test_endless_uploads.py",),
            ),
        ),
    ),
    Row(
        number=7,
        claim="Killed at any moment, a run has paid for whatever it drew",
        tests=(
            _RANDOM_KILLS,
            _BUDGET,
        ),
        long=(_KILLS, _KILLED, f"{_LEDGER}/test_failed_writes.py"),
        twins=(
            Twin(
                name="charged_after_the_draw",
                tests=("privacy/ledger/test_ledger.py", _BUDGET),
            ),
        ),
    ),
    Row(
        number=8,
        claim="No noise, no cohort and no study's number of trials is drawn twice, a crash between",
        tests=(_BUDGET, _RANDOM_KILLS, _DRAWN_ONCE, _KILLED, _KEYS),
        twins=(
            Twin(name="noise_by_the_round", tests=(_BUDGET,)),
            Twin(name="named_queries_by_the_round", tests=(_KEYS,)),
            Twin(name="number_drawn_again", tests=(_DRAWN_ONCE,)),
        ),
    ),
    Row(
        number=9,
        claim="An audit through the real door refutes broken mechanisms, and no right one",
        tests=("audit",),
        twins=(Twin(name="noise_halved", tests=("audit/test_audit.py",)),),
    ),
    Row(
        number=10,
        claim="Cohorts are drawn as they are accounted",
        tests=(_SAMPLING,),
        twins=(Twin(name="cohorts_of_one_size", tests=(_SAMPLING,)),),
    ),
    Row(
        number=11,
        claim="Secure noise is exact: no bit of a release tells who is in its sum",
        tests=(
            _ROUNDED,
            _CHECKPOINT_ATTACK,
            "mechanisms/correlated",
            _NOISY_MIN,
            "mechanisms/test_output.py",
            "mechanisms/test_release.py",
            "simulations/comparators/test_sphere_rows.py",
            "mechanisms/test_sub_grid_attack.py",
        ),
        long=(_ROUNDED,),
        twins=(
            Twin(name="noise_in_floats", tests=(_CHECKPOINT_ATTACK,)),
            Twin(name="undecided_bits_ignored", tests=(_ROUNDED,)),
            Twin(name="undecided_bits_shared", tests=(_ROUNDED,)),
        ),
    ),
    Row(
        number=12,
        claim="Secure runs share nothing, keep no key, and write down nothing of who took part; "
        "nothing is left of a study's losing trials",
        tests=(
            _RELEASED,
            "test_rng.py",
            "running/loop/test_reproducible.py",
            "running/loop/test_kept.py",
            "backends/flower/hostile/test_secure_logs.py",
        ),
        twins=(
            Twin(name="secure_by_a_seed", tests=("running/loop/test_reproducible.py",)),
            Twin(name="four_random_bytes", tests=("test_rng.py",)),
            Twin(name="cohorts_in_the_log", tests=("running/loop/test_kept.py",)),
            Twin(name="losing_trials_kept", tests=(_RELEASED,)),
        ),
    ),
    Row(
        number=13,
        claim="A ledger edited in places is refused; cut, put back or rewritten, with its anchor",
        tests=(_LEDGER, "running/loop/test_damage.py", "privacy/statement/test_rechained.py"),
        twins=(Twin(name="chain_not_checked", tests=(f"{_LEDGER}/test_damage.py",)),),
    ),
    Row(
        number=14,
        claim="Serial, threads, Ray and Flower give the same sum, to the bit",
        tests=("oracles/test_backends.py",),
        twins=(Twin(name="floats_summed", tests=("oracles/test_backends.py",)),),
    ),
    Row(
        number=15,
        claim="A run stops before the charge that its budget does not pay for",
        tests=(_BUDGET, "privacy/ledger/test_ledger.py", _PLAN),
        twins=(
            Twin(name="one_charge_too_many", tests=("privacy/ledger/test_ledger.py",)),
            Twin(name="target_passed_by_a_thousandth", tests=(_PLAN,)),
        ),
    ),
    Row(
        number=16,
        claim="Whose losses a line search selects by moves its choice by the ε' that is charged",
        tests=(_NOISY_MIN, _CAPPED, "training/agd", "running/adaptive"),
        twins=(
            Twin(name="cap_of_scores_halved", tests=(_NOISY_MIN,)),
            Twin(name="sign_of_the_noise_turned", tests=(_NOISY_MIN,)),
            Twin(name="candidates_drawn_again", tests=(_EVERY_WAY,)),
            Twin(name="losses_capped_one_percent_high", tests=(_CAPPED,)),
        ),
    ),
    Row(
        number=17,
        claim="Settings and the choice of the returned model look at public examples alone",
        tests=(_ASKERS_SET, f"{_SETTINGS}::{_WITHOUT}", _SELECTED),
        twins=(
            Twin(name="settings_of_all_posts", tests=(_ASKERS_SET,)),
            Twin(name="judged_by_all_posts", tests=(_ASKERS_JUDGE,)),
        ),
    ),
    Row(
        number=18,
        claim="A user trained with others on a device moves the sum by its own bounded update",
        tests=(
            _DEVICE,
            "training/local/vectorised/test_sums.py",
            "training/local/test_device_sum.py",
        ),
        twins=(
            Twin(name="batches_by_who_is_drawn", tests=(_DEVICE,)),
            Twin(name="one_percent_long_on_a_device", tests=(_DEVICE,)),
        ),
    ),
)
