"""What a node does: host users, say which, and answer with one sum over those it is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from flwr.app import Message

from fedpriv.backends.flower.messages import answer, read_request
from fedpriv.backends.flower.registry import registration
from fedpriv.tasks.tasks import Task
from fedpriv.training.work import as_work


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """A node and the users that live on it.

    A phone hosts one user, a hospital thousands, a shard of a simulation any number.

    Attributes:
        task: Examples, model and trainer.
        user_ids: The hosted users.
    """

    task: Task
    user_ids: frozenset[str] = field(repr=False)

    @classmethod
    def of(cls, task: Task, *, partition: int = 0, num_partitions: int = 1) -> Host:
        """Return the host of every `num_partitions`-th user of the task's roster.

        Raises:
            ValueError: If there is no such partition.
        """
        return cls(task=task, user_ids=frozenset(shard(task.roster, partition, num_partitions)))

    def query(self, message: Message) -> Message:
        """Answer which users live here: opaque ids and nothing else."""
        return Message(registration(sorted(self.user_ids)), reply_to=message)

    def train(self, message: Message) -> Message:
        """Answer with the sum of the asked users' bounded updates.

        A user that does not live here, or is named twice, contributes nothing (more).

        Raises:
            MalformedRecordError: If the message is not a request; Flower reports it as an error.
        """
        request = read_request(message.content)
        hosted = [item for item in dict.fromkeys(request.user_ids) if item in self.user_ids]
        work = as_work(self.task.trainer(request.schedule, request.multiplier))
        done = work.partial_sum(
            params=request.params,
            bound=request.bound,
            data=self.task.data,
            user_ids=hosted,
            key=request.key,
        )
        absent = len(request.user_ids) - len(hosted)
        done = replace(done, num_failed=done.num_failed + absent)
        return Message(answer(request, done), reply_to=message)


def shard(roster: Sequence[str], partition: int, num_partitions: int) -> Sequence[str]:
    """Return the users of one partition: `roster[partition::num_partitions]`.

    Raises:
        ValueError: If there is no such partition.
    """
    if num_partitions < 1 or not 0 <= partition < num_partitions:
        raise ValueError(
            f"partition-id {partition} of num-partitions {num_partitions} does not exist; "
            f"number partitions from 0 to num-partitions - 1"
        )
    return roster[partition::num_partitions]
