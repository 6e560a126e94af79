"""A run folder that was written anew: its hashes have no key, so anybody can make them fit."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fedpriv.checkpoints.tensor_files import read_tensors, write_tensors
from fedpriv.hashes import document_sha256, file_sha256
from fedpriv.privacy.ledger.chain import GENESIS, decode, encode

Fields = dict[str, Any]


def edit_json(file: Path, **changes: Any) -> None:
    """Change what a file of a JSON object says, and nothing else."""
    file.write_text(json.dumps({**json.loads(file.read_text("utf-8")), **changes}), "utf-8")


def edit_document(folder: Path, **changes: Any) -> None:
    """Change what `experiment.json` says, and nothing else."""
    edit_json(folder / "experiment.json", **changes)


def reseal(
    folder: Path,
    edit: Callable[[str, Fields], Fields] = lambda kind, fields: fields,
    **changes: Any,
) -> None:
    """Write a run folder anew: document, every line of the ledger, every checkpoint.

    Args:
        folder: The run folder.
        edit: From a line's kind and fields to what it says now.
        **changes: What `experiment.json` says now, by name.
    """
    if (folder / "experiment.json").exists():
        edit_document(folder, **changes)
        document = json.loads((folder / "experiment.json").read_text("utf-8"))
    else:
        document = None
    ledger, heads, previous = folder / "ledger.jsonl", {GENESIS: GENESIS}, GENESIS
    lines = b""
    for record in decode(ledger.read_bytes()).records:
        fields = dict(record.fields)
        if record.kind == "plan" and document is not None:
            fields["extra"] = {**fields["extra"], "experiment_sha256": document_sha256(document)}
        if record.kind == "release":
            name = f"round-{fields['round_num']:06d}.safetensors"
            checkpoint = folder / "checkpoints" / name
            if checkpoint.is_file():
                _written_with(checkpoint, heads)
                fields["digest"] = file_sha256(checkpoint)
        if record.kind == "seal":
            _written_with(folder / "state.safetensors", heads)
            named = (folder / name for name in fields["files"])
            fields["files"] = {file.name: file_sha256(file) for file in named if file.is_file()}
        made, line = encode(record.seq, previous, record.kind, edit(record.kind, fields))
        heads[record.hash] = previous = made.hash
        lines += line
    ledger.write_bytes(lines)
    _written_with(folder / "state.safetensors", heads)


def _written_with(file: Path, heads: Mapping[str, str]) -> None:
    if not file.is_file():
        return
    tensors, metadata = read_tensors(file)
    head = metadata.get("ledger_head", "")
    write_tensors(file, tensors, metadata | {"ledger_head": heads.get(head, head)})
