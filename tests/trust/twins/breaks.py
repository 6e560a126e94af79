"""What a mutant does: one named fault each, in one module.

Every fault is one that a framework or a paper's code has had, or that an attack on this one found.
Nothing is imported here: a fault is put into a module that has just been executed, in whatever
process that is.
"""


def rate_squared(sampling):
    """q² where q is meant: cohorts half as likely would be four times as cheap."""
    from dataclasses import replace

    right = sampling._cohort_event

    def wrong(*given, **drawn):
        found = right(*given, **drawn)
        rate = found.sampling_prob
        return found if rate is None else replace(found, sampling_prob=rate**2)

    sampling._cohort_event = wrong


def fixed_size_not_doubled(event):
    """σ handed to the RDP accountant raw under replace-one, which leaves the doubling out."""
    right = event.Event.to_dp_event

    def wrong(self, relation=event.Relation.ADD_REMOVE, *, accountant="PLD"):
        if relation is event.Relation.REPLACE_ONE and accountant == "RDP":
            relation = event.Relation.ADD_REMOVE
        return right(self, relation, accountant=accountant)

    event.Event.to_dp_event = wrong


def numbers_unchecked(ranges):
    """Numbers go to accountants as they come."""
    ranges.finite_float = ranges.positive_float = lambda name, value, allowed=None: value
    ranges.positive_int = lambda name, value, *more: value


def bound_one_percent_long(bounds):
    """Updates leave the bound one part in a hundred too long."""
    right = bounds.bounded_factors
    bounds.bounded_factors = lambda *given: 1.01 * right(*given)


def bounded_before_preconditioned(bounded_sum):
    """Bound first, precondition second: sensitivity C max(1/A)."""
    right = bounded_sum.RowStack.times

    class Late(bounded_sum.RowStack):
        def norms(self):
            return self.before

    def wrong(self, multiplier):
        late = Late(right(self, multiplier).rows)
        object.__setattr__(late, "before", self.norms())
        return late

    bounded_sum.RowStack.times = wrong


def weighted_by_examples(bounded_sum):
    """Who has more examples weighs more."""
    right = bounded_sum.RowStack.add_to

    def wrong(self, total, factors, besides):
        import numpy as np

        first = next(iter(self.rows.values()))
        values = getattr(first, "values", first)
        return right(self, total, factors * (1 + np.count_nonzero(values) % 3), besides)

    bounded_sum.RowStack.add_to = wrong


def divided_by_survivors(mechanism):
    """The mean over those who came, where noise is for the expected cohort."""

    def wrong(self, total, drawn):
        came = max(1, total.num_users - total.num_failed)
        return self.privatizer.release(total, drawn.take(total, self), 1.0 / came)

    mechanism.Mechanism.release = wrong


def noise_one_percent_short(gaussian):
    """σ · 0.99."""
    right = gaussian.gaussian
    gaussian.gaussian = lambda key, template, stddev, *of: right(key, template, 0.99 * stddev, *of)


def rounded_noise_one_percent_short(rounded):
    """The same of the sampler of secure runs."""
    right = rounded.rounded_gaussian
    rounded.rounded_gaussian = lambda key, shape, scale, **more: right(
        key, shape, 0.99 * scale, **more
    )


def length_of_noise_a_tenth_short(perturbation):
    """Pure-ε noise of 0.9 times its length: that of a result, and of an objective."""
    right = perturbation.gamma
    perturbation.gamma = lambda key, shape: 0.9 * right(key, shape)


def correlated_noise_a_tenth_short(noise):
    """0.9 σ in every round of correlated noise."""
    right = noise.Correlated.draws

    def wrong(self, **given):
        for drawn in right(self, **given):
            yield {name: 0.9 * array for name, array in drawn.items()}

    noise.Correlated.draws = wrong


def noise_in_half_precision(gaussian):
    """Noise rounded to float16."""
    right = gaussian.gaussian

    def wrong(key, template, stddev, *of):
        drawn = right(key, template, stddev, *of)
        return {name: a.astype("float16").astype("float32") for name, a in drawn.items()}

    gaussian.gaussian = wrong


