"""Ready-made experiments that divide published sets among users, on small files of their forms.

Those of the commands of docs/datasets.md.
"""

import gzip
import json

import numpy as np
import pytest

from fedpriv.datasets.leaf import ALPHABET
from fedpriv.experiments.build import build, make_task
from fedpriv.experiments.load import load_experiment
from fedpriv.rng import Key
from fedpriv.tasks.task import EQUAL, data_digests
from tests.datasets.importers.test_images import idx
from tests.datasets.readers.test_leaf import document
from tests.experiments.small import all_finite, run_some
from tests.harness.refusals import refuses
from tests.simulations.photographs.records import write_records

RNG = np.random.default_rng(0)


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    """MNIST's four files, of 400 and 50 images that say their label in a row of ink."""
    folder = tmp_path_factory.mktemp("mnist")
    for part, number in (("train", 400), ("t10k", 50)):
        labels = RNG.integers(0, 10, number, np.uint8)
        images = RNG.integers(0, 60, (number, 28, 28), np.uint8)
        images[np.arange(number), 2 * labels + 3] = 255
        (folder / f"{part}-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(images)))
        (folder / f"{part}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx(labels)))
    return folder


@pytest.fixture(scope="module")
def photographs(tmp_path_factory):
    """CIFAR's records in the lossy sample's two files."""
    return write_records(tmp_path_factory.mktemp("cifar"), 160, 20)


WRITERS = [f"f{number:04d}" for number in range(30)]


def written(number):
    """A writer's grey values and labels."""
    return RNG.random((number, 784)).round(3), RNG.integers(0, 12, number)


@pytest.fixture(scope="module")
def femnist(tmp_path_factory, tff_writer):
    """FEMNIST twice: as LEAF's folders of JSON, and as TFF's database of two splits."""
    folder = tmp_path_factory.mktemp("femnist")
    path = folder / "emnist.sqlite"
    for part in ("train", "test"):
        data = {writer: written(6 if part == "train" else 2) for writer in WRITERS}
        lists = {writer: (x.tolist(), y.tolist()) for writer, (x, y) in data.items()}
        (folder / "leaf" / part).mkdir(parents=True)
        (folder / "leaf" / part / "all_data_0.json").write_text(json.dumps(document(**lists)))
        blobs = {
            writer: [
                tff_writer.example(pixels=grey.astype(np.float32), label=np.array([label % 10]))
                for grey, label in zip(x, y, strict=True)
            ]
            for writer, (x, y) in data.items()
        }
        tff_writer.add_split(path, blobs, f"digits_only_{part}")
    return {"leaf": folder / "leaf", "tff": path}


@pytest.fixture(scope="module")
def plays(tmp_path_factory, tff_writer):
    folder = tmp_path_factory.mktemp("plays")

    def lines(number):
        return "".join(ALPHABET[place] for place in RNG.integers(0, 80, number))

    for part in ("train", "test"):
        blobs = {f"ROLE_{n}": [tff_writer.example(snippets=lines(150))] for n in range(25)}
        tff_writer.add_split(folder / "s.sqlite", blobs, part)
    roles = {f"ROLE_{n}": lines(190) for n in range(25)}
    windows = {
        role: ([text[at : at + 80] for at in range(110)], list(text[80:]))
        for role, text in roles.items()
    }
    (folder / "all_data.json").write_text(json.dumps(document(**windows)))
    return {"leaf": folder / "all_data.json", "tff": folder / "s.sqlite"}


@pytest.fixture
def given(request, monkeypatch, tmp_path):
    """From the name of an experiment to it, on small files."""
    monkeypatch.setenv("FEDPRIV_CACHE", str(tmp_path / "cache"))
    small = {"rounds": 3, "cohort": 4.0, "delta": 1e-2, "noise-multiplier": 1.0}

    def make(name, **options):
        if name == "mnist-users":
            own = {"folder": str(request.getfixturevalue("digits")), "users": 40, "public": 60}
            own["public-train"] = 20
        elif name == "cifar10-users":
            own = {"folder": str(request.getfixturevalue("photographs")), "users": 20}
            own |= {"public": 20, "public-train": 10}
        else:
            files = "femnist" if name == "femnist-users" else "plays"
            kind = options.pop("kind", "tff")
            own = {"path": str(request.getfixturevalue(files)[kind]), "public": 0.3}
        return load_experiment(name).with_options({**small, **own, **options})

    return make


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("mnist-users", {}),
        ("mnist-users", {"network": "convolutions"}),
        ("cifar10-users", {}),
        ("femnist-users", {"kind": "leaf", "network": "linear"}),
        ("femnist-users", {"kind": "tff"}),
        ("shakespeare-characters", {"kind": "leaf"}),
        ("shakespeare-characters", {"kind": "tff"}),
    ],
)
def test_two_rounds_move_the_model_under_a_plan(given, name, options):
    components = build(given(name, **options))
    task = components.task
    records = run_some(components, 2)
    assert all(record.diagnostics.num_failed == 0 for record, _ in records)
    assert all_finite(records[-1][1].params) and components.plan.is_private
    assert components.plan.num_users == len(task.roster)
    assert records[-1][0].released.epsilon is not None
    assert task.evaluate(records[-1][1].params, public=True).num_examples > 0
    assert task.evaluate(records[-1][1].params, public=False).num_examples > 0
    assert not any(equal for equal, _ in task.public_of_rostered().values())
    assert set(data_digests(task)) == {"private"}


