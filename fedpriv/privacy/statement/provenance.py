"""What a statement says about where a run's data, words and side information came from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedpriv.privacy.plans.adaptive import AnyPlan
from fedpriv.privacy.statement.before import is_from_file, trained_before
from fedpriv.privacy.statement.coverage import as_object, private_knowledge, private_start
from fedpriv.privacy.statement.wording import percent
from fedpriv.privacy.unit_words import words_of

SHARE_DROPPED = "share_dropped_for_owners"
"""Under what name a corpus says how much was left out, where all owners of an example count."""

_TITLES = (
    ("Vocabulary", "words"),
    ("Tag list", "tags"),
    ("Word counts", "word_counts"),
    ("Weights of words", "word_weights"),
)


def words_of_others(corpus: Mapping[str, Any]) -> list[str]:
    """Return how much of examples other accounts wrote, as paragraphs."""
    provenance = as_object(corpus.get("provenance"))
    share = provenance.get("foreign_text_share")
    others = provenance.get("foreign_text_share_by_rostered_users")
    if provenance.get("owners") == "all":
        return _of_all_owners(provenance)
    if provenance.get("own_text_only"):
        return [
            "Titles written by other accounts were dropped (own text only): an example holds "
            "words of its own account, and a label that follows the post's tags."
        ]
    if not _may_be_foreign(provenance):
        return []
    text = (
        "An answer's example carries the title and tags of the question it answers, written "
        "by somebody else: "
    )
    if isinstance(share, (int, float)):
        text += f"{percent(share)} of the rostered users' examples do"
    else:
        text += "how many do is counted on rostered users, and a secure run keeps no such figure"
    if isinstance(others, (int, float)):
        text += f", and for {percent(others)} that somebody is another rostered user"
    return [
        text + ".",
        "The promise is about an account's examples. It does not cover a person's words inside "
        "other accounts' examples; preparing the corpus with --own-text-only drops them. Without "
        "an account, others' answers to its questions would have neither title nor tags: those "
        "examples do change.",
    ]


def _of_all_owners(provenance: Mapping[str, Any]) -> list[str]:
    """Return how little another owner's words move, as paragraphs, where all owners count."""
    most, share = provenance.get("examples_per_owner"), provenance.get(SHARE_DROPPED)
    left_out = f"{percent(share)}" if isinstance(share, (int, float)) else "an unknown share"
    if most is None:
        bounded = (
            "Training examples whose title and tags another rostered user wrote were dropped "
            f"whole, {left_out} of the rostered users' training sentences. Each example that is "
            "left has one rostered owner: blanking all that a person wrote, its titles, tags and "
            "sentences wherever they stand, changes that user's update and no other."
        )
    else:
        bounded = (
            f"No owner has more than {most:,} training examples: {left_out} of the rostered users' "
            "training sentences were left out, greedily in the order of a hash of their ids. "
            "Blanking all examples that a person owns, whether it wrote the sentence or asked the "
            "question, changes those and no other."
        )
    return [
        "An answer's example carries the title and tags of the question it answers, written by "
        f"somebody else, who owns it too. {bounded}",
        "The graph is taken to be fixed and public: which account wrote how many sentences in "
        "which thread, and which account asked it. ε does not cover it, and the share above is "
        "computed from it alone. Accounts whose words are blanked stay on the roster.",
    ]


def _may_be_foreign(provenance: Mapping[str, Any]) -> bool:
    """Return whether examples may hold others' titles: a secure run does not keep how many do."""
    share = provenance.get("foreign_text_share")
    if share is None:
        return provenance.get("own_text_only") is False
    return isinstance(share, (int, float)) and share > 0


def started_from(
    options: Mapping[str, Any] | None, start: Mapping[str, Any] | None = None
) -> list[str]:
    """Return what training started from besides the task's own params, as paragraphs."""
    options = as_object(options)
    if private_start(options):
        return [
            "Start: training goes on from a model that learnt from all posts of users outside the "
            "roster. Titles and tags in them that rostered users wrote were not public, and ε does "
            "not cover them."
        ]
    if options.get("start") == "public":
        return ["Start: training goes on from a model that learnt from public examples."]
    if is_from_file(start, options):
        if trained_before(start) is not None:
            return [
                "Start: training goes on from a model that another run released; what that run "
                "cost its users is in the first lines, and not in this ε."
            ]
        return [
            "Start: training goes on from params in a file; what they were learnt from, this run "
            "cannot know. If rostered users' data went into them, what that cost comes on top of "
            "this ε."
        ]
    return []


