"""Which node may host which users: an operator's file from nodes' public keys to ids.

Node ids are dealt out by the SuperLink, anew to whoever comes back; a key pair is a node's own, and
with it every message to the SuperLink is signed. So users are bound to keys.

A file of TOML, or of JSON in the same shape; a key is what `ssh-keygen` wrote into the `.pub` file,
or PEM:

    "ecdsa-sha2-nistp384 AAAAE2VjZHNhLXNoYTItbmlzdHAzODQ... ward 7" = ["user-17", "user-31"]
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization

_NONE: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeKeys:
    """The users that each key's node hosts; nobody else's claim on one of them counts.

    Attributes:
        users: Ids by public key, as DER bytes.
    """

    users: Mapping[bytes, frozenset[str]] = field(repr=False)

    def of(self, public_key: bytes) -> frozenset[str]:
        """Return the users of a node by the key that the SuperLink knows it by; unknown: none."""
        try:
            return self.users.get(_der(public_key), _NONE)
        except ValueError:
            return _NONE


def read_node_keys(path: Path) -> NodeKeys:
    """Return what an operator wrote down.

    Raises:
        ValueError: If it cannot be read, a key is none, or a user is bound to two keys.
    """
    try:
        text = path.read_text("utf-8")
        found: Any = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except (OSError, ValueError) as error:
        raise ValueError(f"node-users {str(path)!r} cannot be read: {error}") from error
    if not isinstance(found, dict) or not found:
        raise ValueError(f"node-users {str(path)!r} names no key; see docs/flower-apps.md")
    users: dict[bytes, frozenset[str]] = {}
    bound: set[str] = set()
    for text, ids in found.items():
        key = _key_in(path, text)
        if not isinstance(ids, list) or not all(isinstance(item, str) and item for item in ids):
            raise ValueError(f"node-users {str(path)!r}: {ids!r:.80} is not a list of ids")
        twice = bound.intersection(ids) or (len(set(ids)) < len(ids) and set(ids))
        if twice or key in users:
            what = f"user {min(twice)!r}" if twice else f"key {text!r:.60}"
            raise ValueError(f"node-users {str(path)!r} names {what} twice; bind it once")
        users[key] = frozenset(ids)
        bound.update(ids)
    return NodeKeys(users=users)


def _key_in(path: Path, text: str) -> bytes:
    try:
        return _der(text.encode())
    except ValueError as error:
        raise ValueError(
            f"node-users {str(path)!r}: {text!r:.60} is no public key; take the line of a .pub file"
        ) from error


def _der(key: bytes) -> bytes:
    """Return the one form of a public key; raise `ValueError` if it is none."""
    try:
        found = (
            serialization.load_pem_public_key(key)
            if key.lstrip().startswith(b"-----")
            else serialization.load_ssh_public_key(key.strip())
        )
    except (UnsupportedAlgorithm, TypeError) as error:
        raise ValueError(str(error)) from error
    return found.public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
