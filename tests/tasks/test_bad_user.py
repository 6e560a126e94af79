"""What one rostered user's examples are decides of no run whether it starts: the user adds zero."""

import numpy as np
import pytest

from fedpriv.rng import Key
from fedpriv.tasks.central import by_example
from fedpriv.tasks.module_task import ArrayUsers, PersonalLayers
from fedpriv.training.local.schedule import LocalSgd
from tests.harness.refusals import refuses
from tests.harness.toys_of_training import assert_same, contributed
from tests.tasks.people import USERS, Files, person, started, task

X, Y = person(0)
BAD = {
    "a null label": (X, [0, None, 1, 1, 0, 1]),
    "a null among numbers": (X, np.array([0, np.nan, 1, 1, 0, 1])),
    "no arrays": {"x": X, "y": Y},
    "words": (X, list("abcdef")),
    "ragged rows": ([[1.0], [1.0, 2.0]], [0, 1]),
    "another width": (np.ones((6, 5), np.float32), Y),
    "fewer labels": (X, Y[:3]),
    "a label beyond": (X, np.full(6, 7)),
}
KEY = Key.simulation(1)


def users_with(bad, place):
    user_id = sorted(USERS)[place]
    return {**USERS, user_id: bad}, user_id


@pytest.mark.parametrize("public", [None, person(99)], ids=["none public", "public"])
@pytest.mark.parametrize("place", [0, -1], ids=["first", "last"])
@pytest.mark.parametrize("bad", BAD.values(), ids=BAD)
def test_it_contributes_zero_alone(bad, place, public):
    users, user_id = users_with(bad, place)
    made = task(users=users, public=public)
    assert made.roster == tuple(sorted(USERS)) and made.synthetic_batch() is not None
    work, params = made.trainer(LocalSgd(learning_rate=0.1), {}), made.init_params(KEY)

    rest = [u for u in made.roster if u != user_id]
    everybody, others = (contributed(work, params, made.data, ids) for ids in (made.roster, rest))
    assert (everybody.num_failed, others.num_failed) == (1, 0)
    assert_same(everybody.total, others.total)


@pytest.mark.parametrize("secure", [False, True], ids=["simulated", "secure"])
@pytest.mark.parametrize("broken", ["null", "file"])
def test_the_run_starts_and_ends(tmp_path, broken, secure):
    """Without public examples, whose labels its own are compared with, and with some."""
    users, user_id = users_with(BAD["a null label"], 0)
    users = Files(USERS, user_id) if broken == "file" else users
    made = task(users=users, public=None, test={user_id: BAD["a null label"], "u03": person(3)})
    prepared = started(tmp_path / "run", made, secure=secure, rounds=1, cohort=12.0)
    assert not any("could not be tried" in caution for caution in prepared.cautions)
    assert prepared.run()["rounds"] == 1


def test_by_example_its_slots_are_empty():
    users, user_id = users_with(BAD["a null label"], 0)
    made = by_example(task(users=users), 2)
    assert made.owned is not None
    place = sorted(USERS).index(user_id)
    blank = made.owned.blank.reshape(len(USERS), 2)
    assert blank[place].all() and not np.delete(blank, place, axis=0).any()


def test_equal_public_examples_are_counted_of_the_others():
    users, _ = users_with(BAD["a null label"], 0)
    made = task(users=users, public=person(3))
    assert made.public_of_rostered() == {"public_of_rostered": (6, 6)}


def test_personal_layers_are_measured_of_the_others():
    users, user_id = users_with(BAD["a null label"], 0)
    personal = PersonalLayers(names=("bias",), test={user_id: person(0), "u03": person(3)})
    made = task(users=users, public=None, personal=personal)
    found = made.evaluate(made.init_params(KEY), public=False)
    assert found is not None and found.num_examples == 6


def test_where_no_user_can_be_taken_the_task_is_refused():
    with refuses(ValueError, "ann"):
        ArrayUsers({"ann": BAD["no arrays"], "bob": BAD["words"]})
