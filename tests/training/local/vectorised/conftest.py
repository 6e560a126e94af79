"""Fixtures of users trained at once."""

import pytest

from fedpriv.training.local.module import ModuleTrainer


@pytest.fixture
def only_vectorised(monkeypatch):
    """Training alone is not to be reached: what comes out was made together."""

    def reached(self, *arguments):
        raise AssertionError("fell back to training one by one")

    def forbid():
        monkeypatch.setattr(ModuleTrainer, "train_from", reached)

    return forbid
