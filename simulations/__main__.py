"""The process of `python -m simulations`."""

from fedpriv.cli import main
from simulations.reproduction.command import app

if __name__ == "__main__":
    main(app)
