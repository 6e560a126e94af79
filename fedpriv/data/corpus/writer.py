"""Write a prepared corpus from a stream of sentences, in memory that does not grow with it.

Sentences go to flat files as they come; `finish` groups them by user with a counting sort, counts
the words of each, and lets `Corpus.add_roster` make the views. Everything happens in a temporary
sibling of the target directory that is renamed at the very end.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from fedpriv.data.corpus import manifest as manifests
from fedpriv.data.corpus.corpus import Corpus
from fedpriv.data.corpus.rosters import RosterSpec
from fedpriv.data.corpus.vocabulary import most_counted
from fedpriv.data.files.places import keep_private, writing_to
from fedpriv.data.sentences.grouping import COLUMNS, group
from fedpriv.data.sentences.interning import Interner
from fedpriv.data.sentences.sequences import KINDS, PostKind
from fedpriv.data.sentences.store import ELSEWHERE, HELD_USERS, OWN

_BUFFER = 1 << 18  # numbers held for a file before they are written


@dataclass(frozen=True, slots=True, kw_only=True)
class Sentence:
    """One sentence of one user: the unit an example is made of.

    Attributes:
        user_id: the account the example belongs to.
        tokens: the sentence's tokens, in order; at least one.
        title_tokens: tokens of the title the post carries.
        tags: the post's tags, in any order; repeats count once.
        own_title: whether `user_id` wrote that title.
        title_user_id: who wrote it when somebody else did; None when that is not known.
        thread: key of the question that the post asks or answers; what shares it never stands on
            both sides of a split by thread. None takes the title and the tags.
        day: days from 1970 to when the thread was begun; None where that is not known.
        kind: of the post it stands in, "question" or "answer"; None where that is not known.
    """

    user_id: str
    tokens: Sequence[str]
    title_tokens: Sequence[str]
    tags: Sequence[str]
    own_title: bool = True
    title_user_id: str | None = None
    thread: str | None = None
    day: int | None = None
    kind: PostKind | None = None

    @property
    def thread_key(self) -> str:
        """The thread's key; of title and tags where the source names none."""
        if self.thread is not None:
            return self.thread
        return titled_thread(" ".join(self.title_tokens), " ".join(sorted(self.tags)))


def titled_thread(title: str, tags: str) -> str:
    """Return the key of a thread that has no id: a hash of its title and tags, 32 hex digits."""
    return hashlib.sha256(f"{title}\0{tags}".encode()).hexdigest()[:32]


