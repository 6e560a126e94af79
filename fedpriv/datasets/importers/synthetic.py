"""A synthetic StackOverflow: the shape of the real one, for machines that have none.

400 users with log-normal sentence counts that sum to 246,092, words by Zipf's law with exponent
1.1, every user a mixture of topics, tags that belong to topics, and rare words that indicate the
tag: frequent words carry little, so that preconditioning by word frequency has something to do.
100 further users of the same kind stay outside the roster and are the public ones. No real person
is in it, and its name and manifest say "synthetic" wherever it goes; no accuracy on it is one on
StackOverflow.

Each user's sentences are drawn from a separate key: they depend on the seed, the language, the user
and how many there are. So a small corpus of equal users (`spread=0`) is a part of a large one, and
a cost per user can be compared between them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from fedpriv.datasets.importers.writer import CorpusDescription, Sentence, write_corpus
from fedpriv.datasets.stackexchange.corpus import Corpus
from fedpriv.datasets.stackexchange.rosters import RosterSpec
from fedpriv.hashes import Progress
from fedpriv.ranges import Range, finite_float
from fedpriv.rng import Key

NAME = "synthetic-stackoverflow"
GENERATOR = 1  # to be raised by every change that makes other corpora of the same seeds

_CONCENTRATION = 12.0  # the lower, the fewer topics a user writes about
_BODY_TOKENS, _TITLE_TOKENS = 17.0, 7.0  # means, beyond one and two
_BODY_MIX = (0.74, 0.22, 0.04)  # shares of common, topic and tag words
_TITLE_MIX = (0.56, 0.30, 0.14)
_MISLEADING = 0.25  # share of tag words that belong to some other tag
_WORDS_PER_TOPIC, _WORDS_PER_TAG = 25, 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Size of a synthetic corpus; the defaults are the paper's StackOverflow.

    Attributes:
        num_users: Users on the roster.
        num_sentences: Their sentences, in all.
        public_users: Further users, with as many sentences each on average.
        num_words: Distinct words, `w00000` the most frequent.
        num_tags: Distinct tags, `t000` the most frequent.
        num_topics: Topics; a tag belongs to one of them.
        spread: Standard deviation of the log of a user's number of sentences; 0 gives all users
            as many, to within one.
        informative: Share of the topic's and the tag's words in a text, relative to the default:
            the less, the harder are tags to tell.
        off_topic: Share of posts that are written about another tag than their own, which no model
            can tell.

    Raises:
        ValueError: If a number is too small to make a corpus of.
    """

    num_users: int = 400
    num_sentences: int = 246_092
    public_users: int = 100
    num_words: int = 12_000
    num_tags: int = 600
    num_topics: int = 40
    spread: float = 1.0
    informative: float = 1.0
    off_topic: float = 0.0

    def __post_init__(self) -> None:
        if self.num_users < 1 or self.public_users < 1:
            raise ValueError("a synthetic corpus needs at least one rostered and one public user")
        if self.num_sentences < 5 * self.num_users:
            raise ValueError(
                f"{self.num_sentences:,} sentences are too few for {self.num_users:,} users; "
                f"give at least {5 * self.num_users:,}"
            )
        if self.num_words < 100:
            raise ValueError(f"{self.num_words:,} words are too few; give at least 100")
        if not 1 <= self.num_topics <= self.num_tags:
            raise ValueError(
                f"{self.num_topics} topics for {self.num_tags} tags: give each topic a tag"
            )
        if not 0.0 <= self.spread <= 5.0:
            raise ValueError(f"spread {self.spread} is outside 0 (equal users) to 5; give 1")
        for name in ("informative", "off_topic"):
            finite_float(name, getattr(self, name), Range.SHARE)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Language:
    """The distributions all users share (cumulative where they are drawn from)."""

    words: np.ndarray  # float64 (num_words,), cumulative Zipf
    topic_weight: np.ndarray  # float64 (num_topics,), share of each topic
    tag_of_topic: list[np.ndarray]  # tags of each topic
    tag_in_topic: list[np.ndarray]  # cumulative weights of them
    topic_words: np.ndarray  # int64 (num_topics, words each)
    tag_words: np.ndarray  # int64 (num_tags, words each)
    word_names: np.ndarray  # object (num_words,)
    tag_names: np.ndarray  # object (num_tags,)
    topic_of_tag: np.ndarray  # int64 (num_tags,)
    body_mix: tuple[float, float, float]  # shares of common, topic and tag words
    title_mix: tuple[float, float, float]
    off_topic: float


