"""What is recorded of a task's data: names, counts, and where everything came from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskDescription:
    """What the run folder records of the data. It goes into reports: nothing private belongs here.

    Attributes:
        name: What the data are called.
        synthetic: Whether they were made up.
        roster: The name of the roster, such as "all".
        num_users: Users on it; of centralised training, training examples.
        num_public_users: Users, or examples, outside it that the task has.
        provenance: Where everything came from, as JSON values; `private_side_information` lists
            what was taken from those whom the plan protects.
        roster_sha256: Digest of the roster, where one was published with the corpus.
        licence: Of the data.
        credit: Whom they are owed to.
        num_words: Words of the model, where inputs are words.
        num_tags: Tags of the model, where outputs are tags.
        majority_class_accuracy: Accuracy of always answering the commonest class, counted on
            rostered users: a diagnostic, which a secure run does not record.
    """

    name: str
    synthetic: bool
    roster: str
    num_users: int
    num_public_users: int = 0
    provenance: Mapping[str, Any] = field(default_factory=dict)
    roster_sha256: str | None = None
    licence: str | None = None
    credit: str | None = None
    num_words: int | None = None
    num_tags: int | None = None
    majority_class_accuracy: float | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise ValueError(f"name {self.name!r} of the data is no text; say what they are called")
        if not isinstance(self.synthetic, bool):
            raise ValueError(f"synthetic {self.synthetic!r} must be True or False")
        if self.num_users < 0 or self.num_public_users < 0:
            raise ValueError(
                f"num_users {self.num_users} and num_public_users {self.num_public_users} are "
                "counts; give whole numbers from 0 on"
            )

    def to_json(self) -> dict[str, Any]:
        """Return the fields by name; what is not known of this kind of data is left out."""
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        values["provenance"] = dict(self.provenance)
        return {name: value for name, value in values.items() if value is not None}