def nan_passes(bounded_sum):
    """A norm that is no number makes the factor 1, as in Flower's own clipping."""
    import numpy as np

    right = bounded_sum._bounded

    def wrong(bound, norms, *given):
        fine = np.isfinite(norms)
        factors, besides = right(bound, np.where(fine, norms, 0.0), *given)
        return np.where(fine, factors, 1.0), besides

    bounded_sum._bounded = wrong


def charged_after_the_draw(ledger):
    """A charge is written with its release, as where an accountant composes last."""
    charge, release = ledger.Ledger.charge, ledger.Ledger.release

    def later(self, round_num, attempt, event=None, *, query="update"):
        self.__dict__.setdefault("_late", []).append((round_num, attempt, event, query))
        return None

    def both(self, *given):
        for round_num, attempt, event, query in self.__dict__.pop("_late", []):
            charge(self, round_num, attempt, event, query=query)
        return release(self, *given)

    ledger.Ledger.charge, ledger.Ledger.release = later, both


def noise_by_the_round(crash_rules):
    """Noise of a round and not of an attempt: what is redone after a crash meets it again."""
    right = crash_rules.Charged.key

    def wrong(self, stream, name, *keys):
        from dataclasses import replace

        return right(replace(self, number=1) if stream == "noise" else self, stream, name, *keys)

    crash_rules.Charged.key = wrong


def cohorts_of_one_size(sampling):
    """Fixed-size cohorts sold as Poisson."""
    import numpy as np

    def wrong(self, memory, key):
        size = round(self.expected_cohort_size)
        drawn = key.generator().choice(self.num_users, size, replace=False)
        return np.sort(drawn), memory

    sampling.PoissonSampler.positions = wrong


def noise_in_floats(noise):
    """Secure noise drawn in float32 and rounded to the grid afterwards."""
    noise.Gaussian.on_grid = False


def undecided_bits_ignored(kernel):
    """The sampler without its check: what 64 bits and double precision give, as it is."""
    right = kernel.rounded_normals

    def wrong(bits, scale, out):
        right(bits, scale, out)
        out[out == kernel.UNDECIDED] = 0

    kernel.rounded_normals = wrong


def secure_by_a_seed(rng):
    """Secure keys of a seed."""
    rng.Key.secure = classmethod(lambda cls: cls(b"\0" * 32, "secure"))


def cohorts_in_the_log(door):
    """Who takes part is logged."""
    import logging

    right = door.RunDoor._cohort

    def wrong(self, *given):
        found = right(self, *given)
        logging.getLogger("fedpriv").warning("cohort %s", found)
        return found

    door.RunDoor._cohort = wrong


def chain_not_checked(chain):
    """A ledger's lines are read and not compared."""
    import json

    def wrong(data):
        end = data.rfind(b"\n") + 1
        records = []
        for line in data[:end].splitlines():
            body = json.loads(line)
            digest, seq, _, kind = (body.pop(n) for n in ("hash", "seq", "prev", "kind"))
            records.append(chain.Record(seq=seq, kind=kind, fields=body, hash=digest))
        return chain.Chain(records=tuple(records), num_bytes=end, torn=len(data) - end)

    chain.decode = wrong


def floats_summed(rounding):
    """Sums of floats, which depend on the order."""
    rounding.Rounded.granularity = property(lambda self: None)


def noise_halved(gaussian):
    """Half the noise that was accounted."""
    right = gaussian.gaussian
    gaussian.gaussian = lambda key, template, stddev, *of: right(key, template, 0.5 * stddev, *of)


def waits_for_everybody(exchange):
    """A silent node keeps its place in the window until the deadline."""
    exchange._STALLED = 1e9


def longer_sums_let_through(bounded_sum):
    """A node's sum is let through at a thousand times its bound."""
    bounded_sum._ONE_USERS = 1e3


def one_charge_too_many(state):
    """The budget is looked at after the charge."""
    right = state.LedgerState.refusal
    seen = []

    def wrong(self, event):
        refused = right(self, event)
        if refused and id(self) not in seen:
            seen.append(id(self))
            return ""
        return refused

    state.LedgerState.refusal = wrong


def trials_not_paid(trials):
    """A study's ε is that of the run it keeps, as if there had been no other."""
    trials.Trials.selected = lambda self, orders, rdp: rdp


