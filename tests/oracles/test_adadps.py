"""The product against AdaDPS and its baselines in plain NumPy, on the product's own draws."""

from functools import partial

import numpy as np
import pytest

from tests.oracles import adadps, product

LOCAL = {"local.learning_rate": 0.3, "local.batch_size": 3, "local.epochs": 2}
BY_USER = {"rounds": 4, "cohort": 4.0, "noise_multiplier": 0.5, "l2_clip_norm": 0.4, **LOCAL}
BY_EXAMPLE = {"steps": 6, "batch_size": 8.0, "noise_multiplier": 0.5, "l2_clip_norm": 0.7}
A = np.concatenate([np.tile(product.SCALE, product.CLASSES), np.ones(product.CLASSES)])
PRIVATE, PUBLIC = product.gradient_of(product.TRAIN), product.gradient_of(product.PUBLIC)


def played_by_user(**options):
    start, played = product.play(product.by_user(**BY_USER, **options))
    return product.flat(start), played


def federated(start, played, **changes):
    given = {"A": A, "where": "none", "C": 0.4, "eta": 0.3, "m": 4.0,
             "server": partial(adadps.ema_momentum, beta=0.0)}  # fmt: skip
    return adadps.federated(
        start, product.users_gradient, product.cohorts_of(played), product.noise_of(played),
        **{**given, **changes},
    )  # fmt: skip


@pytest.mark.parametrize("where", ["none", "local", "update", "both"])
@pytest.mark.parametrize("server", ["sgd", "ema-momentum"])
def test_federated(where, server):
    side = {} if where == "none" else {"side_information": "own"}
    start, played = played_by_user(precondition=where, server=server, **side)
    beta = 0.0 if server == "sgd" else 0.9
    own = partial(adadps.ema_momentum, beta=beta)
    product.check(played, federated(start, played, where=where, server=own))


def test_dp_fedadam():
    start, played = played_by_user(server="adam", **{"server.learning_rate": 0.1})
    rate = partial(adadps.server_adam, alpha=0.1, eps=1e-3)
    product.check(played, federated(start, played, server=rate))


def test_dp_normfedavg():
    start, played = played_by_user(bound="normalise", normalise_regulariser=0.05,
                                   server="ema-momentum")  # fmt: skip
    product.check(played, federated(start, played, normalise=0.05, server=adadps.ema_momentum))


def played_by_example(**options):
    start, played = product.play(product.by_example(**BY_EXAMPLE, **options))
    looks = [one.public for one in played]
    return product.flat(start), played, [-z for z in product.noise_of(played)], looks


GIVEN = {"C": 0.7, "alpha": 0.2, "b": 8.0}


def test_dp_sgd():
    start, played, noise, _ = played_by_example(**{"optimizer.learning_rate": 0.2})
    found = adadps.dp_sgd(start, PRIVATE, product.groups_of(played), noise, **GIVEN)
    product.check(played, found)


def test_micro_batches():
    start, played, noise, _ = played_by_example(micro_batch=4, **{"optimizer.learning_rate": 0.2})
    groups = product.groups_of(played)
    assert max(len(group) for one in groups for group in one) > 1
    product.check(played, adadps.dp_sgd(start, PRIVATE, groups, noise, **{**GIVEN, "b": 2.0}))
    # Appendix B: one example moves its micro-batch by up to 2 C, and noise is for that.
    assert np.std(np.concatenate(noise)) == pytest.approx(0.5 * 2 * 0.7, rel=0.3)


@pytest.mark.parametrize("rule", ["adam", "rmsprop", "adagrad"])
def test_dp_adaptive(rule):
    start, played, noise, _ = played_by_example(
        optimizer=rule, **{"optimizer.learning_rate": 0.2, "optimizer.adaptivity": 0.01}
    )
    found = adadps.dp_adaptive(
        start, PRIVATE, product.groups_of(played), noise, rule=rule, eps=0.01, **GIVEN
    )
    product.check(played, found)


@pytest.mark.parametrize("refresh", ["step", "epoch"])
@pytest.mark.parametrize("rule", ["rmsprop", "adam", "adagrad"])
def test_adadps(rule, refresh):
    start, played, noise, looks = played_by_example(
        preconditioner=f"public-{rule}", public_batch=4, refresh=refresh,
        **{"optimizer.learning_rate": 0.2, "preconditioner.regulariser": 1e-3},
    )  # fmt: skip
    found = adadps.adadps(
        start, PRIVATE, PUBLIC, product.groups_of(played), looks, noise, rule=rule, eps=1e-3,
        **GIVEN,
    )  # fmt: skip
    product.check(played, found)


def test_ideal():
    start, played, noise, looks = played_by_example(
        preconditioner="ideal",
        **{"optimizer.learning_rate": 0.2, "preconditioner.regulariser": 1e-3},
    )
    found = adadps.adadps(
        start, PRIVATE, PRIVATE, product.groups_of(played), looks, noise, rule="rmsprop", eps=1e-3,
        **GIVEN,
    )  # fmt: skip
    product.check(played, found)


@pytest.mark.parametrize("kind", ["r-pub", "adam-pub"])
def test_dp_public(kind):
    momentum = {"optimizer": "ema-momentum"} if kind == "adam-pub" else {}
    start, played, noise, looks = played_by_example(
        preconditioner=kind, public_batch=4, **momentum,
        **{"optimizer.learning_rate": 0.2, "preconditioner.regulariser": 1e-3},
    )  # fmt: skip
    found = adadps.dp_public(
        start, PRIVATE, PUBLIC, product.groups_of(played), looks, noise, eps=1e-3,
        momentum=0.9 if momentum else 0.0, **GIVEN,
    )  # fmt: skip
    product.check(played, found)


def test_pda_dpmd():
    start, played, noise, looks = played_by_example(
        preconditioner="mirror-descent", public_batch=4, **{"optimizer.learning_rate": 0.2}
    )
    found = adadps.pda_dpmd(
        start, PRIVATE, PUBLIC, product.groups_of(played), looks, noise, **GIVEN
    )
    product.check(played, found)
