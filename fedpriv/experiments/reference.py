"""What is written of options elsewhere, made from the parts: run-config keys and tables.

    python -m fedpriv.experiments.reference     # writes pyproject.toml and docs/options.md

A test compares both files with the parts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedpriv.experiments.examples import EXAMPLE_SLOTS
from fedpriv.experiments.options import Option, Slot, all_names
from fedpriv.experiments.tasks import TAG_PREDICTION
from fedpriv.experiments.users import USER_SLOTS

BEGIN = "# Options of experiments, written by `make options`."
END = "# End of the options."
_TITLES: Sequence[tuple[str, str, Sequence[Slot]]] = (
    (
        "Users",
        'Federated experiments: the unit of privacy is a user (`unit="user"`).',
        (TAG_PREDICTION, *USER_SLOTS),
    ),
    (
        "Examples",
        'Centralised experiments: the unit of privacy is an example (`unit="example"`).',
        EXAMPLE_SLOTS,
    ),
)


def run_config_names() -> list[str]:
    """Return the options that Flower's run-config has keys for."""
    return all_names((TAG_PREDICTION, *USER_SLOTS))


@dataclass(frozen=True, slots=True, kw_only=True)
class Described:
    """An option as a command line takes it.

    Attributes:
        name: As it is typed.
        kind: What its text is read as; a choice among words is a word.
        help: One line, with what it takes.
        takes_none: Whether the word "none" is a value of it, besides its kind's.
    """

    name: str
    kind: type[str] | type[int] | type[float] | type[bool]
    help: str
    takes_none: bool = False


def described(name: str) -> Described:
    """Return what the parts of federated experiments say of an option.

    Raises:
        KeyError: If there is none of that name.
    """
    for slot in (TAG_PREDICTION, *USER_SLOTS):
        if slot.is_option and slot.name == name:
            *others, last = slot.choices
            return Described(
                name=name, kind=str, help=f"{slot.help} {', '.join(others)} or {last}."
            )
        for choice in slot.choices:
            for known, item in slot.options(choice):
                if known == name:
                    return Described(
                        name=name,
                        kind=item.kind,
                        takes_none="none" in item.takes.split(),
                        help=f"{item.help} Takes {item.takes}.",
                    )
    raise KeyError(name)


def run_config(text: str) -> str:
    """Return a pyproject.toml whose run-config declares every option of federated experiments."""
    before, rest = text.split(BEGIN + "\n")
    _, after = rest.split(END + "\n")
    keys = "".join(f'{name} = ""\n' for name in run_config_names())
    return f"{before}{BEGIN}\n{keys}{END}\n{after}"


def tables() -> str:
    """Return the page of all options, part by part."""
    lines = [
        "# Options",
        "",
        "An experiment is composed of parts, and an option exists only where its part is chosen; "
        "elsewhere it is refused with the part's name. The names are the same on the command line "
        "(`-s NAME=VALUE`), in a run folder and in Flower's run-config. `fedpriv list EXPERIMENT` "
        "shows those of one experiment with their values. This page is written by `make options`.",
    ]
    for title, said, slots in _TITLES:
        lines += ["", f"## {title}", "", said]
        names = Counter(slot.name for slot in slots)
        for slot in slots:
            heading = f"### {title}: {slot.name}"
            if names[slot.name] > 1 and slot.within is not None:
                heading += f", with {_among(slot.within)}"
            lines += ["", heading, "", *_section(slot)]
    return "\n".join([*lines, ""])


def _section(slot: Slot) -> Iterator[str]:
    text = slot.help
    if slot.is_option:
        choices = ", ".join(f"`{choice}`" for choice in slot.choices)
        text += f" `{slot.name}` is one of {choices}; by default `{slot.default}`."
    if slot.within is not None:
        text += f" Only with {_among(slot.within, '`')}."
    yield text
    owners: dict[tuple[str, str, str, str], list[str]] = {}
    for choice in slot.choices:
        for name, item in slot.options(choice):
            row = (name, _written(slot.default_of(item)), item.takes, item.help)
            owners.setdefault(row, []).append(choice)
    if not owners:
        return
    yield ""
    head = ("with", "option", "default", "takes", "") if slot.is_option else (
        "option", "default", "takes", "",
    )  # fmt: skip
    yield f"| {' | '.join(head)} |"
    yield f"|{'---|' * len(head)}"
    for (name, default, takes, said), among in owners.items():
        cells = [f"`{name}`", default, takes, said]
        if slot.is_option:
            cells.insert(0, ", ".join(f"`{choice}`" for choice in among))
        yield f"| {' | '.join(_escaped(cell) for cell in cells)} |"


def _escaped(cell: str) -> str:
    return cell.replace("|", r"\|")  # a bar ends a cell, also within code


def _among(within: tuple[str, frozenset[str]], quote: str = "") -> str:
    outer, among = within
    return (
        f"{quote}{outer}{quote} {', '.join(f'{quote}{choice}{quote}' for choice in sorted(among))}"
    )


def _written(value: Option) -> str:
    if value is None:
        return "none"
    return str(value).lower() if isinstance(value, bool) else f"{value}"


def main(root: Path = Path()) -> None:
    """Write both files of a checkout."""
    project = root / "pyproject.toml"
    project.write_text(run_config(project.read_text("utf-8")), "utf-8")
    (root / "docs" / "options.md").write_text(tables(), "utf-8")


if __name__ == "__main__":
    main()
