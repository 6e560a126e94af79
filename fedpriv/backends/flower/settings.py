"""Flower's run-config and node-config, read into what fedpriv calls by name.

Flower only lets a key be overridden that the bundle's `pyproject.toml` declares, and TOML has no
null: some options of an experiment are declared there as the empty string, which means "as the
experiment has it", and the key `options` takes any others as TOML. Server and nodes read the same
run-config, so both know the same experiment.
"""

from __future__ import annotations

import json
import logging
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedpriv.backends.flower.client import (
    DEVICE_KEY,
    EXPERIMENTS_KEY,
    PLANS_KEY,
    Host,
    allowed_plans,
    check_experiment,
    device_of,
    is_gpu,
    serve,
)
from fedpriv.backends.flower.log import show_log
from fedpriv.backends.flower.registry import read_node_keys
from fedpriv.backends.flower.strategy import GridSettings
from fedpriv.backends.guard import Guard
from fedpriv.datasets.local_data import NodeData
from fedpriv.datasets.stackexchange.corpus import Corpus
from fedpriv.experiments.build import make_task
from fedpriv.experiments.experiment import Experiment
from fedpriv.experiments.load import ExperimentNotFoundError, load_experiment
from fedpriv.experiments.options import Option, flatten
from fedpriv.experiments.tasks import MissingCorpusError
from fedpriv.ranges import finite_float, whole_int
from fedpriv.tasks.task import Task
from fedpriv.training.devices import device_description, usable_device
from fedpriv.training.work import Trainers

_LOG = logging.getLogger(__name__)
Value = str | int | float | bool
Config = Mapping[str, Value]

#: Keys of the run-config that are not options of an experiment, with their defaults.
OWN_KEYS: dict[str, Value] = {
    "experiment": "adadps-tags",
    "corpus": "",
    "out": "",
    "resume": "",
    "anchor": "",
    "label": "",
    "secure": False,
    "max-in-flight": 16,
    "round-deadline": 600.0,
    "register-seconds": 300.0,
    "allow-missing-users": False,
    "node-users": "",
    "allow-unauthenticated-nodes": False,
    "shards": 0,
    DEVICE_KEY: "",
    "guard-users": True,
    "user-seconds": 0.0,
    "user-memory-mb": 0,
}

#: Keys of the run-config that are options of an experiment; any other goes into `options`, as TOML.
SHORT_KEYS = (
    *("roster", "users", "cohort", "rounds", "noise-multiplier", "target-epsilon", "l2-clip-norm"),
    *("delta", "seed", "split", "fold", "start", "select"),
)