def number_drawn_again(secret_state):
    """A study that crashed draws anew how many trials it makes."""
    right = secret_state.SecretState.keep_number

    def wrong(self, draw):
        (self.path / "number").unlink(missing_ok=True)
        return right(self, draw)

    secret_state.SecretState.keep_number = wrong
    secret_state.SecretState.has_number = True


def losing_trials_kept(secret_state):
    """How many trials there were, and what they scored, stays beside the run that is released."""
    right = secret_state.SecretState.release

    def wrong(self, target):
        (target.parent / "trials.json").write_text(str(self._state))
        right(self, target)

    secret_state.SecretState.release = wrong


def cap_of_scores_halved(noisy_min):
    """ε' of a noisy minimum over half of what one contribution adds: twice what is charged."""
    right = noisy_min._scores

    def wrong(total, offset):
        scores, cap = right(total, offset)
        return scores, cap // 2

    noisy_min._scores = wrong


def sign_of_the_noise_turned(noisy_min):
    """The least of sums plus exponential noise, as a published code has it."""
    import math

    def wrong(scores, rate, form, draws):
        noise = [-math.log((draws.below(2**53) + 0.5) * 2.0**-53) for _ in scores]
        noisy = [float(rate) * score + own for score, own in zip(scores, noise, strict=True)]
        return noisy.index(min(noisy))

    noisy_min.choose = wrong


def losses_capped_one_percent_high(capped):
    """Losses let through at 1.01 C."""
    right = capped.Capped.most.fget
    capped.Capped.most = property(lambda self: 1.01 * right(self))


def four_random_bytes(rng):
    """Secure keys of 32 random bits."""
    rng.Key.secure = classmethod(lambda cls: cls(rng.secrets.token_bytes(4) * 8, "secure"))


def target_passed_by_a_thousandth(calibration):
    """A charge is affordable that goes beyond the target by 0.1 %."""
    right = calibration.affordable_rounds
    calibration.affordable_rounds = lambda event, rounds, target, *more: right(
        event, rounds, 1.001 * target, *more
    )


def named_queries_by_the_round(crash_rules):
    """Keys of a query with a name of its own by the round: what is redone meets them again."""
    right = crash_rules.Charged.key

    def wrong(self, stream, name, *keys):
        from dataclasses import replace

        return right(
            self if name == crash_rules.UPDATE else replace(self, number=1), stream, name, *keys
        )

    crash_rules.Charged.key = wrong


def undecided_bits_shared(rounded):
    """All numbers that 64 bits leave undecided are decided by the same further bits."""
    right, one = rounded._decide_by_more_bits, rounded.Key.simulation(0)

    def wrong(key, *given, **more):
        return right(one if isinstance(key, rounded.Key) else key, *given, **more)

    rounded._decide_by_more_bits = wrong


def candidates_drawn_again(noisy_min):
    """Permute-and-flip that leaves a candidate out and lets the last one stand twice."""

    def wrong(scores, rate, form, draws):
        order, least = list(range(len(scores))), min(scores)
        while True:
            place = draws.below(len(order))
            if draws.heads(rate * (scores[order[place]] - least)):
                return order[place]
            if form == "permute-and-flip":
                order[place] = order[-1]

    noisy_min.choose = wrong


class _AllPosts:
    """A view whose public training examples have rostered askers' titles and tags too."""

    def __init__(self, view):
        self._view = view

    def __getattr__(self, name):
        return getattr(self._view, name)

    def public_rows(self, subset, *, of="all-posts"):
        return self._view.public_rows(subset, of=of)


def _with_all_posts(task, **changes):
    """A task whose view is `_AllPosts`."""
    from copy import copy

    changed = copy(task)
    vars(changed).update(view=_AllPosts(task.view), **changes)
    return changed


def settings_of_all_posts(tag_prediction):
    """Public users' updates are measured on their answers to rostered users, too."""
    right = tag_prediction.TagPrediction.public_users_held_out
    tag_prediction.TagPrediction.public_users_held_out = lambda task: right(_with_all_posts(task))


