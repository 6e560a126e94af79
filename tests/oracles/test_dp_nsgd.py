"""The product against DP-NSGD and DP-NAdam in plain NumPy, on the product's own draws."""

from functools import partial

import numpy as np
import pytest

from tests.oracles import dp_nsgd, product

BOUNDS = {
    "clip": ({"bound": "clip", "l2_clip_norm": 0.7}, partial(dp_nsgd.clip, c=0.7)),
    "normalise": (
        {"bound": "normalise", "bound.regulariser": 0.1}, partial(dp_nsgd.normalise, r=0.1)
    ),
}  # fmt: skip
GRAD = partial(product.of_example, product.gradient)


@pytest.mark.parametrize("schedule", ["constant", "step", "cyclic"])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("bound", BOUNDS)
def test_steps(bound, optimizer, schedule):
    options, bounded = BOUNDS[bound]
    start, played = product.play(product.by_example(
        steps=20, batch_size=8.0, noise_multiplier=0.5, optimizer=optimizer, schedule=schedule,
        **options, **{"optimizer.learning_rate": 0.2},
        **({"optimizer.adaptivity": 0.03} if optimizer == "adam" else {}),
    ))  # fmt: skip
    batches = [[int(i) for i in one.cohort] for one in played]
    found = dp_nsgd.train(
        product.flat(start), GRAD, batches, [-z for z in product.noise_of(played)], bound=bounded,
        eta=0.2, B=8.0, factors=dp_nsgd.schedule(schedule, 20),
        adam=(0.9, 0.999, 0.03) if optimizer == "adam" else None,
    )  # fmt: skip
    product.check(played, found)


@pytest.mark.parametrize("relation", ["add-remove", "replace-one"])
@pytest.mark.parametrize("bound", BOUNDS)
def test_noise_is_of_the_sensitivity(bound, relation):
    """15 coordinates of 40 draws: their deviation to a tenth, a false alarm in 10^4."""
    options, _ = BOUNDS[bound]
    fixed = {"sampling": "fixed", "relation": relation} if relation == "replace-one" else {}
    experiment = product.by_example(
        steps=40, batch_size=8.0, noise_multiplier=0.5, **options, **fixed
    )
    _, played = product.play(experiment)
    most = dp_nsgd.sensitivity(0.7 if bound == "clip" else 1.0, relation)
    drawn = np.std(np.concatenate(product.noise_of(played)))
    assert drawn == pytest.approx(product.priced_sigma(experiment) * most, rel=0.1)
    sizes = {len(one.cohort) for one in played}
    assert (sizes == {8}) == (relation == "replace-one")


def test_norm_fedavg():
    start, played = product.play(product.by_user(
        rounds=4, cohort=4.0, noise_multiplier=0.5, bound="normalise", l2_clip_norm=0.4,
        **{"bound.regulariser": 0.05},
        **{"local.learning_rate": 0.05, "local.batch_size": 100, "local.epochs": 3},
    ))  # fmt: skip
    found = dp_nsgd.norm_fedavg(
        product.flat(start), partial(product.of_user, product.gradient),
        [one.cohort for one in played], product.noise_of(played), eta=0.05, E=3, C=0.4, r=0.05,
        m=4.0,
    )  # fmt: skip
    product.check(played, found)


def test_toy_of_two_gradients():
    """Of mean 0.1: normalised it points the wrong way, clipped high enough it does not."""
    values, shares = (1.3, -0.5), (1 / 3, 2 / 3)
    for bound, mean in (
        (partial(dp_nsgd.normalise, r=0.01), -0.322806),
        (partial(dp_nsgd.clip, c=1.3), 0.1),
        (partial(dp_nsgd.clip, c=0.5), -1 / 6),
    ):
        assert dp_nsgd.expected(bound, values, shares) == pytest.approx(mean, abs=1e-6)
    ours = [product.normalised(value, 0.01) for value in values]
    assert np.dot(ours, shares) == pytest.approx(-0.322806, abs=1e-6)
    stated = product.theory("bias", upper=1.3, lower=-0.5, chance=1 / 3, regulariser=0.01)
    assert stated["step"] == pytest.approx(-0.322806, abs=1e-6)
    assert stated["mean"] == pytest.approx(0.1)
