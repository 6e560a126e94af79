"""Fixtures of all tests, and the order in which they run."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Generator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import settings

from fedpriv.datasets.cache import cache_dir
from fedpriv.datasets.importers.writer import CorpusDescription, Sentence, write_corpus
from fedpriv.datasets.stackexchange.corpus import Corpus
from fedpriv.datasets.stackexchange.rosters import RosterSpec
from fedpriv.privacy.ledger.state import read_ledger
from fedpriv.runs import noise_root
from fedpriv.training.devices import use_one_thread

if TYPE_CHECKING:
    from fedpriv.backends.ray.cluster import Cluster
    from tests.backends.flower.real.processes import Flower

HERE = Path(__file__).parent
# What commands print is wrapped to the terminal: one width for everybody.
os.environ["COLUMNS"] = "160"
# Tests already run side by side, and models here are tiny: more threads would wait for each other.
use_one_thread()
# Derandomised: the suite gives the same answer every time. No test is timed.
settings.register_profile(
    "fedpriv", deadline=None, derandomize=True, database=None, max_examples=25
)
settings.load_profile("fedpriv")


def pytest_configure(config: pytest.Config) -> None:
    """Give the session a cache, which goes with it; xdist's workers have their controller's.

    It has links to the entries of the user's cache, such as what `make encoder` adds. Locks and new
    entries are the session's.
    """
    if hasattr(config, "workerinput"):
        return
    users, folder = cache_dir(), TemporaryDirectory(prefix="fedpriv-cache-")
    config.add_cleanup(folder.cleanup)
    for entry in users.glob("*/*"):
        if entry.parent.name != "locks":
            kind = Path(folder.name) / entry.parent.name
            kind.mkdir(exist_ok=True)
            (kind / entry.name).symlink_to(entry.resolve())
    patch = pytest.MonkeyPatch()
    config.add_cleanup(patch.undo)
    patch.setenv("FEDPRIV_CACHE", folder.name)


@pytest.fixture
def one_root(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let runs of different experiments draw alike, by the seed alone, so that they compare."""
    for name in ("runs.loop.noise_root", "runs.loop.unkept_noise_root", "api.averaging.noise_root"):
        monkeypatch.setattr(f"fedpriv.{name}", lambda root, *given: root)


@pytest.fixture
def draws_of(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], None]:
    """Let runs draw as the one in a folder did, whose server does not know its users' data."""
    real = noise_root.noise_root

    def draw_as(folder: Path) -> None:
        facts = read_ledger(folder / "ledger.jsonl")[1].extra
        for name in ("runs.loop.noise_root", "api.averaging.noise_root"):
            monkeypatch.setattr(f"fedpriv.{name}", lambda root, *given: real(root, facts))

    return draw_as


_RAY = pytest.StashKey["Cluster"]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let whoever has no GPU run the tests of one on the processor."""
    parser.addoption(
        "--device", default=None, help="of the tests marked gpu; cpu tries them without one"
    )


@pytest.fixture
def device(request: pytest.FixtureRequest) -> str:
    """The device that tests marked gpu train on: the one named, the first GPU for `-m gpu` alone.

    One that is not there is an error and no skip. Among all tests they run on the processor, so
    that they do not stop working unnoticed.
    """
    asked = request.config.getoption("--device")
    return asked or ("cuda:0" if request.config.getoption("-m") == "gpu" else "cpu")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put tests that need Ray first and in a row: one process starts it.

    Then those of real nodes and scripts, which mostly wait, and other files with slow tests: else
    some processes would have nothing left to do at the end while one waits.
    """
    rooms = ("backends/flower/real", "trust/kills", "benchmarks", "deployment")
    waiting = tuple(str(HERE / room) for room in rooms)
    slow = {item.path for item in items if item.get_closest_marker("slow")}

    def place(item: pytest.Item) -> tuple[bool, bool, bool]:
        ray = item.get_closest_marker("ray") is not None
        return not ray, not str(item.path).startswith(waiting), item.path not in slow

    items.sort(key=place)