def judged_by_all_posts(tag_prediction):
    """The returned model is selected on answers to rostered users, too."""
    right = tag_prediction.TagPrediction.public_folds
    tag_prediction.TagPrediction.public_folds = lambda task: right(
        _with_all_posts(task, _public_text="all-posts")
    )


def batches_by_who_is_drawn(vectorised):
    """A user's update depends on how many share its batch, and nobody tries whether it does."""
    right = vectorised.VectorisedTrainer.together

    def wrong(self, start, context, works):
        found, well = right(self, start, context, works)
        found.updates["bias"].mul_(1 + 1e-3 * len(works))
        return found, well

    vectorised.VectorisedTrainer.together = wrong
    vectorised.VectorisedTrainer._is_batch_invariant = lambda *given: True


def one_percent_long_on_a_device(device_sum):
    """Updates are added one part in a hundred too long."""
    right = device_sum.DeviceSum.add
    device_sum.DeviceSum.add = lambda self, updates, factors, *more: right(
        self, updates, [1.01 * factor for factor in factors], *more
    )


_PRIVACY, _DOOR = "fedpriv.privacy", "fedpriv.runs.door"
_CRASH_RULES = "fedpriv.runs.crash_rules"
BREAKS = {
    change.__name__: (module, change)
    for module, change in (
        (f"{_PRIVACY}.sampling", rate_squared),
        ("fedpriv.mechanisms.event", fixed_size_not_doubled),
        ("fedpriv.ranges", numbers_unchecked),
        ("fedpriv.mechanisms.bounds", bound_one_percent_long),
        ("fedpriv.training.bounded_sum", bounded_before_preconditioned),
        ("fedpriv.training.bounded_sum", weighted_by_examples),
        (f"{_PRIVACY}.mechanism", divided_by_survivors),
        ("fedpriv.mechanisms.gaussian", noise_one_percent_short),
        ("fedpriv.mechanisms.rounded_gaussian", rounded_noise_one_percent_short),
        ("fedpriv.mechanisms.perturbation", length_of_noise_a_tenth_short),
        ("fedpriv.mechanisms.correlated.noise", correlated_noise_a_tenth_short),
        ("fedpriv.mechanisms.gaussian", noise_in_half_precision),
        ("fedpriv.training.bounded_sum", nan_passes),
        ("fedpriv.mechanisms.gaussian", noise_halved),
        ("fedpriv.backends.flower.exchange", waits_for_everybody),
        ("fedpriv.backends.flower.bounded_sum", longer_sums_let_through),
        (f"{_PRIVACY}.ledger.ledger", charged_after_the_draw),
        (_CRASH_RULES, noise_by_the_round),
        (f"{_PRIVACY}.sampling", cohorts_of_one_size),
        ("fedpriv.mechanisms.gaussian", noise_in_floats),
        ("fedpriv.kernels.rounded_normals", undecided_bits_ignored),
        ("fedpriv.rng", secure_by_a_seed),
        (_DOOR, cohorts_in_the_log),
        (f"{_PRIVACY}.ledger.chain", chain_not_checked),
        ("fedpriv.mechanisms.bounds", floats_summed),
        (f"{_PRIVACY}.ledger.state", one_charge_too_many),
        (f"{_PRIVACY}.trials", trials_not_paid),
        ("fedpriv.studies.private_selection", number_drawn_again),
        ("fedpriv.studies.private_selection", losing_trials_kept),
        ("fedpriv.mechanisms.selection", cap_of_scores_halved),
        ("fedpriv.mechanisms.selection", sign_of_the_noise_turned),
        ("fedpriv.mechanisms.selection", candidates_drawn_again),
        ("fedpriv.tasks.tag_prediction", settings_of_all_posts),
        ("fedpriv.tasks.tag_prediction", judged_by_all_posts),
        ("fedpriv.mechanisms.bounds", losses_capped_one_percent_high),
        ("fedpriv.rng", four_random_bytes),
        (f"{_PRIVACY}.accounting", target_passed_by_a_thousandth),
        (_CRASH_RULES, named_queries_by_the_round),
        ("fedpriv.mechanisms.rounded_gaussian", undecided_bits_shared),
        ("fedpriv.training.local.vectorised", batches_by_who_is_drawn),
        ("fedpriv.training.device_sum", one_percent_long_on_a_device),
    )
}
