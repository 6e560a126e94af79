"""Tasks: a roster, its users' examples, a model, and how it is measured.

`TagPrediction` is the task of the main job. `ModuleTask` takes any `nn.Module`, loss and users.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, Protocol

import numpy as np
import torch
from torch import nn

from fedpriv.data.corpus.examples import INPUTS, TagExamples
from fedpriv.data.corpus.rosters import roster_sha256
from fedpriv.data.corpus.view import TagView
from fedpriv.data.corpus.vocabulary import PRIVATE
from fedpriv.mechanisms.side_information import (
    SideInformation,
    frequency_multiplier,
    rank_multiplier,
    tf_idf_multiplier,
)
from fedpriv.models.linear import SoftmaxRegression
from fedpriv.rng import Key
from fedpriv.tasks.array_users import ArrayLike, ArrayUsers, array_examples, same_format
from fedpriv.training.allocator import keep_freed_memory
from fedpriv.training.devices import usable_device
from fedpriv.training.evaluate import (
    WHOLE,
    Metrics,
    Part,
    combined,
    evaluate_tags,
    majority_share,
)
from fedpriv.training.local.module import (
    ArrayExamples,
    ModuleTrainer,
    check_module,
    load_params,
    module_metrics,
    module_params,
)
from fedpriv.training.local.module_state import made_from
from fedpriv.training.local.trainer import LocalTrainer, Schedule, SparseSoftmaxTrainer
from fedpriv.training.local.users_at_once import default_users_at_once
from fedpriv.training.local.vectorised import VectorisedTrainer
from fedpriv.training.work import UserData
from fedpriv.tree import Params

#: Examples that a task is tried on.
_TRIED = 2


class Task(Protocol):
    """What is learnt, and from whom."""

    @property
    def roster(self) -> tuple[str, ...]:
        """The frozen user ids."""
        ...

    @property
    def roster_sha256(self) -> str:
        """Digest of the roster, frozen in the plan."""
        ...

    @property
    def data(self) -> UserData:
        """The rostered users' training examples."""
        ...

    def init_params(self, key: Key) -> Params:
        """Return the params before the first round, float32."""
        ...

    def trainer(
        self, schedule: Schedule, multiplier: Mapping[str, np.ndarray], device: str = "cpu"
    ) -> LocalTrainer:
        """Return what a user does.

        Args:
            schedule: How much work.
            multiplier: 1/A for local steps, by name; empty for none.
            device: Where; given only where it is not the CPU.
        """
        ...

    def side_information(
        self, kind: str, *, gain: float, top: int, power: float
    ) -> SideInformation:
        """Return public 1/A of a kind; raise `ValueError` for a kind the task has not got."""
        ...

    def evaluate(self, params: Params, *, public: bool, part: Part = WHOLE) -> Metrics | None:
        """Return metrics on public users, or on held-out examples of rostered users.

        Args:
            params: The model.
            public: Which of the two.
            part: Measure only this share; `combined` puts the shares together again.
        """
        ...

    def describe(self) -> dict[str, Any]:
        """Return what the run folder records of the data: names, counts, provenance, licence."""
        ...

    def vocabulary(self) -> dict[str, Any] | None:
        """Return what turns raw input into the model's and its output into words, if anything."""
        ...


class _TrainingExamples:
    """The training split of a view, as `UserData`."""

    def __init__(self, view: TagView) -> None:
        self._view = view

    def examples(self, user_id: str) -> Any:
        return self._view.examples(user_id, split="train")

    def num_examples(self, user_id: str) -> int:
        return self._view.num_examples(user_id, split="train")


