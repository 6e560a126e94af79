"""Plans of clipping and Gaussian noise, the usual ones."""

from tests.privacy.costing import cohort_plan


def clipped(**given):
    """A plan of clipping and Gaussian noise; the rest as for `cohort_plan`."""
    return cohort_plan(bound="clip", noise="gaussian", **given)
