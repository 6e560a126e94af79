"""The statement says what is true of a run, and the uncomfortable parts too."""

import json
import math
import re

import pytest

from fedpriv.hashes import document_sha256
from fedpriv.mechanisms import Clip
from fedpriv.mechanisms.correlated.noise import Correlated
from fedpriv.mechanisms.correlated.optimise import square_root_bands
from fedpriv.mechanisms.privatizer import Participation
from fedpriv.privacy.epsilon import format_delta, rounded_up
from fedpriv.privacy.ledger.ledger import Ledger
from fedpriv.privacy.mechanism import Mechanism
from fedpriv.privacy.plan import Plan, cohort_plan
from fedpriv.privacy.sampling import CyclicSampler
from fedpriv.privacy.statement.coverage import FLOATS
from fedpriv.privacy.statement.statement import privacy_statement, run_statement

PLAN = cohort_plan(
    num_users=4000,
    expected_cohort_size=350,
    num_rounds=20,
    bound="clip",
    l2_bound=0.5,
    noise="gaussian",
    noise_multiplier=2.0,
)
CORPUS = {
    "name": "onstartups",
    "roster": "onstartups-all",
    "synthetic": False,
    "num_public_users": 412,
    "provenance": {
        "own_text_only": False,
        "dropped": {},
        "roster_how": "Users whose hashed id falls outside a fixed 10 %.",
        "roster_looks_at_data": False,
        "foreign_text_share": 0.906,
        "foreign_text_share_by_rostered_users": 0.221,
        "words": "public users: those used by most users outside the roster",
        "tags": "public users: those used by most; they order the labels",
        "word_counts": "text that users outside the roster wrote",
        "word_counts_source": "public users",
    },
}
SIDE = {"source": "public", "description": "rank (words beyond the 100 commonest), from public"}


def say(plan=PLAN, *, charges=20, mode="simulation", corpus=CORPUS, side=SIDE, lost=0, **more):
    return privacy_statement(
        plan,
        num_charges=charges,
        num_lost=lost,
        mode=mode,
        corpus=corpus,
        side_information=side,
        **more,
    )


def text(statement):
    return " ".join(paragraph for part in statement.sections for paragraph in part.paragraphs)


def test_every_term_of_the_promise_is_said():
    said = say(lost=2)
    spent = PLAN.epsilon(20)
    assert f"{rounded_up(spent.value, 4):.4f}" in said.headline
    for part in ("simulated", "add-remove", "user", "PLD", format_delta(spent.delta)):
        assert part in said.headline
    whole = text(said)
    for part in (
        "4,000 users",
        "onstartups-all",
        "independently of the others",
        "350 of 4,000",
        "clipped to an l2 norm of 0.5",
        "standard deviation 1 ",
        "20 of 20 planned rounds",
        "2 of them lost",
        "RDP",
        "with the add-remove relation",
        "outside a fixed 10 %",
    ):
        assert part in whole, part


def test_what_is_not_covered_is_said():
    whole = text(say())
    for part in (
        "Tuning",
        "90.6 %",
        "22.1 %",
        "does not cover a person's words inside",
        "Diagnostics",
        "assumption",
        "412 users outside the roster",
        "not hardened",
        "anyone with the seed can subtract the noise",
        "those used by most users outside",
        "rank (words beyond",
        "trusted",
    ):
        assert part in whole, part


def test_secure_mode_is_not_called_simulated():
    said = say(mode="secure")
    assert not said.simulated and "simulated" not in said.headline
    whole = text(said)
    assert "seeded simulation" not in whole and "Diagnostics" not in whole
    assert "entropy" in whole and "ChaCha20" in whole


def test_a_secure_run_in_floating_point_is_marked():
    said = say(mode="secure")
    assert FLOATS in said.headline and said.not_covered == (FLOATS,)
    assert "NOT hardened" in text(said) and "which this run did not have" in text(said)


def test_a_hardened_run_says_what_its_sampler_adds_to_delta():
    said = say(mode="secure", hardened=True)
    assert said.not_covered == () and "Floating point: hardened" in text(said)
    # (1 + e^ε) 10^12 2^-256, ε below 1.
    assert "below 10^-64." in text(said)
    assert (1 + math.e) * 1e12 * 2.0**-256 < 1e-64


@pytest.mark.parametrize(("sigma", "label"), [(0.3, "no meaningful protection"), (2.0, "")])
def test_the_label(sigma, label):
    plan = cohort_plan(**{**PLAN.to_json(), "noise_multiplier": sigma})
    said = say(plan)
    assert said.no_meaningful_protection == bool(label)
    assert ("no meaningful protection" in said.headline + text(said)) == bool(label)


