"""A training function asks for the user of its call by that key alone."""

import pytest

from fedpriv.backends.flower.client import USER_ID, _NodeConfig

CONFIG = {"partition-id": 3, "num-partitions": 4}


@pytest.mark.parametrize(
    "read",
    [
        lambda config: config.get("partition-id"), lambda config: config["num-partitions"],
        lambda config: config.get("nothing"), lambda config: "partition-id" in config, len, list,
    ],
)  # fmt: skip
def test_what_else_is_read_is_no_question(read):
    config = _NodeConfig(CONFIG, "ann")
    read(config)
    assert not config.was_asked


@pytest.mark.parametrize(
    "read", [lambda config: config[USER_ID], lambda config: config.get(USER_ID)]
)
def test_the_id_is(read):
    config = _NodeConfig(CONFIG, "ann")
    assert read(config) == "ann" and config.was_asked
    config.get("partition-id")
    assert config.was_asked
