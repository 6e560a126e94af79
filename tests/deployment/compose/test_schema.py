"""The compose file is of compose's schema; what is not of it is noticed, whoever is asked."""

from __future__ import annotations

import copy

import pytest

from tests.deployment.compose import schema as compose_schema
from tests.deployment.layout import read

TWINS = {
    "a name, which compose 1.29 does not know": lambda c: c.update(name="fedpriv"),
    "limits that only a swarm heeds": lambda c: c["services"]["gate"].update(
        deploy={"resources": {"limits": {"memory": "1g"}}}
    ),
    "a key that is spelt wrongly": lambda c: c["services"]["gate"].update(readonly=True),
    "a truth value in words": lambda c: c["services"]["gate"].update(read_only="yes"),
    "a restart that is none": lambda c: c["services"]["gate"].update(restart=False),
    "a port twice": lambda c: c["services"]["gate"].update(ports=["8443:8443", "8443:8443"]),
    "a condition that is none": lambda c: c["services"]["gate"].update(
        depends_on={"superlink": {"condition": "healthy"}}
    ),
    "a duration without a unit": lambda c: c["services"]["client-1"]["healthcheck"].update(
        interval="30"
    ),
    "no services": lambda c: c.pop("services"),
    "an environment of lists": lambda c: c["services"]["client-1"].update(environment={"A": []}),
    "a network that is not there": lambda c: c["services"]["client-1"].update(networks=["lan"]),
    "a volume without a place": lambda c: c["services"]["client-1"]["volumes"].append("./deploy:"),
    "a command of numbers": lambda c: c["services"]["client-1"].update(command=["sleep", 1]),
}


def test_the_file_is_of_the_schema():
    assert compose_schema.faults(read()) == []
    choices = {"FEDPRIV_FILES": "visits.sqlite", "FEDPRIV_PROMISES": "0" * 64, "BASE": "debian:12"}
    assert compose_schema.faults(read(environment=choices)) == []


@pytest.mark.parametrize("twin", TWINS)
def test_what_is_not_of_it_is_noticed_without_docker_compose(twin, monkeypatch, tmp_path):
    monkeypatch.setattr(compose_schema, "INSTALLED", tmp_path / "none")
    compose = copy.deepcopy(read())
    TWINS[twin](compose)
    assert compose_schema.faults(compose) != []


@pytest.mark.skipif(
    not compose_schema.INSTALLED.is_file(), reason="docker-compose 1.29 is not installed"
)
def test_its_own_schema_is_asked_where_docker_compose_is_installed():
    compose = copy.deepcopy(read())
    compose["services"]["gate"]["readonly"] = True
    assert [said for said in compose_schema._installed_says(compose) if "readonly" in said]
