"""A bound's JSON: its kind and fields, of a class that is registered here, and nothing else."""

import importlib.util
import json
import subprocess
import sys
from dataclasses import dataclass, replace

import numpy as np
import pytest

from fedpriv.mechanisms import AdaptiveClip, Bound, Capped, Clip, Normalise, Rounded, Unbounded
from fedpriv.mechanisms.bounds import CappedTogether, Checked, OutputSensitivity
from tests.harness.refusals import refuses

OTHER = Unbounded()


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted(Clip):
    """A user-defined bound with fields of every type that has JSON."""

    times: int
    shift: float = 0.0
    other: Bound = OTHER


EVERY = {
    "clip": Clip(l2_clip_norm=1 / 3),
    "normalise": Normalise(l2_clip_norm=1e-100, regulariser=0.1),
    "none": Unbounded(),
    "rounded": Rounded(bound=Clip(l2_clip_norm=0.1)),
    "rounded normalise": Rounded(bound=Normalise(l2_clip_norm=2)),
    "capped": Capped(cap=0.3, num_coordinates=124),
    "capped together": CappedTogether(cap=0.3, num_coordinates=124),
    "output sensitivity": OutputSensitivity(l2_bound=1e-99),
    "checked": Checked(l2_bound=1e100),
    "adaptive": AdaptiveClip(l2_clip_norm=0.5, least=0.1, most=2.0, quantile=0.7),
    "rounded adaptive": Rounded(bound=AdaptiveClip(l2_clip_norm=0.5, least=0.1, most=2.0)),
    "user-defined": Counted(l2_clip_norm=0.5, times=-3, other=Counted(l2_clip_norm=2, times=0)),
}


@pytest.mark.parametrize("bound", EVERY.values(), ids=EVERY)
def test_every_bound_reads_back_to_the_bit(bound):
    text = json.dumps(bound.to_json(), allow_nan=False)
    found = Bound.from_json(json.loads(text))
    assert found == bound and type(found) is type(bound)
    assert json.dumps(found.to_json()) == text


def test_every_kind_of_fedpriv_is_tried():
    ours = {k for k in Bound.kinds.values() if k.__module__ == "fedpriv.mechanisms.bounds"}
    assert {type(bound) for bound in EVERY.values()} == {*ours, Counted} - {Bound}


def test_a_bound_is_its_kind_and_fields():
    assert EVERY["rounded normalise"].to_json() == {
        "kind": "Rounded",
        "bound": {"kind": "Normalise", "l2_clip_norm": 2.0, "regulariser": 0.0},
    }


GOOD = Counted(l2_clip_norm=0.5, times=2).to_json()
CLIP = Clip(l2_clip_norm=0.5).to_json()


GRID = {"kind": "Rounded", "bound": CLIP}
NO_NUMBERS = ["0.5", None, True, [0.5], {}, CLIP, float("nan"), float("inf"), 10**400]
NO_BOUNDS = [
    *(None, 0.5, "clip", [], [CLIP], True, {"kind": "Hug"}, {"kind": "Unbounded"}),
    *(GRID, {**CLIP, "l2_clip_norm": -3.0}),
]
#: Of a bound: by field, what it never is.
HOSTILE = [
    (CLIP, "kind", ["Hug", "clip", None, 3, ["Clip"], {}, "os.system", "__class__", "", "Checked"]),
    (CLIP, "kind", ["Bound", "_Unchanged", "Gaussian", "PoissonSampler"]),
    (CLIP, "l2_clip_norm", [*NO_NUMBERS, 0.0, -1.0, 5e-324, 9e-101, 1.1e100]),
    (CLIP, "l2_bound", [9.0]),
    (EVERY["adaptive"].to_json(), "quantile", [-7.0]),
    (EVERY["adaptive"].to_json(), "count_weight", [1.5]),
    (EVERY["adaptive"].to_json(), "rate", [0.0]),
    (EVERY["adaptive"].to_json(), "initial", [7.0]),
    (EVERY["capped"].to_json(), "num_coordinates", [0]),
    (GOOD, "times", [2.0, 2.5, "2", None, True, [2], CLIP]),
    (GOOD, "shift", ["0", None, False, [0.0], float("-inf"), float("nan"), CLIP]),
    (GRID, "bound", NO_BOUNDS),
]
FORGED = [
    *(({**value, field: bad}, field) for value, field, values in HOSTILE for bad in values),
    *(({**one.to_json(), "more": 0.5}, "more") for one in EVERY.values()),
    *(({n: v for n, v in one.to_json().items() if n != left}, left)
      for one in EVERY.values() for left in one.to_json()),
    *((value, "kind") for value in (None, 3, "Clip", [], [CLIP], True, {})),
]  # fmt: skip


