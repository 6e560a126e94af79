"""Fixtures of the data tests."""

import importlib.util
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def tff_writer():
    """The module that writes tf.train.Example and TFF files."""
    path = Path(__file__).with_name("tff_writer.py")
    spec = importlib.util.spec_from_file_location("tff_writer", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
