"""What the examples of TFF's four datasets hold: names, dtypes, shapes and ranges.

Field names, dtypes and shapes are those TFF 0.87 parses (`tff.simulation.datasets.stackoverflow`,
`emnist`, `cifar100`, `shakespeare`); everything is checked, nothing is cast silently.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np

from fedpriv.data.importers.tff.tf_example import FeatureValue


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One field of an example.

    Attributes:
        dtype: "str" for UTF-8 text, else the NumPy dtype of the value handed out.
        shape: Its shape, () for a single value.
        low: The least value allowed, None for any.
        high: The greatest value allowed, None for any.
    """

    dtype: str
    shape: tuple[int, ...] = ()
    low: float | None = None
    high: float | None = None

    @property
    def is_text(self) -> bool:
        """Whether the value is a str."""
        return self.dtype == "str"


@dataclass(frozen=True, slots=True, kw_only=True)
class Schema:
    """The fields of one dataset's examples.

    Attributes:
        name: What the dataset is called here.
        fields: Field by name; an example may have others, which are dropped.
        default_split: The split read when a file has several and none is asked for.
    """

    name: str
    default_split: str
    fields: Mapping[str, Field] = field(default_factory=lambda: MappingProxyType({}))

    def typed(self, features: Mapping[str, FeatureValue]) -> dict[str, Any]:
        """Return the schema's fields of one example: str, a NumPy scalar, or an array.

        Raises:
            ValueError: If a field is missing, of another kind or size, out of range or not UTF-8.
        """
        typed: dict[str, Any] = {}
        for name, expected in self.fields.items():
            if name not in features:
                raise ValueError(f"no field {name!r}; it has {sorted(features)[:8]}")
            typed[name] = _convert(name, expected, features[name])
        return typed


def _convert(name: str, expected: Field, value: FeatureValue) -> Any:
    if expected.is_text:
        if isinstance(value, np.ndarray) or len(value) != 1:
            raise ValueError(f"field {name!r} is not one text")
        try:
            return value[0].decode("utf-8")
        except UnicodeDecodeError:
            raise ValueError(f"field {name!r} is not UTF-8") from None
    size = int(np.prod(expected.shape))
    if isinstance(value, np.ndarray):
        array = value
        whole = np.issubdtype(np.dtype(expected.dtype), np.integer)
        if array.dtype != (np.int64 if whole else np.float32):
            raise ValueError(f"field {name!r} holds {array.dtype} values, not {expected.dtype}")
    elif len(value) == 1 and expected.dtype == "uint8":
        array = np.frombuffer(value[0], np.uint8)  # raw pixels, as other writers store images
    else:
        raise ValueError(f"field {name!r} holds bytes, not {expected.dtype} values")
    if array.size != size:
        raise ValueError(f"field {name!r} has {array.size:,} values, not {size:,}")
    # `not (all in range)` also refuses NaN.
    if expected.low is not None and not bool((array >= expected.low).all()):
        raise ValueError(f"field {name!r} has a value below {expected.low} (or none)")
    if expected.high is not None and not bool((array <= expected.high).all()):
        raise ValueError(f"field {name!r} has a value above {expected.high} (or none)")
    array = array.astype(expected.dtype).reshape(expected.shape)
    return array if expected.shape else array[()]


def _schema(name: str, default_split: str, **fields: Field) -> Schema:
    return Schema(name=name, default_split=default_split, fields=MappingProxyType(fields))


_TEXT = Field(dtype="str")

SCHEMAS: Mapping[str, Schema] = MappingProxyType(
    {
        schema.name: schema
        for schema in (
            _schema(
                "stackoverflow",
                "train",
                creation_date=_TEXT,
                score=Field(dtype="int64"),
                tags=_TEXT,
                title=_TEXT,
                tokens=_TEXT,
                type=_TEXT,
            ),
            _schema(
                "emnist",
                "digits_only_train",
                label=Field(dtype="int32", low=0, high=61),
                pixels=Field(dtype="float32", shape=(28, 28), low=0.0, high=1.0),
            ),
            _schema(
                "cifar100",
                "train",
                coarse_label=Field(dtype="int64", low=0, high=19),
                image=Field(dtype="uint8", shape=(32, 32, 3), low=0, high=255),
                label=Field(dtype="int64", low=0, high=99),
            ),
            _schema("shakespeare", "train", snippets=_TEXT),
        )
    }
)


def guess_schema(features: Mapping[str, FeatureValue]) -> Schema:
    """Return the schema all of whose fields an example has.

    Raises:
        ValueError: If there is none.
    """
    for schema in SCHEMAS.values():
        if schema.fields.keys() <= features.keys():
            return schema
    raise ValueError(
        f"its fields {sorted(features)[:8]} are those of none of {', '.join(SCHEMAS)}; "
        "not a dataset this reader knows"
    )
