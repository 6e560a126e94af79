"""Tag prediction by a pretrained encoder with low-rank adapters, trained under user-level DP.

    fedpriv run simulations.threads.adapters:adapter_tags --corpus onstartups -s target-epsilon=2
    fedpriv run simulations.threads.adapters:adapter_tags --corpus onstartups -s target-epsilon=2 \
        -s rank=0                                              # the head alone

An example's text is its question's title, as of `EncodedTagPredictionTask(encoder_texts="title")`,
read as far as `max_tokens`. The start is that frozen model's head, learnt from public threads;
adapters begin at zero, and public examples do not train them. So rank 0 is the same model without
adapters.

Reduced: cohorts of 400, 16 examples a user, 20 rounds; full size wants a GPU. Clip norm, learning
rate and factor of the start were chosen for the head alone, by experiments on its frozen rows.

`tags-adapters` is the study: adapters and the head alone at that size, one fold, one seed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import nn

from fedpriv.datasets.encoders import Encoder, find_encoder
from fedpriv.datasets.importers.locate import resolve_corpus
from fedpriv.datasets.stackexchange.corpus import Corpus
from fedpriv.datasets.stackexchange.embeddings import EncodedTexts, open_embeddings
from fedpriv.datasets.stackexchange.sentence_store import TEXTS, Text
from fedpriv.datasets.stackexchange.splits import Split
from fedpriv.datasets.stackexchange.tag_view import TagExamples, TagView
from fedpriv.experiments.averaging import FederatedExperiment
from fedpriv.experiments.options import Option
from fedpriv.experiments.start import FromPublic
from fedpriv.libraries import one_thread
from fedpriv.mechanisms import Clip
from fedpriv.parts import NonNegativeInt, Part, PositiveFloat, PositiveInt
from fedpriv.rng import Key
from fedpriv.runs.progress import Pace
from fedpriv.tasks.module_task import ModuleTask
from fedpriv.tasks.pretrained import PretrainedClassifier
from fedpriv.tasks.task import TaskDescription
from fedpriv.training.evaluate import Metrics
from fedpriv.training.local.module import ArrayExamples, load_params
from fedpriv.training.local.module_measures import CLASSIFICATION, module_metrics
from fedpriv.training.local.schedule import LocalSgd
from fedpriv.training.per_example.module import ModuleGradients
from fedpriv.training.public_learning import PublicLearner, learner_of
from fedpriv.tree import Params
from simulations.evaluation.evaluate import differences, evaluate
from simulations.evaluation.held_out import MAJORITY, Outcomes, held_rows, of_logits
from simulations.evaluation.table import percent
from simulations.reproduction import items
from simulations.reproduction.study import publish, render, table
from simulations.threads.encoders import ENCODED, MINILM, PRIVATE
from simulations.threads.methods import Method
from simulations.threads.page import differences_table, epsilon_words
from simulations.threads.study import (
    CENTRAL,
    PUBLIC,
    Study,
    check_options,
    model_name,
    train,
)

_HEAD = "head."


class Texts:
    """Examples of a view as one of their texts each, tokenised.

    Args:
        corpus: Keeps the texts.
        view: Of the corpus.
        kind: Of text.
        made: From texts and labels `(n,)` to examples, padded as far as the longest of them.

    Raises:
        ValueError: If the corpus does not keep such texts.
    """

    def __init__(
        self,
        corpus: Corpus,
        view: TagView,
        kind: Text,
        made: Callable[[Sequence[str], np.ndarray], ArrayExamples],
    ) -> None:
        texts = corpus.texts(kind)
        if texts is None:
            raise ValueError(f"corpus {corpus.name!r} does not keep {kind}s")
        self._texts, self._view, self._column, self._made = texts, view, TEXTS.index(kind), made

    def of(self, examples: TagExamples) -> ArrayExamples:
        """Return examples of the view."""
        if examples.texts is None:
            raise ValueError("the part of a corpus is of an earlier version; cut it again")
        places = examples.texts[:, self._column]
        return self._made([self._texts[int(place)] for place in places], examples.labels)

    def some(self, rows: np.ndarray, number: int) -> ArrayExamples | None:
        """Return at most so many of the examples at row numbers, evenly spread; None of no rows.

        By length, but first comes one that is as long as most: memory is counted of the first
        (`ModuleTask.model_memory`).
        """
        if not len(rows):  # a server's part has no rostered user's examples, a node's no public
            return None
        found = self.of(self._view.columns.take(rows[:: -(-len(rows) // number)]))
        order = np.argsort((found.x >= 0).sum(axis=1), kind="stable")
        middle = len(order) // 2
        return found.take(np.concatenate([order[middle : middle + 1], np.delete(order, middle)]))


class TextUsers(Mapping[str, ArrayExamples]):
    """Rostered users' training examples, made when they are asked for."""

    def __init__(self, view: TagView, texts: Texts) -> None:
        self._view, self._texts, self._known = view, texts, frozenset(view.roster)

    def __getitem__(self, user_id: str) -> ArrayExamples:
        return self._texts.of(self._view.examples(user_id))

    def __contains__(self, user_id: object) -> bool:
        return user_id in self._known

    def __iter__(self) -> Iterator[str]:
        return iter(self._view.roster)

    def __len__(self) -> int:
        return len(self._view.roster)


