"""Task of any `nn.Module`, loss and users, whose examples are arrays in whatever form."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import TensorDataset

from fedpriv.checkpoints.tensor_files import FROZEN, frozen_file
from fedpriv.datasets.digests import fingerprint
from fedpriv.datasets.local_data import NodeUsers, RemoteUsers
from fedpriv.datasets.partitions import UserRows
from fedpriv.datasets.user_ids import check_distinct
from fedpriv.libraries import one_thread
from fedpriv.measures import Measure
from fedpriv.ranges import positive_int
from fedpriv.rng import Key
from fedpriv.tasks.task import EMPTY, EQUAL, Task, TaskDescription
from fedpriv.training.devices import usable_device
from fedpriv.training.evaluate import WHOLE, ClassScores, Metrics, Part, combined
from fedpriv.training.local.module import (
    ArrayExamples,
    ModuleTrainer,
    check_module,
    load_params,
    model_inputs,
    model_targets,
    module_params,
)
from fedpriv.training.local.module_measures import (
    IGNORED,
    ModuleMeasure,
    classifies,
    commonest_share,
    counted_places,
    fitting_measures,
    module_class_scores,
    module_metrics,
    module_totals,
    with_loss,
)
from fedpriv.training.local.module_state import (
    SameFrozen,
    as_array,
    brought_by,
    made_from,
)
from fedpriv.training.local.schedule import LocalSgd
from fedpriv.training.local.sgd import (
    SGD,
    ClientOptimizer,
    as_client_optimizer,
    as_tensor,
    optimizer_name,
)
from fedpriv.training.local.vectorised import Cost, VectorisedTrainer
from fedpriv.training.per_example.losses import (
    check_loss,
    check_pairs,
    mean_losses,
    synthetic_inputs,
)
from fedpriv.training.per_example.module import ModuleGradients
from fedpriv.training.public_learning import PublicLearner, learner_of
from fedpriv.training.stopping import end_if_interrupted
from fedpriv.training.streams import own_stream
from fedpriv.training.work import Trainer
from fedpriv.tree import Params

#: What is taken for the examples of a user: two arrays, one way or another.
ArrayLike = ArrayExamples | tuple[Any, Any] | TensorDataset

_LOG = logging.getLogger(__name__)
_FORMAT_USERS = 20


def array_examples(given: Any, what: str) -> ArrayExamples:
    """Return examples as two arrays, over the same memory where they are arrays already.

    Args:
        given: `ArrayExamples`, a pair (inputs, targets) of arrays or CPU tensors, or a
            `TensorDataset` of two tensors.
        what: What to call them in a message.

    Raises:
        ValueError: If it is anything else, no numbers of one shape for each example, or inputs and
            targets differ in number.
    """
    if isinstance(given, ArrayExamples):
        return given
    parts = given.tensors if isinstance(given, TensorDataset) else given
    try:
        if not isinstance(parts, tuple | list):
            raise TypeError(f"a {type(given).__name__} is none")
        x, y = (np.asarray(part) for part in parts)
        if any(array.ndim == 0 or array.dtype.kind not in "biufc" for array in (x, y)):
            raise TypeError("these are no arrays of numbers")
    except (ValueError, TypeError, RuntimeError) as error:
        raise ValueError(
            f"{what} are no pair of arrays ({error}); give ArrayExamples(x, y), a pair (x, y) of "
            "arrays, or a TensorDataset of two tensors: numbers, one row for each example, all of "
            "one shape (pad those that are shorter)"
        ) from error
    return ArrayExamples(x, y)


class ArrayUsers:
    """Users of a mapping from ids to examples. A `fedpriv.training.work.UserData`.

    Examples of a user that `array_examples` does not take raise where that user is to train: it
    contributes zero, alone, and no run ends for it.

    Args:
        users: By id.

    Raises:
        ValueError: If there is no user, or a plain dict holds for no one what can be taken.
    """

    def __init__(self, users: Mapping[str, ArrayLike]) -> None:
        if not hasattr(users, "keys") or not users:
            raise ValueError(
                f"users are a {type(users).__name__}, or no one; give a mapping from each user's "
                "id to examples, such as a dict: dict(pairs) makes one of (id, examples) pairs"
            )
        check_distinct(users)
        self.users = users
        if isinstance(users, dict) and all(self.readable(user_id) is None for user_id in users):
            self.examples(next(iter(users)))  # raises

    def __contains__(self, user_id: str) -> bool:
        return user_id in self.users

    def examples(self, user_id: str) -> ArrayExamples:
        """Return the user's training examples; raise `ValueError` for an unknown user."""
        if user_id not in self.users:
            raise ValueError(f"user {user_id!r} is not among the {len(self.users)} users here")
        return array_examples(self.users[user_id], f"the examples of user {user_id!r}")

    def readable(self, user_id: str) -> ArrayExamples | None:
        """Return the user's training examples; None where they cannot be had or taken."""
        try:
            return self.examples(user_id)
        except Exception as error:
            end_if_interrupted(error)
            return None

    def num_examples(self, user_id: str) -> int:
        """Return how many there are; raise `ValueError` as above."""
        return len(self.examples(user_id))

    def num_equal(self, others: ArrayExamples) -> int:
        """Return how many other examples equal a user's, inputs and targets, as models take them.

        Users of a mapping that may read files are not looked at: 0.
        """
        if not isinstance(self.users, dict | UserRows):
            return 0
        left, equal = Counter(_contents(others)), 0
        for user_id in self.users:
            own = self.readable(user_id)
            if own is not None and same_format(own, others):
                equal += sum(left.pop(content, 0) for content in _contents(own))
        return equal

    def sha256(self) -> str:
        """Return a digest of all users' examples, each read once: private, as they are."""
        found = sha256()
        for user_id in sorted(self.users):
            try:
                own = self.examples(user_id)
                content = fingerprint(own.x, own.y)
            except Exception as error:  # it contributes zero, and is no reason to end the run
                end_if_interrupted(error)
                content = "unreadable"
            found.update(f"{len(user_id.encode())} {user_id} {content}\n".encode())
        return found.hexdigest()

    def synthetic(self, module: nn.Module, number: int) -> ArrayExamples | None:
        """Return synthetic examples in the shape and dtype of most users'.

        Of the first few users shapes and dtypes are looked at, and no value; of a node's own users
        not even those: server and nodes have to find the same. What most have alike is taken, so
        that no single user's examples decide whether a run starts.

        Args:
            module: Whose embeddings say which words there are.
            number: How many.

        Returns:
            None where no user of those has an example, or as many have another number of axes or
            dtype.
        """
        if isinstance(self.users, NodeUsers):
            return None
        found = [self.readable(user_id) for user_id in islice(sorted(self.users), _FORMAT_USERS)]
        formats = [_format(own) for own in found if own is not None and len(own)]
        kinds = Counter(map(_kind, formats)).most_common(2)
        if not formats or len({number for _, number in kinds}) < len(kinds):
            return None
        of_most = Counter(one for one in formats if _kind(one) == kinds[0][0])
        form = min(of_most, key=lambda one: (-of_most[one], repr(one)))
        x_shape, x_dtype, y_shape, y_dtype = form
        like = np.empty((0, *x_shape), x_dtype), np.empty((0, *y_shape), y_dtype)
        x, y = synthetic_inputs(module, *like, number)
        return ArrayExamples(x.numpy(), y.numpy())