class TagPrediction:
    """Predict a post's most common tag from a sentence of it: softmax regression, 10,000 x 500.

    Args:
        view: A corpus seen through one roster.
        inputs: "tff" (mean one-hot words, as TensorFlow Federated) or "unit-norm".
    """

    def __init__(self, view: TagView, *, inputs: str = "tff") -> None:
        if inputs not in INPUTS:
            raise ValueError(f"inputs {inputs!r} is not known; use one of {', '.join(INPUTS)}")
        self._view, self._inputs = view, inputs
        self._data = _TrainingExamples(view)

    @property
    def roster(self) -> tuple[str, ...]:
        """The frozen user ids."""
        return self._view.roster

    @property
    def roster_sha256(self) -> str:
        """Digest of the roster."""
        return self._view.roster_sha256

    @property
    def data(self) -> UserData:
        """The rostered users' training examples."""
        return self._data

    def init_params(self, key: Key) -> Params:
        """Return zeros: the loss is convex, and zero is nobody's data."""
        return module_params(SoftmaxRegression(len(self._view.words), len(self._view.tags)))

    def trainer(
        self, schedule: Schedule, multiplier: Mapping[str, np.ndarray], device: str = "cpu"
    ) -> LocalTrainer:
        """Return row-sparse local SGD.

        Raises:
            ValueError: For any device but the CPU: its rows are short and many.
        """
        if device != "cpu":
            raise ValueError(
                f"tag prediction does not train on {device!r}: its work is scattered rows, which "
                "a processor's caches serve best; leave --gpus-per-worker out"
            )
        rows = multiplier.get("kernel")
        return SparseSoftmaxTrainer(
            schedule=schedule,
            inputs=self._inputs,
            multiplier=None if rows is None else rows.reshape(-1),
        )

    def side_information(
        self, kind: str, *, gain: float, top: int, power: float
    ) -> SideInformation:
        """Return 1/A for the kernel's rows from public word statistics; the bias has none."""
        view, number = self._view, self._view.num_public_examples
        source: Literal["public", "private"] = "public"
        where = "text that users outside the roster wrote"
        if self._view.provenance["word_counts_source"] == PRIVATE:
            source, where = "private", "counts published with the data, rostered users included"
        if kind == "rank":
            rows = rank_multiplier(len(view.words), top=min(top, len(view.words)), gain=gain)
            said = f"words beyond the {top} commonest are multiplied by {gain:g}"
        elif kind == "frequency":
            rows = frequency_multiplier(view.word_counts, number, cap=gain, power=power)
            said = f"1 / token frequency, to the power {power:g}, at most {gain:g}"
        elif kind == "tf-idf":
            rows = gain * tf_idf_multiplier(view.word_counts, view.word_sentences, number)
            said = f"total TF-IDF relative to the largest, times {gain:g}"
        else:
            raise ValueError(
                f"side information {kind!r} is not known; use 'rank', 'frequency' or 'tf-idf'"
            )
        return SideInformation(
            multiplier={"kernel": rows.astype(np.float32).reshape(-1, 1)},
            source=source,
            description=f"{kind} ({said}), from {where}",
        )

    def synthetic_batch(self) -> TagExamples:
        """Return one example, of the first word and the first tag, to try a trainer on."""
        one = np.zeros(1, np.int32)
        return TagExamples(
            indptr=np.arange(2),
            indices=one,
            counts=np.ones(1, np.uint8),
            num_tokens=np.ones(1, np.int32),
            labels=one,
            tag_indptr=np.arange(2),
            tag_indices=one,
            num_words=len(self._view.words),
            num_tags=len(self._view.tags),
        )

    def vocabulary(self) -> dict[str, Any]:
        """Return the words and tags, in the order of the kernel's rows and columns."""
        return {"words": self._view.words, "tags": self._view.tags, "inputs": self._inputs}

    def evaluate(self, params: Params, *, public: bool, part: Part = WHOLE) -> Metrics | None:
        """Return accuracy and recall@5: all examples of public users, or the roster's test set.

        Part i of n is every n-th user from the i-th on.
        """
        view, (number, of) = self._view, part
        users = (view.public_users if public else view.roster)[number::of]
        blocks = view.rows(users, "all" if public else "test")
        return combined(evaluate_tags(params, view.columns, self._inputs, rows) for rows in blocks)

    def describe(self) -> dict[str, Any]:
        """Return names, counts and provenance of the view."""
        view = self._view
        return {
            **view.describe(),
            "num_users": len(view.roster),
            "num_public_users": len(view.public_users),
            "num_words": len(view.words),
            "num_tags": len(view.tags),
            "provenance": dict(view.provenance),
            "majority_class_accuracy": majority_share(view.label_counts(view.roster, "test")),
        }


