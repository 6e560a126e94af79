"""Tasks on a Stack Exchange corpus: tag prediction and next-word prediction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from fedpriv.checkpoints.aggregates import RULES
from fedpriv.datasets.stackexchange.splits import Kind, Measured, Owners, PublicText, Split
from fedpriv.experiments.options import check_effect
from fedpriv.parts import NonNegativeFloat, NonNegativeInt, Part, PositiveFloat, PositiveInt
from fedpriv.tasks.task import PART

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np

    from fedpriv.datasets.stackexchange.corpus import Corpus
    from fedpriv.datasets.stackexchange.embeddings import EncodedTexts
    from fedpriv.datasets.stackexchange.tag_view import TagView
    from fedpriv.tasks.next_words import NextWords
    from fedpriv.tasks.tag_prediction import TagPrediction


class MissingCorpusError(ValueError):
    """A task needs a corpus and none was named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TagPredictionTask(Part):
    """Makes the tag-prediction task of a corpus, seen through a roster.

    Attributes:
        roster: A roster of the corpus; none for the corpus's own.
        users: Only the roster's first so many users, for quick trials.
        inputs: How a sentence's words are weighted; tf-idf by their rarity in public text.
        tf_idf_power: Inputs tf-idf: exponent of the inverse document frequency.
        pairs: Rows of the model that pairs of a sentence's words are hashed into; not with inputs
            tff.
        pair_weight: Weight of a pair, times the geometric mean of its words' values.
        split: What is held out: whole threads; by-sentence as AdaDPS's code did, threads in common.
        fold: Which fifth of the threads is for testing, 0 to 4.
        measured_on: validation holds threads out of training too, and measures on those: for
            tuning.
        public_users: How many users outside the roster count as public; none for all.
        public_text: What public models learn from; all-posts has rostered users' titles and tags.
        owners: Whose words the unit is: all drops training examples another rostered user asked.
        select: What a run returns: the last released model (its aggregate, where there is one), or
            one selected on public examples, of those and of models that public examples alone make.
    """

    roster: str | None = None
    users: PositiveInt | None = None
    inputs: Literal["tff", "unit-norm", "tf-idf"] = "tff"
    tf_idf_power: NonNegativeFloat = 0.5
    pairs: NonNegativeInt = 0
    pair_weight: PositiveFloat = 0.25
    split: Kind = "by-thread"
    fold: NonNegativeInt = 0
    measured_on: Measured = "test"
    public_users: NonNegativeInt | None = None
    public_text: PublicText = "public-threads"

    owners: Owners = "account"
    select: Literal["last", "public"] = "last"

    def check(self) -> None:
        """Refuse options without an effect."""
        check_effect(self, "tf_idf_power", "inputs", "tf-idf")
        check_effect(self, "pair_weight", "pairs")

    def __call__(self, experiment: object, corpus: Corpus | None) -> TagPrediction:
        """Return the task.

        Raises:
            MissingCorpusError: If there is no corpus.
            ValueError: If it has no such roster or so few users, or several models would answer
                together where one is to be selected.
        """
        from fedpriv.tasks.tag_prediction import TagPrediction

        if corpus is None:
            raise MissingCorpusError(
                "tag prediction needs a corpus; give the path of one, or see `fedpriv data list`"
            )
        aggregate = getattr(getattr(experiment, "aggregate", None), "kind", None)
        if self.select == "public" and aggregate in RULES:
            raise ValueError(
                f"aggregate {aggregate!r} answers with several models, and select 'public' returns "
                "one; set select last, or aggregate to none, ema or upa"
            )
        split = Split(
            kind=self.split,
            fold=self.fold,
            measured_on=self.measured_on,
            public_users=self.public_users,
            owners=self.owners,
            # All posts have rostered users' titles and tags: what they teach may not be returned
            # as made of public examples. By sentence users train on the threads that would judge.
            selecting=self.select == "public"
            and self.split != "by-sentence"
            and self.public_text != "all-posts",
        )

        view = corpus.view(roster=self.roster, users=self.users, split=split)
        encoded, weights = self.encoded(corpus, view)

        def choosing() -> TagView:
            return corpus.view(roster=self.roster, users=self.users, split=split.choosing())

        return TagPrediction(
            view,
            inputs=self.inputs,
            tf_idf_power=self.tf_idf_power,
            pairs=self.pairs,
            pair_weight=self.pair_weight,
            encoded=encoded,
            choosing=None if split.shares_threads else choosing,
            public_text=self.public_text,
            data_sha256=lambda: {**_known(corpus), **weights},
        )

    def encoded(
        self, corpus: Corpus, view: TagView
    ) -> tuple[EncodedTexts | None, Mapping[str, str]]:
        """Return dense rows of a corpus's texts, and a digest by name; words need neither."""
        return None, {}


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedTagPredictionTask(TagPredictionTask):
    """Tag prediction on rows of a pretrained encoder, which `fedpriv encoder embed` made.

    Softmax regression as of `TagPredictionTask`, on unit-norm rows of each example's texts. What is
    asked of words (weights, pairs) is asked of none here, and refused.

    Attributes:
        encoder: Its id, of `fedpriv encoder add`, or a folder with its files.
        encoder_texts: What of an example is encoded; both side by side.
    """

    encoder: str | None = None
    encoder_texts: Literal["both", "sentence", "title"] = "title"

    def encoded(
        self, corpus: Corpus, view: TagView
    ) -> tuple[EncodedTexts | None, Mapping[str, str]]:
        """Return the rows that were made, and the digest of the encoder's files.

        Raises:
            ValueError: If no encoder is named, it is not here, rows are missing, words are to be
                weighted or paired, or its components are of another roster's public users.
        """
        from fedpriv.datasets.encoders import Encoder, find_encoder
        from fedpriv.datasets.stackexchange.embeddings import EncodedTexts, open_embeddings
        from fedpriv.datasets.stackexchange.sentence_store import TEXTS

        if self.inputs != "tff" or self.pairs:
            raise ValueError(
                f"inputs {self.inputs!r}, pairs {self.pairs}: an encoder's rows have neither "
                "weights nor pairs of words; leave both out"
            )
        if self.encoder is None:
            raise ValueError(
                "encoder none: set task.encoder to an encoder's id, which `fedpriv encoder add "
                "PATH` prints"
            )
        files = find_encoder(self.encoder)
        if corpus.is_part and files.id != self.encoder:
            raise ValueError(
                f"encoder {self.encoder!r} is a folder, of which each machine may have another; on "
                f"parts of a corpus give its id, {files.id} here, which is of its contents"
            )
        encoder = Encoder(files)
        own = self.roster or corpus.default_roster
        for note in encoder.made_from:
            if note.get("roster_sha256") != corpus.whole_roster_sha256(own):
                raise ValueError(
                    f"encoder {files.id} has components of titles by users outside roster "
                    f"{note.get('roster')!r:.80} of corpus {note.get('corpus')!r:.80}, of whom "
                    f"some may be on roster {own!r} here; make one for it by `fedpriv encoder "
                    f"reduce --roster {own}`"
                )
        texts = TEXTS if self.encoder_texts == "both" else (self.encoder_texts,)
        rows = open_embeddings(corpus, encoder, texts)
        return EncodedTexts(embeddings=rows), {"encoder": files.sha256}


