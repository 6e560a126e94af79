"""The way to the product's backends: small tasks, what each is asked, and who answers.

Every backend answers the same questions, a question being one sum over some users. Workers of Ray
and the two apps of a Flower bundle import this module by its name.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from flwr.app import Context as NodeContext
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from torch import nn

from fedpriv import tree
from fedpriv.backends import SerialBackend
from fedpriv.backends.flower.client import Host, serve
from fedpriv.backends.flower.strategy import GridSettings, connect
from fedpriv.checkpoints.vocabulary import WordFeatures
from fedpriv.mechanisms import AdaptiveClip, Capped, Clip, Normalise, Rounded, Unbounded
from fedpriv.mechanisms.bounds import Bound, Checked
from fedpriv.rng import Key
from fedpriv.tasks.module_task import ModuleTask
from fedpriv.training.algorithm import NO_CONTEXT, Context, SumRequest
from fedpriv.training.bounded_sum import template_with
from fedpriv.training.local.module import ModuleTrainer
from fedpriv.training.local.schedule import LocalSgd
from fedpriv.training.local.vectorised import VectorisedTrainer
from fedpriv.training.work import Attempt
from tests.backends.flower import stub_grid
from tests.harness.threads import Shared

ROOT = Path(__file__).parents[2]
NAN, HUGE = 3, 5
"""Places in each roster of a user whose inputs are no numbers, and of one with inputs of 1e30."""

# -- tasks: twelve users of unequal sizes; steep, so that a last bit does not stay one ------------


class Asked(NamedTuple):
    """A task and what trains its users."""

    task: Any
    trainer: Any
    params: Mapping[str, np.ndarray]


def _spoilt(x: np.ndarray, place: int) -> np.ndarray:
    spoilt = {NAN: np.nan, HUGE: 1e30}
    return np.full_like(x, spoilt[place]) if place in spoilt else x


def _tags(word_features: WordFeatures | None) -> Asked:
    task = stub_grid.TinyTags(word_features=word_features)
    for place in (NAN, HUGE):
        one = task.data.users[task.roster[place]]
        task.data.users[task.roster[place]] = replace(one, counts=_spoilt(one.counts, place))
    params = task.params()
    schedule = LocalSgd(learning_rate=2, batch_size=3, max_examples_per_user=6)
    rows = np.linspace(1, 5, len(params["kernel"]), dtype=np.float32)
    return Asked(task, task.trainer(schedule, {"kernel": rows[:, None]}), params)


def tags() -> Asked:
    """Bags of words with several labels; every local step is preconditioned."""
    return _tags(None)


def pairs() -> Asked:
    """The same with released weights of words, and with pairs of them."""
    weights = np.random.default_rng(6).uniform(0.1, 2, 30).astype(np.float32)
    return _tags(WordFeatures(num_words=30, weights=weights, num_pairs=11, most_paired=3))


def _convolutions() -> nn.Module:
    layers = [nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.Tanh(), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(4 * 4 * 4, 3))


class _Recurrent(nn.Module):
    """Scores of the next word."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.recur = nn.Embedding(12, 5), nn.GRU(5, 7, batch_first=True)
        self.score = nn.Linear(7, 12)

    def forward(self, words: Any) -> Any:
        return self.score(self.recur(self.embed(words))[0])


def _of_words(outputs: Any, targets: Any) -> Any:
    return nn.functional.cross_entropy(outputs.flatten(0, 1), targets.flatten())


