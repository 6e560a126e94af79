"""Code of Markdown pages: Python as it stands there, and shell as one simple command each."""

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

_DOCS = Path(__file__).parents[2] / "docs"
#: Pages that people write, whose commands are for readers: those of results take hours.
PAGES = tuple(
    page for page in sorted(_DOCS.rglob("*.md"))
    if page.parent.name != "results" and page.name not in ("options.md", "commands.md")
)  # fmt: skip

_PYTHON = re.compile(r"^```(?:\{code-cell\} )?python\n(.*?)^```", re.MULTILINE | re.DOTALL)
_FILE = re.compile(r"# (\w+)\.py\n")
_BLOCK = re.compile(r"^```(?:bash|sh|shell|console)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_VARIABLE = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_SEPARATORS = {"&&", "||", "|", ";", "&"}


@dataclass(frozen=True, slots=True)
class Command:
    """A command: its words, and what is set for it alone."""

    words: tuple[str, ...]
    variables: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        """As one would type it."""
        return " ".join([*(f"{k}={v}" for k, v in self.variables), shlex.join(self.words)]).strip()


def python(page: str) -> list[str]:
    """Return the Python of all blocks in order, those of a notebook too."""
    return _PYTHON.findall(page)


def python_files(page: str) -> dict[str, str]:
    """Return the Python of blocks that begin with a comment of a file's name, by its stem."""
    found = ((_FILE.match(code), code) for code in python(page))
    return {name[1]: code[name.end() :] for name, code in found if name}


def execute(codes: list[str], names: dict[str, object]) -> dict[str, object]:
    """Run code with some names, and return all that it leaves."""
    for code in codes:
        exec(compile(code, "a page", "exec"), names)
    return names


def commands(page: str) -> list[Command]:
    """Return the commands of all blocks in order: comments dropped, long lines and && resolved.

    >>> [str(found) for found in commands("```bash\\nA=1 b -c \\\\\\n  'd e' && f  # g\\n```\\n")]
    ["A=1 b -c 'd e'", 'f']
    """
    found = []
    for block in _BLOCK.findall(page):
        for line in block.replace("\\\n", " ").splitlines():
            # $ is how some pages write a prompt.
            lexer = shlex.shlex(line.removeprefix("$ "), posix=True, punctuation_chars=True)
            lexer.whitespace_split = True
            words: list[str] = []
            for word in [*lexer, ";"]:
                if word not in _SEPARATORS:
                    words.append(word)
                elif words:
                    # Of a loop what is done in it.
                    words = [] if words[0] == "for" else words[words[0] in ("do", "done") :]
                    found += [_command(words)] if words else []
                    words = []
    return found


def _command(words: list[str]) -> Command:
    variables = []
    while words and (match := _VARIABLE.fullmatch(words[0])):
        variables.append((match[1], match[2]))
        words = words[1:]
    return Command(tuple(words), tuple(variables))
