"""Every command of README, docs/ and examples/: run here, by another test, or why by none.

Here a page's commands are typed in the page's order, in a folder with the files that it names, on
tiny data and in a small size.
"""

import functools
import glob
import lzma
import os
import random
import re
import shutil
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from fedpriv.datasets.stackexchange.rosters import is_public_tenth
from fedpriv.experiments.load import load_experiment
from fedpriv.privacy.statement.verify import verify_run
from simulations.reproduction.command import app
from tests.backends.flower.real.processes import BIN, copy_app
from tests.datasets.importers.test_stackexchange import answer, document, question
from tests.docs import shell_blocks
from tests.docs.command_checks import ROOT, Refused, check
from tests.docs.shell_blocks import Command, commands, python
from tests.harness.command_line import CliRunner, fedpriv
from tests.harness.refusals import refuses
from tests.harness.tiny_bert import write_tiny_bert

FILES = (ROOT / "README.md", *shell_blocks.PAGES, *sorted(ROOT.glob("examples/*/README.md")))
TEXTS = {file.relative_to(ROOT).as_posix(): file.read_text("utf-8") for file in FILES}
COMMANDS = {page: found for page, text in TEXTS.items() if (found := commands(text))}

HERE = "tests/docs/test_commands.py"
SLOW = f"{HERE} (slow)"
FLOWER = f"{HERE} (slow, in Flower's processes)"
#: Parts of a page's name and of a command, as regular expressions: by which test such a command is
#: run, or why it is not. The first rule that fits counts.
RULES = (
    ("", r"^(python3 -m venv|source|pip|make run)\b", "installation"),
    ("", r"^make test$", "the tests themselves"),
    ("", r"^make encoder$", "fetches 83 MB from the network"),
    ("", r"cuda:|--gpus-per-worker", "needs a GPU"),
    ("pretrained", r"^python -m", "tests/simulations/threads/test_next_tokens.py"),
    ("", r"^flwr (ls|stop|.*/resume\.toml)", "tests/backends/flower/real/test_operating.py"),
    ("deployment", r"operator ls|RUN_ID|:/resume", "needs Docker and a run to stop or resume"),
    ("deployment", r"docker-compose", "needs Docker: `make deploy-guide` runs it"),
    ("deployment", r"^kubectl|^tar", "needs a cluster of Kubernetes"),
    ("deployment", r"keys\.sh deploy 3 ", "tests/deployment/test_keys.py"),
    ("deployment", r"^cd|^python3|^sh|--app", "tests/deployment/own_files.py (`make deploy-test`)"),
    ("own-data.md", r"^flower-superlink", "tests/backends/flower/real/test_own_data.py"),
    ("own-data.md", "", "tests/docs/test_own_data.py"),
    ("datasets", "", "tests/experiments/test_by_user.py"),
    ("extending", "pictures", "tests/docs/test_extending.py"),
    ("your-own", "--start", "tests/docs/test_pages_with_files.py"),
    ("examples/(?!flower-app)", "", "tests/examples/test_examples.py"),
    ("three-nodes|flower-app", "", FLOWER),
    ("launcher", "", "tests/deployment/launcher/test_launched_runs.py"),
    ("", r"^(\w+=1 |export \w+=1|)(flwr|flower-\w+|$)", FLOWER),
    ("", r"^python -m simulations (?!theory).", SLOW),
    ("", r"^fedpriv (study (?!.*--dry-run)|tune)|model=full|noise.svg", SLOW),
    ("before-running|pretrained", r"^fedpriv (plan|run simulations)", SLOW),
    ("", r"^(fedpriv |python -m simulations)", HERE),
)  # fmt: skip


def rule_of(page: str, command: Command) -> tuple[str, str, str]:
    """Return the first rule that fits a command of a page.

    Raises:
        LookupError: If none does.
    """
    for rule in RULES:
        if re.search(rule[0], page) and re.search(rule[1], str(command)):
            return rule
    raise LookupError(f"{page}: no rule of {HERE} says who runs `{command}`")