@dataclass(frozen=True, slots=True, kw_only=True)
class NextWordsTask(Part):
    """Next-word prediction on a corpus, seen through a roster.

    Attributes:
        roster: A roster of the corpus; none for the corpus's own.
        users: Only the roster's first so many users, for quick trials.
        model: reduced: 2,000 words, 96 units, 158,532 parameters; full: 10,000, 670 and 4,050,748.
        vocabulary: Words of the model at most; none for the model's own.
        sequence_length: Words of a sentence that are looked at.
        measured_sentences: Held-out sentences measured at most, evenly spread; none for all.
        word_gain: Side information own: what rows of rarer words are multiplied by.
        word_top: Side information own: how many of the commonest words are left alone.
        shift: Rounds have questions' sentences and answers' in turn: by halves or mixed.
        shift_period: Rounds of a period of the shift.
        split: What is held out: whole threads; by-sentence keeps threads in common.
        fold: Which fifth of the threads is for testing, 0 to 4.
        measured_on: validation holds threads out of training too, and measures on those: for
            tuning.
        public_users: How many users outside the roster count as public; none for all.
    """

    roster: str | None = None
    users: PositiveInt | None = None
    model: Literal["reduced", "full"] = "reduced"
    vocabulary: PositiveInt | None = None
    sequence_length: PositiveInt = 20
    measured_sentences: PositiveInt | None = 10_000
    word_gain: PositiveFloat = 10.0
    word_top: NonNegativeInt = 100
    shift: Literal["none", "blocks", "smooth"] = "none"
    shift_period: PositiveInt = 20
    split: Kind = "by-thread"
    fold: NonNegativeInt = 0
    measured_on: Measured = "test"
    public_users: NonNegativeInt | None = None

    def check(self) -> None:
        """Refuse options without an effect."""
        check_effect(self, "shift_period", "shift", "blocks", "smooth")

    def __call__(self, experiment: object, corpus: Corpus | None) -> NextWords:
        """Return the task.

        Raises:
            MissingCorpusError: If there is no corpus.
            ValueError: If it has no such roster, so few users, or does not keep the order of words.
        """
        from dataclasses import replace

        from fedpriv.datasets.stackexchange.word_view import open_word_view
        from fedpriv.mechanisms.side_information import rank_multiplier
        from fedpriv.tasks.next_words import SIZES, NextWords
        from fedpriv.training.periodic_shift import Shift

        place: Any = getattr(experiment, "precondition", None)
        side = getattr(getattr(place, "side_information", None), "kind", None)
        if side != "own" and (self.word_gain, self.word_top) != (10.0, 100):
            raise ValueError(
                f"word-gain {self.word_gain:g} and word-top {self.word_top} have no effect without "
                "side information of the task: set precondition and side-information own, or leave "
                "them at 10 and 100"
            )
        if corpus is None:
            raise MissingCorpusError(
                "next-word prediction needs a corpus; give the path of one, or see `fedpriv data "
                "list`"
            )
        split = Split(
            kind=self.split,
            fold=self.fold,
            measured_on=self.measured_on,
            public_users=self.public_users,
        )
        size = SIZES[self.model]

        def multipliers(num_words: int) -> np.ndarray:
            top = min(self.word_top, num_words)
            return rank_multiplier(num_words, top=top, gain=self.word_gain)

        return NextWords(
            open_word_view(corpus, self.roster, self.users, split),
            size=size if self.vocabulary is None else replace(size, num_words=self.vocabulary),
            length=self.sequence_length,
            measured=self.measured_sentences,
            multipliers=multipliers,
            shift=None
            if self.shift == "none"
            else Shift(kind=self.shift, period=self.shift_period),
            data_sha256=lambda: _known(corpus),
        )


def _known(corpus: Corpus) -> dict[str, str]:
    """Return the digest of a corpus; that of a part does not tell what nodes have."""
    return {PART if corpus.is_part else "prepared": corpus.content_sha256}