class ModuleTask:
    """Any model, loss and users.

    Args:
        name: What the corpus is called in reports.
        module: A function that makes the `nn.Module`; called once in each process.
        loss: From (outputs, targets) to the mean loss of a batch.
        users: Training examples by user id; its keys, sorted, are the roster. Examples are
            `ArrayExamples`, a pair (x, y) or a `TensorDataset`; floats are taken as float32 and
            integer targets as int64, whatever they are kept as.
        test: Held-out examples of rostered users (diagnostics), if any.
        public: Examples of users outside the roster (released figures), if any.
        synthetic: Whether the data were made up.
        synthetic_batch: Made-up examples to try the task on before a run starts; give some where
            the model cannot take those that `synthetic_batch()` makes.
        users_at_once: How many users a trainer trains together; None for the rule of
            `fedpriv.training.local.users_at_once` (on the CPU one by one), 1 for one by one.
    """

    def __init__(
        self,
        *,
        name: str,
        module: Callable[[], nn.Module],
        loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
        users: Mapping[str, ArrayLike],
        test: ArrayLike | None = None,
        public: ArrayLike | None = None,
        synthetic: bool = False,
        synthetic_batch: ArrayLike | None = None,
        users_at_once: int | None = None,
    ) -> None:
        if users_at_once is not None and (users_at_once is True or users_at_once < 1):
            raise ValueError(f"users_at_once {users_at_once!r} must be at least 1, or None")
        self._name, self._synthetic = name, synthetic
        self._make, self._loss = module, loss
        self._data = ArrayUsers(users)
        self._roster = tuple(sorted(users))
        self._sets = {
            is_public: None if given is None else array_examples(given, f"the {what} examples")
            for is_public, given, what in ((False, test, "test"), (True, public, "public"))
        }
        self._synthetic_batch = None
        if synthetic_batch is not None:
            self._synthetic_batch = array_examples(synthetic_batch, "the synthetic_batch examples")
        self._users_at_once = users_at_once
        check_module(module())

    @property
    def roster(self) -> tuple[str, ...]:
        """The user ids, sorted."""
        return self._roster

    @property
    def roster_sha256(self) -> str:
        """Digest of the roster."""
        return roster_sha256(self._roster)

    @property
    def data(self) -> UserData:
        """The users' examples."""
        return self._data

    def init_params(self, key: Key) -> Params:
        """Return the module's own initialisation, drawn from the key."""
        return module_params(made_from(key, self._make))

    def trainer(
        self, schedule: Schedule, multiplier: Mapping[str, np.ndarray], device: str = "cpu"
    ) -> LocalTrainer:
        """Return plain local SGD on the module.

        Args:
            schedule: How much work.
            multiplier: 1/A by parameter name, empty for none.
            device: Where to train, such as "cuda:0". On the CPU the process is also told to keep
                the memory that steps free (`fedpriv.training.allocator`).

        Raises:
            ValueError: If there is no such device here.
        """
        where = usable_device(device)
        alone = ModuleTrainer(
            module=self._make(),
            loss=self._loss,
            schedule=schedule,
            multiplier=multiplier,
            device=where,
        )
        if where.type == "cpu":
            keep_freed_memory()
        users_at_once = self._users_at_once
        if users_at_once is None:
            batch = self.synthetic_batch()
            users_at_once = default_users_at_once(alone, np.empty(0) if batch is None else batch.x)
        if where.type == "cpu" and users_at_once == 1:
            return alone
        return VectorisedTrainer(alone=alone, users_at_once=users_at_once)

    def side_information(
        self, kind: str, *, gain: float, top: int, power: float
    ) -> SideInformation:
        """Refuse: nothing public is known of a general module's parameters."""
        raise ValueError(
            f"side information {kind!r} needs public statistics that this task has not got; "
            "run with precondition 'none', or override side_information() in a task of your own"
        )

    def evaluate(self, params: Params, *, public: bool, part: Part = WHOLE) -> Metrics | None:
        """Return accuracy (for class scores) and loss."""
        examples = self._sets[public]
        if examples is None:
            return None
        module = load_params(self._make(), params).eval()
        return module_metrics(module, self._loss, examples.x, examples.y, part)

    def synthetic_batch(self) -> ArrayExamples | None:
        """Return examples of no rostered user, to try the task on; None where none can be made.

        Those that were given, or some public ones if they look like users', or else synthetic
        ones: floats are normal (targets uniform), words are of every embedding's vocabulary,
        classes the first two.
        """
        if self._synthetic_batch is not None:
            return self._synthetic_batch
        made, public = self._data.synthetic(self._make(), _TRIED), self._sets[True]
        if public and (made is None or same_format(made, public)):
            return public.take(np.arange(min(len(public), _TRIED)))
        return made

    def vocabulary(self) -> None:
        """There is none: the user's own code reads inputs and outputs."""

    def describe(self) -> dict[str, Any]:
        """Return the little that is known."""
        return {
            "name": self._name,
            "synthetic": self._synthetic,
            "roster": "all",
            "num_users": len(self._roster),
            "num_public_users": 0,
            "provenance": {},
        }