def synthesize(
    directory: Path | str,
    *,
    seed: int = 0,
    shape: Shape | None = None,
    name: str = NAME,
    max_words: int = 10_000,
    max_tags: int = 500,
    progress: Progress | None = None,
) -> Corpus:
    """Make a synthetic corpus; the same seed and shape give the same one, byte for byte.

    Args:
        directory: The corpus to make; it must not exist.
        seed: Of the generator.
        shape: How large; the paper's StackOverflow by default.
        name: Its name, which must contain "synthetic".
        max_words: Vocabulary size of the prepared corpus.
        max_tags: Number of tags of the prepared corpus.
        progress: Called with the number of sentences written.

    Raises:
        ValueError: If the name does not say that it is synthetic, or `directory` exists.
    """
    if "synthetic" not in name:
        raise ValueError(
            f"name {name!r} must contain 'synthetic', so that it passes for no real one"
        )
    shape = Shape() if shape is None else shape
    key = Key.simulation(seed).fold("synthetic stackoverflow")
    language = _language(shape, key.fold("language").generator())
    roster = [f"u{number:05d}" for number in range(shape.num_users)]
    public = [f"p{number:05d}" for number in range(shape.public_users)]
    total = shape.num_sentences * (shape.num_users + shape.public_users) // shape.num_users
    groups = (
        ("roster", shape.num_users, shape.num_sentences),
        ("public", shape.public_users, total - shape.num_sentences),
    )
    counts = [
        int(count)
        for name, users, number in groups
        for count in _sentence_counts(users, number, shape.spread, key.fold(name).generator())
    ]
    source = {"kind": "synthetic", "generator": GENERATOR, "seed": seed, "shape": asdict(shape)}

    def sentences() -> Iterator[Sentence]:
        done = 0
        for user_id, count in zip(roster + public, counts, strict=True):
            generator = key.fold("user").fold(user_id).generator()
            yield from _sentences(user_id, count, language, generator)
            done += count
            if progress is not None:
                progress(done, total)

    about = CorpusDescription(
        name=name,
        synthetic=True,
        source=source,
        licence="CC0-1.0",
        credit="generated by fedpriv, written by no person",
        max_words=max_words,
        max_tags=max_tags,
    )
    spec = RosterSpec(
        name=f"synthetic-{shape.num_users}",
        rule="declared",
        ids=roster,
        declared=f"All {shape.num_users:,} synthetic users whose ids begin with 'u'.",
    )
    return write_corpus(directory, about, sentences(), [spec], spec.name)


