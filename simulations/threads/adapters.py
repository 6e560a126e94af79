"""Tag prediction by a pretrained encoder with low-rank adapters, trained under user-level DP.

    fedpriv run simulations.threads.adapters:adapter_tags --corpus onstartups -s target-epsilon=2
    fedpriv run simulations.threads.adapters:adapter_tags --corpus onstartups -s target-epsilon=2 \
        -s rank=0                                              # the head alone

An example's text is its question's title, as of `EncodedTagPredictionTask(encoder_texts="title")`,
read as far as `max_tokens`. The start is that frozen model's head, learnt from public threads;
adapters begin at zero, and public examples do not train them. So rank 0 is the same model without
adapters.

Reduced: cohorts of 400, 16 examples a user, 20 rounds; full size wants a GPU.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
from torch import nn

from fedpriv.datasets.encoders import Encoder, find_encoder
from fedpriv.datasets.stackexchange.corpus import Corpus
from fedpriv.datasets.stackexchange.embeddings import EncodedTexts, open_embeddings
from fedpriv.datasets.stackexchange.splits import Split
from fedpriv.datasets.stackexchange.tag_view import TagExamples, TagView
from fedpriv.experiments.averaging import FederatedExperiment
from fedpriv.experiments.bounds import AdaptableClip
from fedpriv.experiments.local import LocalSgd
from fedpriv.experiments.noise import GaussianNoise
from fedpriv.experiments.options import option
from fedpriv.experiments.sampling import PoissonCohorts
from fedpriv.experiments.start import FromPublic
from fedpriv.ranges import Range
from fedpriv.rng import Key
from fedpriv.tasks.module_task import ModuleTask
from fedpriv.tasks.pretrained import PretrainedClassifier
from fedpriv.tasks.task import TaskDescription
from fedpriv.training.evaluate import Metrics
from fedpriv.training.local.module import ArrayExamples, ModuleBatches, load_params
from fedpriv.training.local.module_measures import CLASSIFICATION, module_metrics
from fedpriv.training.public_learning import GradientLearner, learner_of
from fedpriv.tree import Params
from simulations.threads.encoders import MINILM

_HEAD = "head."


class TagTexts:
    """Examples of a view as token ids `(n, length)` of their titles, and tags `(n,)`."""

    def __init__(self, corpus: Corpus, view: TagView, model: PretrainedClassifier) -> None:
        titles = corpus.texts("title")
        if titles is None:
            raise ValueError(f"corpus {corpus.name!r} does not keep titles")
        self._titles, self._view, self._model = titles, view, model

    def of(self, examples: TagExamples) -> ArrayExamples:
        """Return examples of the view; padded as far as the longest of them."""
        if examples.texts is None:
            raise ValueError("the part of a corpus is of an earlier version; cut it again")
        titles = [self._titles[int(thread)] for thread in examples.texts[:, 1]]
        return ArrayExamples(self._model.inputs(titles), examples.labels.astype(np.int64))

    def at(self, rows: np.ndarray) -> ArrayExamples:
        """Return the examples at row numbers, the shortest first."""
        found = self.of(self._view.columns.take(rows))
        return found.take(np.argsort((found.x >= 0).sum(axis=1), kind="stable"))


class TagUsers(Mapping[str, ArrayExamples]):
    """Rostered users' training examples, made when they are asked for."""

    def __init__(self, view: TagView, texts: TagTexts) -> None:
        self._view, self._texts, self._known = view, texts, frozenset(view.roster)

    def __getitem__(self, user_id: str) -> ArrayExamples:
        return self._texts.of(self._view.examples(user_id))

    def __contains__(self, user_id: object) -> bool:
        return user_id in self._known

    def __iter__(self) -> Iterator[str]:
        return iter(self._view.roster)

    def __len__(self) -> int:
        return len(self._view.roster)


