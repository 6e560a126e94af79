"""The product against adaptive clipping and FedProx in plain NumPy, on its own draws."""

from functools import partial

import numpy as np
import pytest

from tests.oracles import adadps, federated, product

LOCAL = {"local.learning_rate": 0.3, "local.batch_size": 3, "local.epochs": 2}
BY_USER = {"rounds": 6, "cohort": 4.0, "noise_multiplier": 0.5, "l2_clip_norm": 0.7, **LOCAL}
RATES = {
    "constant": {},
    "warm-up": {"local.warmup_rounds": 2},
    "cosine": {"local.warmup_rounds": 2, "local.rate_schedule": "cosine"},
}


def factors_of(name):
    schedule = "cosine" if name == "cosine" else "constant"
    return federated.rate_factors(6, schedule=schedule, warmup=0 if name == "constant" else 2)


@pytest.mark.parametrize(("least", "most"), [(0.68, 0.78), (4e-4, 100.0)])
@pytest.mark.parametrize("rates", RATES)
def test_adaptive_clipping(rates, least, most):
    h, sigma = 0.3, 0.5
    experiment = product.by_user(**BY_USER, **RATES[rates], **{
        "bound": "adaptive", "bound.rate": 0.8, "bound.quantile": 0.7,
        "bound.count_weight": h, "bound.least": least,
        "bound.most": most,
    })  # fmt: skip
    start, played = product.play(experiment)
    cohorts, factors = product.cohorts_of(played), factors_of(rates)

    def updates_of(w, t):
        return [federated.local_update(w, product.users_gradient, batches, eta=0.3 * factors[t])
                for batches in cohorts[t]]  # fmt: skip

    # The vector that is sent, of length 1, gives √(1 - h²) to the update and h to the count.
    sigma_b = sigma / (2 * h)
    share = sigma / federated.update_noise(sigma, sigma_b)
    assert product.sensitivity_of(experiment) == 1.0
    assert share == pytest.approx(np.sqrt(1 - h**2), rel=1e-12)
    found = federated.adaptively_clipped(
        product.flat(start), updates_of, [z / share for z in product.noise_of(played)],
        [xi / (2 * h) for xi in product.counts_of(played)], C=0.7, quantile=0.7, rate=0.8, m=4.0,
        least=least, most=most,
    )  # fmt: skip
    product.check(played, found)


def test_bound_shortens_some_updates_and_leaves_others():
    start, played = product.play(product.by_user(**BY_USER))
    before, lengths = [start, *(one.params for one in played)], list[float]()
    for params, cohort in zip(before, product.cohorts_of(played), strict=False):
        w = product.flat(params)
        deltas = [federated.local_update(w, product.users_gradient, user, eta=0.3)
                  for user in cohort]  # fmt: skip
        lengths += [float(np.linalg.norm(delta)) for delta in deltas]
    assert min(lengths) < BY_USER["l2_clip_norm"] < max(lengths)


def test_noise_of_the_count():
    """40 draws of σ on ± h: their deviation to a third, a false alarm in 10^3."""
    experiment = product.by_user(**{**BY_USER, "rounds": 40}, **{"bound": "adaptive"})
    _, played = product.play(experiment)
    assert np.std(product.counts_of(played)) == pytest.approx(0.5, rel=1 / 3)


LOCAL_OPTIMISERS = {
    "sgd": ({}, federated.local_update),
    "weight decay": ({"decay": 0.3}, partial(federated.local_update, decay=0.3)),
    "momentum": (
        {"client_optimizer": "momentum", "client_optimizer.client_decay": 0.6},
        partial(federated.local_update, momentum=0.6),
    ),
    "adam": (
        {"client_optimizer": "adam", "client_optimizer.client_beta1": 0.7,
         "client_optimizer.client_beta2": 0.97, "client_optimizer.client_adaptivity": 0.01},
        partial(federated.local_adam, betas=(0.7, 0.97), eps=0.01),
    ),
}  # fmt: skip


@pytest.mark.parametrize("optimiser", LOCAL_OPTIMISERS)
@pytest.mark.parametrize("mu", [0.0, 0.4])
@pytest.mark.parametrize("rates", RATES)
def test_fedprox(rates, mu, optimiser):
    own, local = LOCAL_OPTIMISERS[optimiser]
    start, played = product.play(
        product.by_user(**BY_USER, **RATES[rates], **{"local.proximal_mu": mu}, **own)
    )
    factors, w, found = factors_of(rates), product.flat(start), []
    train = partial(local, mu=mu)
    cohorts, noise = product.cohorts_of(played), product.noise_of(played)
    for users, z, factor in zip(cohorts, noise, factors, strict=True):
        deltas = [train(w, product.users_gradient, user, eta=0.3 * factor) for user in users]
        w = w + (z + sum((adadps.clip(delta, 0.7) for delta in deltas), np.zeros_like(w))) / 4.0
        found.append(w)
    product.check(played, found)


def test_dropouts():
    """Whoever drops out contributes zero, by a draw of its own; m and noise are as they were."""
    start, played = product.play(product.by_user(**BY_USER, **{"dropout_rate": 0.4}))
    assert any(0 < len(one.present) < len(one.cohort) for one in played)
    w, found = product.flat(start), []
    for users, z in zip(product.cohorts_of(played), product.noise_of(played), strict=True):
        deltas = [
            federated.local_update(w, product.users_gradient, user, eta=0.3) for user in users
        ]
        w = w + (z + sum((adadps.clip(delta, 0.7) for delta in deltas), np.zeros_like(w))) / 4.0
        found.append(w)
    product.check(played, found)


@pytest.mark.parametrize("most", [1000, 4])
def test_batches_are_whole_passes(most):
    """Of 3 examples a step, each of at most so many of a user's once a pass, in an order anew."""
    own = {"max_examples_per_user": most}
    _, played = product.play(
        product.by_user(**BY_USER, **{f"local.{n}": v for n, v in own.items()})
    )
    anew = False
    for users in product.cohorts_of(played):
        for batches in users:
            size = min(most, len(product.USERS[batches[0][0]][1]))
            steps = -(-size // 3)
            assert len(batches) == 2 * steps
            passes = [np.concatenate([b for _, b in batches[k * steps :][:steps]]) for k in (0, 1)]
            assert [len(b) for _, b in batches[: steps - 1]] == [3] * (steps - 1)
            for one in passes:
                assert len(one) == len(set(one.tolist())) == size
            assert set(passes[0].tolist()) == set(passes[1].tolist())
            anew |= passes[0].tolist() != passes[1].tolist()
    assert anew


def test_a_cap_is_kept():
    """Of twelve users, two in expectation: more than four in some of 80 rounds without a cap."""
    users = {f"u{n:02d}": product.examples(3, n) for n in range(12)}
    given = {**BY_USER, "rounds": 80, "cohort": 2.0, "local.epochs": 1}
    free, capped = (product.play(product.by_user(users, **given, **more))[1]
                    for more in ({}, {"cohort_cap": 4}))  # fmt: skip
    assert max(len(one.cohort) for one in free) > 4
    assert max(len(one.cohort) for one in capped) == 4
