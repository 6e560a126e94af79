"""What a statement says of a result that is perturbed once, and of a budget that adapts."""

import pytest

from fedpriv.mechanisms.bounds import OutputSensitivity
from fedpriv.mechanisms.perturbation import OutputGaussian, Sphere
from fedpriv.privacy.mechanism import Mechanism
from fedpriv.privacy.plan import Plan
from fedpriv.privacy.sampling import Everybody
from fedpriv.privacy.statement.statement import privacy_statement


@pytest.mark.parametrize("unit", ["user", "example"])
@pytest.mark.parametrize("noise", [Sphere(epsilon=2.0), OutputGaussian(noise_multiplier=3.0)])
def test_what_the_proof_takes_for_granted_is_said(unit, noise):
    mechanism = Mechanism(
        sampler=Everybody(num_users=50), bound=OutputSensitivity(l2_bound=0.1), privatizer=noise
    )
    delta = None if noise.name == "sphere" else 1e-5
    plan = Plan(mechanism=mechanism, num_rounds=1, delta=delta, unit=unit)
    for made in (plan, Plan.from_json(plan.to_json())):  # as it runs, and as it is recorded
        statement = privacy_statement(made, {}, num_charges=1)
        text = " ".join(statement.paragraphs("How ε was counted"))
        assert "Training itself adds no noise" in text and "convex loss" in text
        assert ("device must do the prescribed work" in text) == (unit == "user")
        assert ("adding up the ε of every answer, with no δ" in text) == (delta is None)
