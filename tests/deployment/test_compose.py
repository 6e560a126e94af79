"""The compose file keeps what the guide says of it, and what breaks it is noticed."""

import copy
import re
import tomllib

import pytest

from fedpriv.deploy.compose import compose_file
from tests.backends.flower.real.processes import DECLARED
from tests.deployment import guide
from tests.deployment.layout import CHECKOUT, COMPOSE, CONFIG, broken, nodes_of, read
from tests.harness.refusals import refuses


def test_the_layout_keeps_what_the_guide_says():
    assert broken(read()) == []


def test_the_file_is_the_generators():
    written = COMPOSE.read_text("utf-8")
    assert compose_file(3, checkout=".") == written, "fedpriv deploy compose --nodes 3 --checkout ."


#: The keys of a service that Compose v1 (1.27 and newer) and v2 both read, and that are used here.
KEYS = {
    *("image", "build", "user", "command", "entrypoint", "environment", "networks", "ports"),
    *("volumes", "tmpfs", "profiles", "read_only", "init", "cap_drop", "security_opt", "restart"),
    *("mem_limit", "pids_limit", "logging", "depends_on", "healthcheck"),
}
WORDS = ("command", "entrypoint", "networks", "ports", "volumes", "tmpfs", "security_opt")


def check_form(compose):
    """Check that a layout has what both versions of Compose read, and nothing else."""
    assert {key for key in compose if not key.startswith("x-")} == {"services", "networks"}
    for service in compose["services"].values():
        assert set(service) <= KEYS and {"image", "user", "networks", "restart"} <= set(service)
        assert all(isinstance(word, str) for key in WORDS for word in service.get(key, []))


@pytest.mark.parametrize(("nodes", "checkout"), [(1, ""), (3, "."), (12, "../fedpriv")])
def test_any_number_of_nodes_is_a_layout_of_the_same_guarantees(nodes, checkout, tmp_path):
    file = tmp_path / "compose.yml"
    file.write_text(compose_file(nodes, checkout=checkout), "utf-8")
    compose = read(file)
    check_form(compose)
    assert broken(compose) == [] and nodes_of(compose) == [str(k + 1) for k in range(nodes)]
    assert len(compose["networks"]) == nodes + 2
    built = {name for name, service in compose["services"].items() if "build" in service}
    assert built == (set(compose["services"]) if checkout else set())


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"nodes": 0}, (0, 1)),
        ({"nodes": 2000}, (2000,)),
        ({"nodes": 1, "checkout": "a$b"}, ()),
        ({"nodes": 1, "app": ["."]}, ()),
    ],
    ids=str,
)
def test_what_makes_no_compose_file_is_refused(given, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with refuses(ValueError, *said):
        compose_file(**given)


TWINS = {
    "a container as root": lambda c: c["services"]["client-1"].update(user="0:0"),
    "a published SuperLink": lambda c: c["services"]["superlink"].update(ports=["8000:8000"]),
    "a node beside the server": lambda c: c["services"]["supernode-1"]["networks"].append("server"),
    "a client with a way out": lambda c: c["services"]["client-2"]["networks"].append("nodes"),
    "another node's users": lambda c: c["services"]["client-1"]["volumes"].__setitem__(
        1, "./deploy/parts/node-2:/corpus:ro"
    ),
    "the key that signs": lambda c: c["services"]["gate"]["volumes"].append(
        "./deploy/keys:/all:ro"
    ),
    "users to write to": lambda c: c["services"]["client-3"]["volumes"].__setitem__(
        1, "./deploy/parts/node-3:/corpus"
    ),
    "no TLS": lambda c: c["services"]["supernode-1"]["command"].__setitem__(
        2, c["services"]["supernode-1"]["command"][2] + " --insecure"
    ),
    "a node that anybody may be": lambda c: c["services"]["supernode-3"].update(
        command=["fedpriv", "supernode", "--superlink", "gate:8443"]
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("twin", TWINS)
def test_what_breaks_it_is_noticed(twin):
    compose = copy.deepcopy(read())
    TWINS[twin](compose)
    assert broken(compose) != []


def test_everything_that_images_copy_is_there():
    text = (CHECKOUT / "server" / "Dockerfile").read_text("utf-8")
    sources = [
        source
        for line in re.findall(r"^COPY (?!.*--from)(.*)$", text, re.MULTILINE)
        for source in [word for word in line.split() if not word.startswith("--")][:-1]
    ]
    assert len(sources) > 10
    assert [source for source in sources if not list(CHECKOUT.glob(source))] == []
    kept = (CHECKOUT / ".dockerignore").read_text("utf-8").split()
    assert {f"!{source.split('/')[0]}" for source in sources} <= set(kept)


def test_images_have_what_the_project_needs_without_extras():
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text("utf-8"))["project"]
    lines = (CHECKOUT / "server" / "requirements.txt").read_text("utf-8").splitlines()
    given = [line for line in lines if line and not line.startswith("#")]
    assert sorted(given) == sorted(project["dependencies"])


def test_the_guides_commands_are_found_and_for_each_machine():
    text = (CHECKOUT / guide.PAGE).read_text("utf-8")
    found = list(guide.blocks(text))
    machines = [machine for machine, _ in found]
    assert machines.count("server") == 2 and [m for m in machines if m in "123" and m] == [*"123"]
    assert "supernode-3 client-3" in dict(found)["3"]
    assert any("fedpriv data part" in commands for _, commands in found)
    assert guide.NAME in text


def test_what_the_long_tests_tell_flower_is_declared():
    """Flower refuses other keys, and these tests are no default ones."""
    assert set(CONFIG) <= set(DECLARED)
