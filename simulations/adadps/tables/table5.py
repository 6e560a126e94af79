"""AdaDPS, Table 5: the clip norms and learning rates that its authors chose, as presets.

    python -m simulations.adadps.tables.table5

Every table's column *as the paper ran it* takes them from here; to run one yourself, name it:
`load_preset("imdb", "DP-Adam")`.
"""

from __future__ import annotations

from fedpriv.experiments.experiment import Experiment
from simulations.adadps.setups import imdb, lstm, mnist, pooled_tags
from simulations.adadps.setups.setup import Setup

SETUPS: dict[str, Setup] = {
    setup.key: setup
    for setup in (
        imdb.SETUP,
        lstm.SETUP,
        pooled_tags.SETUP,
        mnist.AUTOENCODER,
        mnist.CLASSIFIER,
    )
}


def load_preset(key: str, label: str) -> Experiment:
    """Return a method on a setup as the paper ran it, in the settings of its Table 5.

    Args:
        key: Of the setup: "imdb", "lstm", "tags", "autoencoder" or "mnist".
        label: Of the method.

    Raises:
        ValueError: If Table 5 has no such method or setup.
    """
    if key not in SETUPS or label not in SETUPS[key].table5:
        known = "; ".join(f"{k}: {', '.join(s.table5)}" for k, s in SETUPS.items())
        raise ValueError(f"Table 5 has no {label!r} on {key!r}; it has {known}")
    setup = SETUPS[key]
    clip, rate = setup.table5[label]
    made = setup.make(label, "paper", "test", False)
    return made.with_options({"l2-clip-norm": clip, "learning-rate": rate})


def main() -> None:
    """Print the table."""
    print(f"{'':32}{'method':26}{'clip norm':>10}{'learning rate':>15}")
    for setup in SETUPS.values():
        for label, (clip, rate) in setup.table5.items():
            print(f"{setup.title[:30]:32}{label:26}{clip:10g}{rate:15g}")


if __name__ == "__main__":
    main()
