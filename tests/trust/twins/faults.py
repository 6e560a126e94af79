"""Named faults that are a line or two of text: what a sentence says, wrong in today's code.

A fault is carried to new modules by its sentence alone; `module`, `old` and `new` say where it is
today. Each is one that a framework, a paper's code or an attacker would have.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A fault, and the tests that turn red under it.

    Attributes:
        name: Of the fault.
        behaviour: What is wrong, in a sentence that names no module.
        module: Where it is today.
        old: Text that occurs once in the module.
        new: What stands in its place.
        tests: Below `tests/`, the fewest of the default suite that do.
    """

    name: str
    behaviour: str
    module: str
    old: str
    new: str
    tests: tuple[str, ...]


_MECHANISMS, _PRIVACY = "fedpriv.mechanisms", "fedpriv.privacy"
_BOUNDS, _EVENT = f"{_MECHANISMS}.bounds", f"{_MECHANISMS}.event"
_MECHANISM, _SAMPLING = f"{_PRIVACY}.mechanism", f"{_PRIVACY}.sampling"
_ACCOUNTING, _PLAN = f"{_PRIVACY}.accounting", f"{_PRIVACY}.plan"
_LEDGER = f"{_PRIVACY}.ledger"
_DOOR, _SECRET_STATE = "fedpriv.runs.door", "fedpriv.runs.secret_state"
_CRASH_RULES = "fedpriv.runs.crash_rules"
_SUMS, _TRAINING, _LOCAL = "fedpriv.sums", "fedpriv.training", "fedpriv.training.local"
_BOUNDED_SUM = f"{_TRAINING}.bounded_sum"
_DESCENT, _PERMUTATION = f"{_TRAINING}.dp_agd", f"{_TRAINING}.permutation_sgd"
_PRECONDITIONERS = f"{_MECHANISMS}.preconditioners"
_FLOWER = "fedpriv.backends.flower"
_PER_EXAMPLE = f"{_TRAINING}.per_example"
_EXAMPLE_SUM, _MODULE = f"{_PER_EXAMPLE}.example_sum", f"{_PER_EXAMPLE}.module"

