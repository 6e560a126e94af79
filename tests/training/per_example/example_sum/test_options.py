"""Options of centralised experiments: numbers without sense are refused by name."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fedpriv.experiments.build import build
from fedpriv.mechanisms import Clip, Rounded
from tests.training.per_example.example_sum.reviews import BASE, KEY, task


class TestRefusals:
    @pytest.mark.parametrize(
        ("options", "said"),
        [
            ({"steps": "none"}, "exactly one"),
            ({"epochs": 2.0, "steps": 20}, "exactly one"),
            ({"micro-batch": 21}, "above the expected batch"),
            ({"micro-batch": 2, "relation": "replace-one", "sampling": "fixed"}, "micro-batch 2"),
            ({"preconditioner": "public-adam", "public-batch": 21}, "public batch of 21"),
            (
                {"preconditioner": "side-information", "side-information": "odd"},
                "'odd' is not known",
            ),
            ({"preconditioner": "ideal", "target-epsilon": 2.0}, "no ε to calibrate"),
            ({"preconditioner": "delayed", "delay-plain": 0}, "plain 0"),
        ],
    )
    def test_what_does_not_fit_is_refused(self, options, said):
        with pytest.raises(ValueError, match=said):
            build(BASE.with_options(options))

    def test_guides_that_need_public_examples_say_so(self):
        bare = replace(task(), public=None, num_public=0)
        with pytest.raises(ValueError, match="no public examples"):
            build(BASE.with_options({"preconditioner": "r-pub"}), task=bare)

    def test_no_grid(self):
        components = build(BASE)
        with pytest.raises(ValueError, match="summed as floats, and their sum may be rounded"):
            components.trainer.partial_sum(
                params=components.task.init_params(KEY),
                bound=Rounded(bound=Clip(l2_clip_norm=1.0)),
                user_ids=("1",),
                key=KEY,
            )