def taken_as_public(
    plan: AnyPlan,
    corpus: Mapping[str, Any],
    side: Mapping[str, Any] | None,
    options: Mapping[str, Any] | None = None,
    start: Mapping[str, Any] | None = None,
) -> list[str]:
    """Return what was taken to be public, as paragraphs; what is known to be private is not."""
    provenance = as_object(corpus.get("provenance"))
    counted = "private" in str(provenance.get("word_counts_source", ""))
    text = [] if counted else _described(provenance)
    vocabulary = _vocabulary(provenance)
    if vocabulary.get("source") == "public":
        text.append(f"Vocabulary:{_num_words(vocabulary)} chosen by public examples.")
    counted_in = str(provenance.get("tag_users", ""))
    all_posts = "threads for training" not in counted_in
    if all_posts and text and provenance.get("tags") and _may_be_foreign(provenance):
        text.append(
            "An answer by a user outside the roster carries the tags its question was given, maybe "
            "by a rostered user; the order of the tags counts them as that answer's own."
        )
    if side is not None and side.get("source") != "private":
        text.append(f"Side information: {_description(side)}.")
    text += started_from(options, start)
    if frozen := sorted(as_object(corpus.get("frozen"))):
        text.append(
            f"Parameters that are not trained, and go out with the model as they were given: "
            f"{', '.join(frozen)}."
        )
    if not text:
        return []
    outside = corpus.get("num_public_users")
    named = "users outside the roster" if plan.unit == "user" else "public examples"
    counted = f"{outside:,}" if isinstance(outside, int) else outside
    who = f"the {counted} {named}" if outside else "whoever it came from"
    return [
        *text,
        f"That these were public beforehand is an assumption, not a result: {who} get "
        "no protection from this run.",
    ]


def known_of_protected(
    plan: AnyPlan, corpus: Mapping[str, Any], side: Mapping[str, Any] | None
) -> list[str]:
    """Return what the run knows of those whom its plan protects, as paragraphs."""
    found = private_knowledge(plan.unit, corpus, side)
    if not found:
        return []
    provenance = as_object(corpus.get("provenance"))
    text = [f"The run uses {'; '.join(found)}."]
    vocabulary = _vocabulary(provenance)
    if vocabulary.get("source") == "private":
        text.append(
            f"Vocabulary:{_num_words(vocabulary)} chosen by {words_of(plan.unit).protected}."
        )
    if "private" in str(provenance.get("word_counts_source", "")):
        text += [
            *_described(provenance),
            "Vocabulary and counts were taken from users that include rostered ones.",
        ]
    if side is not None and side.get("source") == "private":
        text.append(
            f"Side information: {_description(side)}. It was computed from "
            f"{words_of(plan.unit).protected}."
        )
    if plan.is_private:
        text.append(
            "What was taken is NOT covered by ε, and the figures above do not hold for a run that "
            "uses it."
        )
    return text


def _described(provenance: Mapping[str, Any]) -> list[str]:
    # A data set may count its words under the name under which a corpus describes them.
    return [
        f"{title}: {provenance[name].rstrip('.')}."
        for title, name in _TITLES
        if isinstance(provenance.get(name), str) and provenance[name]
    ]


def _vocabulary(provenance: Mapping[str, Any]) -> Mapping[str, Any]:
    return as_object(as_object(provenance.get("features")).get("vocabulary"))


def _num_words(vocabulary: Mapping[str, Any]) -> str:
    count = vocabulary.get("words")
    return f" {count:,} words" if isinstance(count, int) else " words"


def _description(side: Mapping[str, Any]) -> str:
    return str(side.get("description", "unknown")).rstrip(".")
