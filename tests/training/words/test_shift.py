"""The periodic shift: whose sentences a round has, and that backends agree."""

import contextlib
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from fedpriv.backends import SerialBackend
from fedpriv.datasets.stackexchange.word_view import WordSequences, open_word_view
from fedpriv.experiments.ready_made import words
from fedpriv.mechanisms import Clip, Rounded
from fedpriv.rng import Key
from fedpriv.runs.prepared import start_run
from fedpriv.tasks.next_words import NextWords, Size
from fedpriv.training.algorithm import Context, SumRequest
from fedpriv.training.failures import raised_failures
from fedpriv.training.local.schedule import LocalSgd
from fedpriv.training.periodic_shift import SHARE, Shift
from fedpriv.training.work import Select, UserTrainer
from tests.harness.refusals import refuses
from tests.harness.threads import Shared
from tests.harness.toys_of_training import asked, assert_same, contributed, zeros
from tests.tasks.words import phrases

BOUND = Rounded(bound=Clip(l2_clip_norm=0.05))
SHIFT = Shift(kind="smooth", period=6)
KEY = Key.simulation(1).fold("users").fold(4).fold(2)
SCHEDULE = LocalSgd(learning_rate=1.0, batch_size=2)
TINY = Size(num_words=40, width=8, units=12, tied=True)


@dataclass
class Seen(UserTrainer):
    """Notes which sentences each user trains on."""

    thread_safe = True

    select: Select | None = SHIFT.select

    def __post_init__(self):
        self.kinds: list[Any] = []

    def train(self, params, context, examples, key):
        self.kinds.append(examples.kinds.tolist())
        return {name: np.zeros_like(array) for name, array in params.items()}


def posts():
    """40 sentences of questions and 60 of answers."""
    kinds = np.array([1] * 40 + [2] * 60, np.uint8)
    return WordSequences(starts=np.arange(101), words=np.zeros(100, np.int32), kinds=kinds)


def kinds_seen(share, users=("a",)):
    seen, own = Seen(), dict.fromkeys(users, posts())
    context = Context(extra={SHARE: np.array([share], np.float32)})
    contributed(seen, zeros(w=2), own, bound=BOUND, key=KEY, context=context)
    return seen.kinds


def test_rounds_of_one_kind_have_it_alone():
    assert kinds_seen(1.0) == [[1] * 40]
    assert kinds_seen(0.0) == [[2] * 60]


def test_a_mixture_keeps_each_sentence_by_its_own_draw():
    # Of 400 users: 16,000 sentences of questions at 0.7, five standard deviations are 290.
    kept = np.concatenate(kinds_seen(0.7, [f"u{n}" for n in range(400)]))
    assert abs(np.count_nonzero(kept == 1) - 0.7 * 16_000) < 290
    assert abs(np.count_nonzero(kept == 2) - 0.3 * 24_000) < 360


def test_a_users_part_is_its_own_whoever_else_is_there():
    assert kinds_seen(0.5, ["b", "a"])[1] == kinds_seen(0.5, ["a"])[0]


def test_the_sum_has_no_row_for_what_users_are_told():
    request = SumRequest(params=zeros(w=2), context=Context(extra=SHIFT.extra(1)))
    assert set(Seen().template(request)) == {"w"}
    with raised_failures(), refuses(ValueError, SHARE):
        contributed(Seen(), zeros(w=2), {"a": posts()}, bound=BOUND)


def test_a_round_brings_its_own_share():
    for number in range(1, 8):
        assert SHIFT.extra(number)[SHARE].tolist() == [np.float32(SHIFT.share(number))]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return phrases.write(tmp_path_factory.mktemp("corpora") / "phrases")


@pytest.mark.slow
def test_several_threads_find_the_sum_of_one(corpus):
    task = NextWords(
        open_word_view(corpus), size=TINY, length=6, shift=Shift(kind="smooth", period=6)
    )
    trainer = task.trainer(SCHEDULE, {})
    request = {
        "params": task.init_params(Key.simulation(0)), "bound": BOUND, "cohort": task.roster,
        "key": KEY, "round_num": 3, "context": Context(extra=task.round_tensors(3)),
    }  # fmt: skip
    alone = asked(SerialBackend(trainer=trainer, data=task.data, threads=1), **request)
    with contextlib.closing(Shared(trainer=trainer, data=task.data, threads=3)) as threads:
        together = asked(threads, **request)
    assert SHARE not in alone.total and alone.num_failed == together.num_failed == 0
    assert_same(together.total, alone.total)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["none", "blocks"])
def test_a_run_shifts(corpus, tmp_path, kind):
    experiment = words.dp_fedavg_words().with_options({
        "rounds": 4, "cohort": 10.0, "vocabulary": 30, "sequence-length": 6, "shift": kind,
        "eval-every": 1, "start": "fresh", **({} if kind == "none" else {"shift-period": 2}),
    })  # fmt: skip
    prepared = start_run(experiment, reference=None, corpus=corpus, out=tmp_path / "run")
    assert prepared.run()["rounds"] == 4


def test_a_corpus_that_does_not_say_what_posts_are_is_refused(tmp_path):
    unknown = phrases.write(tmp_path / "c", [replace(s, kind=None) for s in phrases.sentences()])
    with pytest.raises(ValueError):
        NextWords(open_word_view(unknown), shift=Shift(kind="blocks", period=2))


@pytest.mark.parametrize(("kind", "period", "named"), [("blocks", 1, 1), ("waves", 4, "waves")])
def test_a_schedule_that_does_not_fit_is_refused(kind, period, named):
    with refuses(ValueError, named):
        Shift(kind=kind, period=period)