def _images(number: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(number)
    x = rng.normal(size=(size, 1, 6, 6)).astype(np.float32)
    return _spoilt(x, number), rng.integers(0, 3, size)


def _sentences(number: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    said = np.random.default_rng(number).integers(0, 12, (size, 6))
    if number == NAN:  # words have no NaN: one that no row is for
        said[:, 0] = 99
    return said[:, :-1], said[:, 1:]


def _of_a_module(
    module: Callable[[], nn.Module], loss: Callable, user: Callable, at_once: int | None
) -> Asked:
    sizes = (7, 1, 4, 3, 2, 9, 0, 5, 9, 16, 3, 8)
    task = ModuleTask(
        name="small",
        module=module,
        loss=loss,
        users={f"user-{number:02d}": user(number, size) for number, size in enumerate(sizes)},
        public=user(99, 30),
        users_at_once=at_once,
        synthetic=True,
    )
    trainer = task.trainer(
        LocalSgd(learning_rate=2, batch_size=4, epochs=2, max_examples_per_user=12), {}
    )
    assert isinstance(trainer, ModuleTrainer if at_once == 1 else VectorisedTrainer)
    return Asked(task, trainer, task.init_params(Key.simulation(9)))


def cnn() -> Asked:
    """Convolutions, many users at once."""
    return _of_a_module(_convolutions, nn.functional.cross_entropy, _images, 32)


def cnn_one_by_one() -> Asked:
    """Convolutions, a user at a time."""
    return _of_a_module(_convolutions, nn.functional.cross_entropy, _images, 1)


def next_words() -> Asked:
    """A recurrent model of one's own, as in the examples, a user at a time."""
    return _of_a_module(_Recurrent, _of_words, _sentences, 1)


TASKS = {one.__name__: one for one in (tags, pairs, cnn, cnn_one_by_one, next_words)}

# -- questions ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Question:
    """One sum: by what bound, over whom, with which draws.

    Attributes:
        bound: From the task's params to the bound.
        users: Places in the roster.
        key: Of the round.
        context: From the task's params to the round's public facts.
    """

    bound: Callable[[Mapping[str, np.ndarray]], Bound]
    users: Sequence[int]
    key: str = "users"
    context: Callable[[Mapping[str, np.ndarray]], Context] = lambda params: NO_CONTEXT


def _steps(params: Mapping[str, np.ndarray]) -> Context:
    """An update that is scaled by coordinate before it is bounded."""
    steps = {n: np.linspace(1, 5, a.size, dtype=np.float32) for n, a in params.items()}
    shaped = {name: array.reshape(params[name].shape) for name, array in steps.items()}
    return Context(multiplier=shaped)


def _capped(params: Mapping[str, np.ndarray]) -> Bound:
    return Capped(cap=0.01, num_coordinates=sum(array.size for array in params.values()))


_CLIP = Rounded(bound=Clip(l2_clip_norm=0.3))
_EVERY, _GOOD = range(12), [place for place in range(12) if place not in (NAN, HUGE)]
QUESTIONS = {
    "clip": Question(lambda params: _CLIP, _GOOD),
    "normalise": Question(
        lambda params: Rounded(bound=Normalise(l2_clip_norm=0.7, regulariser=0.1)), _GOOD[:-1]
    ),
    "preconditioned": Question(
        lambda params: Rounded(bound=Clip(l2_clip_norm=0.5)), _GOOD[2:], context=_steps
    ),
    "capped": Question(_capped, _GOOD),
    "checked": Question(lambda params: Checked(l2_bound=150.0), _GOOD),
    "floats": Question(lambda params: Clip(l2_clip_norm=0.3), _GOOD),
    "unbounded floats": Question(lambda params: Unbounded(), _GOOD),
    "adaptive": Question(
        lambda params: Rounded(bound=AdaptiveClip(l2_clip_norm=0.3, least=0.1, most=1.0)),
        _GOOD,
        context=lambda params: Context(clip_norm=0.2),
    ),
    "at another rate": Question(
        lambda params: _CLIP, _GOOD, context=lambda params: Context(rate=0.25)
    ),
    "other draws": Question(lambda params: _CLIP, _GOOD, "other users"),
    "with a user of NaN": Question(lambda params: _CLIP, sorted([*_GOOD, NAN])),
    "everybody": Question(lambda params: _CLIP, _EVERY),
    "nobody": Question(lambda params: _CLIP, ()),
}
FLOATS = ("floats", "unbounded floats")
"""Questions that are answered by sums of floats, whose order is the backend's own."""
FEW = ("with a user of NaN", "floats")
"""Those where each answer takes a process of its own."""

Answer = dict[str, np.ndarray]


def answers(
    backend: Any, asked: Asked, questions: Sequence[str] = tuple(QUESTIONS)
) -> dict[str, Answer]:
    """Ask a backend; return by question the sum, its grid (0 for floats), and how many failed."""
    found, params = {}, {name: array.copy() for name, array in asked.params.items()}
    for name in questions:
        question = QUESTIONS[name]
        bound, context = question.bound(params), question.context(params)
        template = template_with(params, bound, context.clip_norm)
        done = backend.sum(
            SumRequest(params=params, context=context),
            Attempt(
                bound=bound,
                key=Key.simulation(1).fold(question.key),
                round_num=4,
                number=2,
                template=template,
            ),
            [asked.task.roster[place] for place in question.users],
        )
        assert done.num_users == len(question.users)
        found[name] = {
            **tree.to_dense(done.total),
            "granularity": np.array(done.granularity or 0.0),
            "num_failed": np.array(done.num_failed),
        }
    for name, array in asked.params.items():  # a backend leaves what it was given alone
        np.testing.assert_array_equal(params[name], array)
    if (measured := backend.evaluate(params, public=True)) is not None:
        found["public"] = {name: np.array(value) for name, value in measured.totals.items()}
    return found


# -- who answers ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class OnNodes:
    """Flower's handlers and messages in this process.

    Attributes:
        nodes: How many.
        shards: How many of them host users; 0 for all.
        backwards: Whether the last node answers first.
        settings: Of the exchange.
    """

    nodes: int
    shards: int = 0
    backwards: bool = False
    settings: Mapping[str, Any] = field(default_factory=dict)

    @contextmanager
    def __call__(self, asked: Asked) -> Iterator[Any]:
        """Yield the backend."""
        hosts = stub_grid.nodes(asked.task, asked.trainer, self.nodes, self.shards)
        grid = stub_grid.StubGrid(hosts)
        backend = connect(grid, asked.task.roster, GridSettings(**self.settings))
        if self.backwards:
            grid.slow.update({node: max(hosts) - node for node in hosts})
        yield backend


def _here(asked: Asked) -> dict[str, Any]:
    return {
        "trainer": asked.trainer,
        "data": asked.task.data,
        "measure": getattr(asked.task, "evaluate", lambda params, **given: None),
    }


def serial(asked: Asked) -> Any:
    """This process, one user after the other: the oracle of all others."""
    return SerialBackend(**_here(asked), threads=1)


@dataclass(frozen=True)
class OnThreads:
    """So many threads of this process, which share what they may and nothing else.

    Attributes:
        threads: How many.
        shareable: Whether the trainer may be shared.
    """

    threads: int
    shareable: bool = True

    @contextmanager
    def __call__(self, asked: Asked) -> Iterator[Any]:
        """Yield the backend."""
        given = {**_here(asked), "threads": self.threads, "shareable": self.shareable}
        with closing(Shared(**given)) as backend:
            yield backend


def open_worker(device: str | None, name: str) -> Any:
    """Return what a worker of Ray's works with."""
    return serial(TASKS[name]())


@contextmanager
def on_ray(share: Any, workers: int, name: str) -> Iterator[tuple[Any, Asked]]:
    """Yield a backend of so many workers, and its task; Ray runs already."""
    from fedpriv.backends.ray.backend import RayBackend

    asked = TASKS[name]()
    backend = RayBackend(
        share=replace(share, num_workers=workers, num_cpus=0.1),
        open_backend=functools.partial(open_worker, name=name),
        data=asked.task.data,
        max_examples=12,
    )
    with closing(backend):
        yield backend, asked


# -- a Flower bundle, whose server writes down the answers ----------------------------------------

client_app, server_app = ClientApp(), ServerApp()


def _host(context: NodeContext) -> Host:
    """Read, from a node's config, its part of the roster of the task that the run names."""
    asked = TASKS[str(context.run_config["task"])]()
    part, of = (int(context.node_config[key]) for key in ("partition-id", "num-partitions"))
    return Host.of(asked.task, asked.trainer, partition=part, num_partitions=of)


serve(client_app, _host)


@server_app.main()
def _main(grid: Grid, context: NodeContext) -> None:
    asked = TASKS[str(context.run_config["task"])]()
    found = answers(connect(grid, asked.task.roster), asked, FEW)
    flat = {f"{question}/{n}": a for question, answer in found.items() for n, a in answer.items()}
    np.savez(str(context.run_config["out"]), **flat)


def written(file: Path) -> dict[str, Answer]:
    """Return the answers that a server wrote."""
    found: dict[str, Answer] = {}
    with np.load(file) as arrays:
        for name, array in arrays.items():
            question, _, of = name.partition("/")
            found.setdefault(question, {})[of] = array
    return found
