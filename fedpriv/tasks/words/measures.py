"""What next-word prediction is measured by, counted as TensorFlow Federated counts it.

Its StackOverflow tasks (google-research/federated, `stackoverflow_word_prediction`) report
`accuracy_no_oov_or_eos`: the share of words predicted right among targets that are neither padding
nor unknown nor the end of a sentence. What a model *predicts* may be any token; a prediction of
"unknown" or "end" for a word is a mistake. It heads everything here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import torch

from fedpriv.measures import LOSS, Measure
from fedpriv.models.text import IGNORED, Tokens
from fedpriv.training.evaluate import WHOLE, Metrics, Part, Total, chunks, combined
from fedpriv.training.local.words import token_scores

WORD_ACCURACY = Measure(name="accuracy", label="word accuracy", form="share")
WITH_END = Measure(name="accuracy_no_oov", label="accuracy with end of sentence", form="share")
WITH_ALL = Measure(name="accuracy_with_oov", label="accuracy with unknown words", form="share")
PERPLEXITY = Measure(name="perplexity", label="perplexity", higher_is_better=False)
MEASURES = (WORD_ACCURACY, WITH_END, WITH_ALL, PERPLEXITY, LOSS)

_BLOCK = 128


def counted(targets: np.ndarray, tokens: Tokens) -> np.ndarray:
    """Return where a target counts for `WORD_ACCURACY`, bool of the targets' shape."""
    left_out = (IGNORED, tokens.pad, tokens.unknown, tokens.end)
    return ~np.isin(targets, left_out)


def shares_right(predicted: np.ndarray, targets: np.ndarray, tokens: Tokens) -> Mapping[str, Total]:
    """Return the three accuracies of predictions.

    Args:
        predicted: int64, any shape.
        targets: int64, the same; IGNORED for padding.
        tokens: Their numbers.
    """
    right = predicted == targets
    with_all = (targets != IGNORED) & (targets != tokens.pad)
    with_end = with_all & (targets != tokens.unknown)
    places = (counted(targets, tokens), with_end, with_all)
    return {
        measure.name: Total(sum=int(np.count_nonzero(right & where)), count=int(where.sum()))
        for measure, where in zip((WORD_ACCURACY, WITH_END, WITH_ALL), places, strict=True)
    }


def word_metrics(
    params: Mapping[str, torch.Tensor],
    tokens: Tokens,
    num_sentences: int,
    encoded: Callable[[slice], tuple[np.ndarray, np.ndarray]],
    part: Part = WHOLE,
) -> Metrics | None:
    """Return the figures of a model; None without sentences.

    Args:
        params: Of a `WordLSTM`.
        tokens: Their numbers.
        num_sentences: How many there are.
        encoded: From a slice of them to inputs and targets.
        part: Which share.
    """

    def of(chosen: slice) -> Metrics:
        x, y = (torch.from_numpy(array) for array in encoded(chosen))
        with torch.no_grad():
            scores, targets = token_scores(params, x, y)
            loss = torch.nn.functional.cross_entropy(scores, targets, reduction="sum").double()
            predicted = scores.argmax(dim=1)
        count = len(targets)
        totals = dict(shares_right(predicted.numpy(), targets.numpy(), tokens))
        totals[PERPLEXITY.name] = Total(sum=float(loss), count=count, value_is="exp of mean")
        totals[LOSS.name] = Total(sum=float(loss), count=count)
        return Metrics(totals=totals, num_examples=len(x))

    return combined(of(chosen) for chosen in chunks(num_sentences, part, _BLOCK))
