"""A small synthetic dump of threads, as a site publishes it, with who asked."""

from __future__ import annotations

from pathlib import Path
from xml.sax.saxutils import quoteattr

import numpy as np

NUM_ACCOUNTS, NUM_QUESTIONS, NUM_TAGS, NUM_WORDS = 90, 500, 8, 60


def write_dump(path: Path) -> Path:
    """Write a `Posts.xml`: every question has a tag that some of its words give away."""
    rng = np.random.default_rng(0)

    def words(tag: int, number: int) -> str:
        drawn = rng.integers(NUM_WORDS, size=number)
        return " ".join([f"word{'abcdefghij'[i // 10]}{'abcdefghij'[i % 10]}" for i in drawn]
                        + [f"about{'abcdefgh'[tag]}"])  # fmt: skip

    lines = ['<?xml version="1.0" encoding="utf-8"?>', "<posts>"]

    def post(**fields: object) -> None:
        said = " ".join(f"{name}={quoteattr(str(value))}" for name, value in fields.items())
        lines.append(f"  <row {said} />")

    for question in range(1, NUM_QUESTIONS + 1):
        tag, date = int(rng.integers(NUM_TAGS)), f"2012-{1 + question % 12:02d}-01T00:00:00.000"
        post(
            Id=question, PostTypeId=1, OwnerUserId=1 + int(rng.integers(NUM_ACCOUNTS)),
            Title=words(tag, 3), Tags=f"<tag{'abcdefgh'[tag]}>", CreationDate=date,
            Body=f"<p>{words(tag, 6)}.</p>",
        )  # fmt: skip
        for answer in range(int(rng.integers(4))):
            post(
                Id=10_000 + 10 * question + answer, PostTypeId=2, ParentId=question,
                OwnerUserId=1 + int(rng.integers(NUM_ACCOUNTS)), CreationDate=date,
                Body=f"<p>{words(tag, 5)}. {words(tag, 4)}.</p>",
            )  # fmt: skip
    path.write_text("\n".join([*lines, "</posts>"]) + "\n", "utf-8")
    return path
