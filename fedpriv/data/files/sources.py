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
class Fetchable:
    """What is fetched under one name.

    Attributes:
        files: The files; of a corpus the first is the one to import.
        about: What it is.
        licence: Its licence.
        note: What is known of its checksum.
    """

    files: tuple[Source, ...]
    about: str
    licence: str
    note: str


_MNIST = "https://storage.googleapis.com/cvdf-datasets/mnist/"

_UNKNOWN = "TFF publishes no checksum of it; the SHA-256 of the first download is kept and compared"

DATASETS: Mapping[str, Fetchable] = MappingProxyType(
    {
        "stackoverflow": Fetchable(
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
        "emnist": Fetchable(
            files=(Source(file_name="emnist_all.sqlite.lzma", folder_url=_BUCKET),),
            about="handwritten characters by writer (TFF, from LEAF)",
            licence="as EMNIST (NIST Special Database 19) and LEAF",
            note=_UNKNOWN,
        ),
        "cifar100": Fetchable(
            files=(Source(file_name="cifar100.sqlite.lzma", folder_url=_BUCKET),),
            about="CIFAR-100 parted among 500 + 100 artificial users (TFF)",
            licence="as CIFAR-100",
            note=_UNKNOWN,
        ),
        "shakespeare": Fetchable(
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
        "onstartups": Fetchable(
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
        "imdb": Fetchable(
            files=(
                Source(
                    file_name="aclImdb_v1.tar.gz",
                    folder_url="https://ai.stanford.edu/~amaas/data/sentiment/",
                    checksum="sha256:c40f74a18d3b61f90feba1e17730e0d38e8b97c05fde7008942e91923d1658fe",
                    starts_with=b"\x1f\x8b",
                ),
            ),
            about="50,000 labelled film reviews (Maas et al. 2011)",
            licence="research use",
            note="SHA-256 as several projects that fetch it have it",
        ),
        "mnist": Fetchable(
            files=(
                Source(
                    file_name="train-images-idx3-ubyte.gz",
                    folder_url=_MNIST,
                    checksum="sha256:440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
                    starts_with=b"\x1f\x8b",
                ),
                Source(
                    file_name="train-labels-idx1-ubyte.gz",
                    folder_url=_MNIST,
                    checksum="sha256:3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
                    starts_with=b"\x1f\x8b",
                ),
                Source(
                    file_name="t10k-images-idx3-ubyte.gz",
                    folder_url=_MNIST,
                    checksum="sha256:8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
                    starts_with=b"\x1f\x8b",
                ),
                Source(
                    file_name="t10k-labels-idx1-ubyte.gz",
                    folder_url=_MNIST,
                    checksum="sha256:f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
                    starts_with=b"\x1f\x8b",
                ),
            ),
            about="70,000 handwritten digits (LeCun et al.)",
            licence="CC BY-SA 3.0",
            note="SHA-256 as several projects that fetch them have it",
        ),
        "cifar10": Fetchable(
            files=(
                Source(
                    file_name="cifar-10-binary.tar.gz",
                    folder_url="https://www.cs.toronto.edu/~kriz/",
                    checksum="sha256:c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
                    starts_with=b"\x1f\x8b",
                ),
            ),
            about="60,000 small photographs of ten classes (Krizhevsky 2009)",
            licence="none stated",
            note="SHA-256 as several projects that fetch it have it",
        ),
        "sst2": Fetchable(
            files=(
                Source(
                    file_name="SST-2.zip",
                    folder_url="https://dl.fbaipublicfiles.com/glue/data/",
                    checksum="sha256:d67e16fb55739c1b32cdce9877596db1c127dc322d93c082281f64057c16deaa",
                    starts_with=b"PK",
                ),
            ),
            about="69,000 sentences of film reviews, good or bad (SST-2, GLUE)",
            licence="as GLUE",
            note="SHA-256 as several projects that fetch it have it",
        ),
    }
)