def test_who_runs_a_command_names_its_page():
    for page, found in COMMANDS.items():
        for command in found:
            by, _, _ = rule_of(page, command)[2].partition(" ")
            if by.startswith("tests/") and by != HERE:
                text = (ROOT / by).read_text("utf-8")
                name = Path(page).parent.name if "examples" in page else Path(page).name
                assert name in text, (by, name)


def test_every_rule_is_of_use():
    used = {rule_of(page, command) for page, found in COMMANDS.items() for command in found}
    assert set(RULES) == used


def test_no_command_stands_outside_a_block_of_commands():
    blocks = re.compile(r"^```([^\n]*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
    typed = re.compile(r"^(fedpriv|flwr|flower-\w+|docker\S*|kubectl|make|pip) ", re.MULTILINE)
    for page, text in TEXTS.items():
        plain = [block for kind, block in blocks.findall(text) if kind in ("", "text")]
        assert not [block for block in plain if typed.search(block)], page


@pytest.mark.slow
def test_every_command_could_be_typed(subtests, monkeypatch):
    for page, found in COMMANDS.items():
        monkeypatch.chdir((ROOT / page).parent)
        for command in found:
            with subtests.test(page=page, command=command):
                check(command)


#: Options that make a run small, whatever a page says, and words that do so for other commands.
SMALL = {"rounds": 2, "cohort": 6, "iterations": 10, "steps": 3, "passes": 1, "min-separation": 2,
         "aggregate-start": 1, "users": 20, "seeds": 1, "delay-plain": 1,
         "noise.restart": 1}  # fmt: skip
SIZE = re.compile(rf"(?<![\w.-])({'|'.join(SMALL)})( ?= ?)[\d.]+")
ADDED = {"audit": ("--trials", "200"), "tune": ("--mean", "2"),
         "encoder reduce": ("--dimensions", "4")}  # fmt: skip
ENCODER = "all-minilm-l6-v2-10f28a0f1270785b"
#: What a page's reader has typed before, by a word of a command that takes what comes of it.
BEFORE = {
    "corpus": "data import Posts.xml.xz --out corpus",
    "corpora/onstartups": "data import onstartups.Posts.xml.xz --out corpora/onstartups",
    "deploy/parts/node-1": "data part corpus --nodes 3 --out deploy/parts",
    "runs/first": "run dp-fedavg-tags --keep-checkpoints all --rounds 60 --out runs/first",
    "runs/eps8": "run adadps-tags --out runs/eps8",
    "runs/mine": "run own.py:mine --out runs/mine",
    "runs/encoder-tags": "run encoder-tags --out runs/encoder-tags",
    ENCODER: "encoder add all-MiniLM-L6-v2 --name all-minilm-l6-v2",
    "encoder-tags": f"encoder embed {ENCODER} --corpus onstartups",
    "simulations.threads.adapters:adapter_tags": f"encoder embed {ENCODER} --corpus onstartups",
}  # fmt: skip
#: Places of the reader's, by those in the folder here.
PLACES = {
    "/tmp/three": "three",
    "/absolute/path/of/a/prepared/corpus": "corpus",
    "/absolute/path/of/the/run": "run",
    "/absolute/run": "run",
    "/absolute/own.py": "own.py",
}


def small(text: str) -> str:
    """Return a text with small numbers for the options that it sets."""
    text = text.replace('"dp2-tags"', '"dp2-tags", delay-plain = 1')
    return SIZE.sub(lambda found: f"{found[1]}{found[2]}{SMALL[found[1]]}", text)


@functools.cache
def dump() -> bytes:
    """Return a dump of 600 posts of 120 people."""
    draw, posts = random.Random(0), []
    for number in range(1, 601):
        text = " ".join(f"word{draw.choice('abcdefghij')}" for _ in range(6))
        if number % 2:
            tags = f"<t{number % 5}>"
            posts.append(question(number, number // 2 % 120, text, f"<p>{text}.</p>", tags))
        else:
            posts.append(answer(number, number - 1, draw.randrange(120), f"<p>{text}.</p>"))
    return lzma.compress(document(*posts).encode())


class Place:
    """A folder in which a page's commands are typed, with the files of the page and its reader."""

    def __init__(self, page: str, folder: Path) -> None:
        self.page, self.folder, self.typed = page, folder, set()
        self.names = {name: str(folder / here) for name, here in PLACES.items()}
        text, own = TEXTS[page], ROOT / "examples" / "own-model"
        files = {file.name: file.read_text("utf-8") for file in own.glob("*.py")}
        files["own.py"] += "\n\nmine = experiment\n"
        files |= dict(re.findall(r"```(?:toml|python)\n# (\S+)\n(.*?)```", text, re.DOTALL))
        if "{code-cell} python" in text:
            code = "\n".join(python(text)[:-3])
            code = code.replace("experiment(target_epsilon)", "experiment()")
            files["own.py"] = code.replace("=target_epsilon", "=8.0")
        for name in re.findall(r"simulations/studies/\w+\.toml", text):
            files[name] = (ROOT / name).read_text("utf-8")
        rostered = [str(number) for number in range(120) if not is_public_tenth(str(number))]
        files["ids.txt"] = "\n".join(rostered)
        for name, code in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(small(code), "utf-8")
        for name in ("Posts.xml.xz", "onstartups.Posts.xml.xz"):
            (folder / name).write_bytes(dump())
        if ENCODER in text:
            write_tiny_bert(folder / "all-MiniLM-L6-v2")
            write_tiny_bert(folder / "bge-base-en-v1.5", seed=1)

    def type(self, command: Command) -> None:
        """Type a command of fedpriv or the studies, after those that its page's reader has typed.

        Raises:
            AssertionError: If it fails.
        """
        program, *words = command.words
        for option, word in pairwise(["", *words]):
            if word in BEFORE and option != "--out" and word not in self.typed:
                self.typed.add(word)
                if not (self.folder / word).exists():
                    self.type(Command(("fedpriv", *BEFORE[word].split())))
        if command.words[:3] == ("python", "-m", "simulations"):
            done = CliRunner().invoke(app, self.named(words[2:]))
            assert done.exit_code == 0 and done.output, f"{command}\n{done.exception}"
            return
        done = fedpriv(*self.small(self.named(words)))
        assert program == "fedpriv" and done.exit_code == 0 and done.output, f"{command}\n{done}"

    def named(self, words: list[str]) -> list[str]:
        """Return words with names of this place, and what a shell would expand."""
        for path in self.folder.glob(f"cache/encoders/{ENCODER[:-16]}{16 * '?'}"):
            self.names[ENCODER] = path.name
        for name, here in self.names.items():
            words = [word.replace(name, here) for word in words]
        return [item for word in words for item in (sorted(glob.glob(word)) or [word])]

    def small(self, words: list[str]) -> list[str]:
        """Return the words of a command of fedpriv in a small size."""
        if words[0] not in ("run", "plan") or "--resume" in words:
            return [*words, *ADDED.get(words[0], ()), *ADDED.get(" ".join(words[:2]), ())]
        for flag in {"--cohort", "--users"}.intersection(words):
            words[words.index(flag) + 1] = str(SMALL[flag[2:]])
        words = [small(word) for word in words]
        options = load_experiment(words[1]).options()
        known = {name.rpartition(".")[2].replace("_", "-") for name in options} - {"users"}
        sizes = {name: value for name, value in SMALL.items() if name in known}
        if "encoder" in known:
            sizes["encoder"] = self.names[ENCODER]
        given = {word.partition("=")[0].removeprefix("--") for word in words}
        return words + [
            item for name in sizes.keys() - given for item in ("-s", f"{name}={sizes[name]}")
        ]


@pytest.fixture
def place(request, tmp_path, monkeypatch):
    """The folder of a page, which is the working directory and where corpora are looked for."""
    made = Place(request.param, tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDPRIV_DATA", str(tmp_path))
    monkeypatch.setenv("FEDPRIV_CACHE", str(tmp_path / "cache"))
    monkeypatch.syspath_prepend(str(tmp_path))  # a folder of another test may hold an own.py too
    for file in tmp_path.glob("*.py"):
        monkeypatch.delitem(sys.modules, file.stem, raising=False)  # another test's of that name
    yield made
    for name, module in [*sys.modules.items()]:
        if str(getattr(module, "__file__", "")).startswith(f"{tmp_path}{os.sep}"):
            del sys.modules[name]


def those(by: str) -> dict[str, list[Command]]:
    """Return the commands of each page that are run in a way."""
    found = {page: [c for c in own if rule_of(page, c)[2] == by] for page, own in COMMANDS.items()}
    return {page: own for page, own in found.items() if own}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("by", "place"), [(by, page) for by in (HERE, SLOW) for page in those(by)], indirect=["place"]
)
def test_the_commands_of_a_page_run(by, place):
    for command in those(by)[place.page]:
        place.type(command)


@pytest.mark.slow
@pytest.mark.flower
@pytest.mark.ray
@pytest.mark.parametrize("place", those(FLOWER), indirect=True)
def test_the_commands_of_a_page_run_in_flower(place, flower):
    """On free ports, by a SuperLink named "here"; every run has a folder of its own."""
    own, superlink = "flower-app" in place.page, 0
    app = place.folder / "app"
    shutil.copytree(ROOT / "examples" / "flower-app", app) if own else copy_app(app)
    if "prepared/corpus" in TEXTS[place.page]:
        place.type(Command(("fedpriv", *BEFORE["corpus"].split())))
    for number, command in enumerate(those(FLOWER)[place.page]):
        program, *words = command.words or ("",)
        if program == "flower-superlink":
            superlink = flower.start_superlink(simulation=False)
        elif program == "flower-supernode":
            flower.start_supernode(number, superlink, place.named(words)[-1])
        elif program == "flwr":
            out = f"run-{number}" if "/absolute" in str(command) else "three/run"
            place.names |= {"loopback": "here", "/absolute/run": str(place.folder / out)}
            place.names["/absolute/path/of/the/run"] = place.names["/absolute/run"]
            sized = own or "rounds=" in str(command)
            words = [*place.named(words), *([] if sized else ["--run-config", "rounds=2"])]
            done = subprocess.run(
                [BIN / program, *words], cwd=app, env=flower.env, stdin=subprocess.DEVNULL,
                capture_output=True, text=True, check=False,
            )  # fmt: skip
            found = verify_run(place.folder / out)
            assert found.ok and found.num_releases > 1, done.stdout + done.stderr
        elif program == "fedpriv":
            place.type(command)


WRONG = {
    "fedpriv data walk": "'walk'",
    "fedpriv run adadps-tags --no-such 1": "--no-such",
    "fedpriv run simulations.threads.adapters:adapter_tags -s rnk=4": "'rank'",
    "fedpriv run adadps-tags --rounds 0": "rounds 0",
    "fedpriv list adadps-tag": "'adadps-tags'",
    "python -m simulations nothing": "'nothing'",
    "python -m simulations theory-bias -s uper=1": "upper",
    "fedpriv data fetch nothing": "'nothing'",
    "fedpriv data info nothing": "'nothing'",
    "python -m simulations.nothing": "'simulations.nothing'",
    "pip install 'fedpriv[nothing]'": "'nothing'",
    "make nothing": "'nothing'",
    "nothing --at all": "'nothing'",
    "FEDPRIV_NOTHING=1 fedpriv list": "FEDPRIV_NOTHING",
    "flower-supernode --no-such=1": "--no-such",
    "flower-nothing": "flower-nothing",
}


@pytest.mark.slow
@pytest.mark.parametrize(("line", "name"), WRONG.items(), ids=WRONG)
def test_what_is_wrong_is_found(line, name):
    (command,) = commands(f"```bash\n{line}\n```\n")
    with refuses(Refused, name):
        check(command)
