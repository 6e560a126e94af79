"""TFF's files name no question: a thread there is what has one title and one list of tags."""

import hashlib

import pytest

from fedpriv.datasets.importers.stackoverflow import import_stackoverflow
from fedpriv.datasets.importers.writer import titled_thread
from fedpriv.datasets.stackexchange.sentence_store import SentenceStore

QUESTIONS = [(f"how to do {n % 9}", f"tag{n % 3}|tag{n % 5}") for n in range(100)]


@pytest.fixture
def file(tmp_path, tff_writer):
    """40 users: question n is asked by one of them and answered by three others."""

    def blob(n, kind):
        return tff_writer.stackoverflow_example(f"w{n} is w{n % 7}", *QUESTIONS[n], type=kind)

    clients = {f"{user:02d}": [] for user in range(40)}
    for n in range(100):
        for step, kind in ((0, "question"), (7, "answer"), (19, "answer"), (23, "answer")):
            clients[f"{(n + step) % 40:02d}"].append(blob(n, kind))
    return tff_writer.write(tmp_path / "so.sqlite", clients)


def test_the_key_is_a_hash_of_title_and_tags(file, tmp_path):
    corpus = import_stackoverflow(file, tmp_path / "c", num_users=30)
    # Worked out apart: SHA-256 of title, a zero byte and tags, the first 32 digits.
    assert titled_thread("how to do 0", "tag0|tag0") == "a107e71f83aefd467c2b9d23b0323ec8"
    expected = {
        hashlib.sha256(f"{title}\0{tags}".encode()).hexdigest()[:32] for title, tags in QUESTIONS
    }
    assert list(SentenceStore(corpus.directory).thread_keys()) == sorted(expected)
    assert len(expected) < len(QUESTIONS)  # asked twice in the same words: one thread
