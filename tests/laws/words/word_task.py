"""Next-word prediction on synthetic phrases, for backends and their workers."""

import importlib.util
import sys
from pathlib import Path

from fedpriv.backends import SerialBackend
from fedpriv.datasets.stackexchange.corpus import Corpus
from fedpriv.datasets.stackexchange.word_view import open_word_view
from fedpriv.tasks.next_words import NextWords, Size
from fedpriv.training.local.schedule import Schedule

SCHEDULE = Schedule(learning_rate=2.0, batch_size=2, epochs=2, max_examples=6)


def _phrases():
    path = Path(__file__).parents[2] / "tasks" / "words" / "phrases.py"
    spec = importlib.util.spec_from_file_location("phrases_of_words", path)
    module = sys.modules["phrases_of_words"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def corpus(folder):
    return _phrases().write(folder)


def task(corpus):
    size = Size(num_words=40, width=8, units=12, tied=True)
    return NextWords(open_word_view(corpus), size=size, length=8)


def open_worker(device, folder):
    """Return what a worker works with."""
    own = task(Corpus.open(folder))
    return SerialBackend(
        trainer=own.trainer(SCHEDULE, {}, device), data=own.data, measure=own.evaluate
    )