def described(found: TaskDescription, view: TagView) -> TaskDescription:
    """Return a description with the names and the provenance of a view."""
    return replace(
        found,
        roster=view.roster_name,
        num_public_users=len(view.public_users),
        licence=view.licence,
        credit=view.credit,
        provenance=view.provenance,
    )


class AdaptedTags(ModuleTask):
    """Tag prediction by adapters and a head, started from a head on the frozen encoder's rows."""

    def __init__(
        self, corpus: Corpus, view: TagView, model: PretrainedClassifier, measured: int
    ) -> None:
        def tagged(titles: Sequence[str], labels: np.ndarray) -> ArrayExamples:
            return ArrayExamples(model.inputs(titles), labels.astype(np.int64))

        texts = Texts(corpus, view, "title", tagged)
        self._view, self._texts, self._norm = view, texts, model.row_norm
        self._rows = EncodedTexts(
            embeddings=open_embeddings(corpus, Encoder(model.files), ("title",))
        )
        self.data_sha256 = lambda: {"prepared": corpus.content_sha256}
        subset = view.split.measured_on
        super().__init__(
            name=view.name,
            module=model,
            published=model.published,
            loss=nn.functional.cross_entropy,
            users=TextUsers(view, texts),
            measures=CLASSIFICATION,
            test=texts.some(view.all_rows(view.roster, subset), measured),
            public=texts.some(view.public_rows(subset), measured),
            synthetic=view.synthetic,
        )

    def outcomes(self, params: Params) -> Outcomes:
        """Return what a model does to each held-out example of the roster, as of `held_out`."""
        rows = held_rows(self._view)
        columns = self._view.columns.take(rows)
        assert columns.texts is not None
        # The sentences of a thread share its title, and so their logits.
        _, first, place = np.unique(columns.texts[:, 1], return_index=True, return_inverse=True)
        titles = self._texts.of(columns.take(first)).x
        module = load_params(self._make(), params).eval()
        order = np.argsort((titles >= 0).sum(axis=1), kind="stable")
        logits = np.empty((len(titles), len(self._view.tags)), np.float32)
        with torch.no_grad():
            logits[order] = module(torch.from_numpy(titles[order])).numpy()
        return of_logits(logits, place, columns)

    def describe(self) -> TaskDescription:
        """Return names and provenance of the view, and the weights' digest."""
        return described(super().describe(), self._view)

    def public_learner(self, key: Key, *, choosing: bool) -> PublicLearner | None:
        """Return what learns the head on rows of public threads; adapters stay as drawn."""
        columns = self._view.columns.take(self._view.public_rows("train"))
        examples = ArrayExamples(
            self._norm * self._rows.dense(columns), columns.labels.astype(np.int64)
        )
        head = nn.Linear(examples.x.shape[1], len(self._view.tags))
        begun, loss = self.init_params(key), nn.functional.cross_entropy
        gradients = ModuleGradients(head, loss, examples.x, examples.y)
        learnt = one_thread()(gradients.gradient)
        still = {n: np.zeros_like(t) for n, t in begun.items() if not n.startswith(_HEAD)}

        def of_head(params: Params) -> Params:
            return {n.removeprefix(_HEAD): t for n, t in params.items() if n.startswith(_HEAD)}

        def gradient(params: Params, index: np.ndarray, key: Key) -> Params:
            found = learnt(of_head(params), index, key)
            return {**still, **{_HEAD + name: array for name, array in found.items()}}

        def measure(params: Params, index: np.ndarray) -> Metrics | None:
            seen = examples.take(index)
            module = load_params(head, of_head(params)).eval()
            return module_metrics(module, self._module_measures, seen.x, seen.y)

        return learner_of(
            len(examples), choosing=choosing, key=key, begun=begun, gradient=gradient,
            measure=measure,
        )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptedTask(Part):
    """Base of tasks on a corpus's texts by low-rank adapters: options that they share.

    Attributes:
        freeze_a: Whether the second matrix alone is trained (FFA-LoRA).
        max_tokens: Tokens of a text that are read.
        roster: A roster of the corpus; none for the corpus's own.
        users: Only so many users of it.
        fold: Which fifth of the threads is for testing.
    """

    freeze_a: bool = False
    max_tokens: PositiveInt = 64
    roster: str | None = None
    users: PositiveInt | None = None
    fold: NonNegativeInt = 0

    def view(self, corpus: Corpus | None) -> tuple[Corpus, TagView]:
        """Return the corpus and its view.

        Raises:
            ValueError: If there is no corpus.
        """
        if corpus is None:
            raise ValueError("adapters need a corpus; name one by --corpus")
        return corpus, corpus.view(self.roster, users=self.users, split=Split(fold=self.fold))


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptedTagsTask(AdaptedTask):
    """Tag prediction on titles by low-rank adapters on an encoder.

    Attributes:
        encoder: Its id, of `fedpriv encoder add`, or a folder with its files.
        rank: Of the adapters; 0 for the head alone.
        row_norm: Norm of an example's row below the head.
        measured: Held-out examples measured at most.
    """

    encoder: str = MINILM
    rank: NonNegativeInt = 4
    row_norm: PositiveFloat = 10.0
    measured: PositiveInt = 5_000

    def __call__(self, experiment: object, corpus: Corpus | None) -> AdaptedTags:
        """Return the task.

        Raises:
            ValueError: If there is no corpus, encoder or embeddings of it.
        """
        corpus, view = self.view(corpus)
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
        start=FromPublic(factor=0.5),
        rounds=20,
        eval_every=20,
        cohort=400.0,
        bound=Clip(l2_clip_norm=4.0),
        target_epsilon=8.0,
        local=LocalSgd(learning_rate=1.0, batch_size=16, max_examples_per_user=16),
    )