def read_experiment(run_config: Config) -> Experiment:
    """Return the experiment that a run-config names, with the options it overrides.

    Raises:
        ValueError: For an unknown or a centralised experiment, an unknown option or an unfit
            value; for a user-defined experiment that is not on this machine, with what to do.
    """
    options: dict[str, Option] = {
        key: value
        for key, value in run_config.items()
        if key not in (*OWN_KEYS, "options") and value != ""
    }
    text = str(run_config.get("options", ""))
    try:
        options |= flatten(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise ValueError(
            f"options {text!r} is not TOML ({error}); give lines such as options='local.epochs = 2'"
        ) from error
    name = read_value(run_config, "experiment")
    experiment = _load(name)
    if not experiment.runs_on("flower"):
        raise ValueError(f"{name} is centralised and has no nodes; use `fedpriv run {name}`")
    return experiment.with_options(options)


def read_grid_settings(run_config: Config) -> GridSettings:
    """Return how the server deals with its nodes.

    Raises:
        ValueError: For a value that is not a number, not positive, or not a truth value, or a file
            of nodes' keys that is none.
    """
    keys = read_path("node-users", run_config)
    return GridSettings(
        max_in_flight=read_value(run_config, "max-in-flight"),
        round_deadline=read_value(run_config, "round-deadline"),
        register_seconds=read_value(run_config, "register-seconds"),
        allow_missing_users=read_value(run_config, "allow-missing-users"),
        node_users=None if keys is None else read_node_keys(keys),
        allow_unauthenticated_nodes=read_value(run_config, "allow-unauthenticated-nodes"),
    )


def resume_config(run_config: Config, folder: Path) -> str:
    """Return a run-config as TOML that goes on with the run that was started by another.

    `flwr run` takes it as a file, `--run-config FOLDER/resume.toml`. Nodes need every value again,
    for they read the experiment in the run-config.
    """
    values = {**run_config, "resume": str(folder), "out": ""}
    lines = (f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in values.items())
    return "".join(f"{line}\n" for line in lines)


def read_value(config: Config, key: str, default: Value | None = None) -> Any:
    """Return the value of a key, of the kind that its default has.

    Raises:
        ValueError: If it is of another kind, or an empty word.
    """
    default = OWN_KEYS[key] if default is None else default
    value = config.get(key, default)
    if isinstance(default, bool):
        if not isinstance(value, bool):
            raise ValueError(f"{key} {value!r} must be true or false")
        return value
    if isinstance(default, str):
        if not isinstance(value, str) or not value:
            raise ValueError(f"{key} {value!r} must be a word, such as {default!r}")
        return value
    return (whole_int if isinstance(default, int) else finite_float)(key, value)


def read_path(key: str, *configs: Config) -> Path | None:
    """Return the absolute path under a key of the first config that has one, or None.

    Raises:
        ValueError: If it is relative: Flower runs its processes in folders of their own.
    """
    for config in configs:
        value = config.get(key, "")
        if value != "":
            path = Path(str(value)).expanduser()
            if not path.is_absolute():
                raise ValueError(
                    f"{key} {value!r} must be an absolute path: Flower's processes run elsewhere"
                )
            return path
    return None


def read_out(config: Config) -> Path:
    """Return the absolute path of the run folder under `out`.

    Raises:
        ValueError: If there is none, it is relative, or a new run would lie in the folder of a
            Flower app, whose bundle takes its `diagnostics.jsonl` to every node.
    """
    path = read_path("out", config)
    if path is None:
        raise ValueError("give the run folder, --run-config 'out=\"/absolute/path\"'")
    for folder in () if (path / "ledger.jsonl").exists() else (path, *path.parents):
        if _is_app(folder / "pyproject.toml"):
            raise ValueError(
                f"out {str(path)!r} lies in the Flower app {folder}: its bundle would take "
                "diagnostics.jsonl, which ε does not cover, to every node; give a folder outside"
            )
    return path


def _is_app(file: Path) -> bool:
    try:
        return "app" in tomllib.loads(file.read_text("utf-8"))["tool"]["flwr"]
    except (OSError, ValueError, KeyError, TypeError):
        return False


def open_corpus(*configs: Config) -> Corpus | None:
    """Return the corpus of the first config that names one, or None.

    Raises:
        ValueError: If there is no corpus at the path.
    """
    path = read_path("corpus", *configs)
    if path is None:
        return None
    if not path.is_dir():
        raise ValueError(
            f"corpus {str(path)!r} is not a folder on this machine; give the absolute path of a "
            "prepared corpus (`fedpriv data import` makes one), on a node as "
            "--node-config 'corpus=\"/path\"'"
        )
    return Corpus.open(path)


#: Keys of the node-config: where a node's users are, what may be made of them, and on what.
NODE_KEYS = ("corpus", "data", "data-key", PLANS_KEY, EXPERIMENTS_KEY, DEVICE_KEY)


def read_node_data(node_config: Config) -> NodeData | None:
    """Return where a node's local data lie, and the key of their ids; None if it names neither.

    Raises:
        ValueError: If it names one of them only, or a path is relative.
    """
    data, key = read_path("data", node_config), read_path("data-key", node_config)
    if data is None and key is None:
        return None
    if data is None or key is None:
        missing = "data" if data is None else "data-key"
        raise ValueError(
            f'the node-config has no {missing}; give both, --node-config \'data="/path" '
            "data-key=\"/path\"': where this node's data are, and the key that ids are made with"
        )
    return NodeData(path=data, key=key)


@contextmanager
def missing_corpus_named() -> Iterator[None]:
    """Say in Flower's terms how a corpus is named, where one is missing.

    Nothing is ever trained on a synthetic corpus by default here.
    """
    try:
        yield
    except MissingCorpusError as error:
        raise MissingCorpusError(
            f"{error}; under Flower name it by its absolute path, for every machine as "
            "--run-config 'corpus=\"/path\"' or for one node as --node-config 'corpus=\"/path\"'"
        ) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """Task and trainer of a node, for as long as its process lives.

    Attributes:
        task: Roster and examples, on this machine's corpus.
        trainer: What a user does, as the node's own experiment has it.
        device: That the trainer is on; None for what is quickest on a processor.
    """

    task: Task
    trainer: Trainers
    device: str | None = None


def open_node(run_config: Config, node_config: Config) -> Node:
    """Return what a node works with; its local options are those of the run-config, as are ours.

    Raises:
        ValueError: If this node does not run the experiment, the task needs a corpus and none is
            named, there is none at that path, the node's own data cannot be read, or the task has
            no trainer for the options, or none on the device, or the device is not here.
        PermissionError: If others may read the key of people's ids.
    """
    check_experiment(read_value(run_config, "experiment"), node_config)
    device = device_of(node_config, run_config)
    if device is not None:
        _LOG.info("users are trained on %s", device_description(usable_device(device)))
    experiment, corpus = read_experiment(run_config), open_corpus(node_config, run_config)
    with missing_corpus_named():
        task = make_task(experiment, corpus, read_node_data(node_config))
    return Node(
        task=task,
        trainer=experiment.make_trainer(task, device=device),
        device=device,
    )


def read_host(node: Node, run_config: Config, node_config: Config) -> Host:
    """Return the users of this node: one partition of the roster, or else the whole of it.

    Flower's simulation sets `partition-id` and `num-partitions` itself; a SuperNode gets them in
    its --node-config, or leaves them out when its own corpus holds no other node's users. With
    `shards` in the run-config the first so many nodes host everybody, and the others no user.
    A node that trains on a GPU computes users in its own process, without limits: a child that is
    forked off cannot use a GPU that is open.

    Raises:
        ValueError: If there is no such partition, one of the two keys is given alone, there are
            more shards than nodes, or a node with local data is to host a part of them only.
    """
    place = {"partition-id", "num-partitions"}
    if len(missing := place.difference(node_config)) == 1:
        raise ValueError(
            f"the node-config has {', '.join(place - missing)} and no {', '.join(missing)}: give "
            "both, 'partition-id=0 num-partitions=3' for the first of three nodes, or neither, "
            "where the node hosts everybody in its data"
        )
    partition = read_value(node_config, "partition-id", 0)
    num_nodes = read_value(node_config, "num-partitions", 1)
    shards = read_value(run_config, "shards")
    if not 0 <= shards <= num_nodes:
        raise ValueError(
            f"shards {shards} do not fit on {num_nodes} nodes; give num-supernodes of at least as "
            "many, or shards=0, where every node hosts its own partition"
        )
    if read_node_data(node_config) is not None and num_nodes != 1:
        raise ValueError(
            f"num-partitions {num_nodes}: a node hosts everybody in its local data; leave "
            "partition-id and num-partitions out of its node-config"
        )
    idle = 0 < shards <= partition
    host = Host.of(
        node.task,
        node.trainer,
        partition=partition,
        num_partitions=num_nodes if idle or not shards else shards,
    )
    return replace(
        host,
        user_ids=frozenset() if idle else host.user_ids,
        guard=None if is_gpu(node.device) else read_guard({**run_config, **node_config}),
        plans=allowed_plans(node_config),
    )


def client_app() -> ClientApp:
    """Return the ready ClientApp: it trains this node's users as the run-config's experiment does.

    What a node learns: the model, the public bound, which of its *own* users take part, and a key
    of this round. What leaves it: the opaque ids of its users, and sums of bounded updates. A
    node-config says where its users are (`corpus`, or `data` and `data-key`).
    """

    def logged(
        message: Message, context: Context, answer: Callable[[Message, Context], Message]
    ) -> Message:
        show_log()
        return answer(message, context)

    def host(context: Context) -> Host:
        where = {key: value for key, value in context.node_config.items() if key in NODE_KEYS}
        node = opened_node(json.dumps(context.run_config), json.dumps(where))
        return read_host(node, context.run_config, context.node_config)

    app = ClientApp(mods=[logged])
    serve(app, host, from_run_config=True)
    return app


@lru_cache(maxsize=2)
def opened_node(run_config: str, node_config: str) -> Node:
    """Open a node's users and make a trainer once for each process and run; files are shared.

    Args:
        run_config: As JSON.
        node_config: Its `NODE_KEYS`, as JSON.
    """
    return open_node(json.loads(run_config), json.loads(node_config))


def read_guard(config: Config) -> Guard | None:
    """Return what a node's users may take, by its own config or else the run's; None for no child.

    Raises:
        ValueError: For a value that is not a number of at least 0, or not a truth value.
    """
    guard = Guard(
        user_seconds=read_value(config, "user-seconds"),
        user_memory_mb=read_value(config, "user-memory-mb"),
    )
    return guard if read_value(config, "guard-users") else None


def _load(name: str) -> Experiment:
    """Return an experiment by name; Flower's processes must find a user-defined one too."""
    where = name.rpartition(":")[0]
    if where.endswith(".py") and not Path(where).expanduser().is_absolute():
        raise ValueError(
            f"experiment {name!r} must be an absolute path: Flower's processes run elsewhere"
        )
    try:
        return load_experiment(name)
    except ExperimentNotFoundError as error:
        raise ExperimentNotFoundError(
            f"no {where!r} on this machine for experiment {name!r}: in a deployment install it on "
            "every machine, or put it into the bundle (docs/your-own.md); a simulation also "
            "takes an absolute path, '/path/own.py:experiment'"
        ) from error