def test_no_noise_promises_nothing():
    said = say(cohort_plan(num_users=4, expected_cohort_size=2, num_rounds=20))
    assert said.no_meaningful_protection
    assert "no privacy" in said.headline and "∞" in said.headline
    assert "guarantees nothing" in text(said) and "independently" not in text(said)


def test_fixed_cohorts_caps_own_text_and_private_side_information():
    fixed = cohort_plan(
        num_users=400,
        expected_cohort_size=20,
        num_rounds=5,
        bound="normalise",
        l2_bound=1.0,
        noise="gaussian",
        noise_multiplier=9.0,
        sampling="fixed",
        relation="replace-one",
    )
    corpus = {
        **CORPUS,
        "synthetic": True,
        "provenance": {**CORPUS["provenance"], "own_text_only": True},
    }
    whole = text(say(fixed, charges=5, corpus=corpus, side={**SIDE, "source": "private"}))
    for part in (
        "without replacement",
        "replacing all records",
        "normalised to",
        "Rényi",
        "own text only",
        "NOT covered",
        "are synthetic",
    ):
        assert part in whole, part
    assert "90.6" not in whole
    private = {
        **CORPUS["provenance"],
        "word_counts_source": "private",
        "roster_looks_at_data": True,
    }
    whole = text(say(corpus={**CORPUS, "provenance": private}))
    assert "include rostered ones" in whole and "looked at the records" in whole
    assert "text that users outside" in whole  # what they were is still described
    capped = cohort_plan(**{**PLAN.to_json(), "cohort_cap": 700})
    assert "more than 700" in text(say(capped))


def test_independent_draws_within_groups_hang_on_secrecy():
    """Under noise with a memory too: who knows the cohorts is promised no more than without."""
    limit = Participation(most=4, min_separation=5, num_rows=20)
    noise = Correlated(noise_multiplier=2.0, strategy=square_root_bands(5, 20), participation=limit)
    for mean in (4.0, None):
        sampler = CyclicSampler(num_users=100, groups=5, most=4, mean=mean)
        mechanism = Mechanism(sampler=sampler, bound=Clip(l2_clip_norm=1.0), privatizer=noise)
        plan = Plan(mechanism=mechanism, num_rounds=20, relation="zero-out", delta=1e-3)
        for made in (plan, Plan.from_json(plan.to_json())):
            said = text(say(made, charges=1))
            assert ("with probability 0.2" in said) == (mean is not None)
            assert ("as long as the cohort stays secret" in said) == (mean is not None)


def test_one_in_n_is_remarked():
    plan = cohort_plan(**{**PLAN.to_json(), "delta": 1 / 4000})
    assert "publishing one user outright" in text(say(plan))


def test_nothing_known_of_the_corpus_is_no_obstacle():
    said = say(corpus=None, side=None)
    titles = [part.title for part in said.sections]
    assert "The guarantee" in titles and "Whose words are in an example" not in titles
    for odd in ({}, {"provenance": None}, {"provenance": {"roster": "x", "own_text_only": 0}}):
        say(corpus=odd, side=None)
    assert all(part.paragraphs for part in said.sections)


def test_a_run_folder_states_itself(tmp_path):
    document = {
        "format": "fedpriv-run",
        "version": 1,
        "plan": PLAN.to_json(),
        "mode": "secure",
        "corpus": CORPUS,
        "side_information": SIDE,
    }
    (tmp_path / "experiment.json").write_text(json.dumps(document))
    sealed = {"experiment_sha256": document_sha256(document)}
    with Ledger.create(tmp_path / "ledger.jsonl", PLAN, mode="secure", extra=sealed) as ledger:
        ledger.charge(1, 1)
        ledger.charge(1, 2)
        ledger.release(1, 2, "0" * 64)
    said = run_statement(tmp_path)
    assert said == say(charges=2, mode="secure", lost=1, anchored=False)
    assert json.loads(json.dumps(said.to_json()))["sections"][0]["title"] == "The guarantee"
    (tmp_path / "experiment.json").unlink()
    with pytest.raises(ValueError, match=r"has lost its experiment\.json"):
        run_statement(tmp_path)  # its ledger seals one, so it is not a training of one's own
    (tmp_path / "ledger.jsonl").unlink()
    with pytest.raises(ValueError, match="cannot read the ledger"):
        run_statement(tmp_path)


TRAINING_SET = {
    "name": "imdb",
    "synthetic": False,
    "roster": "training set",
    "num_users": 4000,
    "num_public_users": 250,
    "provenance": {},
}