def check_learnt_from(learnt: ArrayExamples, measured: ArrayExamples | None) -> None:
    """Refuse public training examples that nothing can be chosen on, or that are measured on too.

    Raises:
        ValueError: If there are fewer than two; or if all that figures are measured on are among
            them, so that what is learnt by heart would count as learnt.
    """
    if len(learnt) < 2:
        raise ValueError(
            f"public_train has {len(learnt)} example{'s' * (len(learnt) != 1)}; give at least 2, "
            "of which one is kept back to choose settings by, or leave it out"
        )
    if measured is None or not len(measured) or not same_format(learnt, measured):
        return
    if set(_contents(measured)) <= set(_contents(learnt)):
        raise ValueError(
            f"all {len(measured):,} public examples are in public_train too, and figures are "
            "measured on them; give public_train some, and public others"
        )


def _contents(examples: ArrayExamples) -> Iterator[bytes]:
    """Yield a digest of each example."""
    for x, y in zip(model_inputs(examples.x), model_targets(examples.y), strict=True):
        yield sha256(x.tobytes() + y.tobytes()).digest()


def same_format(left: ArrayExamples, right: ArrayExamples) -> bool:
    """Return whether a module is given examples of both in the same shape and dtype."""
    return _format(left) == _format(right)


def _format(examples: ArrayExamples) -> tuple[Any, ...]:
    x, y = model_inputs(examples.x[:0]), model_targets(examples.y[:0])
    return x.shape[1:], x.dtype, y.shape[1:], y.dtype