@pytest.mark.parametrize(("value", "field"), FORGED, ids=str)
def test_what_is_no_bound_is_refused(value, field):
    """By the name of the field, or by its value."""
    with pytest.raises(ValueError) as caught:
        Bound.from_json(value)
    given = value.get(field) if isinstance(value, dict) else value
    inner = given.values() if isinstance(given, dict) else ()
    assert any(str(one) in str(caught.value) for one in (field, given, *inner))


class Quiet(Clip):
    """Derived from a dataclass, with a kind of its own: read as a `Clip` it were another bound."""

    def factors(self, norms, clip_norm=None):
        return np.zeros_like(norms)


@dataclass(frozen=True)
class Tabled(Clip):
    """A bound with a field that has no JSON."""

    table: tuple = ()


class Plain(Bound):
    """A bound that is no dataclass."""

    l2_bound = 0.5

    def factors(self, norms, clip_norm=None):
        return np.zeros_like(norms)


def test_a_class_that_adds_no_field_is_a_kind_of_its_own():
    made = Quiet(l2_clip_norm=0.5)
    assert type(Bound.from_json(made.to_json())) is Quiet


@pytest.mark.parametrize(
    ("bound", "named"),
    [
        (Tabled(l2_clip_norm=0.5), "table"),
        (Rounded(bound=Tabled(l2_clip_norm=0.5)), "table"),
        (replace(EVERY["user-defined"], other=Tabled(l2_clip_norm=0.5)), "table"),
        (Plain(), "Plain"),
    ],
    ids=["field", "inner", "other", "no dataclass"],
)
def test_what_would_not_read_back_is_not_written(bound, named):
    with refuses(ValueError, named):
        bound.to_json()


def test_two_classes_of_one_name_are_refused_and_the_first_one_stays():
    kinds = dict(Bound.kinds)
    with refuses(ValueError, "Clip"):
        type("Clip", (Normalise,), {})
    with refuses(ValueError, "Counted"):
        type("Counted", (Bound,), {"__module__": "elsewhere"})
    assert Bound.kinds == kinds and Bound.kinds["Clip"] is Clip
    assert type(Bound.from_json(CLIP)) is Clip


OWN = """
from dataclasses import dataclass

import fedpriv.mechanisms


@dataclass(frozen=True, slots=True, kw_only=True)
class MineOfAFile(fedpriv.mechanisms.Clip):
    pass
"""


def load(path, name):
    spec = importlib.util.spec_from_file_location(name, path)
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.MineOfAFile


def test_one_file_may_be_loaded_twice_and_a_copy_of_it_is_another(tmp_path, monkeypatch):
    monkeypatch.setattr(Bound, "kinds", dict(Bound.kinds))
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    for name in ("own.py", "copy.py"):
        (tmp_path / name).write_text(OWN, "utf-8")
    load(tmp_path / "own.py", "own_of_bounds")
    again = load(tmp_path / "own.py", "own_of_bounds_by_its_path")
    assert type(Bound.from_json({**CLIP, "kind": "MineOfAFile"})) is again
    with refuses(ValueError, "MineOfAFile"):
        load(tmp_path / "copy.py", "copy_of_bounds")
    assert Bound.kinds["MineOfAFile"] is again


NODE = """
import sys
from fedpriv.backends.flower.settings import read_experiment
from fedpriv.mechanisms import Bound

said = {"kind": "MineOfAFile", "l2_clip_norm": 0.5}
modules = set(sys.modules)
try:
    raise SystemExit(f"made {Bound.from_json(said)!r}")
except ValueError as error:
    assert "MineOfAFile" in str(error)
assert set(sys.modules) == modules
read_experiment({"experiment": sys.argv[1] + ":make"})
assert type(Bound.from_json(said)).__name__ == "MineOfAFile"
"""


def test_a_node_knows_the_bounds_of_its_own_experiment_and_imports_none(tmp_path):
    more = "\nfrom fedpriv.experiments.load import load_experiment\n\n\ndef make():\n"
    more += "    return load_experiment('dp-fedavg-tags')\n"
    (tmp_path / "own.py").write_text(OWN + more, "utf-8")
    asked = [sys.executable, "-c", NODE, f"{tmp_path}/own.py"]
    done = subprocess.run(asked, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
