"""`fedpriv new`: a project of one's own, that runs at once."""

from __future__ import annotations

import json
import keyword
import re
import shlex
from pathlib import Path
from typing import Annotated

import typer

from fedpriv.cli.output import print_line

#: Has Flower take the packages that are there, instead of installing the app's own for each run.
_AS_INSTALLED = "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION"
_TEMPLATES = Path(__file__).with_name("new_app")
#: Templates by where each is written; {} is the package.
_FILES = {
    ".gitignore": "gitignore",
    "README.md": "README.md",
    "pyproject.toml": "pyproject.toml",
    "test_app.py": "simulated.py",
    "{}/experiment.py": "experiment.py",
    "{}/server_app.py": "server_app.py",
    "{}/client_app.py": "client_app.py",
}


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("new")(new)


def new(
    name: Annotated[str, typer.Argument(help="Of the project and its folder.")],
    nodes: Annotated[int, typer.Option(help="Nodes in its compose file.")] = 3,
) -> None:
    """Write a project: experiment, ServerApp and ClientApp, pyproject, compose file and test.

    It runs at once on synthetic users, by `fedpriv run` and `flwr run`.
    """
    folder = write_project(Path.cwd(), name, nodes)
    package = name.replace("-", "_")
    print_line(f"{folder}: {package}/experiment.py is where your model and users go")
    print_line(f"cd {name}")
    print_line(f"fedpriv run {package}.experiment:experiment")
    out = shlex.quote(f"out={json.dumps(str(folder.with_name(f'{name}-run')))}")
    print_line(f"{_AS_INSTALLED}=1 flwr run . --stream --run-config {out}")


def write_project(where: Path, name: str, nodes: int = 3) -> Path:
    """Write a project to a new folder, and return that.

    Args:
        where: The folder that it is made in.
        name: Of the project and its folder.
        nodes: In its compose file.

    Raises:
        ValueError: If the name is none of a package, there is something of that name, or the number
            of nodes is out of range.
    """
    import importlib.util

    import jinja2

    from fedpriv.backends.flower.settings import OWN_KEYS, SHORT_KEYS
    from fedpriv.deploy.compose import compose_file

    package = name.replace("-", "_")
    if not re.fullmatch("[a-z][a-z0-9_-]{0,63}", name) or keyword.iskeyword(package):
        raise ValueError(
            f"name {name!r} is no name of a package: use small letters, digits, - and _, a letter "
            "first"
        )
    folder = where / name
    if folder.exists():
        raise ValueError(f"{folder} is there already; give another name, or remove it first")
    if importlib.util.find_spec(package) is not None:
        raise ValueError(
            f"a package {package!r} is installed already, and would be found in place of the "
            "project's; give another name"
        )
    compose = compose_file(nodes, app=("pyproject.toml", package))
    declared = {**OWN_KEYS, **dict.fromkeys((*SHORT_KEYS, "options"), "")}
    declared["experiment"] = f"{package}.experiment:experiment"
    config = {key: json.dumps(value) for key, value in declared.items()}
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        keep_trailing_newline=True,
    )
    (folder / package).mkdir(parents=True)
    (folder / package / "__init__.py").write_text("", "utf-8")
    (folder / "docker-compose.yml").write_text(compose, "utf-8")
    for file, template in _FILES.items():
        text = environment.get_template(f"{template}.md").render(
            name=name, package=package, config=config
        )
        (folder / file.format(package)).write_text(text, "utf-8")
    return folder
