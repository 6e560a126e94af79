"""An adaptive experiment of one's own is tried before anything is charged."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.harness.refusals import refuses
from tests.running.adaptive.descent import CHARGES, changed, start

WHOLE = """from fedpriv.training.work import Work


class Whole(Work):
    def answer(self, request, attempt, users):
        from fedpriv.sums import PartialSum
        from fedpriv.training.failures import contributes_zero
        failed = 0
        for user in users.ids:
            try:
                users.data.examples(user).gone
            except AttributeError as error:
                FAILED
                failed += 1
        return PartialSum(
            total=request.params, num_users=len(users.ids), num_failed=failed)


class Near(Task):"""


@pytest.mark.parametrize(
    ("old", "new", "error", "named"),
    [
        ("np.linalg.norm(examples - w)", "np.linalg.norm(example - w)", NameError, "example"),
        ('door.ask(asked)["losses"]', 'door.ask(asked)["loss"]', KeyError, "loss"),
        ('{"w": examples - params["w"]}', '{"w": examples[:2]}', ValueError, "w"),
    ],
    ids=["work", "algorithm", "shapes"],
)
def test_a_mistake_ends_the_run_with_nothing_written(old, new, error, named):
    changed(old, new)
    with refuses(error, named) as caught:
        start("run")
    assert error is not NameError or caught.value.__notes__
    assert not Path("run").exists()


@pytest.mark.parametrize("says", [True, False])
def test_a_work_of_ones_own_is_tried(says):
    failed = "contributes_zero(error)" if says else "pass"
    changed("class Near(Task):", WHOLE.replace("FAILED", failed))
    changed('"train": Gradient()', '"train": Whole()')
    with refuses(AttributeError if says else ValueError, "gone" if says else "train"):
        start("run")
    assert not Path("run").exists()


def test_no_rostered_user_is_looked_at():
    changed(
        "        return np.array([1, 2",
        "        LOOKED.append(user_id)\n        return np.array([1, 2",
    )
    changed("SIZES =", "LOOKED = []\nSIZES =")
    prepared = start("run")
    looked = sys.modules["own_descent"].LOOKED
    assert looked == []
    prepared.run()
    assert len(looked) >= 12 * CHARGES and len(set(looked)) == 12
