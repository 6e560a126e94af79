"""Flower's clients: they run in Ray actors, so they live in a module of their own.

Model and users stay resident in each actor, which is the best a user of Flower can do.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import dense_client
import sparse_client
import words_job.client
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import fixedclipping_mod
from protocol import Job
from tag_data import TagUsers

CLIENTS: dict[str, Any] = {
    "dense": dense_client,
    "sparse": sparse_client,
    "words": words_job.client,
}


@lru_cache(maxsize=1)
def resident_users(folder: str, client: str) -> Any:
    """Return the users, opened once a process."""
    return words_job.client.WordUsers(folder) if client == "words" else TagUsers(folder)


@lru_cache(maxsize=1)
def resident_model(job: Job) -> Any:
    """Return the model, made once a process."""
    if job.client == "words":
        return words_job.client.make_model()
    users = resident_users(job.data, job.client)
    if job.client == "dense":
        return dense_client.make_model(users.num_words, users.num_tags)
    return sparse_client.BagOfWords(users.num_words, users.num_tags)


def reply(message: Message, arrays: ArrayRecord) -> Message:
    """Return the reply; equal weights, as user-level DP wants."""
    content = RecordDict({"arrays": arrays, "metrics": MetricRecord({"num-examples": 1})})
    return Message(content=content, reply_to=message)


def echo(message: Message) -> Message:
    """Return the params; under clipping, moved a little, because a norm of zero is refused."""
    arrays = message.content.array_records["arrays"].to_numpy_ndarrays()
    if len(message.content.config_records) and "clipping_norm" in message.content["config"]:
        arrays[0][0, 0] += 1.0
    return reply(message, ArrayRecord(arrays))


def train(message: Message, context: Context, job: Job) -> Message:
    """Load the params into the resident model, train it on the user's examples, return it."""
    model = resident_model(job)
    model.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
    examples = resident_users(job.data, job.client).examples(
        int(context.node_config["partition-id"])
    )
    CLIENTS[job.client].local_sgd(
        model, examples, learning_rate=job.learning_rate, batch_size=job.batch_size
    )
    return reply(message, ArrayRecord(model.state_dict()))


def make_client_app(job: Job) -> ClientApp:
    """Return the app of a job's client, with Flower's clipping where the job is private."""
    app = ClientApp(mods=[fixedclipping_mod] if job.l2_clip_norm is not None else [])

    @app.train()
    def _train(message: Message, context: Context) -> Message:
        if job.client == "echo":
            return echo(message)
        return train(message, context, job)

    return app
