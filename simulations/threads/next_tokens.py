"""Next tokens of users' sentences by a causal model with low-rank adapters, under user-level DP.

    fedpriv run simulations.threads.next_tokens:adapter_tokens --corpus onstartups \
        -s encoder=gpt2 -s target-epsilon=8 --out runs/gpt2         # of the files in a folder gpt2
    python -m simulations.threads.next_tokens runs/gpt2             # perplexity by user

An example is a sentence in its writer's own words, as the corpus keeps it, read as far as
`max_tokens`; those that have no tag of the view's list are left out. Adapters alone are trained,
from the published model, on no public text. Settings were chosen by no experiment.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np

import fedpriv as fp
from fedpriv.datasets.encoders import find_encoder
from fedpriv.datasets.stackexchange.corpus import Corpus
from fedpriv.datasets.stackexchange.tag_view import TagView
from fedpriv.experiments.averaging import FederatedExperiment
from fedpriv.experiments.build import make_task
from fedpriv.mechanisms import Clip
from fedpriv.models.text import next_word_loss
from fedpriv.parts import PositiveInt
from fedpriv.rng import Key
from fedpriv.runs.backends import open_corpus, recorded_place
from fedpriv.runs.document import restore_experiment
from fedpriv.tasks.module_task import ModuleTask
from fedpriv.tasks.pretrained import PretrainedCausal
from fedpriv.tasks.task import TaskDescription
from fedpriv.training.evaluate import Metrics
from fedpriv.training.local.module_measures import next_token
from fedpriv.training.local.schedule import LocalSgd
from fedpriv.tree import Params
from simulations.reproduction.study import table
from simulations.threads.adapters import AdaptedTask, Texts, TextUsers, described


class AdaptedTokens(ModuleTask):
    """Next tokens of sentences by adapters on a causal model."""

    def __init__(
        self, corpus: Corpus, view: TagView, model: PretrainedCausal, measured: int
    ) -> None:
        texts = Texts(corpus, view, "sentence", lambda sentences, labels: model.examples(sentences))
        self._view, self._texts = view, texts
        self.data_sha256 = lambda: {"prepared": corpus.content_sha256}
        subset = view.split.measured_on
        super().__init__(
            name=view.name,
            module=model,
            published=model.published,
            loss=next_word_loss,
            users=TextUsers(view, texts),
            measures=next_token(),
            test=texts.some(view.all_rows(view.roster, subset), measured),
            public=texts.some(view.public_rows(subset), measured),
            synthetic=view.synthetic,
        )

    def describe(self) -> TaskDescription:
        """Return names and provenance of the view, and the weights' digest."""
        return described(super().describe(), self._view)

    def held_out_metrics(self, params: Params, users: int) -> dict[str, Metrics]:
        """Return the measures on all held-out sentences of each of the roster's first users.

        A diagnostic that no ε covers. Users without a held-out sentence are left out.
        """
        subset = self._view.split.measured_on
        held = {
            user: self._texts.of(self._view.examples(user, subset))
            for user in self._view.roster[:users]
        }
        found = {user: self.metrics(params, own) for user, own in held.items()}
        return {user: metrics for user, metrics in found.items() if metrics is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptedTokensTask(AdaptedTask):
    """Next tokens of sentences by low-rank adapters on a causal model.

    Attributes:
        encoder: Folder with the model's files, or an added one's id.
        rank: Of the adapters.
        measured: Held-out sentences measured at most.
    """

    encoder: str = "gpt2"
    rank: PositiveInt = 4
    measured: PositiveInt = 1_000

    def __call__(self, experiment: object, corpus: Corpus | None) -> AdaptedTokens:
        """Return the task.

        Raises:
            ValueError: If there is no corpus, or no such model.
        """
        corpus, view = self.view(corpus)
        model = PretrainedCausal(
            files=find_encoder(self.encoder),
            rank=self.rank,
            freeze_a=self.freeze_a,
            max_tokens=self.max_tokens,
        )
        return AdaptedTokens(corpus, view, model, self.measured)


def adapter_tokens() -> FederatedExperiment:
    """DP-FedAvg of adapters on a causal model."""
    return FederatedExperiment(
        name="adapter-tokens",
        description="DP-FedAvg of low-rank adapters on a causal model: users' next tokens.",
        task=AdaptedTokensTask(),
        rounds=100,
        eval_every=50,
        cohort=400.0,
        bound=Clip(l2_clip_norm=0.5),
        target_epsilon=8.0,
        local=LocalSgd(learning_rate=0.1, batch_size=16, max_examples_per_user=64),
    )


def describe_users(path: Path, users: int = 100) -> str:
    """Return perplexity and token accuracy of rostered users, before and after a run.

    Args:
        path: Of a finished run of `adapter_tokens` in simulation.
        users: How many of the roster, the first ones, are looked at.

    Raises:
        ValueError: If it is another run or a secure one, or none of them has a held-out sentence.
    """
    run = fp.load(path)
    document = run.description
    if document["mode"] == "secure":
        raise ValueError(f"{path} is a secure run, of which no user is measured alone")
    experiment = restore_experiment(document, path, adapter_tokens())
    task = cast("AdaptedTokens", make_task(experiment, open_corpus(recorded_place(document))))
    models = {"published model": task.init_params(Key.simulation(0)), "returned model": run.params}
    rows = []
    for name, params in models.items():
        found = [*task.held_out_metrics(params, users).values()]
        if not found:
            raise ValueError(f"none of the first {users} users has a held-out sentence; raise it")
        for measure in task.measures[:2]:
            each = np.array([metrics.get(measure.name) for metrics in found], np.float64)
            quarters = np.quantile(each, (0.25, 0.5, 0.75))
            rows.append([name, measure.label, *(f"{one:.4g}" for one in quarters), len(found)])
    return "\n".join([
        run.statement.headline,
        "of each user's held-out sentences: a diagnostic, not covered by ε",
        table(["", "", "quarter below", "median user", "quarter above", "users"], rows, words=2),
    ])  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> None:
    """Print `describe_users` of a run folder."""
    parser = argparse.ArgumentParser(description="Perplexity by user of a run of adapter_tokens.")
    parser.add_argument("run", type=Path, help="its folder")
    parser.add_argument("--users", type=int, default=100, help="of the roster, the first ones")
    given = parser.parse_args(arguments)
    try:
        print(describe_users(given.run, given.users))
    except ValueError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
