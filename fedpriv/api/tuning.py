"""Private studies from Python; the same as those of `fedpriv tune`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console

from fedpriv.api.result import Run, load
from fedpriv.api.running import chosen_experiment, find_corpus
from fedpriv.experiments.experiment import Experiment
from fedpriv.experiments.options import Option, kebab
from fedpriv.privacy.trials import Trials
from fedpriv.runs.progress import ShowProgress, is_watched
from fedpriv.tuning.grid import GridStudy


def tune(
    experiment: str | Experiment,
    out: str | Path,
    *,
    grid: Mapping[str, Sequence[Option]],
    mean: float,
    shape: float = 1.0,
    score: str | None = None,
    corpus: str | Path | None = None,
    secure: bool = False,
    progress: ShowProgress = "auto",
    **options: Option,
) -> Run:
    """Choose options by a study whose ε covers the choice, and return its best run.

    How many trials are run is drawn once by chance, and never said; nothing of the others is kept.
    Interrupted, the same call goes on with the study.

    Args:
        experiment: A name of `fedpriv list`, or an experiment.
        out: The study's folder.
        grid: Values to try, by option name, such as `{"l2_clip_norm": [0.1, 0.3, 1.0]}`. A trial
            draws one of each.
        mean: How many trials there are on average, above 1.
        shape: Of the law of their number, a truncated negative binomial; 1 is geometric.
        score: Released figure to compare by, such as "accuracy_public"; None for the first.
        corpus: A prepared corpus, or a known name; None looks where corpora are.
        secure: Entropy from the operating system; no seed.
        progress: Whether the making of a corpus is shown; of trials nothing ever is.
        **options: Options of the experiment to change, such as `rounds=10`.

    Guarantees:
        * The run's ε is that of the whole study, by RDP.

    Raises:
        ValueError: If something does not fit together, or the folder holds another study. Nothing
            is drawn then.
    """
    if secure and "seed" in options:
        raise ValueError(f"secure=True takes no seed (got {options['seed']}); leave one out")
    chosen, reference = chosen_experiment(experiment, options)
    console = Console(stderr=True)
    heard = console if is_watched(console, progress) else None
    asked = None if corpus is None else str(corpus)
    study = GridStudy(
        experiment=chosen,
        reference=reference,
        corpus=find_corpus(chosen, asked, console=heard, importing=heard),
        grid={kebab(name): tuple(values) for name, values in grid.items()},
        trials=Trials(mean=mean, shape=shape),
        measure=score,
        secure=secure,
    )
    return load(study.run(Path(out)))