FAULTS = (
    # Bounds.
    Fault(
        name="short_updates_stretched",
        behaviour="A clipped update that is shorter than the bound is lengthened to it.",
        module=_BOUNDS,
        old="return _scaled_to(np.minimum(norms, self.l2_clip_norm * _ROUNDING), norms)",
        new="return _scaled_to(self.l2_clip_norm * _ROUNDING + 0.0 * norms, norms)",
        tests=("laws/bounds/test_norm.py::TestNorm::test_clip_leaves_what_is_short_enough_alone",),
    ),
    Fault(
        name="regulariser_scaled_by_the_bound",
        behaviour="The regulariser of normalised updates is multiplied by the bound.",
        module=_BOUNDS,
        old="divisors = self.regulariser + norms",
        new="divisors = self.l2_clip_norm * self.regulariser + norms",
        tests=("laws/bounds/test_norm.py::TestNorm::test_lengths_are_what_the_formulas_say",),
    ),
    Fault(
        name="tensors_bounded_one_by_one",
        behaviour="The length of an update is that of its longest tensor.",
        module=_BOUNDED_SUM,
        old="found = np.hypot(found, lengths)",
        new="found = np.maximum(found, lengths)",
        tests=("laws/bounds/test_norm.py::TestNorm::test_no_rounding_takes_it_over",),
    ),
    Fault(
        name="rounded_without_room",
        behaviour="Updates are rounded to a grid and are not shortened by what rounding adds.",
        module=_BOUNDS,
        old="share -= math.sqrt(num_elements) * 2.0 ** -(BITS + 1)",
        new="share -= 0.0",
        tests=("laws/test_exact_sum.py::TestBound::test_equal_coordinates_all_round_the_same_way",),
    ),
    Fault(
        name="checked_updates_shortened",
        behaviour="Updates that are only checked are shortened to their bound, not refused.",
        module=_BOUNDS,
        old="return np.where(norms <= self.l2_bound * (1.0 + CHECKED_EXCESS), 1.0, np.nan)",
        new="return np.minimum(1.0, self.l2_bound / np.maximum(norms, 1e-300))",
        tests=(
            "mechanisms/test_displaced.py::test_one_that_is_too_long_is_refused_and_none_is_shortened",
        ),
    ),
    # Noise.
    Fault(
        name="one_stream_for_all_tensors",
        behaviour="All tensors of a sum get the noise of one stream.",
        module=f"{_MECHANISMS}.gaussian",
        old="key.fold(name).normal(",
        new="key.normal(",
        tests=("laws/test_noise.py::TestIndependence::test_tensors_and_names",),
    ),
    Fault(
        name="stddev_rounded_down",
        behaviour="The standard deviation of noise on a grid is rounded down.",
        module=f"{_MECHANISMS}.rounded_gaussian",
        old="np.nextafter(stddev / granularity, np.inf)",
        new="np.nextafter(stddev / granularity, 0.0)",
        tests=(
            "mechanisms/test_rounded.py::TestGridNoise::test_a_standard_deviation_is_never_rounded_down",
        ),
    ),
    Fault(
        name="length_of_noise_of_one_coordinate",
        behaviour="The length of pure noise does not grow with the number of coordinates.",
        module=f"{_MECHANISMS}.perturbation",
        old='gamma(key.fold("radius"), size)',
        new='gamma(key.fold("radius"), 1)',
        tests=("laws/test_noise_of_every_privatizer.py::test_noise_of_pure_epsilon",),
    ),
    Fault(
        name="whole_epsilon_in_every_pass",
        behaviour="Each of several passes over disjoint batches spends the epsilon of all.",
        module="simulations.linear_models.perturbation",
        old="Sphere(epsilon=self.epsilon / self.passes)",
        new="Sphere(epsilon=self.epsilon)",
        tests=("laws/test_noise_of_every_privatizer.py::test_noise_of_pure_epsilon",),
    ),
    Fault(
        name="volume_of_an_objective_unpaid",
        behaviour="Noise within an objective is charged without the change of volume.",
        module="simulations.linear_models.perturbation",
        old="besides = self.shift + self.outside",
        new="besides = self.outside",
        tests=("laws/test_noise_of_every_privatizer.py::test_noise_of_pure_epsilon",),
    ),
    # Correlated noise.
    Fault(
        name="one_row_priced_for_many",
        behaviour="Banded noise is priced as if every user were in one row.",
        module=f"{_MECHANISMS}.correlated.toeplitz",
        old="return one * float(np.sqrt(participation.count))",
        new="return one",
        tests=("mechanisms/correlated/test_sensitivity.py::test_the_table_of_a_thousand_rows",),
    ),
    Fault(
        name="overlapping_rows_not_added",
        behaviour="Where a user's rows overlap, the larger part counts and not their sum.",
        module=f"{_MECHANISMS}.correlated.toeplitz",
        old="moved[start:] += column[: len(column) - start]",
        new="moved[start:] = np.maximum(moved[start:], column[: len(column) - start])",
        tests=("mechanisms/correlated/test_sensitivity.py::test_the_table_of_a_thousand_rows",),
    ),
    Fault(
        name="nodes_weighed_by_variance",
        behaviour="A tree's node and its children are weighed by variance, not by its inverse.",
        module=f"{_MECHANISMS}.correlated.binary_tree",
        old="share = round(children / (1.0 + children)",
        new="share = round(1.0 / (1.0 + children)",
        tests=("mechanisms/correlated/test_sensitivity.py::test_variances_of_trees",),
    ),
    Fault(
        name="trees_after_the_first_free",
        behaviour="Of trees that are restarted only the first moves by what a user gives.",
        module=f"{_MECHANISMS}.correlated.binary_tree",
        old="for tree in range(self.num_trees):\n            steps",
        new="for tree in range(1):\n            steps",
        tests=("oracles/test_recycling.py::test_sensitivity_of_trees_that_are_restarted",),
    ),
    Fault(
        name="completion_a_node_short",
        behaviour="A tree that ends is completed up to a node below its root.",
        module=f"{_MECHANISMS}.correlated.binary_tree",
        old="for h in range((self.steps - 1).bit_length()):\n            if h in ended:",
        new="for h in range((self.steps - 1).bit_length() - 1):\n            if h in ended:",
        tests=("oracles/test_recycling.py::test_rows_of_the_tree",),
    ),
    Fault(
        name="sums_restarted_late",
        behaviour="DP-FTRL begins with sums of zero a round after its tree does.",
        module="fedpriv.optimizers",
        old="steps % every == 0",
        new="(steps - 1) % every == 0",
        tests=("oracles/test_recycling.py::test_dp_ftrl",),
    ),
    Fault(
        name="last_iterate_returned",
        behaviour="A run that trains over aggregates returns the last iterate, not the aggregate.",
        module=f"{_TRAINING}.federated_averaging",
        old='return state.memory["aggregate"].get("average", state.params)',
        new="return state.params",
        tests=("oracles/test_recycling.py::test_training_over_aggregates",),
    ),
    Fault(
        name="exponential_choice_without_return",
        behaviour="The exponential choice of a step size passes over whom it has refused.",
        module=f"{_MECHANISMS}.selection",
        old='if form == "permute-and-flip":\n            order',
        new='if form in ("permute-and-flip", "exponential") and len(order) > 1:\n            order',
        tests=("oracles/test_dp_agd.py::test_laws_of_the_choice",),
    ),
    Fault(
        name="noise_for_fewer_rows_accepted",
        behaviour="Correlated noise for fewer participations than cohorts allow is accepted.",
        module=f"{_MECHANISMS}.privatizer",
        old="return not longer and apart and other.count <= self.count",
        new="return not longer and apart",
        tests=(
            "privacy/cohorts/test_separated.py::TestPrices::test_noise_that_was_made_for_less_is_refused",
        ),
    ),
    # Selection.
    Fault(
        name="cheaper_price_for_either_form",
        behaviour="A permute-and-flip minimum is charged the price of the exponential mechanism.",
        module=f"{_MECHANISMS}.selection",
        old='if self.form == "exponential":',
        new="if self.form:",
        tests=("mechanisms/test_noisy_min.py::TestPrivatizer::test_costs",),
    ),
    Fault(
        name="mistakes_weighed_twice",
        behaviour="A private choice among models weighs each mistake by twice its epsilon.",
        module=f"{_MECHANISMS}.selection",
        old="choose(mistakes, Fraction(self.epsilon),",
        new="choose(mistakes, 2 * Fraction(self.epsilon),",
        tests=("laws/test_noise_of_every_privatizer.py::test_a_private_choice",),
    ),
    Fault(
        name="whole_numbers_by_remainder",
        behaviour="A uniform number below a limit is the remainder of a larger one.",
        module=f"{_MECHANISMS}.selection",
        old="            if value < number:\n                return value",
        new="            return value % number",
        tests=("mechanisms/test_noisy_min.py::test_indices_are_drawn_with_their_probabilities",),
    ),
    # Single examples.
    Fault(
        name="micro_batch_added_up",
        behaviour="A micro-batch of a linear model contributes the sum of its gradients.",
        module=f"{_PER_EXAMPLE}.linear",
        old="np.repeat(1.0 / sizes, sizes)",
        new="np.ones(len(updates))",
        tests=("training/per_example/linear/test_sums.py::TestEqualsTheDenseLoop",),
    ),
    Fault(
        name="example_bounded_before_its_multiplier",
        behaviour="The norm of an example's update is that before it is preconditioned.",
        module=_MODULE,
        old="left = left @ self.multiplier[name].square()",
        new="left = left.sum(dim=1, keepdim=True)",
        tests=("laws/bounds/test_context.py::test_a_single_example_keeps_the_bounds_norm",),
    ),
    Fault(
        name="infinite_residuals_times_zero",
        behaviour="An example that is left out is multiplied by zero, infinities included.",
        module="fedpriv.sums",
        old="kept = np.flatnonzero(each)",
        new="kept = np.arange(len(each))",
        tests=("training/per_example/linear/test_failures.py::TestWhatFails",),
    ),
    Fault(
        name="groups_in_order_of_arrival",
        behaviour="Examples fill micro-batches in turn: one that joins moves all after it.",
        module=_EXAMPLE_SUM,
        old="group = draws.integers(number, size=self.num_examples)[index]",
        new="group = np.arange(len(index)) % number",
        tests=("training/per_example/example_sum/test_micro_batches.py::TestGroupsByCoin",),
    ),
    Fault(
        name="examples_over_an_owners_cap",
        behaviour="An example beyond the most that its owner may have contributes as all others.",
        module=_EXAMPLE_SUM,
        old="index = index[~self.blank[index]]",
        new="index = index[self.blank[index] >= 0]",
        tests=("laws/owners/test_owned_examples.py",),
    ),
    Fault(
        name="factors_without_their_offset",
        behaviour="The norm of a mixture of two factors is that of the factors alone.",
        module=_MODULE,
        old="if self._in_factors(name):\n                left, right = (part.double().square()",
        new="if len(parts) == 2:\n                left, right = (part.double().square()",
        tests=("laws/bounds/test_context.py::test_a_single_example_keeps_the_bounds_norm",),
    ),
    Fault(
        name="biases_left_out_of_the_norm",
        behaviour="The norm of an example's gradient is that of its matrices alone.",
        module=_MODULE,
        old="torch.cat([(r * r).sum(dim=1) for _, r in self._rows(name)])",
        new="torch.cat([0.0 * (r * r).sum(dim=1) for _, r in self._rows(name)])",
        tests=("laws/bounds/test_context.py::test_a_single_example_keeps_the_bounds_norm",),
    ),
    # Sensitivity, and what a sum is divided by.
    Fault(
        name="micro_batch_moved_once",
        behaviour="One example of a micro-batch is taken to move its mean by the bound once.",
        module=_MECHANISM,
        old="(1.0 if self.micro_batch == 1 else 2.0)",
        new="1.0",
        tests=(
            "privacy/test_mechanism.py::TestDerived::test_a_micro_batch_doubles_the_sensitivity_and_divides_the_denominator",
        ),
    ),
    Fault(
        name="divided_by_examples",
        behaviour="A sum over micro-batches is divided by the number of examples.",
        module=_MECHANISM,
        old="return self.expected_cohort_size / self.micro_batch",
        new="return self.expected_cohort_size",
        tests=(
            "privacy/test_mechanism.py::TestDerived::test_a_micro_batch_doubles_the_sensitivity_and_divides_the_denominator",
        ),
    ),
    Fault(
        name="wider_bound_in_a_round",
        behaviour="A round may bound updates to more than its noise is for.",
        module=_DOOR,
        old="        return replace(total, l2_bound=bound.l2_bound)\n",
        new="        return replace(total, l2_bound=mechanism.l2_bound)\n",
        tests=(
            "running/door/test_draws.py::test_a_program_may_not_let_through_more_than_noise_is_for",
        ),
    ),
    Fault(
        name="one_noise_for_two_sums",
        behaviour="The noise of one draw may be added to a second sum.",
        module=f"{_MECHANISMS}.privatizer",
        old="drawn = self._held.pop()",
        new="drawn = self._held[-1]",
        tests=("laws/test_draws.py::test_it_meets_one_sum",),
    ),
    Fault(
        name="secure_key_drawn_from_twice",
        behaviour="Noise is drawn twice from one secure key, and is the same both times.",
        module=_MECHANISM,
        old="_DRAWN.add(key)",
        new="pass",
        tests=("laws/test_draws.py::test_a_secure_key_is_drawn_from_once",),
    ),
    Fault(
        name="sums_of_any_bound_released",
        behaviour="A sum that was bounded to more than the noise is for is released.",
        module=_MECHANISM,
        old="if self.is_private and not total.l2_bound <= self.l2_bound * (1.0 + 1e-12):",
        new="if total.l2_bound < 0.0:",
        tests=("laws/test_draws.py::test_a_sum_bounded_by_another_plan_is_refused",),
    ),
    # Events and accounting.
    Fault(
        name="replaced_user_moves_once",
        behaviour="A replaced user is priced as one who is there or not.",
        module=_EVENT,
        old="return 2.0 if self is Relation.REPLACE_ONE else 1.0",
        new="return 1.0",
        tests=(
            "privacy/plans/test_plan.py::test_whoever_is_replaced_costs_as_two_who_are_there_or_not",
        ),
    ),
    Fault(
        name="pure_answers_at_a_quarter",
        behaviour="A pure answer among concentrated ones has the price of bounded range.",
        module=_EVENT,
        old='rho=0.5 * (moved * numbers["epsilon"]) ** 2',
        new='rho=0.125 * (moved * numbers["epsilon"]) ** 2',
        tests=("privacy/test_event.py::test_pure_and_concentrated_answers_are_priced_by_rho",),
    ),
    Fault(
        name="cap_not_priced",
        behaviour="A Poisson cohort with a cap is priced as one without.",
        module=_SAMPLING,
        old="if self.cap is not None and self.cap < self.num_users:",
        new="if self.cap is not None and self.cap < 0:",
        tests=(
            "privacy/test_mechanism.py::TestDerived::test_event_and_denominator_follow_the_sampler",
        ),
    ),
    Fault(
        name="devices_priced_as_one",
        behaviour="A person with several devices is priced as one with one.",
        module=_SAMPLING,
        old="            devices=self.devices,\n        )",
        new="            devices=1,\n        )",
        tests=("privacy/test_devices.py::test_devices_are_drawn_as_users_are",),
    ),
    Fault(
        name="cyclic_run_priced_as_one_draw",
        behaviour="A run of cyclic cohorts is priced as if a user were drawn in one round.",
        module=_SAMPLING,
        old="rows=min(limit.count, self.max_participations)",
        new="rows=1",
        tests=(
            "privacy/cohorts/test_separated.py::TestPrices::test_draws_within_groups_are_amplified_for_bands_alone",
        ),
    ),
    Fault(
        name="filter_forgets_what_was_spent",
        behaviour="A filter of a preset total compares the next price alone with it.",
        module=_PLAN,
        old="total = self._sum(spent) + price",
        new="total = price",
        tests=(
            "privacy/plans/test_adaptive.py::TestFilter::test_ten_tenths_are_the_whole_and_an_eleventh_is_refused",
        ),
    ),
    Fault(
        name="half_the_price_of_a_gaussian",
        behaviour="A filter counts half the price of Gaussian noise.",
        module=_ACCOUNTING,
        old="return 0.5 * (moved / event.sigma) ** 2",
        new="return 0.25 * (moved / event.sigma) ** 2",
        tests=("privacy/plans/test_adaptive.py::TestFilter::test_kinds_are_added_up_together",),
    ),
    Fault(
        name="delta_of_one_in_n",
        behaviour="The default delta is one over the number of users.",
        module=f"{_PRIVACY}.epsilon",
        old="float(users) ** -1.1",
        new="float(users) ** -1.0",
        tests=(
            "privacy/plans/test_plan.py::test_delta_defaults_below_one_in_n_and_one_in_n_is_remarked",
        ),
    ),
    Fault(
        name="shown_epsilon_to_the_nearest",
        behaviour="A shown epsilon is rounded to the nearest decimal, which may be below it.",
        module=f"{_PRIVACY}.epsilon",
        old="return math.ceil(scaled * (1 - 1e-9)) / 10.0**digits",
        new="return round(scaled) / 10.0**digits",
        tests=(
            "running/test_progress.py::test_a_terminal_gets_a_line_that_is_rewritten_and_stays_as_it_was_last",
        ),
    ),
    Fault(
        name="number_of_trials_unpaid",
        behaviour="The best of a random number of trials costs nothing for their number.",
        module=f"{_PRIVACY}.trials",
        old="paid = rdp + math.log(self.mean) / (orders - 1.0)",
        new="paid = rdp",
        tests=("privacy/selection/test_trials.py::test_epsilon_is_golden",),
    ),
    # Sampling.
    Fault(
        name="fixed_cohorts_with_replacement",
        behaviour="A cohort of fixed size is drawn with replacement.",
        module=_SAMPLING,
        old="key.generator().choice(number, size, replace=False, shuffle=False)",
        new="key.generator().choice(number, size, replace=True, shuffle=False)",
        tests=("privacy/test_sampling.py::test_fixed_size_cohorts_are_uniform",),
    ),
    Fault(
        name="cap_keeps_the_first",
        behaviour="Of a cohort over its cap the first users of the roster take part.",
        module=_SAMPLING,
        old="drawn = np.sort(generator.choice(drawn, self.cap, replace=False, shuffle=False))",
        new="drawn = drawn[: self.cap]",
        tests=("privacy/test_sampling.py::test_whom_a_cap_drops_is_not_a_matter_of_places",),
    ),
    Fault(
        name="rate_rounded_up",
        behaviour="A user is drawn with a probability that is rounded up to 64 bits.",
        module=_SAMPLING,
        old="threshold = math.floor(probability * 2**64)",
        new="threshold = math.ceil(probability * 2**64)",
        tests=(
            "privacy/test_sampling.py::TestSecureCoins::test_the_threshold_is_whole_and_rounded_down",
        ),
    ),
    Fault(
        name="back_one_row_too_soon",
        behaviour="A user of separated cohorts comes back one round too soon.",
        module=_SAMPLING,
        old=">= self.min_separation)",
        new=">= self.min_separation - 1)",
        tests=("privacy/cohorts/test_separated.py::test_no_user_comes_back_too_soon_or_too_often",),
    ),
    Fault(
        name="new_order_within_a_pass",
        behaviour="Every batch of a pass over disjoint batches is cut from an order of its own.",
        module=_SAMPLING,
        old='order = memory["order"] if place else _permutation(key, self.num_users)',
        new="order = _permutation(key, self.num_users)",
        tests=("privacy/test_sampling.py::test_batches_of_a_pass_do_not_meet",),
    ),
    # Ledger.
    Fault(
        name="lost_attempts_cost_nothing",
        behaviour="An attempt that is made again is counted once.",
        module=f"{_LEDGER}.state",
        old="self._spent[entry.event] += 1",
        new="self._spent[entry.event] += entry.attempt == 1",
        tests=(
            "privacy/ledger/test_ledger.py::test_a_lost_attempt_is_spent_and_redone_under_another_number",
        ),
    ),
    Fault(
        name="charge_not_synced",
        behaviour="A charge returns before its line is forced to the disk.",
        module=f"{_LEDGER}.chain",
        old="            os.fsync(self._fd)\n            self._check_size(self.size + written)",
        new="            self._check_size(self.size + written)",
        tests=(
            "privacy/ledger/test_ledger.py::test_the_line_is_on_the_disk_before_charge_returns",
        ),
    ),
    Fault(
        name="torn_line_kept",
        behaviour="The next line of a ledger is written behind half a line that a crash left.",
        module=f"{_LEDGER}.ledger",
        old="file.keep(chain.num_bytes)",
        new="file.keep(chain.num_bytes + chain.torn)",
        tests=("privacy/ledger/test_damage.py::test_a_torn_last_line_is_cut_off",),
    ),
    Fault(
        name="anchor_counts_lines_alone",
        behaviour="An anchor compares how many lines a ledger has, and not which.",
        module=f"{_LEDGER}.chain",
        old="if mark.seq >= lines or chain.records[mark.seq].hash != mark.head:",
        new="if mark.seq >= lines:",
        tests=("privacy/statement/test_rechained.py::test_its_anchor_finds_it",),
    ),
    Fault(
        name="two_writers",
        behaviour="Two processes may write one ledger at once.",
        module=f"{_LEDGER}.chain",
        old="            _lock(self._fd)\n",
        new="            pass\n",
        tests=("privacy/ledger/test_failed_writes.py::test_two_writers_are_one_too_many",),
    ),
    Fault(
        name="another_budget_verifies",
        behaviour="Verification of a run does not compare what its rounds state with the ledger.",
        module=f"{_PRIVACY}.statement.verify",
        old='        ("rounds", lambda: _rounds(run)),\n',
        new="",
        tests=("privacy/statement/test_verify.py::test_a_false_statement_is_found",),
    ),
    # The door.
    Fault(
        name="rows_again_for_an_older_ledger",
        behaviour="A row of correlated noise is drawn again for a ledger that was put back.",
        module=_CRASH_RULES,
        old="if drawn > used:",
        new="if drawn < 0:",
        tests=("backends/door/test_streams.py::test_an_older_ledger_draws_no_row_again",),
    ),
    Fault(
        name="stream_begins_anew",
        behaviour="After a restart correlated noise begins with its first row again.",
        module=_CRASH_RULES,
        old="passed_over, self._rows_drawn = charged.number - self._rows_drawn - 1, charged.number",
        new="passed_over, self._rows_drawn = 0, charged.number",
        tests=(
            "backends/door/test_streams.py::test_no_row_meets_two_sums_and_each_is_the_oracles",
        ),
    ),
    Fault(
        name="replayed_with_new_noise",
        behaviour="A release that a crash cut off is made again with other noise, uncharged.",
        module=_CRASH_RULES,
        old="keys=self._secrets.key(REPLAY),",
        new="keys=Key.secure() if open_ else self._secrets.key(REPLAY),",
        tests=(
            "backends/door/test_door.py::test_b_a_release_that_is_done_again_is_the_identical_one",
        ),
    ),
    Fault(
        name="replayed_on_any_sum",
        behaviour="A release that a crash cut off is made again on whatever sum there is then.",
        module=_CRASH_RULES,
        old='not in (b"", digest):',
        new='not in (b"", digest, before["sha256"].tobytes()):',
        tests=("backends/door/test_paid_by_another.py::test_a_replay_on_another_sum_is_refused",),
    ),
    Fault(
        name="one_name_asked_twice",
        behaviour="A round asks two questions under one name, and gets one noise for both.",
        module=_DOOR,
        old="if name in self._asked:",
        new="if name in ():",
        tests=("backends/door/test_paid_by_another.py::test_a_replay_is_after_a_crash_only",),
    ),
    Fault(
        name="one_charge_pays_for_any_noise",
        behaviour="The charge of a whole run pays for the answers of other mechanisms too.",
        module=_DOOR,
        old="if plan.charged_once or kept:",
        new="if mechanism is None:",
        tests=(
            "backends/door/test_paid_by_another.py::test_the_charge_of_a_whole_run_pays_for_its_own_rows_alone",
        ),
    ),
    Fault(
        name="replayed_noise_of_any_bound",
        behaviour="Noise that is drawn again after a crash serves any bound and any sampler.",
        module=_DOOR,
        old="if plan.charged_once or kept:",
        new="if plan.charged_once or mechanism.charged_once:",
        tests=(
            "backends/door/test_paid_by_another.py::test_noise_that_is_replayed_serves_one_bound_and_one_sampler",
        ),
    ),
    Fault(
        name="drawn_users_forgotten",
        behaviour="It is not written down who was drawn by a sampler that limits participation.",
        module=_DOOR,
        old="self._secret_state.remember(name, memory)",
        new="pass",
        tests=(
            "backends/door/test_door.py::test_c_a_row_left_open_is_burned_and_its_users_took_part",
        ),
    ),
    Fault(
        name="one_cohort_answers_twice",
        behaviour="A sum over a drawn cohort is held and answered several times.",
        module=_DOOR,
        old="if mechanism.event.is_sampled:",
        new="if mechanism is None:",
        tests=("running/door/test_held.py::test_a_sum_over_a_drawn_cohort_is_answered_once",),
    ),
    Fault(
        name="asked_from_within_a_program",
        behaviour="A program that sees raw sums may ask further questions.",
        module=_DOOR,
        old="        if self._inside:\n",
        new="        if self._inside is None:\n",
        tests=(
            "backends/door/test_paid_by_another.py::test_nothing_is_asked_from_within_a_program",
        ),
    ),
    # Secure mode.
    Fault(
        name="secret_files_for_everybody",
        behaviour="Secret files of a run may be read by everybody on the machine.",
        module=_SECRET_STATE,
        old="os.O_TRUNC, 0o600)",
        new="os.O_TRUNC, 0o644)",
        tests=(
            "running/door/test_secret_state.py::TestSecureKeys::test_it_is_for_its_owner_alone",
        ),
    ),
    Fault(
        name="stream_key_kept",
        behaviour="The key of correlated noise stays when the run has ended.",
        module="fedpriv.runs.loop",
        old="for name in (REPLAY, STREAM, COHORTS):",
        new="for name in (REPLAY, COHORTS):",
        tests=(
            "backends/door/test_streams.py::test_what_would_take_the_noise_off_is_gone_once_the_run_has_ended",
        ),
    ),
    Fault(
        name="secure_diagnostics",
        behaviour="A secure run writes down how many users took part and failed.",
        module="fedpriv.runs.loop",
        old='    if root.mode == "simulation":\n        attendance',
        new="    if root.mode:\n        attendance",
        tests=("running/loop/test_kept.py::test_in_secure_mode_there_are_no_diagnostics",),
    ),
    Fault(
        name="noise_of_the_seed_alone",
        behaviour="Two simulations at one seed have the same noise, whatever they train on.",
        module="fedpriv.runs.noise_root",
        old='return root.fold("experiment").fold(str(facts[NOISE]))',
        new="return root",
        tests=("running/loop/test_noise_root.py::test_nothing_is_keyed_by_the_seed_alone",),
    ),
    Fault(
        name="floats_in_an_exact_run",
        behaviour="A run whose epsilon is that of real arithmetic answers in floating point.",
        module=_DOOR,
        old="if self._exact and not mechanism.is_exact:",
        new="if self._exact and mechanism is None:",
        tests=(
            "backends/door/test_paid_by_another.py::test_a_secure_run_of_real_arithmetic_answers_in_no_other",
        ),
    ),
    Fault(
        name="failures_logged_in_secure_runs",
        behaviour="A secure run logs which drawn users failed.",
        module=f"{_TRAINING}.failures",
        old='_UNSAID.get() or key.mode == "secure"',
        new="_UNSAID.get()",
        tests=("training/test_failures.py::test_numpy_warns_of_no_users_numbers_in_a_secure_run",),
    ),
    Fault(
        name="text_of_users_errors_sent",
        behaviour="A node sends the text of a user's error, in which data may be quoted.",
        module=f"{_TRAINING}.failures",
        old="    if _PLACES.get():\n",
        new="    if _PLACES.get() is None:\n",
        tests=("training/test_failures.py::test_of_a_node_kind_and_place_leave_and_no_text",),
    ),
    # Sums.
    Fault(
        name="whole_sums_wrap_around",
        behaviour="A whole-number sum of many users at the bound wraps around.",
        module=_SUMS,
        old="_USERS_IN_INT32 = 2 ** (31 - BITS) - 1",
        new="_USERS_IN_INT32 = 2 ** (32 - BITS)",
        tests=(
            "test_sums.py::TestRunning::test_users_at_the_bound_in_one_coordinate_do_not_overflow",
        ),
    ),
    Fault(
        name="refused_update_stays_in_the_sum",
        behaviour="An update that is refused as too long stays in the sum.",
        module=_SUMS,
        old="scales = np.where(beyond, -factors / grid, 0.0)",
        new="scales = nothing",
        tests=("test_sums.py::TestRunning::test_what_is_longer_than_the_bound_is_not_added",),
    ),
    Fault(
        name="updates_of_any_length_added",
        behaviour="An update on the grid is added however long it is.",
        module=_SUMS,
        old="beyond = ~(squared <= LONGEST)",
        new="beyond = squared < 0.0",
        tests=("test_sums.py::TestRunning::test_what_is_longer_than_the_bound_is_not_added",),
    ),
    # Local training.
    Fault(
        name="same_order_in_every_epoch",
        behaviour="Every local epoch goes through a user's examples in the same order.",
        module=f"{_LOCAL}.schedule",
        old="again = (rng.permutation(num_chosen) for",
        new="again = (np.arange(num_chosen) for",
        tests=(
            "training/local/test_trainer.py::TestCap::test_every_epoch_visits_every_chosen_example_once",
        ),
    ),
    Fault(
        name="first_examples_of_a_long_user",
        behaviour="Of a user with too many examples always the first ones are trained on.",
        module=f"{_LOCAL}.schedule",
        old="return rng.permutation(num_examples)[: self.max_examples_per_user]",
        new="return np.arange(num_examples)[: self.max_examples_per_user]",
        tests=(
            "training/local/test_trainer.py::TestCap::test_the_subset_is_new_at_every_participation_and_reaches_everybody",
        ),
    ),
    Fault(
        name="proximal_term_pushes_away",
        behaviour="FedProx pushes a user away from the params of the round.",
        module=f"{_LOCAL}.sgd",
        old="+ pull * (own[n] - start[n])",
        new="- pull * (own[n] - start[n])",
        tests=(
            "training/local/test_federated_methods.py::TestFedProx::test_module_trainers_take_the_steps_of_the_proximal_loss",
        ),
    ),
    Fault(
        name="local_steps_divide_by_the_inverse",
        behaviour="Preconditioned local steps are multiplied by A instead of divided.",
        module=f"{_LOCAL}.sgd",
        old="return as_dense(gradient, parameter) * multiplier[name]",
        new="return as_dense(gradient, parameter) / multiplier[name]",
        tests=("oracles/test_adadps.py::test_federated",),
    ),
    Fault(
        name="one_key_for_all_users",
        behaviour="All users of a round draw their batches from one key.",
        module=f"{_TRAINING}.work",
        old="key, found = attempt.key.fold(user_id), None",
        new="key, found = attempt.key, None",
        tests=(
            "laws/bounds/test_sensitivity.py::TestPoisonedUsers::test_each_user_has_a_key_of_its_own_that_nobody_else_moves",
        ),
    ),
    Fault(
        name="local_rate_not_followed",
        behaviour="A schedule of local learning rates is sent to users and not followed.",
        module=f"{_LOCAL}.module",
        old="rate = self.schedule.learning_rate * context.rate",
        new="rate = self.schedule.learning_rate",
        tests=(
            "training/local/test_federated_methods.py::TestRates::test_a_round_trains_at_its_rate_to_the_bit",
        ),
    ),
    Fault(
        name="generators_shared_by_users",
        behaviour="What one user draws from a process's generators moves the next user.",
        module=f"{_TRAINING}.work",
        old="seeds = not self.thread_safe\n",
        new="seeds = False\n",
        tests=(
            "training/test_streams.py::test_in_a_round_what_a_user_draws_or_seeds_moves_no_other",
        ),
    ),
    Fault(
        name="short_batch_dropped",
        behaviour="A user's last batch is left out where it is not full.",
        module=f"{_LOCAL}.schedule",
        old="for a, b in itertools.pairwise(starts.tolist())]",
        new="for a, b in itertools.pairwise(starts.tolist()) if b - a == self.batch_size]",
        tests=(
            "training/local/test_module_trainer.py::TestModuleTrainer::test_equals_the_sparse_trainer",
        ),
    ),
    Fault(
        name="warmup_within_the_schedule",
        behaviour="The rounds of a warm-up count as rounds of the schedule that follows it.",
        module=f"{_LOCAL}.schedule",
        old="done = (round_num - 1 - rising) / (num_rounds - rising)",
        new="done = (round_num - 1) / num_rounds",
        tests=("oracles/test_federated.py::test_fedprox",),
    ),
    # Adaptive clipping.
    Fault(
        name="clip_norm_moves_the_wrong_way",
        behaviour="The clip norm rises where more than the quantile of users are below it.",
        module=_BOUNDS,
        old="math.exp(min(max(-self.rate * (share",
        new="math.exp(min(max(self.rate * (share",
        tests=("oracles/test_federated.py::test_adaptive_clipping",),
    ),
    Fault(
        name="count_beside_a_whole_update",
        behaviour="A user's count is sent beside an update that takes all of the bound.",
        module=_BOUNDS,
        old="return math.sqrt(1.0 - self.count_weight**2)",
        new="return 1.0",
        tests=("training/test_adaptive_clipping.py::test_a_users_vector_is_no_longer_than_one",),
    ),
    Fault(
        name="mean_by_the_next_clip_norm",
        behaviour="A released mean is scaled by the clip norm of the next round.",
        module=_BOUNDS,
        old="tree.scale(update, known / self.update_weight)",
        new="tree.scale(update, moved / self.update_weight)",
        tests=("oracles/test_federated.py::test_adaptive_clipping",),
    ),
    # Preconditioning.
    Fault(
        name="public_momentum_with_the_wrong_sign",
        behaviour="Public gradients are mixed into updates as if they were updates.",
        module=_PRECONDITIONERS,
        old="public = np.float32(own - 1.0)",
        new="public = np.float32(1.0 - own)",
        tests=("oracles/test_adadps.py::test_adadps",),
    ),
    Fault(
        name="scale_not_undone",
        behaviour="What was divided by A before the noise is not multiplied by it afterwards.",
        module=f"{_TRAINING}.federated_averaging",
        old="        if public.inverse:\n",
        new="        if public.inverse is None:\n",
        tests=("oracles/test_adadps.py::test_federated",),
    ),
    Fault(
        name="multiplied_instead_of_divided",
        behaviour="Updates are multiplied by the root of public moments before the bound.",
        module=_PRECONDITIONERS,
        old="multiplier = _inverted(_denominators(rule, state))",
        new="multiplier = _denominators(rule, state)",
        tests=("oracles/test_adadps.py::test_adadps",),
    ),
    Fault(
        name="moments_of_private_examples",
        behaviour="What should be of public examples, A, is made of the private training set.",
        module="fedpriv.experiments.preconditioning",
        old="public_gradient(self.task.public_examples(), self.task.num_public, batch)",
        new="public_gradient(self.task.train, self.task.num_public, batch)",
        tests=("oracles/test_adadps.py::test_adadps",),
    ),
    # Server.
    Fault(
        name="classic_momentum_for_the_average",
        behaviour="Server momentum as a moving average adds the whole of each update.",
        module="fedpriv.optimizers",
        old="self._along(update, state, np.float32(1) - np.float32(self.momentum))",
        new="self._along(update, state, np.float32(1))",
        tests=("oracles/test_adadps.py::test_federated",),
    ),
    Fault(
        name="adam_uncorrected",
        behaviour="Adam's moments are not corrected for their start at zero.",
        module="fedpriv.optimizers",
        old="return 1 - self.momentum**steps, 1 - self.second_decay**steps",
        new="return 1.0, 1.0",
        tests=("oracles/test_adadps.py::test_dp_fedadam",),
    ),
    Fault(
        name="server_schedule_from_zero",
        behaviour="A schedule of the server's rate counts steps from zero.",
        module="fedpriv.optimizers",
        old="by = np.float32(self.factor(step))",
        new="by = np.float32(self.factor(step - 1))",
        tests=(
            "laws/transforms/test_vectors.py::TestSchedules::test_the_first_step_is_number_one",
        ),
    ),
    Fault(
        name="weights_of_an_average_exchanged",
        behaviour="A moving average of models weighs the newest by the weight of the past.",
        module="fedpriv.checkpoints.aggregates",
        old="1 - keep)",
        new="keep)",
        tests=("oracles/test_recycling.py::test_of_released_models",),
    ),
    Fault(
        name="newest_model_counted_twice",
        behaviour="A uniform average over the last models has the newest one twice.",
        module="fedpriv.checkpoints.aggregates",
        old="range(max(0, t - k + 1), t + 1)",
        new="range(max(0, t - k), t + 1)",
        tests=("checkpoints/test_aggregates.py::test_it_is_the_plain_mean_at_every_step",),
    ),
    Fault(
        name="iterate_always_replaced",
        behaviour="Training over aggregates replaces the iterate where only gradients are taken.",
        module=f"{_TRAINING}.federated_averaging",
        old='if self.aggregate.training == "replace" else state.params',
        new='if self.aggregate.training != "none" else state.params',
        tests=("oracles/test_recycling.py::test_training_over_aggregates",),
    ),
    # Recycling.
    Fault(
        name="variance_over_k",
        behaviour="The variance over the last k models is divided by k.",
        module="fedpriv.checkpoints.uncertainty",
        old="array.var(axis=0, ddof=1)",
        new="array.var(axis=0)",
        tests=("checkpoints/test_uncertainty.py::TestVectors::test_five_values",),
    ),
    Fault(
        name="variance_of_an_average_too_large",
        behaviour="The variance of a moving average is that of its newest weight alone.",
        module="fedpriv.checkpoints.uncertainty",
        old="return (1 - decay) / (1 + decay)",
        new="return (1 - decay) ** 2",
        tests=(
            "checkpoints/test_uncertainty.py::TestVectors::test_the_square_sum_of_a_moving_average_that_forgot_its_start",
        ),
    ),
    Fault(
        name="vote_by_mean_probability",
        behaviour="A majority vote of models is that of their mean probability.",
        module="fedpriv.checkpoints.aggregates",
        old='if rule == "opa" else votes(probabilities)',
        new="if rule else votes(probabilities)",
        tests=("oracles/test_recycling.py::test_outputs",),
    ),
    # Bolt-on.
    Fault(
        name="passes_not_added_up",
        behaviour="The sensitivity of several passes is that of the furthest one.",
        module=_PERMUTATION,
        old="before, current = before + current, 0.0",
        new="before, current = max(before, current), 0.0",
        tests=("training/permutation/test_sensitivity.py::TestNumbers::test_a_constant_step",),
    ),
    Fault(
        name="divided_by_a_short_batch",
        behaviour="A last batch that is not full is divided by its own number.",
        module=_PERMUTATION,
        old="slopes *= rate / size",
        new="slopes *= rate / len(batch)",
        tests=(
            "training/permutation/test_sensitivity.py::test_an_example_of_a_batch_that_is_not_full_counts_as_any_other",
        ),
    ),
    Fault(
        name="bias_not_projected",
        behaviour="Params are projected by the length of their weights without the bias.",
        module=_PERMUTATION,
        old="float(np.linalg.norm(weights))",
        new="float(np.linalg.norm(weights[:-1]))",
        tests=("oracles/test_bolt_on.py::test_examples",),
    ),
    Fault(
        name="steps_too_long_for_strong_convexity",
        behaviour="Steps of a strongly convex loss may be twice as long as contractions are.",
        module=f"{_TRAINING}.step_schedules",
        old='else (1.0 / beta, "1/β")',
        new='else (2.0 / beta, "1/β")',
        tests=(
            "training/permutation/test_sensitivity.py::TestRefusals::test_steps_that_are_too_long",
        ),
    ),
    Fault(
        name="judged_on_its_own_part",
        behaviour="Candidates of private tuning are judged on examples that one was trained on.",
        module=f"{_TRAINING}.bolt_on",
        old="order[number * size : (number + 1) * size].tolist()",
        new="order[number % len(self.choices) * size :][:size].tolist()",
        tests=(
            "training/permutation/test_tuned.py::test_parts_are_equal_and_do_not_meet_and_one_model_leaves",
        ),
    ),
    Fault(
        name="users_divided_by_who_came",
        behaviour="A batch of users is divided by how many of them did the work.",
        module=f"{_TRAINING}.bolt_on",
        old="array + share * mean[n]",
        new="array + share * passes.batch_size / len(there) * mean[n]",
        tests=(
            "running/methods/test_failing_users.py::test_whose_data_are_odd_counts_as_one_who_is_not_there",
        ),
    ),
    # DP-AGD.
    Fault(
        name="estimates_averaged_alike",
        behaviour="Estimates of one gradient are averaged without regard to their prices.",
        module=_DESCENT,
        old="(price * a + more * again[n]) / whole",
        new="(a + again[n]) / 2.0",
        tests=("training/agd/test_descent.py::test_estimates_are_averaged_by_their_prices",),
    ),
    Fault(
        name="discarded_estimates_paid_by_difference",
        behaviour="An estimate that replaces another one pays for the difference alone.",
        module=_DESCENT,
        old='more = following - price if self.estimates == "average" else following',
        new="more = following - price",
        tests=(
            "training/agd/test_descent.py::test_an_estimate_that_replaces_another_is_paid_in_full",
        ),
    ),
    Fault(
        name="step_before_the_chosen_one",
        behaviour="The step that is taken is the one before that which was chosen.",
        module=_DESCENT,
        old="size = float(sizes[index])",
        new="size = float(sizes[index - 1])",
        tests=("training/agd/test_descent.py::test_budget_trace",),
    ),
    Fault(
        name="replaced_users_noise_halved",
        behaviour="Noise of a gradient is that of a user who is there or not under replacement.",
        module=_DESCENT,
        old="noise_multiplier=self.relation.moved / math.sqrt(2.0 * rho)",
        new="noise_multiplier=1.0 / math.sqrt(2.0 * rho)",
        tests=("training/agd/test_descent.py::test_prices_are_kept_under_either_relation",),
    ),
    # Nodes.
    Fault(
        name="named_twice_added_twice",
        behaviour="A user whom a request names twice contributes twice.",
        module=f"{_FLOWER}.client",
        old="for item in dict.fromkeys(request.user_ids) if",
        new="for item in request.user_ids if",
        tests=(
            "backends/flower/test_client.py::test_users_that_live_elsewhere_or_are_named_twice_add_nothing",
        ),
    ),
    Fault(
        name="users_of_other_nodes_trained",
        behaviour="A node trains whom a request names, and not its own users alone.",
        module=f"{_FLOWER}.client",
        old="if item in self.user_ids]",
        new="if item]",
        tests=(
            "backends/flower/test_client.py::test_users_that_live_elsewhere_or_are_named_twice_add_nothing",
        ),
    ),
    Fault(
        name="either_list_allows",
        behaviour="A plan that one of a node's two lists allows is allowed.",
        module=f"{_FLOWER}.client",
        old="return frozenset.intersection(*lists)",
        new="return frozenset.union(*lists)",
        tests=("backends/flower/asked/test_plans.py::test_both_places_must_allow_a_plan",),
    ),
    Fault(
        name="plan_not_looked_at_in_a_round",
        behaviour="A node looks at the plan when it registers, and not in a round.",
        module=f"{_FLOWER}.client",
        old="check_plan(request.plan, self.plans)",
        new="pass",
        tests=(
            "backends/flower/asked/test_plans.py::test_a_round_under_another_plan_is_refused_too",
        ),
    ),
    Fault(
        name="code_by_an_allowed_plan",
        behaviour="A server that knows an allowed plan names the code that a node builds.",
        module=f"{_FLOWER}.client",
        old='elif ":" in name and allowed_plans(node_config) is not None:',
        new="elif not name:",
        tests=(
            "backends/flower/asked/test_named_code.py::test_who_knows_an_allowed_plan_names_no_code_either",
        ),
    ),
    Fault(
        name="whole_sums_of_any_length",
        behaviour="A node's whole-number sum is not held to what its users may contribute.",
        module=f"{_FLOWER}.bounded_sum",
        old="if longer_than(total, _longest(limit, granularity, num_users)):",
        new="if num_users < 0:",
        tests=(
            "backends/flower/hostile/test_too_long.py::test_whole_numbers_are_held_to_the_bound_to_the_last_one",
        ),
    ),
    Fault(
        name="answers_of_another_attempt",
        behaviour="An answer counts without the random word of this attempt.",
        module=f"{_FLOWER}.messages",
        old='if report.get(_NONCE, "") != nonce:',
        new="if report is None:",
        tests=("backends/flower/test_exchange.py::test_a_replayed_answer_is_stale",),
    ),
    Fault(
        name="two_nodes_claim_a_user",
        behaviour="Of two nodes that claim a user the first one is believed.",
        module=f"{_FLOWER}.registry",
        old="                node_of.pop(user_id, None)\n                contested.add(user_id)",
        new="                pass",
        tests=(
            "backends/flower/hostile/test_claims.py::test_a_contested_user_contributes_zero_and_stops_nobody",
        ),
    ),
    Fault(
        name="users_of_another_key_believed",
        behaviour="A node may claim users who are bound to another node's key.",
        module=f"{_FLOWER}.registry",
        old="believed = [user_id for user_id in listed if user_id in may_host[node_id]]",
        new="believed = listed",
        tests=(
            "backends/flower/hostile/test_claims.py::test_with_keys_only_the_bound_node_hosts_a_user",
        ),
    ),
    Fault(
        name="answered_by_another_node",
        behaviour="An answer counts whichever node sent it.",
        module=f"{_FLOWER}.exchange",
        old="message.metadata.src_node_id != node_id",
        new="message.metadata.src_node_id is None",
        tests=(
            "backends/flower/test_exchange.py::test_what_is_no_answer_costs_its_own_user_alone",
        ),
    ),
    Fault(
        name="left_out_with_who_hangs",
        behaviour="Users who share a process with one that dies are not tried again alone.",
        module="fedpriv.backends.guard",
        old="again = not fresh and (part is None or part.num_failed > 0)",
        new="again = False",
        tests=(
            "backends/test_guard.py::test_a_killed_user_of_a_full_block_costs_the_block_nothing",
        ),
    ),
    # Private selection.
    Fault(
        name="settings_drawn_again",
        behaviour="A trial that a crash cut off draws its settings again.",
        module="fedpriv.studies.private_selection",
        old="        if found is None:\n            shutil",
        new="        if True:\n            shutil",
        tests=("studies/test_private_selection.py::test_a_trial_that_crashed_keeps_its_settings",),
    ),
    Fault(
        name="ties_to_the_first",
        behaviour="Of equal scores the first trial is kept, which tells when it was run.",
        module="fedpriv.studies.private_selection",
        old="rank, best = [score, tie], self",
        new='rank, best = [score, ""], self',
        tests=("studies/test_private_selection.py::test_equal_scores_do_not_favour_the_first",),
    ),
    Fault(
        name="all_drop_out_together",
        behaviour="One draw says for a whole cohort whether its users drop out.",
        module=_DOOR,
        old="if draws.fold(u).generator().random() >= rate",
        new="if draws.generator().random() >= rate",
        tests=("oracles/test_federated.py::test_dropouts",),
    ),
    Fault(
        name="dropouts_make_up_the_sum",
        behaviour="A sum of floats is scaled up to the users who were drawn.",
        module=_DOOR,
        old="        return replace(total, l2_bound=bound.l2_bound)\n",
        new=(
            "        more = len(cohort) / max(1, total.num_users)\n"
            "        scaled = {n: a * more for n, a in total.total.items()}\n"
            "        return replace(total, total=scaled, l2_bound=bound.l2_bound)\n"
        ),
        tests=("oracles/test_federated.py::test_dropouts",),
    ),
    Fault(
        name="passes_in_one_order",
        behaviour="A user's later passes take its examples in the order of the first.",
        module="fedpriv.training.local.schedule",
        old="again = (rng.permutation(num_chosen) for",
        new="again = (np.arange(num_chosen) for",
        tests=("oracles/test_federated.py::test_batches_are_whole_passes",),
    ),
    Fault(
        name="one_example_over_the_cap",
        behaviour="A user trains on one example more than the most that it may.",
        module="fedpriv.training.local.schedule",
        old="[: self.max_examples_per_user]",
        new="[: self.max_examples_per_user + 1]",
        tests=("oracles/test_federated.py::test_batches_are_whole_passes",),
    ),
    Fault(
        name="twice_the_micro_batches",
        behaviour="Micro-batches are half as large as they are said to be.",
        module="fedpriv.experiments.averaging",
        old="round(self.expected_batch(task.num_train) / self.micro_batch)",
        new="round(2 * self.expected_batch(task.num_train) / self.micro_batch)",
        tests=("oracles/test_adadps.py::test_micro_batches",),
    ),
    Fault(
        name="looks_once_an_epoch_ignored",
        behaviour="Public batches are looked at in every step, where once an epoch is asked for.",
        module="fedpriv.experiments.preconditioning",
        old='        if self.refresh == "epoch":\n',
        new='        if self.refresh == "never":\n',
        tests=("oracles/test_adadps.py::test_adadps",),
    ),
)
"""By area."""