@pytest.fixture(scope="module")
def ray(request: pytest.FixtureRequest) -> Cluster:
    """A running Ray of four logical GPUs, whose workers find the modules beside the tests.

    It is kept as long as the next test may want it.
    """
    from fedpriv.backends.ray.cluster import Cluster, Request

    stash = request.config.stash
    if _RAY not in stash:
        helpers = [HERE.parent, *(HERE / "backends" / room for room in ("", "door", "flower"))]
        found = [*map(str, helpers), *filter(None, [os.environ.get("PYTHONPATH")])]
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PYTHONPATH", os.pathsep.join(found))
            stash[_RAY] = Cluster(Request(workers=4, logical_gpus=4))
            stash[_RAY].start(1 << 20)
    return stash[_RAY]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(
    item: pytest.Item, nextitem: pytest.Item | None
) -> Generator[None, object, object]:
    """Stop Ray where the next test does not need it."""
    try:
        return (yield)
    finally:
        if nextitem is None or nextitem.get_closest_marker("ray") is None:
            _stop_ray(item.config)


@pytest.fixture
def no_ray(request: pytest.FixtureRequest) -> None:
    """Stop the Ray that earlier tests left running, for a test that starts its own."""
    _stop_ray(request.config)


def _stop_ray(config: pytest.Config) -> None:
    if _RAY in config.stash:
        config.stash[_RAY].close()
        del config.stash[_RAY]


@pytest.fixture
def flower(tmp_path: Path) -> Generator[Flower]:
    """Flower's own folder; whatever is started from it is stopped with the test."""
    from tests.backends.flower.real.processes import Flower

    started = Flower(tmp_path / "flower-home")
    try:
        yield started
    finally:
        started.stop()
        assert not started.left()


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real corpora: FEDPRIV_SHARED_DATA, or shared/data beside the checkout."""
    named = os.environ.get("FEDPRIV_SHARED_DATA")
    beside = Path(__file__).resolve().parents[2] / "shared" / "data"
    folder = Path(named) if named else beside
    if not folder.is_dir():
        pytest.skip(f"no real corpora: {folder} is absent (set FEDPRIV_SHARED_DATA)")
    return folder


@pytest.fixture(scope="session")
def tff_writer():
    """The module that writes tf.train.Example and TFF files."""
    path = Path(__file__).parent / "datasets" / "importers" / "tff" / "tff_writer.py"
    spec = importlib.util.spec_from_file_location("tff_writer", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def tiny_corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    """A corpus of 60 rostered and 12 public users, 80 words and 10 tags: rounds take millis.

    Every tag has two rare words that give it away among common ones that do not. User u58 uses no
    word of the vocabulary, and u59 is on the roster without a single record.
    """
    folder = tmp_path_factory.mktemp("corpora") / "tiny"
    about = CorpusDescription(
        name="tiny-synthetic",
        synthetic=True,
        source={"kind": "test"},
        licence="CC0-1.0",
        credit="nobody",
        max_words=80,
        max_tags=10,
    )
    users = [f"p{i:02d}" for i in range(12)] + [f"u{i:02d}" for i in range(59)]
    sentences = []
    for number, user in enumerate(users):
        rng = np.random.default_rng(number)
        for _ in range(int(rng.integers(6, 25))):
            tag = int(min(rng.geometric(0.25) - 1, 9))
            tokens = [f"common{int(i)}" for i in rng.geometric(0.1, rng.integers(3, 12)) % 60]
            tokens.append(f"about{tag}{'ab'[int(rng.integers(2))]}")
            if user == "u58":
                tokens = ["unheard", "of", "words"]
            tags = {f"tag{tag}", f"tag{int(rng.integers(10))}"}
            sentences.append(
                Sentence(
                    user_id=user,
                    tokens=tokens,
                    title_tokens=[f"about{tag}a"] if user != "u58" else [],
                    tags=sorted(tags),
                    own_title=bool(rng.random() < 0.5),
                )
            )
    roster = RosterSpec(name="tiny-60", rule="declared", ids=[f"u{i:02d}" for i in range(60)])
    return write_corpus(folder, about, sentences, [roster], "tiny-60")
