import json

import numpy as np
from torch import nn

from fedpriv.experiments import FederatedExperiment, GaussianNoise, LocalSgd
from fedpriv.mechanisms import Clip
from fedpriv.tasks.module_task import ModuleTask

WORDS = [f"word-{n}" for n in range(12)]


class NextWord(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(len(WORDS), 8)
        self.recur = nn.GRU(8, 16, batch_first=True)
        self.score = nn.Linear(16, len(WORDS))

    def forward(self, words):
        return self.score(self.recur(self.embed(words))[0])  # (n, time, words)


def loss(outputs, targets):
    return nn.functional.cross_entropy(outputs.flatten(0, 1), targets.flatten())


def person(number):  # synthetic: after word w mostly comes word 5w + 1
    rng = np.random.default_rng(number)
    said = rng.integers(0, 12, size=(10, 10))
    for place in range(1, 10):
        follows = rng.random(10) < 0.9
        said[follows, place] = (5 * said[follows, place - 1] + 1) % 12
    return said[:, :-1], said[:, 1:]


def task(experiment):
    return ModuleTask(
        name="synthetic chatter",
        synthetic=True,
        module=NextWord,
        loss=loss,
        users={f"user-{n:03d}": person(n) for n in range(60)},
        public=person(60),
        files={"words.json": json.dumps(WORDS).encode()},
    )


def experiment():
    return FederatedExperiment(
        name="chatter",
        description="The next word.",
        task=task,
        rounds=15,
        cohort=20.0,
        bound=Clip(l2_clip_norm=2.0),
        noise=GaussianNoise(multiplier=0.5),
        local=LocalSgd(learning_rate=0.5, batch_size=5, epochs=2),
    )
