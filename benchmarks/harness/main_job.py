"""An experiment on one corpus, as the scripts that time it in one process take it."""

from __future__ import annotations

import argparse

from fedpriv.datasets.importers.locate import resolve_corpus
from fedpriv.datasets.stackexchange.corpus import Corpus
from fedpriv.experiments.experiment import Experiment
from fedpriv.experiments.load import load_experiment

NAME = "adadps-tags"


def parser(description: str, *, rounds: int) -> argparse.ArgumentParser:
    """Return the options that name the job."""
    made = argparse.ArgumentParser(description=description)
    made.add_argument("--experiment", default=NAME, help="by default the main one")
    made.add_argument("--corpus", default=None, help="as for `fedpriv run`")
    made.add_argument("--roster", default=None, help="by default the one of 400 users")
    made.add_argument("--cohort", type=float, default=20.0, help="expected users a round")
    made.add_argument("--rounds", type=int, default=rounds)
    return made


def open_job(
    arguments: argparse.Namespace, *, rounds: int, eval_every: int
) -> tuple[Experiment, Corpus]:
    """Return the experiment that the options ask for, and its corpus."""
    corpus = resolve_corpus(arguments.corpus, allow_synthetic=True)
    experiment = load_experiment(arguments.experiment).with_options(
        {
            "roster": arguments.roster or roster_of_400(corpus),
            "cohort": arguments.cohort,
            "rounds": rounds,
            "eval-every": eval_every,
        }
    )
    return experiment, corpus


def about(arguments: argparse.Namespace, corpus: Corpus) -> str:
    """Return what the figures are of; a generated corpus is called SYNTHETIC."""
    label = "SYNTHETIC corpus" if corpus.synthetic else "corpus"
    return f"{arguments.experiment}, {label} {corpus.name}, {arguments.cohort:g} users a round"


def roster_of_400(corpus: Corpus) -> str:
    """Return the roster of 400 users where the corpus has one; else its own default."""
    rosters = corpus.manifest["rosters"]
    found = [name for name, entry in rosters.items() if entry["num_users"] == 400]
    return found[0] if found else corpus.default_roster
