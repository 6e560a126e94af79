"""Tag prediction example by example, where a person owns what it wrote and what it asked.

    fedpriv run simulations.threads.owner_tags:dp_sgd_tags --set examples-per-owner=8

DP-SGD over the sentences of all rostered users, threads held out. A sentence of an answer has two
owners: its writer, and the asker, whose title and tags it carries. No owner has more than
`examples-per-owner` of them, which are chosen greedily by a hash of their ids, and ε is of blanking
all of one owner's examples. Without that option the unit is a single sentence.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

from fedpriv.datasets.dataset import Dataset
from fedpriv.datasets.importers.locate import resolve_corpus
from fedpriv.datasets.stackexchange.splits import Split
from fedpriv.datasets.stackexchange.tag_view import TagView
from fedpriv.experiments.averaging import CentralExperiment
from fedpriv.experiments.experiment import Experiment
from fedpriv.parts import NonNegativeInt, Part, PositiveInt
from fedpriv.tasks.central import CentralTask, OwnedExamples
from fedpriv.tasks.dataset_tasks import linear_task
from fedpriv.tasks.tag_prediction import spread_examples
from fedpriv.training.per_example.linear import SoftmaxGradients


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerTags(Part):
    """Sentences of rostered users, maybe so few of every owner that all of them are protected.

    Attributes:
        corpus: A prepared corpus, a dump or a name; none for the default.
        roster: A roster of the corpus; none for the corpus's own.
        fold: Which fifth of the threads is for testing.
        examples_per_owner: The unit is an owner of at most so many examples; none for a single
            example.
    """

    corpus: str | None = None
    roster: str | None = None
    fold: NonNegativeInt = 0
    examples_per_owner: PositiveInt | None = None

    def __call__(self, experiment: object) -> CentralTask:
        """Return the task.

        Raises:
            ValueError: If there is no such corpus or roster, or it does not know who asked.
        """
        return make_task(self.corpus, self.roster, self.fold, self.examples_per_owner)


@cache
def make_task(
    corpus: str | None, roster: str | None, fold: int, examples_per_owner: int | None
) -> CentralTask:
    """Return the task of these options, made once."""
    found = resolve_corpus(corpus, allow_synthetic=True)
    owners = "account" if examples_per_owner is None else "all"
    split = Split(fold=fold, owners=owners, examples_per_owner=examples_per_owner)
    return task_of(found.view(roster=roster, split=split))


def task_of(view: TagView) -> CentralTask:
    """Return the task of a view: all its training sentences, or the listed ones."""
    most = view.split.examples_per_owner
    rows = view.listed if most is not None else view.all_rows(view.roster, "train")
    x, y = spread_examples(view.columns, rows, "unit-norm")
    tested = view.all_rows(view.roster, "test")
    x_test, y_test = spread_examples(view.columns, tested, "unit-norm")
    words, tags = len(view.words), len(view.tags)
    data = Dataset(
        name=f"{view.name}, sentence by sentence",
        x_train=x,
        y_train=y,
        x_test=x_test,
        y_test=y_test,
        provenance={**view.provenance, "unit": "one sentence" if most is None else "an owner"},
        synthetic=view.synthetic,
    )
    task = linear_task(
        data,
        lambda x, y: SoftmaxGradients(x, y, tags),
        {"kernel": (words, tags), "bias": (tags,)},
    )
    return task if most is None else replace(task, owned=OwnedExamples(blank=rows < 0, most=most))


def dp_sgd_tags() -> Experiment:
    """DP-SGD over sentences."""
    return CentralExperiment(
        name="dp-sgd-tags",
        description="DP-SGD on tag prediction, sentence by sentence, or for all of an owner's.",
        task=OwnerTags(),
        batch_size=2048.0,
        steps=400,
        eval_every=100,
    ).with_options({"l2_clip_norm": 1.0, "learning_rate": 30.0, "target_epsilon": 8.0})
