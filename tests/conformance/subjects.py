"""The subjects: fedpriv's own aggregation, and the four DP wrappers of Flower."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.serverapp import strategy as flower
from flwr.supercore.task_identity import TaskIdentity

from fedpriv import tree
from fedpriv.mechanisms import Clip, Rounded
from fedpriv.mechanisms.gaussian import Gaussian, Unprotected
from fedpriv.privacy.mechanism import Mechanism
from fedpriv.privacy.sampling import PoissonSampler
from fedpriv.rng import Key
from fedpriv.training.algorithm import Context
from fedpriv.training.work import UserTrainer
from tests.conformance.subject import SHAPES, Arrays, Sent
from tests.harness.toys_of_training import answered

TEMPLATE = {name: np.zeros(shape, np.float32) for name, shape in SHAPES.items()}


class Fedpriv:
    """Bounded sums, whole numbers, secure noise."""

    name = "fedpriv"
    clips_on_clients = False

    def release(
        self, sent: Sequence[Sent], *, clip_norm: float, noise_multiplier: float, expected: int
    ) -> Arrays:
        """Return the released mean update."""
        mechanism = Mechanism(
            sampler=PoissonSampler(num_users=20 * expected, expected_cohort_size=expected),
            bound=Rounded(bound=Clip(l2_clip_norm=clip_norm)),
            privatizer=Gaussian(noise_multiplier=noise_multiplier)
            if noise_multiplier
            else Unprotected(),
        )

        class Sending(UserTrainer):
            """A trainer whose user sends what it sends."""

            def train(self, params: Any, context: Context, examples: Sent, key: Key) -> Any:
                if examples.arrays is None:
                    raise RuntimeError("a user fails")
                return examples.arrays

        class Users:
            def examples(self, user_id: str) -> Sent:
                return sent[int(user_id)]

        key = Key.secure()
        total = answered(
            Sending(),
            params=TEMPLATE,
            bound=mechanism.bound,
            data=Users(),
            user_ids=[str(i) for i in range(len(sent))],
            key=key.fold("users"),
        )
        answer = mechanism.release(total, mechanism.draw(TEMPLATE, key.fold("noise")))
        return tree.to_dense(answer)

    def clip_norms(self, norms: Sequence[float], rounds: int) -> None:
        """Return None: there is no adaptive clipping."""


class _Everybody:
    """A grid of so many nodes."""

    def __init__(self, number: int) -> None:
        self.number = number

    def get_node_ids(self) -> list[int]:
        return list(range(1, self.number + 1))


class Flower:
    """A DP wrapper around FedAvg.

    Args:
        wrapper: The class.
    """

    def __init__(self, wrapper: type) -> None:
        self.wrapper = wrapper
        self.name = wrapper.__name__.replace("DifferentialPrivacy", "")
        self.clips_on_clients = "ClientSide" in wrapper.__name__
        self.is_adaptive = "Adaptive" in wrapper.__name__
        logging.getLogger("flwr").setLevel(logging.ERROR)
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1

    def _made(self, clip_norm: float, noise_multiplier: float, expected: int, **more: Any) -> Any:
        inner = flower.FedAvg(min_train_nodes=1, min_available_nodes=1, fraction_evaluate=0.0)
        if self.is_adaptive:
            more = {"initial_clipping_norm": clip_norm, "clip_norm_lr": 1e-12, **more}
            if noise_multiplier:  # a count so noisy costs the update's noise nothing
                more.setdefault("clipped_count_stddev", 1e6)
            return self.wrapper(inner, noise_multiplier, expected, **more)
        return self.wrapper(inner, noise_multiplier, clip_norm, expected)

    def _round(self, made: Any, sent: Sequence[Sent], number: int = 1) -> Arrays | None:
        record = ArrayRecord({name: Array(array) for name, array in TEMPLATE.items()})
        made.configure_train(number, record, ConfigRecord(), _Everybody(max(1, len(sent))))
        replies = []
        for node, one in enumerate(sent, start=1):
            asked = Message(RecordDict(), dst_node_id=node, message_type="train")
            asked.metadata.__dict__["_message_id"] = f"m{node}"
            if one.arrays is None:
                replies.append(Message(Error(code=0, reason="a user fails"), reply_to=asked))
                continue
            metrics: dict[str, Any] = {"num-examples": float(one.num_examples)}
            if self.is_adaptive and self.clips_on_clients:
                squares = [np.square(np.asarray(a, float)).sum() for a in one.arrays.values()]
                metrics["norm_bit"] = int(np.sqrt(sum(squares)) > made.clipping_norm)
            content = RecordDict(
                {
                    "arrays": ArrayRecord({n: Array(np.asarray(a)) for n, a in one.arrays.items()}),
                    "metrics": MetricRecord(metrics),
                }
            )
            replies.append(Message(content, reply_to=asked))
        arrays, _ = made.aggregate_train(number, replies)
        return None if not arrays else {name: array.numpy() for name, array in arrays.items()}

    def release(
        self, sent: Sequence[Sent], *, clip_norm: float, noise_multiplier: float, expected: int
    ) -> Arrays | None:
        """Return the update of one round of a new strategy."""
        return self._round(self._made(clip_norm, noise_multiplier, expected), sent)

    def clip_norms(self, norms: Sequence[float], rounds: int) -> list[float] | None:
        """Return the clip norm after each round."""
        if not self.is_adaptive:
            return None
        made = self._made(3.0, 0.0, len(norms), clip_norm_lr=0.2, target_clipped_quantile=0.5)
        along = (np.array([norm, 0.0, 0.0], np.float32) for norm in norms)
        sent = [Sent(arrays={**TEMPLATE, "bias": bias}) for bias in along]
        found = []
        for number in range(1, rounds + 1):
            self._round(made, sent, number)
            found.append(float(made.clipping_norm))
        return found


SUBJECTS = (
    Fedpriv(),
    *(
        Flower(getattr(flower, f"DifferentialPrivacy{side}Side{kind}Clipping"))
        for side in ("Server", "Client")
        for kind in ("Fixed", "Adaptive")
    ),
)