def _kind(form: tuple[Any, ...]) -> tuple[Any, ...]:
    x_shape, x_dtype, y_shape, y_dtype = form
    return len(x_shape), x_dtype, len(y_shape), y_dtype


@dataclass(frozen=True, slots=True, kw_only=True)
class PersonalLayers:
    """Parameters that every user keeps to itself, such as a last layer (as in FedPer).

    In every round a user trains them again, from the module's own initialisation, together with the
    params of the round. They are in no update, in no run folder, and are not kept until the
    next round: there is no state of a user for ε to cover.

    Attributes:
        names: Of the parameters, as `named_parameters()` has them.
        test: Held-out examples of rostered users by id. The model is measured on each user's after
            its personal parameters were trained on its training examples, the others as released: a
            diagnostic that no ε covers, and that a secure run does not take.
        learning_rate: Of the steps before that measurement.
        steps: How many these are, on batches of at most `batch_size`.
        batch_size: Examples of such a step.

    Raises:
        ValueError: If no parameter is named, or a number is out of its range.
    """

    names: tuple[str, ...]
    test: Mapping[str, ArrayLike] | None = field(default=None, repr=False)
    learning_rate: float = 0.1
    steps: int = 20
    batch_size: int = 100

    def __post_init__(self) -> None:
        if isinstance(self.names, str) or not self.names:
            raise ValueError(
                f"personal names {self.names!r} are no names of parameters; give a tuple such as "
                '("2.weight", "2.bias")'
            )
        self.schedule()

    def schedule(self) -> LocalSgd:
        """Return the steps before a user is measured."""
        return LocalSgd(
            learning_rate=self.learning_rate, batch_size=self.batch_size, local_steps=self.steps
        )


# Examples that a task is tried on, and those that its loss and its measures are tried on at most.
_TRIED, _LOOKED_AT = 2, 16
# Examples that outputs are looked at of, at most: a tensor may matter to one of many alone.
_ANSWERED = 512
_PERSONAL = Key.simulation(0).fold("personal layers")
_LOOK = Key.simulation(0).fold("look at the loss")


