"""An experiment is the same object whichever way its options travel, and a bad value is told."""

import json
import random
import tomllib
from pathlib import Path

import pytest

from fedpriv.backends.flower.settings import read_experiment
from fedpriv.cli.run import settings_of
from fedpriv.experiments.experiment import methods_of
from fedpriv.experiments.load import find_experiments
from fedpriv.experiments.options import flatten
from fedpriv.runs.document import restore_experiment
from tests.harness.command_line import refusal

READY_MADE = {name: make() for name, make in find_experiments().items()}
NUMBERS = (1, 2, 3, 7, 20, 0.5, 0.25, 0.05, 1e-3, 12345.678)


def random_value(entry, rng):
    """A value of an option's type, of which its range may refuse some."""
    if entry.choices:
        return rng.choice(entry.choices)
    if entry.takes_none and rng.random() < 0.2:
        return None
    if entry.type is bool:
        return rng.random() < 0.5
    return rng.choice(("one", "an other") if entry.type is str else NUMBERS)


def random_experiment(seed):
    """A name, and its experiment with some twenty random options that fit together."""
    rng = random.Random(seed)
    name = rng.choice(sorted(READY_MADE))
    made = READY_MADE[name]
    made = made.with_options({"method": rng.choice(methods_of(made.unit))})
    for _ in range(40):
        entry = rng.choice([one for one in made.entries() if one.path != "method"])
        try:
            made = made.with_options({entry.path: random_value(entry, rng)})
        except ValueError:
            continue
    return name, made


def as_toml(options):
    """Options as tables of TOML, which has no null."""
    places = {path.rpartition(".")[0] for path in options} - {""}
    tables = {}
    for path, value in options.items():
        place, _, name = (path, "", "kind") if path in places else path.rpartition(".")
        typed = json.dumps("none" if value is None else value)
        tables.setdefault(place, []).append(f"{name} = {typed}")
    text = tables.pop("", [])
    for place, lines in tables.items():
        text += [f"[{place}]", *lines]
    return "\n".join(text)


def as_typed(value):
    if value is None or isinstance(value, bool):
        return str(value).lower()
    return value


@pytest.mark.parametrize("seed", range(300))
def test_every_way_gives_the_equal_experiment(seed):
    name, made = random_experiment(seed)
    base, options = READY_MADE[name], made.options()
    toml = as_toml(options)
    document = json.loads(json.dumps({"name": name, "experiment": options}))
    found = {
        "JSON": base.with_options(json.loads(json.dumps(options))),
        "TOML": base.with_options(flatten(tomllib.loads(toml))),
        "-s": base.with_options(settings_of(f"{n}={as_typed(v)}" for n, v in options.items())),
        "folder": restore_experiment(document, Path("folder"), base),
    }
    if made.unit == "user":
        found["run-config"] = read_experiment({"experiment": name, "options": toml})
    assert {way: one for way, one in found.items() if one != made} == {}
    assert all(one.options() == options for one in found.values())


def bad_values():
    """Options of the ready-made experiments, each with a value that is none of its own."""
    for name, experiment in sorted(READY_MADE.items()):
        for entry in experiment.entries():
            if entry.path == "method" or (entry.type is str and not entry.choices):
                continue
            wrong = "nonsense" if entry.type is not bool else "maybe"
            yield name, entry, wrong
            if entry.range is not None:
                yield name, entry, -1


BAD = list(bad_values())


@pytest.mark.parametrize(
    ("name", "entry", "value"),
    random.Random(0).sample(BAD, 200),
    ids=lambda one: getattr(one, "path", str(one)),
)
def test_a_bad_value_is_told_in_one_line(name, entry, value, tmp_path):
    out = tmp_path / "run"
    told = refusal("run", name, "-s", f"{entry.path}={value}", "--out", out)
    assert entry.path in told and str(value) in told
    if entry.choices:
        assert all(choice in told for choice in entry.choices)
    elif value == -1:
        assert entry.range.value in told
    assert not out.exists()
