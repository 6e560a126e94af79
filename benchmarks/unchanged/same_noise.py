"""Draws a simulation's noise from its seed alone, so that two checkouts can be compared.

    python same_noise.py MODULE [ARGUMENT ...]     runs a module as a script with noise drawn so

A run's noise is drawn from a key into which a digest of the experiment is folded, so that two
experiments add independent noise. An option that is new in one of two checkouts changes that
digest, and with it every released number. Here a fixed word stands in the digest's place, and
nothing in the place of a run's in memory, which once had none. fedpriv knows nothing of it.
"""

from __future__ import annotations

import runpy
import sys
from collections.abc import Mapping
from typing import Any


def draw_same_noise() -> None:
    """Let every run that this process makes from now on draw its noise from its seed."""
    from fedpriv.runs import noise_root as module

    def unkept_noise_root(root: Any, components: Any, start: Any) -> Any:
        """Return the key of the noise of a run in memory: the run's root."""
        return root

    def noise_root(root: Any, facts: Mapping[str, Any]) -> Any:
        """Return the key of a run's noise: secure entropy, or the seed's own."""
        if root.mode == "secure" or facts.get(module.NOISE) is None:
            return root
        return root.fold("experiment").fold("unchanged")

    for made in (noise_root, unkept_noise_root):
        name = made.__name__
        replaced = getattr(module, name, made)
        for loaded in list(sys.modules.values()):  # those that took it by its name too
            if vars(loaded).get(name) is replaced:
                setattr(loaded, name, made)


def main() -> None:
    draw_same_noise()
    sys.argv = sys.argv[1:]
    runpy.run_module(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
