"""What compose 1.29 and the compose specification both take, of what this project's file uses.

A key that is not listed here is refused, though compose may know it: `name:`, which 1.29 does not
know, `deploy:`, which it only heeds in a swarm, and whatever is spelt wrongly. Where docker-compose
1.29 is installed, its own schema is asked as well.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

#: Where Debian's package of docker-compose 1.29 has the schema of the compose specification.
INSTALLED = Path("/usr/lib/python3/dist-packages/compose/config/compose_spec.json")

Check = Callable[[Any], bool]


def _like(pattern: str) -> Check:
    return lambda value: isinstance(value, str) and re.fullmatch(pattern, value) is not None


def _any_of(*words: str) -> Check:
    return lambda value: isinstance(value, str) and value in words


def _is(*kinds: type) -> Check:
    return lambda value: type(value) in kinds


def _each(check: Check) -> Check:
    """A list without repetitions, as the schema has most lists."""
    return lambda value: (
        isinstance(value, list)
        and all(check(item) for item in value)
        and len(set(value)) == len(value)
    )


def _words(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _either(*checks: Check) -> Check:
    return lambda value: any(check(value) for check in checks)


def _table(value: Any) -> bool:
    return isinstance(value, dict) and all(
        isinstance(key, str) and type(item) in (str, int) for key, item in value.items()
    )


def _keys(**checks: Check) -> Check:
    return lambda value: (
        isinstance(value, dict)
        and all(key.replace("-", "_") in checks for key in value)
        and all(checks[key.replace("-", "_")](item) for key, item in value.items())
    )


def _depends(value: Any) -> bool:
    conditions = _any_of("service_started", "service_healthy", "service_completed_successfully")
    return isinstance(value, dict) and all(
        isinstance(item, dict) and set(item) == {"condition"} and conditions(item["condition"])
        for item in value.values()
    )


_SIZE, _DURATION = _like(r"\d+[bkmg]"), _like(r"(\d+h)?(\d+m)?(\d+s)?(?<=[hms])")
_COMMAND = _either(_is(str), _words)
SERVICE: Mapping[str, Check] = {
    "image": _like(r"[a-z0-9][a-z0-9._/:-]*"),
    "build": _keys(
        context=_is(str), dockerfile=_is(str), network=_is(str), args=_table, target=_is(str)
    ),
    "command": _COMMAND,
    "entrypoint": _COMMAND,
    "environment": _table,
    "networks": _each(_is(str)),
    "ports": _each(_like(r"(\d+:)?\d+")),
    "volumes": _each(_like(r"[^:]+:/[^:]*(:(ro|rw))?")),
    "tmpfs": _each(_like(r"/[^:]*(:[a-z0-9=,]+)?")),
    "depends_on": _depends,
    "profiles": _each(_like(r"[a-zA-Z0-9][a-zA-Z0-9_.-]+")),
    "restart": _any_of("no", "always", "on-failure", "unless-stopped"),
    "user": _is(str),
    "read_only": _is(bool),
    "init": _is(bool),
    "privileged": _is(bool),
    "cap_drop": _each(_is(str)),
    "cap_add": _each(_is(str)),
    "security_opt": _each(_is(str)),
    "mem_limit": _SIZE,
    "pids_limit": _is(int),
    "logging": _keys(driver=_is(str), options=_table),
    "healthcheck": _keys(
        test=_words,
        interval=_DURATION,
        timeout=_DURATION,
        retries=_is(int),
        start_period=_DURATION,
    ),
}


def faults(compose: Mapping[str, Any]) -> list[str]:
    """Return what is not of the schema in a compose file, as YAML has it, variables filled in."""
    return [*_faults(compose), *_installed_says(compose)]


def _faults(compose: Mapping[str, Any]) -> Iterator[str]:
    for key in compose:
        if key not in ("services", "networks") and not str(key).startswith("x-"):
            yield f"{key} at the top"
    services, networks = compose.get("services"), compose.get("networks")
    if not isinstance(services, dict) or not isinstance(networks, dict):
        yield "services and networks are needed"
        return
    for name, network in networks.items():
        if not _keys(internal=_is(bool))(network if network is not None else {}):
            yield f"network {name}: {network}"
    for name, service in services.items():
        if re.fullmatch(r"[a-zA-Z0-9._-]+", str(name)) is None or not isinstance(service, dict):
            yield f"service {name}"
            continue
        for key, value in service.items():
            if key not in SERVICE:
                yield f"service {name}: no key {key}"
            elif not SERVICE[key](value):
                yield f"service {name}: {key} is {value!r:.200}"
        for network in service.get("networks", []):
            if network not in networks:
                yield f"service {name}: no network {network}"
        for other in service.get("depends_on", {}):
            if other not in services:
                yield f"service {name}: depends on {other}, which is not there"
        first = (service.get("healthcheck") or {}).get("test", ["CMD"])[:1]
        if first not in (["CMD"], ["CMD-SHELL"]):
            yield f"service {name}: a health check that begins with {first}"


def _installed_says(compose: Mapping[str, Any]) -> Iterator[str]:
    if not INSTALLED.is_file():
        return
    import jsonschema  # comes with Ray

    schema = json.loads(INSTALLED.read_text("utf-8"))
    for error in jsonschema.Draft7Validator(schema).iter_errors(dict(compose)):
        yield f"{'/'.join(map(str, error.path))}: {error.message[:200]}"