class TestExamples:
    """Centralised training: what holds of examples is said of examples."""

    def say(self, *, data=TRAINING_SET, side=None, **changes):
        plan = cohort_plan(**{**PLAN.to_json(), "unit": "example", **changes})
        return privacy_statement(
            plan, num_charges=20, mode="simulation", corpus=data, side_information=side
        )

    def section(self, statement, title):
        [part] = [part for part in statement.sections if part.title == title]
        return " ".join(part.paragraphs)

    def test_the_promise(self):
        said = self.section(self.say(), "The guarantee")
        assert "whether one example of the training set was there or not" in said
        assert "whether a given example took part" in said and "user" not in said

    def test_the_promise_of_replacing(self):
        said = self.section(
            self.say(
                sampling="fixed",
                relation="replace-one",
                expected_cohort_size=40,
                noise_multiplier=9,
            ),
            "The guarantee",
        )
        assert "replacing one example of the training set by any other" in said
        assert "user" not in said

    def test_nothing_is_promised_of_any_example(self):
        plan = cohort_plan(num_users=4, expected_cohort_size=2, num_rounds=20, unit="example")
        said = text(say(plan, corpus=TRAINING_SET, side=None))
        assert "anything about any example in it" in said and "user" not in said

    def test_who_is_protected(self):
        said = self.section(self.say(), "Who is protected")
        assert "The unit is an example" in said and "holds 4,000" in said
        assert "protected for each of them alone, not for all together" in said
        assert "user" not in said and "account" not in said

    def test_synthetic_examples(self):
        said = self.section(self.say(data={**TRAINING_SET, "synthetic": True}), "Who is protected")
        assert "are synthetic" in said and "user" not in said
        assert "are synthetic" not in self.section(self.say(), "Who is protected")

    def test_how_it_was_counted(self):
        said = self.section(self.say(), "How ε was counted")
        for part in (
            "draws each example independently of the others",
            "Each example's update is clipped to an l2 norm of 0.5",
            "standard deviation 1 ",
            "before its examples and its noise were drawn",
        ):
            assert part in said, part
        assert "user" not in said and "twice the bound" not in said

    def test_micro_batches(self):
        said = self.section(self.say(micro_batch=4), "How ε was counted")
        for part in (
            "Means over about 4 examples",
            "each drawn into its own by chance",
            "standard deviation 2 (noise multiplier 2)",
            "moves the sum by up to twice the bound, 1: the noise multiplier is taken to that",
            "divided by the planned number of means",
        ):
            assert part in said, part
        assert "user" not in said

    def test_private_side_information_is_of_examples(self):
        said = text(self.say(side={"source": "private", "description": "counts"}))
        assert "computed from private examples" in said and "NOT covered by ε" in said
        assert "These were public" not in said and "public beforehand" not in said

    def test_what_the_data_set_took_from_them(self):
        provenance = {
            "words": 2000,
            "features": {"vocabulary": {"source": "private", "words": 2000}},
            "private_side_information": ["vocabulary"],
        }
        said = self.say(data={**TRAINING_SET, "provenance": provenance})
        mark = "does NOT cover: vocabulary taken from private examples"
        assert mark in said.headline and f"It {mark}." in self.section(said, "The guarantee")
        assert said.not_covered == ("vocabulary taken from private examples",)
        taken = self.section(said, "What was taken from private examples")
        assert "2,000 words chosen by private examples" in taken and "NOT covered by ε" in taken
        assert "Vocabulary: 2000." not in text(said)

    def test_a_public_vocabulary(self):
        provenance = {
            "features": {"vocabulary": {"source": "public", "words": 40}},
            "private_side_information": [],
        }
        said = self.say(data={**TRAINING_SET, "provenance": provenance})
        assert said.not_covered == () and "NOT" not in said.headline + text(said)
        public = self.section(said, "What was taken to be public")
        assert "Vocabulary: 40 words chosen by public examples." in public

    def test_steps_and_batches(self):
        for mode in ("simulation", "secure"):
            plan = cohort_plan(**{**PLAN.to_json(), "unit": "example"})
            whole = text(privacy_statement(plan, num_charges=20, mode=mode, corpus=TRAINING_SET))
            for part in ("Every step draws", "the trainer draws", "the batch stays secret"):
                assert part in whole, part
            assert re.search(r"\b(rounds?|cohorts?|server|network)\b", whole) is None

    def test_nothing_at_all_is_said_of_users(self):
        for side in (None, {"source": "public", "description": "counts"}):
            for data in (TRAINING_SET, None):
                assert "user" not in text(self.say(data=data, side=side))

    def test_what_is_public_is_named(self):
        said = text(self.say(side={"source": "public", "description": "counts"}))
        assert "the 250 public examples get no protection from this run" in said
        assert "The test set" in self.section(self.say(), "What no ε covers")