class ModuleTask(Task):
    """Any model, loss and users.

    Attributes:
        roster: The user ids, sorted.
        data: The users' examples.

    Args:
        name: What the corpus is called in reports.
        module: A function that makes the `nn.Module`, called many times and in each process.
            Parameters with `requires_grad=False` stay as it makes them: they are not trained and
            in no update, and go with the model into the run folder and every export. They must be
            the same in each process; what torch draws of them is.
        published: SHA-256, by a name, of published files that such parameters are loaded from, or
            that made the inputs. They are then stated in the run folder, and compared when it is
            resumed, the plan's digest is of them too, and what is not drawn is not copied into
            the folder, nor into exports.
        loss: From (outputs, targets) to the mean loss of a batch.
        users: Training examples by user id; its keys, sorted, are the roster. Examples are
            `ArrayExamples`, a pair (x, y) or a `TensorDataset`; floats are taken as float32 and
            integer targets as int64, whatever they are kept as. Those of a node's own files come
            from `fedpriv.datasets.local_data.local_users`; give `public` examples then, or a
            `synthetic_batch`, to try the task on.
        measures: What the model is measured by, the headline first; None for what fits its
            outputs and targets (`fedpriv.training.local.module_measures`). The loss comes last
            where it is not among them.
        test: What diagnostics are measured on, which no ε covers, if anything: held-out examples of
            rostered users by user id, or a test set that belongs to no user.
        public: Examples of users outside the roster (released figures), if any.
        public_train: More of these, to learn from before and during private training (start
            "public", and what public examples alone reach); never measured on. Let no one have
            examples in both.
        equal_by_chance: Declares that public examples that equal rostered users' are no copies of
            these but values that many people share, such as one film liked. It is not checked, and
            a simulation's statement has it with their number; without it they mark the run.
        synthetic: Whether a generator made the data.
        provenance: Where they came from, as of a `fedpriv.datasets.dataset.Dataset`: its "note",
            such as that they are a lossy sample, and its "source" are in every statement, under
            whatever name the task has.
        files: That go with the model into the run folder and every export, such as a vocabulary:
            only what is public.
        synthetic_batch: Synthetic examples to try the task on before a run starts; give some where
            the model cannot take those that `synthetic_batch()` makes.
        data_sha256: Returns SHA-256 by name of what the examples were made of, such as "private"
            and "public": a run is resumed on the same only, and a simulation's noise is made of it
            too. None hashes all examples, each read once when a run starts or is resumed.
        users_at_once: How many users a trainer trains together; None for the rule of
            `fedpriv.training.local.vectorised` (on the CPU one by one), 1 for one by one.
        client_optimizer: Takes a user's local steps: any class of `torch.optim` but LBFGS (settings
            by `functools.partial`; with a scheduler `fedpriv.training.local.sgd.TorchOptimizer`),
            `SGD` of `fedpriv.training.local.sgd`, or your own. With any but that `SGD` users are
            trained one by one; of it the option `client-optimizer` makes another.
        personal: Parameters that every user keeps to itself; None for none. Users are then trained
            one by one, and released figures are of a model whose personal parameters are those of
            its initialisation.
    """

    def __init__(
        self,
        *,
        name: str,
        module: Callable[[], nn.Module],
        loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
        users: Mapping[str, ArrayLike],
        published: Mapping[str, str] | None = None,
        measures: Sequence[ModuleMeasure] | None = None,
        test: ArrayLike | Mapping[str, ArrayLike] | None = None,
        public: ArrayLike | None = None,
        public_train: ArrayLike | None = None,
        equal_by_chance: bool = False,
        synthetic: bool = False,
        provenance: Mapping[str, Any] | None = None,
        files: Mapping[str, bytes] | None = None,
        synthetic_batch: ArrayLike | None = None,
        data_sha256: Callable[[], Mapping[str, str]] | None = None,
        users_at_once: int | None = None,
        client_optimizer: Callable[..., ClientOptimizer | torch.optim.Optimizer] = SGD,
        personal: PersonalLayers | None = None,
    ) -> None:
        if personal is not None:
            if public_train is not None or test is not None:
                raise ValueError(
                    "public_train and test are of a model without personal layers; leave them out, "
                    "and give held-out examples by user: PersonalLayers(test={...})"
                )
            test = personal.test
        if users_at_once is not None:
            positive_int("users_at_once", users_at_once)
        if isinstance(module, nn.Module) or not callable(module):
            raise ValueError(
                f"module is a {type(module).__name__}; give a function that makes the module, "
                "such as lambda: nn.Linear(4, 2)"
            )
        self._name, self._synthetic = name, synthetic
        self.equal_by_chance = equal_by_chance
        self._published = dict(published) if published else None
        self._provenance = dict(provenance or {})
        self._make, self._loss = SameFrozen(module, published=bool(published)), loss
        self.data: ArrayUsers = ArrayUsers(users)
        self.roster = tuple(sorted(users))
        self._test_counts: np.ndarray | None = None
        if isinstance(test, Mapping):
            test = self._pooled(test)
        given = {"test": test, "public": public, "public_train": public_train}
        given["synthetic_batch"] = synthetic_batch
        self._sets = {
            name: None if own is None else array_examples(own, f"the {name} examples")
            for name, own in given.items()
        }
        if (learnt := self._sets["public_train"]) is not None:
            check_learnt_from(learnt, self._sets["public"])
        self._users_at_once = users_at_once
        self._client_optimizer = as_client_optimizer(client_optimizer)
        self._said_apart = False
        remote = isinstance(users, RemoteUsers)  # whose examples no one here can hash
        self.data_sha256 = data_sha256 or (None if remote else self._hash_examples)
        self._files = dict(files or {})
        if FROZEN in self._files:
            raise ValueError(
                f"the file {FROZEN!r} is that of parameters that are not trained; give yours "
                "another name"
            )
        check_module(self._make())
        self._personal = personal
        self._own_start = {} if personal is None else self._personal_start(personal)
        if measures is not None:
            self._module_measures = with_loss(measures, loss)
        self._checked = False

    def _hash_examples(self) -> dict[str, str]:
        """Return digests of users' examples and of those that belong to no rostered user."""
        found = {n: fingerprint(own.x, own.y) for n, own in self._sets.items() if own is not None}
        found.pop("synthetic_batch", None)
        return {"private": self.data.sha256(), **found}

    @property
    def user_defined(self) -> Mapping[str, str]:
        """As of `Task`; of an optimiser that was given, its name."""
        if self._client_optimizer is SGD:
            return super().user_defined
        name = optimizer_name(self._client_optimizer)
        return {**super().user_defined, "local.client_optimizer": name}

    @property
    def measures(self) -> tuple[Measure, ...]:
        """The measures, the headline first."""
        return tuple(own.measure for own in self._module_measures)

    def init_params(self, key: Key) -> Params:
        """Return the module's own initialisation, drawn from the key."""
        found = module_params(made_from(key, self._make))
        return {name: array for name, array in found.items() if name not in self._own_start}

    def brought(self) -> Collection[str]:
        """Return as `BaseTask.brought`, of all tensors of module and loss, trained or not."""
        if self._published:
            return ()
        return sorted({*super().brought(), *self._make.brought, *brought_by(self._loss)})

    def _personal_start(self, personal: PersonalLayers) -> dict[str, np.ndarray]:
        """Return the personal parameters as every user finds them, alike in every process."""
        found = module_params(made_from(_PERSONAL, self._make))
        if not set(personal.names) < set(found):
            raise ValueError(
                f"personal {personal.names!r}: name some of {', '.join(found)}, and not all, so "
                "that one is left to learn together"
            )
        return {name: found[name] for name in personal.names}

    def _model(self, params: Params) -> nn.Module:
        """Return a module of these params, its personal parameters as every user finds them."""
        return load_params(self._make(), {**self._own_start, **params})

    def _models(
        self, params: Params, *, public: bool, part: Part = WHOLE
    ) -> Iterator[tuple[slice, nn.Module, ArrayExamples, Part]]:
        """Yield modules, each with the examples, and the share of these, that it is measured on.

        One module, or with personal layers that of each user. The first item is whose examples
        held-out ones are, as places in the roster.
        """
        examples, counts = self._sets["public" if public else "test"], self._test_counts
        personal = self._personal
        if examples is None:
            return
        if public or personal is None or counts is None:
            yield slice(None), self._model(params).eval(), examples, part
            return
        trainer = self._alone(personal.schedule(), {}, "cpu")
        starts = np.cumsum(counts) - counts
        for place in np.flatnonzero(counts)[part[0] :: part[1]]:
            user_id = self.roster[place]
            try:
                key = _PERSONAL.fold(user_id)
                own = trainer.personalise(params, self.data.examples(user_id), key)
            except Exception as error:  # contributes zero where it trains, and is not measured
                end_if_interrupted(error)
                continue
            module = load_params(self._make(), {**params, **own}).eval()
            seen = examples.take(starts[place] + np.arange(int(counts[place])))
            yield slice(place, place + 1), module, seen, WHOLE

    def trainer(
        self,
        schedule: LocalSgd,
        multiplier: Mapping[str, np.ndarray],
        device: str | None = None,
    ) -> Trainer:
        """Return local training of the module.

        Args:
            schedule: How much work.
            multiplier: 1/A by parameter name, empty for none.
            device: Where to train many users at once, such as "cuda:0"; None for one by one on the
                CPU, unless `users_at_once` says otherwise.

        Raises:
            ValueError: If there is no such device here, or the loss or a measure is not of each
                example and its own target (`fedpriv.training.per_example.losses`).
        """
        if schedule.optimizer is not None and self._client_optimizer is not SGD:
            own = optimizer_name(self._client_optimizer)
            raise ValueError(
                f"the task takes its local steps by {own}, and the "
                "option client-optimizer names another; leave one of them out"
            )
        self._check_loss()
        alone = self._alone(schedule, multiplier, usable_device(device or "cpu"))
        if device is None and self._users_at_once in (None, 1):
            return alone
        many = VectorisedTrainer(alone=alone, users_at_once=self._users_at_once)
        if many.why_apart and (self._users_at_once or 1) > 1 and not self._said_apart:
            self._said_apart = True  # a run makes several trainers
            _LOG.warning("users_at_once %d: %s", self._users_at_once, many.why_apart)
        return many

    def _alone(
        self, schedule: LocalSgd, multiplier: Mapping[str, np.ndarray], device: Any
    ) -> ModuleTrainer:
        """Return what trains one user after another."""
        return ModuleTrainer(
            module=self._make(),
            loss=self._loss,
            schedule=schedule,
            multiplier=multiplier,
            device=device,
            make_optimizer=self._client_optimizer,
            personal=self._own_start,
        )

    def example_gradients(self, slots: np.ndarray) -> ModuleGradients:
        """Return the module on single examples of rostered users.

        Args:
            slots: Which examples of each user, int64 (users, most); `EMPTY` for none. Those of a
                user whose examples have another shape or dtype than the public or synthetic ones
                are emptied here: that user contributes zero, alone.

        Raises:
            ValueError: If neither public nor synthetic examples say shape and dtype (users' own
                would let one user decide which others contribute), no user has an example, or
                there are personal layers.
        """
        self._refuse_personal("single examples")
        self._check_loss()
        declared, of_users = self._batch
        if declared is None or of_users:
            raise ValueError(
                "single examples are drawn, and nothing public says their shape and dtype: give "
                "public examples, or a synthetic_batch"
            )
        if (slots == EMPTY).all():
            raise ValueError("no user has an example; give some")
        x, y = (
            np.zeros((*slots.shape, *found.shape[1:]), found.dtype)
            for found in (model_inputs(declared.x[:1]), model_targets(declared.y[:1]))
        )
        for place, (user_id, row) in enumerate(zip(self.roster, slots, strict=True)):
            kept = row[row != EMPTY]
            if not len(kept):
                continue
            own = self.data.examples(user_id)
            if not same_format(own, declared):
                slots[place] = EMPTY
                continue
            x[place, : len(kept)] = model_inputs(own.x[kept])
            y[place, : len(kept)] = model_targets(own.y[kept])
        flat = (array.reshape(slots.size, *array.shape[2:]) for array in (x, y))
        return ModuleGradients(self._make(), self._loss, *flat)

    def _refuse_personal(self, what: str) -> None:
        if self._personal is not None:
            raise ValueError(
                f"personal layers are trained by local SGD, and this method asks for {what}; leave "
                "personal out"
            )

    def losses_along(
        self, params: Params, direction: Params, sizes: Sequence[float], examples: ArrayExamples
    ) -> np.ndarray:
        """Return a user's mean loss at every step size, float64 (sizes,), on the CPU."""
        self._refuse_personal("losses along a direction")
        x, y = (as_tensor(a) for a in (model_inputs(examples.x), model_targets(examples.y)))
        return mean_losses(self._make(), self._loss, params, direction, sizes, x, y)

    def evaluate(self, params: Params, *, public: bool, part: Part = WHOLE) -> Metrics | None:
        """Return what `measures` names."""
        return combined(
            module_metrics(module, self._module_measures, own.x, own.y, share)
            for _, module, own, share in self._models(params, public=public, part=part)
        )

    def metrics(
        self, params: Params, examples: ArrayExamples, part: Part = WHOLE
    ) -> Metrics | None:
        """Return what `measures` names for any examples; None without any.

        Of rostered users' it is a diagnostic, which no ε covers.
        """
        module = self._model(params).eval()
        return module_metrics(module, self._module_measures, examples.x, examples.y, part)

    def held_out_by_user(self, params: Params) -> tuple[np.ndarray, np.ndarray] | None:
        """Return how much is measured of each rostered user, and the sum of the headline over it.

        None where test examples were not given by user, or the headline is no mean.
        """
        headline, counts = self._module_measures[0], self._test_counts
        if counts is None or self._sets["test"] is None or headline.value_is != "mean":
            return None
        sizes, sums = np.zeros(len(counts), np.int64), np.zeros(len(counts))
        for users, module, own, _ in self._models(params, public=False):
            totals = module_totals(module, headline, own.x, own.y, counts[users].tolist())
            sizes[users] = [total.count for total in totals]
            sums[users] = [total.sum for total in totals]
        return sizes, sums

    def class_scores(
        self, params: Params, *, public: bool, part: Part = WHOLE
    ) -> ClassScores | None:
        """Return softmax of the outputs and the targets; None where it is no classification."""
        if not classifies(self._module_measures):
            return None
        return (
            block
            for _, module, own, share in self._models(params, public=public, part=part)
            for block in module_class_scores(module, own.x, own.y, share)
        )

    def synthetic_batch(self) -> ArrayExamples | None:
        """Return examples of no rostered user, to try the task on; None where none can be made.

        Those that were given, or some public ones if they look like users', those with the least
        and the largest of classes and words among them, or else synthetic ones: floats are normal
        (targets uniform), words are of every embedding's vocabulary, classes the first two. Where
        the model's outputs on synthetic ones are not finite, it takes none such: None.
        """
        batch, drawn = self._batch
        if batch is None or not drawn:
            return batch
        try:
            with own_stream(_LOOK), torch.no_grad():
                outputs = self._make()(as_tensor(model_inputs(batch.x)))
        except Exception as error:  # a mistake, which the trial is to raise
            end_if_interrupted(error)
            return batch
        finite = not isinstance(outputs, torch.Tensor) or bool(outputs.isfinite().all())
        return batch if finite else None

    def outputs(self, params: Params) -> np.ndarray | None:
        """Return the outputs, in evaluation mode, on `synthetic_batch()`, or their loss."""
        few = _few(self.synthetic_batch(), _ANSWERED)
        if few is None:
            return None
        module = self._model(params).eval()
        with own_stream(_LOOK), torch.no_grad():
            found = module(as_tensor(model_inputs(few.x)))
            if not isinstance(found, torch.Tensor):
                found = self._loss(found, as_tensor(model_targets(few.y)))
        return as_array(found)

    @cached_property
    def _batch(self) -> tuple[ArrayExamples | None, bool]:
        """Examples of no rostered user, and whether they were drawn."""
        if (given := self._sets["synthetic_batch"]) is not None:
            return given, False
        made, public = self.data.synthetic(self._make(), _TRIED), self._sets["public"]
        if public is None or not len(counted_places(public.y)):
            return made, True
        if made is None or (same_format(made, public) and public.x.any()):
            return public.take(_telling(public)), False
        return made, True

    def public_of_rostered(self) -> Mapping[str, tuple[int, int]]:
        """Return how many public examples equal a rostered user's, and of how many, by `EQUAL`.

        Of users that a plain dict or `UserRows` holds: another mapping may read files, and is not
        looked through.
        """
        sets = zip(EQUAL, (self._sets["public"], self._sets["public_train"]), strict=True)
        return {n: (self.data.num_equal(own), len(own)) for n, own in sets if own is not None}

    def public_learner(self, key: Key, *, choosing: bool) -> PublicLearner | None:
        """Return what learns from `public_train`, by Adam on the CPU; None without any.

        Args:
            key: Draws the module's own initialisation, and the order of the examples.
            choosing: Whether to keep a fifth of them back, by the key, and measure on those.

        Guarantees:
            * Neither `users` nor `test` nor `public` goes into it, but for examples that
              `public_train` has too (`public_of_rostered` counts those of users).
        """
        examples = self._sets["public_train"]
        if examples is None:
            return None
        self._check_loss()
        gradients = ModuleGradients(self._make(), self._loss, examples.x, examples.y)
        return learner_of(
            len(examples),
            choosing=choosing,
            key=key,
            begun=self.init_params(key),
            gradient=one_thread()(gradients.gradient),
            measure=lambda params, index: self.metrics(params, examples.take(index)),
        )

    def model_memory(self) -> tuple[int, int]:
        """Return bytes of frozen parameters and buffers, and of an example's step to rounding.

        What PyTorch keeps of the forward pass is counted, and as much again for the way back.
        """
        module, (batch, _) = self._make(), self._batch
        still = [p for p in module.parameters() if not p.requires_grad]
        alone = ModuleTrainer(module=module, loss=self._loss, schedule=LocalSgd(learning_rate=1.0))
        kept = 0 if batch is None else Cost.of(alone, batch.x).num_bytes
        return sum(t.nbytes for t in (*still, *module.buffers())), 2 * kept

    def files(self) -> Mapping[str, bytes]:
        """Return the files that go with the model."""
        return self._files | frozen_file(self._make.frozen)

    def describe(self) -> TaskDescription:
        """Return the little that is known."""
        test, counts = self._sets["test"], self._test_counts
        public = [own for name in ("public", "public_train") if (own := self._sets[name])]
        return TaskDescription(
            name=self._name,
            synthetic=self._synthetic,
            roster="all",
            num_users=len(self.roster),
            num_public_examples=sum(map(len, public)) or None,
            num_test_examples=None if test is None or counts is not None else len(test),
            published=self._published,
            provenance=self._provenance,
            licence=self._provenance.get("licence"),
            credit=self._provenance.get("credit"),
            majority_class_accuracy=self._majority("test"),
            majority_class_accuracy_public=self._majority("public"),
        )

    def _majority(self, measured_on: str) -> float | None:
        """Return the share of the commonest class among what accuracy is measured on."""
        examples = self._sets[measured_on]
        if examples is None or not classifies(self._module_measures):
            return None
        return commonest_share(examples.y)

    def _pooled(self, test: Mapping[str, ArrayLike]) -> ArrayExamples | None:
        """Return all users' test examples in the roster's order; None without users.

        Raises:
            ValueError: If one is not on the roster.
        """
        strangers = sorted(set(test) - set(self.roster))
        if strangers:
            raise ValueError(
                f"test examples of {strangers[0]!r}, who has no training examples: test examples "
                "are of rostered users; give those of others as public"
            )
        if not test:
            return None
        users = ArrayUsers(dict(test))
        given = {
            u: one for u in self.roster if u in users and (one := users.readable(u)) is not None
        }
        forms = Counter(map(_format, given.values()))
        common = max(forms, key=lambda form: (forms[form], repr(form)))
        found = {u: one for u, one in given.items() if _format(one) == common}
        if len(found) < len(test):
            _LOG.warning(
                "test examples of %d of %d users are left out: they are no arrays in the shape and "
                "dtype of most",
                len(test) - len(found),
                len(test),
            )
        counts = [len(found[u]) if u in found else 0 for u in self.roster]
        self._test_counts = np.array(counts, np.int64)
        x, y = zip(*((one.x, one.y) for one in found.values()), strict=True)
        return ArrayExamples(x=np.concatenate(x), y=np.concatenate(y))

    def _check_loss(self) -> None:
        """Look at the module, the loss and the measures once, on public or synthetic examples."""
        if self._checked:
            return
        examples, drawn = self._batch
        batch = _few(examples, _LOOKED_AT)
        if batch is not None:
            measures = self._module_measures

            def measured(outputs: torch.Tensor, targets: torch.Tensor) -> None:
                for own in measures:
                    name = f"measure {own.measure.name!r}"
                    check_pairs(own.mean, outputs, targets, name)

            module = made_from(_LOOK, self._make)  # the same in every process
            check_loss(module, self._loss, batch.x, batch.y, drawn=drawn, measured=measured)
        self._checked = True

    @cached_property
    def _module_measures(self) -> tuple[ModuleMeasure, ...]:
        """Those given, or those that fit outputs on public or synthetic examples.

        Users may be files: nothing is read before it is needed.
        """
        few = _few(self._batch[0], _LOOKED_AT)
        found = () if few is None else fitting_measures(self._make(), few.x, few.y)
        return with_loss(found, self._loss)


def _few(batch: ArrayExamples | None, number: int) -> ArrayExamples | None:
    """Return the first examples that have a target that is counted; all, where none has."""
    if batch is None or not len(batch):
        return None
    kept = counted_places(batch.y)
    return batch.take((kept if len(kept) else np.arange(len(batch)))[:number])


def _telling(examples: ArrayExamples) -> np.ndarray:
    """Return positions of the first examples, and of those with the least and largest integers.

    Of the first whose targets are counted and whose inputs are not all zero: the others move no
    weight of a linear layer.
    """
    kept = counted_places(examples.y)
    some = np.asarray(examples.x.reshape(len(examples), -1).any(axis=1))
    found = kept[some[kept]][:_TRIED].tolist()
    for array in (examples.x, examples.y):
        if array.size and array.dtype.kind in "iu":
            each = array.reshape(len(array), -1)
            least = np.where(each == IGNORED, each.max(), each)
            found += [int(each.max(axis=1).argmax()), int(least.min(axis=1).argmin())]
    return np.array(list(dict.fromkeys(found or range(min(len(examples), _TRIED)))))
