"""A corpus of a few sentences, written by hand."""

from pathlib import Path

from fedpriv.datasets.importers.writer import CorpusWriter, Sentence
from fedpriv.datasets.stackexchange.rosters import RosterSpec


def said(user, text, tags="", title="", own=True, by=None):
    return Sentence(
        user_id=user,
        tokens=text.split(),
        title_tokens=title.split(),
        tags=tags.split(),
        own_title=own,
        title_user_id=by,
    )


SENTENCES = [
    said("pub1", "cash is king", "money", "cash cash"),
    said("in1", "cash secret secret", "money law", "how to sue", own=False, by="pub2"),
    said("pub2", "sue them is fun", "law money"),
    said("in2", "nothing known here", "rare", "king ?", own=False, by="in1"),
    said("in1", "king cash king", "law", "my own title"),
    said("pub1", "is it", "law", "foreign words", own=False, by="in2"),
    said("in1", "no label", "rare"),
    said("in2", "fun", "law"),
]
ROSTER = RosterSpec(name="inside", rule="declared", ids=["in2", "in1", "gone"])


def write(directory, sentences=SENTENCES, rosters=(ROSTER,), published=None, **options):
    settings = {
        "name": "tiny", "synthetic": True, "source": {"kind": "test"}, "licence": "CC0-1.0",
        "credit": "nobody", **options,
    }  # fmt: skip
    with CorpusWriter(directory, **settings) as writer:
        for sentence in sentences:
            writer.add(sentence)
        writer.drop("bad rows", 3)
        return writer.finish(list(rosters), rosters[0].name, published)


def cut(path: Path):
    path.write_bytes(path.read_bytes()[:-4])
