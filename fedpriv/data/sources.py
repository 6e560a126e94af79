"""The public files that `fedpriv data fetch` knows: where they are, and what is known of them.

All addresses are in this one table. TensorFlow Federated has no package of its data sets on PyPI
(there is none called tensorflow-federated-datasets): it publishes these files in a storage bucket.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

_BUCKET = "https://storage.googleapis.com/tff-datasets-public/"
_ONSTARTUPS = (
    "https://raw.githubusercontent.com/collapsed-stacks/onstartups/"
    "240fea96a6a543e3e9cf557dcfe08bb74f829622/data/main/"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One file that can be fetched.

    Attributes:
        file_name: Its name, here and at the end of its address.
        folder_url: Its address up to the name.
        checksum: "sha256:..." of the file, "git-blob:..." for the object id under which git keeps
            it, or "" where nothing is known beforehand.
        starts_with: Bytes it begins with; a web page with an error message does not.
    """

    file_name: str
    folder_url: str
    checksum: str = ""
    starts_with: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset:
    """What is fetched under one name.

    Attributes:
        files: The files; the first is the one to import.
        about: What it is.
        licence: Its licence.
        note: What is known of its checksum.
    """

    files: tuple[Source, ...]
    about: str
    licence: str
    note: str


_UNKNOWN = "TFF publishes no checksum of it; the SHA-256 of the first download is kept and compared"

DATASETS: Mapping[str, Dataset] = MappingProxyType(
    {
        "stackoverflow": Dataset(
            files=(
                Source(file_name="stackoverflow.sqlite.lzma", folder_url=_BUCKET),
                Source(
                    file_name="stackoverflow.word_count.tar.bz2",
                    folder_url=_BUCKET,
                    checksum="sha256:1dc00256d6e527c54b9756d968118378ae14e6692c0b3b6cad470cdd3f0c519c",
                    starts_with=b"BZh",
                ),
                Source(
                    file_name="stackoverflow.tag_count.tar.bz2",
                    folder_url=_BUCKET,
                    checksum="sha256:6fe281cec490d9384a290d560072438e7e2b377bbb823876ce7bd6f82696772d",
                    starts_with=b"BZh",
                ),
            ),
            about="Stack Overflow sentences by user, with published word and tag counts (TFF)",
            licence="CC BY-SA 3.0",
            note=f"word and tag counts: TFF's SHA-256; the database: {_UNKNOWN}",
        ),
        "emnist": Dataset(
            files=(Source(file_name="emnist_all.sqlite.lzma", folder_url=_BUCKET),),
            about="handwritten characters by writer (TFF, from LEAF)",
            licence="as EMNIST (NIST Special Database 19) and LEAF",
            note=_UNKNOWN,
        ),
        "cifar100": Dataset(
            files=(Source(file_name="cifar100.sqlite.lzma", folder_url=_BUCKET),),
            about="CIFAR-100 parted among 500 + 100 artificial users (TFF)",
            licence="as CIFAR-100",
            note=_UNKNOWN,
        ),
        "shakespeare": Dataset(
            files=(
                Source(
                    file_name="shakespeare.sqlite.lzma",
                    folder_url=_BUCKET,
                    checksum="sha256:d3d11fceb9e105439ac6f4d52af6efafed5a2a1e1eb24c5bd2dd54ced242f5c4",
                ),
            ),
            about="the plays' lines by character (TFF, from LEAF)",
            licence="public domain text; preparation Apache-2.0",
            note="SHA-256 as the tests of the fedjax project have it",
        ),
        "onstartups": Dataset(
            files=(
                Source(
                    file_name="posts.xml",
                    folder_url=_ONSTARTUPS,
                    checksum="git-blob:a8e30e3205d568dd46b77bb83f0532fad6a20718",
                ),
            ),
            about="all posts of Answers on Startups, 2009-2013 (Stack Exchange dump)",
            licence="CC BY-SA 3.0",
            note="the object id of the file in that commit of collapsed-stacks/onstartups",
        ),
    }
)
