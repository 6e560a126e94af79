"""Make the peers' own virtual environments, once, under `benchmarks/.envs/`.

    python benchmarks/peers.py [flower] [opacus] [pfl]

What goes into them is said in `harness/peers.py`.
"""

from __future__ import annotations

import argparse

from harness import peers


def main() -> None:
    parser = argparse.ArgumentParser(description="Make the peers' environments.")
    parser.add_argument("names", nargs="*", default=list(peers.PINS))
    for name in parser.parse_args().names:
        print(f"{name}: {peers.environment(name)}")


if __name__ == "__main__":
    main()