class AdaptedTags(ModuleTask):
    """Tag prediction by adapters and a head, started from a head on the frozen encoder's rows."""

    def __init__(
        self, corpus: Corpus, view: TagView, model: PretrainedClassifier, measured: int
    ) -> None:
        texts = TagTexts(corpus, view, model)
        self._view, self._norm = view, model.row_norm
        self._rows = EncodedTexts(
            embeddings=open_embeddings(corpus, Encoder(model.files), ("title",))
        )
        self.data_sha256 = lambda: {"prepared": corpus.content_sha256}
        subset = view.split.measured_on

        def some(rows: np.ndarray) -> ArrayExamples:
            return texts.at(rows[:: -(-len(rows) // measured)])

        super().__init__(
            name=view.name,
            module=model,
            published=model.published,
            loss=nn.functional.cross_entropy,
            users=TagUsers(view, texts),
            measures=CLASSIFICATION,
            test=some(view.all_rows(view.roster, subset)),
            public=some(view.public_rows(subset)),
            synthetic=view.synthetic,
        )

    def describe(self) -> TaskDescription:
        """Return names and provenance of the view, and the weights' digest."""
        view = self._view
        return replace(
            super().describe(),
            roster=view.roster_name,
            num_public_users=len(view.public_users),
            licence=view.licence,
            credit=view.credit,
            provenance=view.provenance,
        )

    def public_learner(self, key: Key, *, choosing: bool) -> GradientLearner | None:
        """Return what learns the head on rows of public threads; adapters stay as drawn."""
        columns = self._view.columns.take(self._view.public_rows("train"))
        examples = ArrayExamples(
            self._norm * self._rows.dense(columns), columns.labels.astype(np.int64)
        )
        head = nn.Linear(examples.x.shape[1], len(self._view.tags))
        begun, loss = self.init_params(key), nn.functional.cross_entropy
        learnt = ModuleBatches(head, loss, examples)
        still = {n: np.zeros_like(t) for n, t in begun.items() if not n.startswith(_HEAD)}

        def of_head(params: Params) -> Params:
            return {n.removeprefix(_HEAD): t for n, t in params.items() if n.startswith(_HEAD)}

        def gradient(params: Params, index: np.ndarray, key: Key) -> Params:
            found = learnt(of_head(params), index, key)
            return {**still, **{_HEAD + name: array for name, array in found.items()}}

        def measure(params: Params, index: np.ndarray) -> Metrics | None:
            seen = examples.take(index)
            module = load_params(head, of_head(params)).eval()
            return module_metrics(module, self._module_measures(), seen.x, seen.y)

        return learner_of(
            len(examples), choosing=choosing, key=key, begun=begun, gradient=gradient,
            measure=measure,
        )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptedTagsTask:
    """Tag prediction on titles by low-rank adapters on an encoder."""

    encoder: str = option(MINILM, "Its id, of `fedpriv encoder add`, or a folder with its files.")
    rank: int = option(4, "Of the adapters; 0 for the head alone.", Range.AT_LEAST_ZERO)
    freeze_a: bool = option(False, "Whether the second matrix alone is trained (FFA-LoRA).")
    max_tokens: int = option(64, "Tokens of a text that are read.", Range.AT_LEAST_ONE)
    row_norm: float = option(10.0, "Norm of an example's row below the head.", Range.ABOVE_ZERO)
    roster: str | None = option(None, "A roster of the corpus; none for the corpus's own.")
    users: int | None = option(None, "Only so many users of it.", Range.AT_LEAST_ONE)
    fold: int = option(0, "Which fifth of the threads is for testing.", Range.AT_LEAST_ZERO)
    measured: int = option(5_000, "Held-out examples measured at most.", Range.AT_LEAST_ONE)

    def __call__(self, experiment: object, corpus: Corpus | None) -> AdaptedTags:
        """Return the task.

        Raises:
            ValueError: If there is no corpus, encoder or embeddings of it.
        """
        if corpus is None:
            raise ValueError("adapters need a corpus; name one by --corpus")
        view = corpus.view(roster=self.roster, users=self.users, split=Split(fold=self.fold))
        model = PretrainedClassifier(
            files=find_encoder(self.encoder),
            num_classes=len(view.tags),
            rank=self.rank,
            freeze_a=self.freeze_a,
            row_norm=self.row_norm,
            max_tokens=self.max_tokens,
        )
        return AdaptedTags(corpus, view, model, self.measured)


def adapter_tags() -> FederatedExperiment:
    """DP-FedAvg of adapters and head, at the reduced size."""
    return FederatedExperiment(
        name="adapter-tags",
        description="DP-FedAvg of low-rank adapters on a pretrained encoder, at a reduced size.",
        task=AdaptedTagsTask(),
        start=FromPublic(factor=1.0),
        rounds=20,
        eval_every=20,
        sampling=PoissonCohorts(cohort=400.0),
        bound=AdaptableClip(l2_clip_norm=1.0),
        noise=GaussianNoise(target_epsilon=8.0),
        local=LocalSgd(learning_rate=0.3, batch_size=16, max_examples_per_user=16),
    )
