"""Options of centralised experiments: numbers without sense are refused by name."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fedpriv.experiments.build import build
from fedpriv.experiments.options import kebab
from fedpriv.mechanisms import Clip, Rounded
from tests.training.per_example.example_sum.reviews import BASE, KEY, task


class TestRefusals:
    @pytest.mark.parametrize(
        ("options", "said"),
        [
            ({"steps": "none"}, "exactly one"),
            ({"epochs": 2.0}, "exactly one"),
            ({"micro-batch": 21}, "above the expected batch"),
            ({"micro-batch": 2, "relation": "replace-one", "sampling": "fixed"}, "micro-batch 2"),
            ({"guide": "public-adam", "public-batch": 21}, "public batch of 21"),
            ({"guide": "side-information", "side-information": "odd"}, "'odd' is not known"),
            ({"guide": "ideal", "target-epsilon": 2.0}, "no ε to calibrate"),
            ({"guide": "delayed", "delay-plain": 0}, "plain 0"),
        ],
    )
    def test_what_does_not_fit_is_refused(self, options, said):
        with pytest.raises(ValueError, match=said):
            build(BASE.with_options(options))

    def test_guides_that_need_public_examples_say_so(self):
        bare = replace(task(), public=None, num_public=0)
        with pytest.raises(ValueError, match="no public examples"):
            build(BASE.with_options({"guide": "r-pub"}), task=bare)

    def test_no_grid(self):
        components = build(BASE)
        with pytest.raises(ValueError, match="summed as floats, and their sum may be rounded"):
            components.trainer.partial_sum(
                params=components.task.init_params(KEY),
                bound=Rounded(bound=Clip(l2_clip_norm=1.0)),
                user_ids=("1",),
                key=KEY,
            )


class TestOptions:
    def test_numbers_without_sense_are_refused_by_name(self, subtests):
        for name, value, said in [
            ("batch-size", 0.0, "must be above 0"),
            ("batch-size", -5.0, "must be above 0"),
            ("epochs", 0.0, "must be above 0"),
            ("epochs", -1.0, "must be above 0"),
            ("steps", 0, "must be at least 1"),
            ("steps", -3, "must be at least 1"),
            ("micro-batch", 0, "must be at least 1"),
            ("learning-rate", 0.0, "must be above 0"),
            ("learning-rate", -0.1, "must be above 0"),
            ("momentum", 1.0, "must be at least 0 and below 1"),
            ("momentum", -0.1, "must be at least 0 and below 1"),
            ("adaptivity", 0.0, "must be above 0"),
            ("public-batch", 0, "must be at least 1"),
            ("warm-start-epochs", -1, "must be at least 0"),
            ("warm-start-rate", 0.0, "must be above 0"),
            ("warm-start-rate", -1.0, "must be above 0"),
            ("l2-clip-norm", 0.0, "must be above 0"),
            ("normalise-regulariser", -1e-3, "must be at least 0"),
            ("noise-multiplier", -1.0, "must be at least 0"),
            ("target-epsilon", 0.0, "must be above 0"),
            ("delta", 1.0, "must be above 0 and below 1"),
            ("delta", 0.0, "must be above 0 and below 1"),
            ("decay", 1.0, "must be at least 0 and below 1"),
            ("regulariser", 0.0, "must be above 0"),
            ("delay-plain", 0, "must be at least 1"),
            ("delay-preconditioned", -1, "must be at least 1"),
            ("clip-ratio", 0.0, "must be above 0"),
            ("rate-ratio", -2.0, "must be above 0"),
            ("ema-decay", 1.5, "must be at least 0 and below 1"),
            ("eval-every", 0, "must be at least 1"),
        ]:
            with subtests.test(name=name, value=value, said=said):
                chosen = {
                    "normalise-regulariser": {"bound": "normalise"},
                    "ema-decay": {"aggregate": "ema"},
                    "adaptivity": {"optimizer": "adam"},
                    "momentum": {"optimizer": "adam"},
                    "public-batch": {"guide": "public-adam"},
                }.get(name, {})
                if name in ("decay", "regulariser", "clip-ratio", "rate-ratio") or "delay" in name:
                    chosen = {"guide": "delayed"}
                with pytest.raises(ValueError, match=rf"^{name} {value} {said}$"):
                    BASE.with_options({**chosen, name: value})

    def test_what_is_no_number_is_refused_by_name(self, subtests):
        for name in [
            name
            for name, value in BASE.options().items()
            if not isinstance(value, (str, bool)) and name not in ("relation", "noise.exact_sum")
        ]:
            for value in [float("nan"), float("inf"), "ten", "null", True]:
                with (
                    subtests.test(name=name, value=value),
                    pytest.raises(ValueError, match=rf"^{kebab(name)} '?{value}'? is not a finite"),
                ):
                    BASE.with_options({name: value})

    def test_what_may_be_left_out_says_how(self):
        with pytest.raises(
            ValueError, match=r"target-epsilon 'null' is not .* give one, or none to leave it out"
        ):
            BASE.with_options({"target-epsilon": "null"})
        with pytest.raises(ValueError, match=r"learning-rate 'none' is not .* give one$"):
            BASE.with_options({"learning-rate": "none"})
        with pytest.raises(
            ValueError, match=r"steps 2\.5 is not a whole number; give one, or none"
        ):
            BASE.with_options({"steps": 2.5})
        aimed = BASE.with_options({"target-epsilon": 2.0})
        assert aimed.noise.multiplier is None
        for nothing in ("none", None):
            assert aimed.with_options({"target-epsilon": nothing}).noise.target_epsilon is None

    def test_the_edges_of_the_ranges_are_inside(self):
        edges = {"momentum": 0.0, "warm-start-epochs": 0, "decay": 0.0, "ema-decay": 0.0}
        parts = {"optimizer": "momentum", "guide": "delayed", "aggregate": "ema"}
        build(BASE.with_options({**edges, **parts, "batch-size": 0.5}))