def rows(examples):
    """Each example as bytes."""
    return [x.tobytes() + y.tobytes() for x, y in zip(examples.x, examples.y, strict=True)]


def users_of(task):
    return {user: rows(task.data.examples(user)) for user in task.roster}


def test_every_image_is_one_users_or_public(given):
    task = make_task(given("mnist-users"), None)
    users = users_of(task)
    theirs = [row for own in users.values() for row in own]
    assert len(theirs) == len(set(theirs)) == 400 - 60 - 20
    assert task.public_of_rostered() == {EQUAL[0]: (0, 60), EQUAL[1]: (0, 20)}


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"alpha": 0.05}, {"partition": "shards"}, {"partition": "shards", "shards": 3},
        {"partition": "uniform"}, {"partition": "log-normal"},
        {"partition": "power-law", "skew": 0.5}, {"partition_seed": 1}, {"users": 10},
    ],
)  # fmt: skip
def test_the_division_is_an_option_and_the_same_in_every_process(given, options):
    usual = users_of(make_task(given("mnist-users"), None))
    once, again = (users_of(make_task(given("mnist-users", **options), None)) for _ in range(2))
    assert once == again != usual and len(once) == options.get("users", 40)
    seeded = users_of(make_task(given("mnist-users", seed=7), None))
    assert seeded == usual  # the seed of the run divides nothing


def test_more_to_learn_from_leaves_what_is_measured_as_it_is(given):
    few, more = (make_task(given("mnist-users", **{"public-train": n}), None) for n in (0, 100))
    zeros = {"1.kernel": np.zeros((784, 10), np.float32), "1.bias": np.arange(10, dtype=np.float32)}
    assert few.evaluate(zeros, public=True) == more.evaluate(zeros, public=True)


def test_public_writers_are_on_no_roster_and_test_examples_are_of_the_roster(given):
    task = make_task(given("femnist-users"), None)
    assert 0 < len(task.roster) < len(WRITERS)
    one = make_task(given("femnist-users", users=5), None)
    assert one.roster == task.roster[:5]
    zeros = {name: np.zeros_like(a) for name, a in one.init_params(Key.simulation(0)).items()}
    assert one.evaluate(zeros, public=False).num_examples == 5 * 2  # TFF's own test split
    assert task.evaluate(zeros, public=True).num_examples > 0


def test_what_is_held_out_of_overlapping_lines_overlaps_with_none(given):
    task = make_task(given("shakespeare-characters", kind="leaf", users=3), None)
    first = {user: task.data.examples(user) for user in task.roster}
    assert {len(own) for own in first.values()} == {8}  # 88 of 110, less 80 that would overlap
    assert first[task.roster[0]].y.shape == (8, 80)


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("mnist-users", {"users": 400}, (400, 80)),
        ("mnist-users", {"public": 399}, ()),
        ("mnist-users", {"folder": "/nowhere"}, ()),
        ("femnist-users", {"path": "/nowhere"}, ("/nowhere",)),
        ("femnist-users", {"users": 30}, (30, "femnist")),
        ("femnist-users", {"public": 0.999}, ()),
        ("shakespeare-characters", {"users": 26}, ("shakespeare",)),
    ],
)
def test_what_cannot_be_is_one_line(given, name, options, said):
    with refuses(ValueError, *said) as error:
        build(given(name, **options))
    assert "\n" not in str(error.value)


@pytest.mark.slow
def test_mnist_itself_is_divided_among_five_thousand(shared_data):
    chosen = load_experiment("mnist-users").with_options({"folder": str(shared_data / "mnist")})
    task = make_task(chosen, None)
    sizes = {len(task.data.examples(user)) for user in task.roster[:100]}
    assert len(task.roster) == 5_000 and sizes <= {11, 12}