class CorpusWriter:
    """Collects sentences and writes one prepared corpus directory, or nothing at all.

    Use it as a context manager; leaving the block without `finish`, or by an error, removes
    everything that was written:

        with CorpusWriter(directory, name="site", ...) as writer:
            for sentence in sentences:
                writer.add(sentence)
            corpus = writer.finish([RosterSpec(...)], default_roster="site-all")
    """

    def __init__(
        self,
        directory: Path | str,
        *,
        name: str,
        synthetic: bool,
        source: Mapping[str, object],
        licence: str,
        credit: str,
        own_text_only: bool = False,
        split_seed: int = 0,
        max_words: int = 10_000,
        max_tags: int = 500,
        held_users: Sequence[str] = (),
        knows_askers: bool = False,
    ) -> None:
        """Start a corpus.

        Args:
            directory: where it will be; must not exist yet, its parent is made.
            name: name of the corpus.
            synthetic: whether the text was made by a generator.
            source: JSON-able facts about where the data came from.
            licence: licence of the text.
            credit: whom to credit for it.
            own_text_only: drop titles that another account wrote.
            split_seed: seed of the 80/20 split of each user's examples.
            max_words: size of the vocabulary.
            max_tags: size of the tag list.
            held_users: whom the data's source holds out, for the split as-published.
            knows_askers: whether every sentence whose title is not its user's own names who asked;
                `title_user_id` None then says that no account did.

        Raises:
            ValueError: the directory exists, or a size is not positive.
        """
        if max_words < 1 or max_tags < 1:
            raise ValueError(f"max_words {max_words} and max_tags {max_tags} must be at least 1")
        self._target = Path(directory)
        if self._target.exists():
            raise ValueError(f"{directory} exists already; give another place, or remove it")
        self._about = {
            "name": name,
            "synthetic": synthetic,
            "source": dict(source),
            "licence": licence,
            "credit": credit,
            "own_text_only": own_text_only,
            "split_seed": split_seed,
            "max_words": max_words,
            "max_tags": max_tags,
            "knows_askers": knows_askers,
        }
        self._own_text_only = own_text_only
        self._held_users = sorted(held_users)
        self._dropped: Counter[str] = Counter()
        self._state = "new"

    def __enter__(self) -> CorpusWriter:
        self._target.parent.mkdir(parents=True, exist_ok=True)
        prefix = f".{self._target.name}.partial-"
        self._partial = Path(tempfile.mkdtemp(prefix=prefix, dir=self._target.parent))
        self._raw = self._partial / "raw"
        self._raw.mkdir()
        self._buffers = {column: array("i") for column in COLUMNS}
        self._files = {column: (self._raw / column).open("xb") for column in COLUMNS}
        if not self._own_text_only:  # titles that somebody else wrote are kept nowhere then
            self._files["titles"] = (self._raw / "titles").open("xb")
        self._interners = {
            kind: Interner(self._raw / f"{kind}.sqlite")
            for kind in ("users", "title_users", "threads", "words", "tags")
        }
        self._state = "open"
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with writing_to(self._target):
            try:
                self._close()
                if error is not None:
                    raise error
            finally:
                shutil.rmtree(self._partial, ignore_errors=True)

    def add(self, sentence: Sentence) -> None:
        """Append one sentence; users may come in any order, one user's sentences keep theirs.

        Raises:
            ValueError: no token, or a token, tag or id that holds a line break.
        """
        if not sentence.tokens:
            raise ValueError(f"user {sentence.user_id!r} has a sentence without tokens; skip it")
        foreign = bool(sentence.title_tokens) and not sentence.own_title
        title = () if foreign and self._own_text_only else sentence.title_tokens
        buffers, interners = self._buffers, self._interners
        buffers["users"].append(interners["users"].number(sentence.user_id))
        buffers["words"].extend(interners["words"].numbers(sentence.tokens))
        buffers["words"].extend(interners["words"].numbers(title))
        tags = interners["tags"].numbers(sentence.tags)
        buffers["tags"].extend(tags)
        buffers["num_tags"].append(len(tags))
        num_tokens = len(sentence.tokens) + len(title)
        buffers["num_tokens"].append(num_tokens)
        buffers["num_sentence_tokens"].append(len(sentence.tokens))
        buffers["kinds"].append(KINDS.index(sentence.kind))
        buffers["num_own_tokens"].append(len(sentence.tokens) if foreign else num_tokens)
        buffers["title_users"].append(self._title_user(sentence, foreign and bool(title)))
        buffers["askers"].append(self._title_user(sentence, not sentence.own_title))
        buffers["threads"].append(self._thread(sentence))
        buffers["days"].append(-1 if sentence.day is None else sentence.day)
        if len(buffers["words"]) >= _BUFFER:
            self._flush()

    def drop(self, reason: str, number: int = 1) -> None:
        """Count records that the importer left out, by reason, for the manifest."""
        self._dropped[reason] += number

    def finish(
        self,
        rosters: Sequence[RosterSpec],
        default_roster: str,
        published_word_counts: Mapping[str, int] | None = None,
        published_tag_counts: Mapping[str, int] | None = None,
    ) -> Corpus:
        """Group by user, make the rosters' views, move into place and open.

        Args:
            rosters: the rosters to make; one marked optional is noted and left out where the
                corpus is too small for it.
            default_roster: name of the roster used when none is asked for.
            published_word_counts: counts that replace public users' choice of the vocabulary,
                as TFF publishes them; they include rostered users, and the manifest says so.
            published_tag_counts: likewise for tags; give both or neither.

        Raises:
            ValueError: no sentence, a roster that cannot be made, no default roster.
        """
        if self._state != "open":
            raise ValueError("finish is called once, inside the writer's `with` block")
        if (published_word_counts is None) != (published_tag_counts is None):
            raise ValueError("give published counts of both words and tags, or of neither")
        self._flush()
        for file in self._files.values():
            file.close()
        totals = group(self._raw, self._partial, self._interners)
        self._close()
        shutil.rmtree(self._raw)
        if published_word_counts is not None and published_tag_counts is not None:
            self._publish(published_word_counts, published_tag_counts)
        if self._held_users:
            (self._partial / HELD_USERS).write_text(json.dumps(self._held_users), "utf-8")
        corpus = self._with_rosters(rosters, totals, default_roster)
        keep_private(self._partial)
        try:
            self._partial.rename(self._target)
        except OSError as error:
            raise ValueError(f"{self._target} appeared while it was being written") from error
        return Corpus.open(corpus.directory)

    def _with_rosters(
        self, specs: Sequence[RosterSpec], totals: dict[str, int], default_roster: str
    ) -> Corpus:
        first = {
            **self._about,
            "totals": totals,
            "dropped": dict(sorted(self._dropped.items())),
            "rosters": {},
            "rosters_left_out": {},
            "default_roster": default_roster,
            "files": manifests.describe_files(self._partial, self._partial),
            "version": manifests.VERSION,
        }
        corpus = Corpus(self._partial, first)
        for spec in specs:
            try:
                corpus.add_roster(spec)
            except ValueError as error:
                if not spec.optional:
                    raise
                left_out = {**corpus.manifest["rosters_left_out"], spec.name: str(error)}
                corpus.manifest = {**corpus.manifest, "rosters_left_out": left_out}
        if default_roster not in corpus.rosters:
            raise ValueError(
                f"default roster {default_roster!r} is not among those made: {corpus.rosters}"
            )
        manifests.write(self._partial, corpus.manifest)
        return Corpus(self._target, corpus.manifest)

    def _publish(self, words: Mapping[str, int], tags: Mapping[str, int]) -> None:
        content = {
            "words": most_counted(words, self._about["max_words"]),
            "tags": most_counted(tags, self._about["max_tags"]),
        }
        (self._partial / "published.json").write_text(json.dumps(content), "utf-8")

    def _thread(self, sentence: Sentence) -> int:
        """Return the thread's number; a thread has the title that its first sentence has."""
        threads = self._interners["threads"]
        new = len(threads)
        number = threads.number(sentence.thread_key)
        if number == new and "titles" in self._files:
            self._files["titles"].write(" ".join(sentence.title_tokens).encode() + b"\n")
        return number

    def _title_user(self, sentence: Sentence, foreign: bool) -> int:
        if not foreign:
            return OWN
        author = sentence.title_user_id
        return ELSEWHERE if author is None else self._interners["title_users"].number(author)

    def _flush(self) -> None:
        for column, buffer in self._buffers.items():
            buffer.tofile(self._files[column])
            del buffer[:]

    def _close(self) -> None:
        for file in self._files.values():
            file.close()
        for interner in self._interners.values():
            interner.close()
        self._state = "closed"
