"""A corpus of a few sentences, written by hand."""

from fedpriv.datasets.importers.writer import CorpusDescription, Sentence, write_corpus
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


def write(
    directory, sentences=SENTENCES, rosters=(ROSTER,), published=None, held_users=(), **options
):
    settings = {
        "name": "tiny", "synthetic": True, "source": {"kind": "test"}, "licence": "CC0-1.0",
        "credit": "nobody", **options,
    }  # fmt: skip
    return write_corpus(
        directory, CorpusDescription(**settings), sentences, rosters, rosters[0].name,
        dropped={"bad rows": 3}, published=published, held_users=held_users,
    )  # fmt: skip


def write_counted(directory, published):
    """A corpus of two rostered and two public users, with published counts of words or without."""
    rows = [
        said(user, f"w{i} w0", f"t{i % 2}") for user in ("r0", "r1", "p0", "p1") for i in range(8)
    ]
    roster = RosterSpec(name="r", rule="declared", ids=["r0", "r1"])
    words = {f"w{i}": 9 - i for i in range(8)}
    counts = {"words": words, "tags": {"t0": 5, "t1": 4}} if published else None
    return write(directory, rows, [roster], counts, name="synthetic-p", max_words=8, max_tags=2)