_SMALL: Mapping[str, Option] = {
    "cohort": 400.0,
    "rounds": 20,
    "l2-clip-norm": 40.0,  # rows have unit norm there, and not `row_norm`
    "local-learning-rate": 100.0,
    "batch-size": 16,
    "max-examples-per-user": 16,
    "start-factor": 0.5,
}
_NOISELESS = "without noise"


def _adapter_models(epsilons: Sequence[float]) -> dict[str, Mapping[str, Option]]:
    """Return options of the models with adapters, by name."""
    private = {model_name("adapters", one): {"target-epsilon": one} for one in epsilons}
    return {**private, f"adapters, {_NOISELESS}": {"noise": "none"}}


def _head(epsilons: Sequence[float]) -> dict[str, Method]:
    """Return the head alone as a method, on frozen rows and at the adapters' size."""
    private = {epsilon: {"target-epsilon": epsilon, **_SMALL} for epsilon in epsilons}
    label, name = "the head alone, at the same size", "encoder-tags"
    return {
        "head": Method(label=label, experiment=name, options={**private}, cohort=None),
        f"head, {_NOISELESS}": Method(
            label=label, experiment=name, options={None: {"noise": "none", **_SMALL}}, cohort=None
        ),
    }


def reproduce(
    *,
    corpus: str | None = None,
    seeds: int = 1,
    out: Path | None = None,
    roster: str | None = "onstartups-all",
    folds: int = 1,
    epsilons: tuple[float, ...] = (2.0, 8.0),
) -> None:
    """Train the study of adapters and publish its page.

    Args:
        corpus: A prepared corpus, a dump or a name.
        seeds: Of every model.
        out: Where the page is written, with what it is of as JSON.
        roster: Of the corpus; None for its own.
        folds: How many are pooled.
        epsilons: Targets.

    Raises:
        ValueError: If an option is refused, the encoder is not on this machine, or there is no such
            corpus.
    """
    check_options(folds, seeds, None)
    study = Study(
        corpus=resolve_corpus(corpus, allow_synthetic=False),
        roster=roster,
        splits=tuple(Split(fold=number) for number in range(folds)),
        seeds=seeds,
        epsilons=epsilons,
        methods={PRIVATE: ENCODED, **_head(epsilons)},
        features={"encoder": MINILM, "encoder-texts": "title"},
    )
    models = _adapter_models(epsilons)
    pace = Pace(folds * seeds * len(models))
    measured = []
    for fold in study.folds():
        view = study.corpus.view(roster=roster, split=fold.split)
        own = {
            name: tuple(_trained(study, view, name, given, seed, pace) for seed in range(seeds))
            for name, given in models.items()
        }
        measured.append(replace(fold, outcomes={**fold.outcomes, **own}))
    generator = Key.simulation(0).fold("adapters").generator()
    evaluated = evaluate(measured, public_only=PUBLIC, best_nonprivate=CENTRAL, generator=generator)
    at = [", ε = ".join(("", f"{one:g}")) for one in epsilons]
    pairs = [(f"adapters{one}", f"head{one}") for one in (*at, f", {_NOISELESS}")]
    compared = differences(measured, pairs, generator=generator)
    values = {name: own.values["accuracy"] for name, own in evaluated.models.items()}
    rows = [
        ["majority class", *[percent(values[MAJORITY])] * (len(at) + 1)],
        ["public-only", *[percent(values[PUBLIC])] * (len(at) + 1)],
        *(
            [label, *(percent(values.get(name + one)) for one in (*at, f", {_NOISELESS}"))]
            for label, name in (
                ("head and adapters, 20 rounds of 400 users", "adapters"),
                ("head alone, 20 rounds of 400 users", "head"),
                ("head alone, settings from the data's size", PRIVATE),
            )
        ),
        ["central head, not private", *[percent(values[CENTRAL])] * (len(at) + 1)],
    ]
    words = epsilon_words(study)
    page = render(
        "threads/adapters.md.jinja", evaluation=evaluated, data=evaluated.data, folds=folds,
        seeds=seeds, guarantee=words,
        accuracy=table(["model", *(f"ε = {e:g}" for e in epsilons), "clipped, no noise"], rows),
        differences=differences_table(compared),
    )  # fmt: skip
    publish(page, out, evaluated.to_json() | {"guarantee": words})


def _trained(
    study: Study, view: TagView, name: str, given: Mapping[str, Option], seed: int, pace: Pace
) -> Outcomes:
    """Train a model with adapters, and return its outcomes."""
    experiment = adapter_tags().with_options(
        {"roster": study.roster, "fold": view.split.fold, "seed": seed, **given}
    )

    def work() -> Outcomes:
        trained = train(experiment, study.corpus, seed)
        return trained.task.outcomes(trained.params)

    return pace.work(f"{view.split.name}, seed {seed}: {name}", work)


REPRODUCTIONS = (
    items.Study(
        name="tags-adapters",
        title="Tags with whole threads held out: low-rank adapters next to the head alone",
        run=reproduce,
        minutes=(60, 60),
    ),
)