def _language(shape: Shape, rng: np.random.Generator) -> _Language:
    zipf = (np.arange(shape.num_words) + 1.0) ** -1.1
    tag_weight = (np.arange(shape.num_tags) + 1.0) ** -0.9  # the first has about 11 %, as in life
    tag_weight /= tag_weight.sum()
    topic_of_tag = np.arange(shape.num_tags) % shape.num_topics
    tags = [np.flatnonzero(topic_of_tag == topic) for topic in range(shape.num_topics)]
    # Topic words are of middling frequency, tag words are rare: the last 85 % of the ranks.
    middle = np.arange(shape.num_words // 100, max(shape.num_words // 5, 10))
    rare = np.arange(shape.num_words * 15 // 100, shape.num_words)
    return _Language(
        words=_cumulative(zipf),
        topic_weight=np.bincount(topic_of_tag, weights=tag_weight),
        tag_of_topic=tags,
        tag_in_topic=[_cumulative(tag_weight[own]) for own in tags],
        topic_words=rng.choice(middle, (shape.num_topics, _WORDS_PER_TOPIC)),
        tag_words=rng.choice(rare, (shape.num_tags, _WORDS_PER_TAG)),
        word_names=np.array([f"w{rank:05d}" for rank in range(shape.num_words)], object),
        tag_names=np.array([f"t{rank:03d}" for rank in range(shape.num_tags)], object),
        topic_of_tag=topic_of_tag,
        body_mix=_mix(_BODY_MIX, shape.informative),
        title_mix=_mix(_TITLE_MIX, shape.informative),
        off_topic=shape.off_topic,
    )


def _mix(mix: tuple[float, float, float], informative: float) -> tuple[float, float, float]:
    """Return shares of common, topic and tag words, with fewer of the latter two."""
    if informative == 1.0:
        return mix
    topical, tag = informative * mix[1], informative * mix[2]
    return 1.0 - topical - tag, topical, tag


def _cumulative(weights: np.ndarray) -> np.ndarray:
    cumulative = np.cumsum(weights)
    return cumulative / cumulative[-1]


def _draw(cumulative: np.ndarray, size: int, rng: np.random.Generator) -> np.ndarray:
    return np.searchsorted(cumulative, rng.random(size), side="right")


def _sentence_counts(users: int, total: int, spread: float, rng: np.random.Generator) -> np.ndarray:
    """Return log-normal counts, at least 5 each, that sum to `total` exactly."""
    weights = np.exp(rng.normal(0.0, spread, users))
    shares = weights / weights.sum() * (total - 5 * users)
    counts = np.floor(shares).astype(np.int64)
    counts[np.argsort(counts - shares, kind="stable")[: total - 5 * users - counts.sum()]] += 1
    return counts + 5


def _sentences(
    user_id: str, count: int, language: _Language, rng: np.random.Generator
) -> Iterator[Sentence]:
    """Yield a user's sentences; consecutive ones of a post share its title and tags."""
    new_post = rng.random(count) < 0.25
    new_post[0] = True
    post_of = np.cumsum(new_post) - 1
    num_posts = int(post_of[-1]) + 1
    mixture = _cumulative(rng.dirichlet(_CONCENTRATION * language.topic_weight) + 1e-12)
    topics = _draw(mixture, num_posts, rng)
    tags, tag_lists = _post_tags(topics, language, rng)
    if language.off_topic:
        elsewhere = rng.random(num_posts) < language.off_topic
        others = rng.integers(len(language.tag_names), size=num_posts)
        tags = np.where(elsewhere, others, tags)
        topics = np.where(elsewhere, language.topic_of_tag[others], topics)
    own = (rng.random(num_posts) < 0.3).tolist()  # the rest answer somebody else's question
    titles = _texts(
        2 + rng.poisson(_TITLE_TOKENS, num_posts), topics, tags, language.title_mix, language, rng
    )
    bodies = _texts(
        1 + rng.poisson(_BODY_TOKENS, count),
        topics[post_of],
        tags[post_of],
        language.body_mix,
        language,
        rng,
    )
    for body, post in zip(bodies, post_of.tolist(), strict=True):
        yield Sentence(
            user_id=user_id,
            tokens=body,
            title_tokens=titles[post],
            tags=tag_lists[post],
            own_title=own[post],
            thread=f"{user_id}-{post}",
            kind="question" if own[post] else "answer",
        )


def _post_tags(
    topics: np.ndarray, language: _Language, rng: np.random.Generator
) -> tuple[np.ndarray, list[list[str]]]:
    """Return each post's most frequent tag, int64 (posts,), and the names of all its tags."""
    drawn = np.empty((len(topics), 3), np.int64)
    for topic in np.unique(topics):
        here = np.flatnonzero(topics == topic)
        picks = _draw(language.tag_in_topic[topic], 3 * len(here), rng)
        drawn[here] = language.tag_of_topic[topic][picks].reshape(-1, 3)
    # One tag half of the time, else up to three.
    drawn[:, 1] = np.where(rng.random(len(topics)) < 0.5, drawn[:, 1], drawn[:, 0])
    drawn[:, 2] = np.where(rng.random(len(topics)) < 0.3, drawn[:, 2], drawn[:, 1])
    lists = [list(dict.fromkeys(row)) for row in language.tag_names[drawn].tolist()]
    return drawn.min(axis=1), lists


def _texts(
    lengths: np.ndarray,
    topics: np.ndarray,
    tags: np.ndarray,
    mix: tuple[float, float, float],
    language: _Language,
    rng: np.random.Generator,
) -> list[list[str]]:
    """Return the tokens of texts of given lengths, topics and tags, all (texts,)."""
    text = np.repeat(np.arange(len(lengths)), lengths)
    total = len(text)
    words = _draw(language.words, total, rng)
    kind = rng.random(total)
    topical = np.flatnonzero((kind >= mix[0]) & (kind < mix[0] + mix[1]))
    words[topical] = language.topic_words[
        topics[text[topical]], rng.integers(_WORDS_PER_TOPIC, size=len(topical))
    ]
    informative = np.flatnonzero(kind >= mix[0] + mix[1])
    about = tags[text[informative]]
    wrong = rng.random(len(informative)) < _MISLEADING
    about[wrong] = rng.integers(len(language.tag_names), size=int(wrong.sum()))
    words[informative] = language.tag_words[
        about, rng.integers(_WORDS_PER_TAG, size=len(informative))
    ]
    names = language.word_names[words].tolist()
    ends = np.cumsum(lengths).tolist()
    return [names[end - length : end] for end, length in zip(ends, lengths.tolist(), strict=True)]
