"""Pretrained text encoders: a folder of files, checked, and one float32 row for each text.

An encoder is read from files on disk alone: safetensors for the weights, never a pickled file, and
nothing is downloaded. `add_encoder` copies one into the cache under an id that ends in the digest
of its files, by which runs name it.

A text's row depends on that text and on the encoder's files alone: each text is run by itself, on
one thread, so that no other text changes a bit of it. Embedding users' texts costs no privacy.

Needs the extra `fedpriv[pretrained]`.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import tempfile
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property, partial
from importlib.metadata import version
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn

import numpy as np

from fedpriv.datasets.cache import cache_dir, new_folder, remembered_sha256
from fedpriv.hashes import Progress, document_sha256
from fedpriv.libraries import need, one_thread

if TYPE_CHECKING:
    import torch

    from fedpriv.models.pretrained import Pooling

WEIGHTS, CONFIG, TOKENIZER = "model.safetensors", "config.json", "tokenizer.json"
_NEEDED = (CONFIG, WEIGHTS, TOKENIZER)
_LENGTHS, _POOLING = "sentence_bert_config.json", "1_Pooling/config.json"
_OPTIONAL = ("modules.json", _LENGTHS, _POOLING)
# Read for the length of texts alone, where no other file states it.
_TOKENIZER_SETTINGS = "tokenizer_config.json"
# Read when an encoder is added, to refuse settings under which the library gives other rows.
_LIBRARY_SETTINGS = "config_sentence_transformers.json"
# Folder of a Dense module, as sentence-transformers names it.
_DENSE = re.compile(r"[0-9]{1,3}_Dense")
CHUNK = 512
"""Texts that a process encodes at once."""
# Tokens of a text at most: special ones before and behind, and one of its own.
_LEAST = 3
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,46}")
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,46}-[0-9a-f]{16}")
_MOST_TRIED = 512  # tokens of the text that is tried when an encoder is added
# Settings of config.json that choose code, change numbers or name another file of weights.
_REFUSED = (
    "auto_map",
    "quantization_config",
    "_attn_implementation",
    "attn_implementation",
    "transformers_weights",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderFiles:
    """A folder with an encoder's files, not loaded.

    Attributes:
        name: What it is called.
        folder: Where the files are.
        sha256: Digest of all files that decide a row.
        weights_sha256: SHA-256 of `model.safetensors`, as its publisher may print it.
    """

    name: str
    folder: Path
    sha256: str
    weights_sha256: str

    @property
    def id(self) -> str:
        """The name and the beginning of the digest: what runs call it by."""
        return f"{self.name}-{self.sha256[:16]}"


def check_files(folder: Path, name: str, progress: Progress | None = None) -> EncoderFiles:
    """Return the files of an encoder's folder, all there and hashed.

    Args:
        folder: With `config.json`, `model.safetensors` and `tokenizer.json`; the files of
            sentence-transformers for modules, pooling and length (`modules.json`,
            `sentence_bert_config.json`, `1_Pooling/config.json`, folders of Dense modules, and
            `tokenizer_config.json` where no other file states the length) are read where they are.
        name: Letters, digits, dots, dashes and underscores.
        progress: Called with the bytes hashed so far, and with all.

    Raises:
        ValueError: If a file is missing, a module or a setting that changes rows is not read here,
            or the name cannot be one.
    """
    if not _NAME.fullmatch(name):
        raise ValueError(
            f"encoder name {name!r:.80}: give up to 47 letters, digits, dots, dashes or "
            "underscores (--name)"
        )
    if not folder.is_dir():
        raise ValueError(f"there is no folder {folder}; give one with {', '.join(_NEEDED)}")
    files = tuple(_files(folder))
    optional = (*_OPTIONAL, _TOKENIZER_SETTINGS)
    missing = [file for file in files if file not in optional and not (folder / file).is_file()]
    if missing:
        near = (p for file in missing for p in (folder / file).parent.glob("*"))
        pickled = sorted({p.name for p in near if p.suffix in (".bin", ".pt", ".pkl")})
        unread = (
            f"; {', '.join(pickled)}: pickled weights can run code when they are opened and are "
            "not read, so save the model as safetensors"
        )
        raise ValueError(f"{folder} has no {' and no '.join(missing)}{unread if pickled else ''}")
    _check_settings(folder)
    weights = remembered_sha256(folder / WEIGHTS, cache_dir(), progress)
    digests = {WEIGHTS: weights} | {
        file: remembered_sha256(folder / file, cache_dir())
        for file in files
        if file != WEIGHTS and (folder / file).is_file()
    }
    return EncoderFiles(
        name=name, folder=folder, sha256=document_sha256(digests), weights_sha256=weights
    )


def encoders_dir() -> Path:
    """Return the folder of the cache in which added encoders are."""
    return cache_dir() / "encoders"


def added_encoders() -> tuple[EncoderFiles, ...]:
    """Return the encoders of the cache, by id."""
    found = []
    for folder in sorted(p for p in encoders_dir().glob("*-*") if _ID.fullmatch(p.name)):
        with suppress(ValueError):  # damaged: `find_encoder` says so
            found.append(check_files(folder, folder.name.rpartition("-")[0]))
    return tuple(found)


def add_encoder(
    folder: Path,
    name: str | None = None,
    *,
    sha256: str | None = None,
    progress: Progress | None = None,
) -> EncoderFiles:
    """Copy an encoder into the cache and return it; one that is there already stays.

    Args:
        folder: As of `check_files`.
        name: Of the encoder; None for the folder's own.
        sha256: What the SHA-256 of `model.safetensors` must be; None for any.
        progress: As of `check_files`.

    Raises:
        ValueError: If the folder has no encoder, or the encoder cannot be loaded.
    """
    found = check_files(folder, name or _name_of(folder.name), progress)
    if sha256 is not None and found.weights_sha256 != sha256.lower():
        raise ValueError(
            f"{folder}: {WEIGHTS} has SHA-256 {found.weights_sha256}, not {sha256}; it is not "
            "the file that was asked for, and was not added"
        )
    encoder = Encoder(found)
    try:
        tried = min(encoder.max_tokens, _MOST_TRIED)
        encoder.encode(["", "a " * 2 * tried])  # else it is not added
    except ValueError:
        raise
    except Exception as error:  # of whatever numbers and names its files hold
        raise ValueError(
            f"{folder} has no usable encoder: it fails on a text ({_line(error)})"
        ) from None
    target = encoders_dir() / found.id
    if not target.is_dir():
        target.parent.mkdir(parents=True, exist_ok=True)
        with new_folder(target, complete=WEIGHTS) as unready:
            for file in _files(folder):
                if (folder / file).is_file():
                    (unready / file).parent.mkdir(exist_ok=True)
                    shutil.copyfile(folder / file, unready / file)
    return check_files(target, found.name)


def add_reduced(
    encoder: Encoder, matrix: np.ndarray, made_from: Mapping[str, Any], name: str | None = None
) -> EncoderFiles:
    """Add the encoder whose rows are another's times a matrix: a Dense module behind its own.

    Args:
        encoder: The other one.
        matrix: float32 `(k, width)`; an entry of a row is the product with one of its rows.
        made_from: What it was made of, JSON values; kept in `modules.json`, and so in the digest.
        name: Of the new encoder; None for the other's with k behind it.

    Raises:
        ValueError: As of `add_encoder`.
    """
    from safetensors.numpy import save_file

    source, (dimensions, width) = encoder.files.folder, matrix.shape
    modules = _json(source / "modules.json", []) or [_module("Transformer", "")]
    pooled = "Pooling" in encoder.modules or (source / _POOLING).is_file()
    if "Pooling" not in encoder.modules:
        modules.insert(1, _module("Pooling", "1_Pooling"))
    places = itertools.count(len(modules))
    own = next(f"{n}_Dense" for n in places if f"{n}_Dense" not in encoder.modules)
    modules.append(_module("Dense", own) | {"made_from": dict(made_from)})
    settings = {
        "in_features": width,
        "out_features": dimensions,
        "bias": False,
        "activation_function": "torch.nn.modules.linear.Identity",
    }
    encoders_dir().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=encoders_dir(), prefix=".reduced-") as made:
        folder = Path(made)
        for file in _files(source):
            if file != "modules.json" and (source / file).is_file():
                (folder / file).parent.mkdir(exist_ok=True)
                (folder / file).symlink_to((source / file).resolve())
        if not pooled:
            (folder / _POOLING).parent.mkdir()
            pooling = {"embedding_dimension": width, "pooling_mode": encoder.pooling}
            (folder / _POOLING).write_text(json.dumps(pooling, indent=2), "utf-8")
        (folder / own).mkdir()
        (folder / "modules.json").write_text(json.dumps(modules, indent=2), "utf-8")
        (folder / own / CONFIG).write_text(json.dumps(settings, indent=2), "utf-8")
        save_file({"linear.weight": np.ascontiguousarray(matrix)}, folder / own / WEIGHTS)
        return add_encoder(folder, name or f"{encoder.files.name[:42]}-{dimensions}")


def _module(kind: str, path: str) -> dict[str, Any]:
    return {"name": path or "0", "path": path, "type": f"sentence_transformers.models.{kind}"}


def find_encoder(given: str) -> EncoderFiles:
    """Return an encoder by the id under which it was added, or by the path of its folder.

    Raises:
        ValueError: If there is none, or its files are not those of the id.
    """
    target = encoders_dir() / given
    if _ID.fullmatch(given) and target.is_dir():
        found = check_files(target, given.rpartition("-")[0])
        if found.id != given:
            raise ValueError(
                f"encoder {given!r}: the files in {target} have changed; remove the folder and "
                "add the encoder again with `fedpriv encoder add`"
            )
        return found
    if Path(given).is_dir():
        return check_files(Path(given), _name_of(Path(given).name))
    known = ", ".join(e.id for e in added_encoders()) or "none"
    raise ValueError(
        f"encoder {given!r} is not on this machine; add it with `fedpriv encoder add FOLDER` "
        "(`make encoder` in a checkout fetches all-minilm-l6-v2), or give a folder (added here: "
        f"{known})"
    )


def _name_of(given: str) -> str:
    return re.sub(r"[^A-Za-z0-9.-]+", "-", given).strip("-.")[:47] or "encoder"


def _files(folder: Path) -> Iterator[str]:
    """Yield names of the files that decide rows."""
    yield from (*_NEEDED, *_OPTIONAL)
    if _stated_length(folder) is None:
        yield _TOKENIZER_SETTINGS
    for module in _modules(folder):
        if _DENSE.fullmatch(module):
            yield from (f"{module}/{CONFIG}", f"{module}/{WEIGHTS}")


def _stated_length(folder: Path) -> Any:
    """Return the length in sentence-transformers' own file; from version 5.4 on there is none."""
    return _json(folder / _LENGTHS, {}).get("max_seq_length")


def _check_settings(folder: Path) -> None:
    """Refuse settings under which sentence-transformers would give other rows than are made here.

    Raises:
        ValueError: With the file, the setting and what to do.
    """

    def refuse(file: str, setting: str, remedy: str) -> NoReturn:
        raise ValueError(
            f"{folder / file}: {setting} is not done here, and rows would differ from those of "
            f"sentence-transformers; {remedy}"
        )

    states = {"text": {"method": "forward", "method_output_name": "last_hidden_state"}}
    read: dict[str, tuple[Any, ...]] = {
        "do_lower_case": (False, None),
        "transformer_task": ("feature-extraction",),
        "module_output_name": ("token_embeddings",),
        "modality_config": (states,),
    }
    for key, value in _json(folder / _LENGTHS, {}).items():
        # The first is read elsewhere; the others change no row.
        if key in ("max_seq_length", "unpad_inputs", "query_length", "document_length"):
            continue
        allowed = read.get(key, (None, {}, []))
        if value not in allowed:
            remedy = f"{' or '.join(map(repr, allowed))} is read"
            refuse(_LENGTHS, f"{key} {value!r:.80}", remedy)
    tokens = _json(folder / _TOKENIZER_SETTINGS, {})
    if (side := tokens.get("truncation_side", "right")) != "right":
        refuse(_TOKENIZER_SETTINGS, f"truncation_side {side!r:.80}", "'right' is read")
    alike = {"do_lower_case": "lowercase", "strip_accents": "strip_accents"}
    stated = {key: tokens[key] for key in alike if key in tokens}
    normalizer = _json(folder / TOKENIZER, {}).get("normalizer") if stated else None
    if isinstance(normalizer, dict) and normalizer.get("type") == "BertNormalizer":
        for key, value in stated.items():
            if value != (other := normalizer.get(alike[key])):
                remedy = f"{TOKENIZER}, which decides, says {other!r:.80}; save both alike"
                refuse(_TOKENIZER_SETTINGS, f"{key} {value!r:.80}", remedy)
    whole = _json(folder / _LIBRARY_SETTINGS, {})
    prompts, name = whole.get("prompts"), whole.get("default_prompt_name")
    prompt = prompts.get(name) if isinstance(prompts, dict) and isinstance(name, str) else name
    if prompt:
        setting = f"default_prompt_name {name!r:.80} puts {prompt!r:.80} before every text, which"
        refuse(_LIBRARY_SETTINGS, setting, "set it to null and write the prompt in your texts")
    if (dimensions := whole.get("truncate_dim")) is not None:
        remedy = "set it to null; `fedpriv encoder reduce` makes shorter rows"
        refuse(_LIBRARY_SETTINGS, f"truncate_dim {dimensions!r:.80}", remedy)


def _modules(folder: Path) -> tuple[str, ...]:
    """Return the kinds of a folder's modules in order, a Dense one's folder in its place.

    Raises:
        ValueError: If `modules.json` lists a module that is not read here.
    """
    path = folder / "modules.json"
    listed = [one if isinstance(one, dict) else {"type": one} for one in _json(path, [])]
    kinds = [str(one.get("type")).rpartition(".")[2] for one in listed]
    if not _ORDER.fullmatch(" ".join(kinds)):
        raise ValueError(
            f"{path}: modules {', '.join(kinds):.80} are not read here; Transformer and Pooling, "
            "and behind them Normalize and Dense, are, in that order"
        )
    for one, kind in zip(listed, kinds, strict=True):
        place = {"Transformer": "", "Pooling": "1_Pooling"}.get(kind)
        if place is not None and one.get("path", place) != place:
            raise ValueError(
                f"{path}: the path {one.get('path')!r:.80} of {kind} is not read here; {place!r} is"
            )
        if kind == "Pooling" and "path" in one and not (folder / _POOLING).is_file():
            raise ValueError(f"{folder} has no {_POOLING}, which its modules.json names")
        if kind == "Dense" and not _DENSE.fullmatch(str(one.get("path"))):
            raise ValueError(
                f"{path}: the path {one.get('path')!r:.80} of a Dense module is not read here; "
                "name its folder by its place, such as 2_Dense"
            )
    found = tuple(
        one["path"] if kind == "Dense" else kind for one, kind in zip(listed, kinds, strict=True)
    )
    if twice := {one for one in found if _DENSE.fullmatch(one) and found.count(one) > 1}:
        raise ValueError(f"{path}: Dense module {min(twice)} is listed more than once")
    return found


@dataclass(frozen=True, eq=False)
class Encoder:
    """An encoder that is loaded when it is first used.

    Attributes:
        files: Its files.
    """

    files: EncoderFiles
    _tokenizers: dict[int, Any] = field(default_factory=dict, repr=False)

    @property
    def width(self) -> int:
        """Width of a row: of the last Dense module, or else of the model."""
        dense = [step.linear.out_features for step in self._steps if hasattr(step, "linear")]
        return [int(self.config.hidden_size), *dense][-1]

    @cached_property
    def max_tokens(self) -> int:
        """Largest number of tokens of a text that are read, special ones included.

        As `sentence_bert_config.json` says, or else `tokenizer_config.json`; without either, and
        at most, as many as the model has positions for.

        Raises:
            ValueError: If a file says no such number.
        """
        config, path = self.config, self.files.folder / _LENGTHS
        positions = int(getattr(config, "max_position_embeddings", 512))
        if config.model_type in _BEHIND_PADDING:
            positions -= int(config.pad_token_id) + 1
        stated, key = _stated_length(self.files.folder), "max_seq_length"
        if stated is None:
            path = self.files.folder / _TOKENIZER_SETTINGS
            settings = _json(path, {})
            key = "max_len" if "max_len" in settings else "model_max_length"
            stated = settings.get(key)
        if stated is None:
            return positions
        if type(stated) is not int or stated < _LEAST:
            raise ValueError(
                f"{path}: {key} {stated!r:.40} must be a whole number of at least {_LEAST}"
            )
        return min(positions, stated)

    @property
    def padding(self) -> int:
        """The token behind a text, which nothing looks at."""
        return int(getattr(self.config, "pad_token_id", None) or 0)

    @cached_property
    def pooling(self) -> Pooling:
        """Pooling of tokens' states to a text's row: of `1_Pooling/config.json`, or the mean."""
        said = _json(self.files.folder / _POOLING, {})
        modes: dict[str, Pooling] = {
            "pooling_mode_mean_tokens": "mean",
            "pooling_mode_cls_token": "cls",
            "pooling_mode_max_tokens": "max",
        }
        if not said:
            return "mean"
        # Since version 5.4 sentence-transformers names it; before that each had a key of its own.
        on: list[Any] = [
            modes.get(key, key)
            for key, value in said.items()
            if key.startswith("pooling_mode_") and value
        ]
        if "pooling_mode" in said:
            on = [said["pooling_mode"]]
        if len(on) != 1 or on[0] not in modes.values():
            raise ValueError(
                f"{self.files.folder}: pooling {', '.join(map(str, on)) or 'none':.80} is not "
                f"known; one of {', '.join(modes.values())} is"
            )
        return on[0]

    @cached_property
    def modules(self) -> tuple[str, ...]:
        """Modules of `modules.json` in order, a Dense one by its folder; none without the file.

        Raises:
            ValueError: If it lists a module that is not read here.
        """
        return _modules(self.files.folder)

    @property
    def made_from(self) -> tuple[Mapping[str, Any], ...]:
        """Source of each module of components, as `add_reduced` noted it; {} where it cannot be."""
        listed = _json(self.files.folder / "modules.json", [])
        noted = [one["made_from"] for one in listed if isinstance(one, dict) and "made_from" in one]
        return tuple(note if isinstance(note, dict) else {} for note in noted)

    @property
    def normalised(self) -> bool:
        """Whether rows are scaled to unit norm at last, as `modules.json` says."""
        return self.modules[-1:] == ("Normalize",)

    @cached_property
    def _steps(self) -> tuple[Any, ...]:
        """Modules behind pooling, each a function of rows `(b, width)`."""
        from torch.nn import functional

        steps, width = [], int(self.config.hidden_size)
        for module in self.modules:
            if module == "Normalize":
                steps.append(partial(functional.normalize, dim=1))
            elif _DENSE.fullmatch(module):
                steps.append(_read_dense(self.files.folder / module, width))
                width = steps[-1].linear.out_features
        return tuple(steps)

    @cached_property
    def _model(self) -> Any:
        return load_transformer(self.files, "AutoModel", attention=None).eval()

    @cached_property
    def config(self) -> Any:
        """The model's configuration, as transformers reads it."""
        return read_config(self.files)

    def _tokenizer(self, at_most: int) -> Any:
        """Return the tokeniser that cuts texts off there: one for each length, never changed."""
        from tokenizers import Tokenizer

        if at_most in self._tokenizers:
            return self._tokenizers[at_most]
        path = self.files.folder / TOKENIZER
        try:
            made = Tokenizer.from_file(str(path))
            # The file's own cut and padding are an example's, not the model's.
            made.no_padding()
            made.enable_truncation(at_most)
        except Exception as error:  # compiled code raises no class of its own
            raise ValueError(f"{path} cannot be read ({error})") from None
        if getattr(made.model, "dropout", None):
            raise ValueError(
                f"{path} sets dropout of its model, by which a text has other tokens each time; "
                "save the tokeniser without"
            )
        largest, known = max(made.get_vocab().values(), default=0), int(self.config.vocab_size)
        if not 0 <= self.padding < known:
            raise ValueError(
                f"{self.files.folder / CONFIG}: pad_token_id {self.padding} is not among the "
                f"model's {known} tokens"
            )
        if largest >= known:
            raise ValueError(
                f"{path} has token {largest}, and the model knows {known} tokens ({CONFIG}): a "
                "text with that token could not be read; give the tokeniser of this model"
            )
        return self._tokenizers.setdefault(at_most, made)

    def tokens(self, texts: Sequence[str], at_most: int | None = None) -> list[list[int]]:
        """Return each text's token ids, without padding.

        Args:
            texts: n of them.
            at_most: Ids of a text, special ones included; None, and at most, `max_tokens`.

        Raises:
            ValueError: As `encode`; or `at_most` leaves no room for more than special ids.
        """
        if at_most is not None and at_most < _LEAST:
            raise ValueError(f"{at_most} tokens of a text are too few; give at least {_LEAST}")
        # Half of a character that takes two has no bytes.
        sound = [t.encode("utf-8", "replace").decode("utf-8") for t in _checked(texts)]
        tokenizer = self._tokenizer(min(at_most or self.max_tokens, self.max_tokens))
        try:
            return [found.ids for found in tokenizer.encode_batch(sound)]
        except BaseException as error:  # compiled code's panics are no `Exception`
            if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
                raise
            raise ValueError(
                f"the tokeniser of encoder {self.files.id} fails on a text ({_line(error)})"
            ) from None

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        """Return a row for each text, float32 `(n, width)`, finite.

        Each row is a function of its text alone, to the bit.

        Raises:
            ValueError: If the extra is missing, the files are no usable encoder, or `texts` is one
                text and no list of them.
        """
        import torch

        from fedpriv.models.pretrained import pool_states

        rows = np.empty((len(texts), self.width), np.float32)
        with one_thread(), torch.inference_mode():
            for place, tokens in enumerate(self.tokens(texts)):
                ids = torch.tensor([tokens or [self.padding]])
                real = torch.ones_like(ids)
                states = self._model(input_ids=ids, attention_mask=real).last_hidden_state
                row = pool_states(states, real, self.pooling)
                for step in self._steps:
                    row = step(row)
                rows[place] = row.numpy()
        if not np.isfinite(rows).all():
            raise ValueError(f"encoder {self.files.id} gave a row that is not finite")
        return rows


def _read_dense(folder: Path, width: int) -> torch.nn.Sequential:
    """Return the Dense module of a folder, for rows of a width.

    Raises:
        ValueError: If its files say something else, or cannot be read.
    """
    import torch
    from safetensors.torch import load_file

    path = folder / CONFIG
    # What sentence-transformers takes for what a file does not say.
    said = {"in_features": None, "out_features": None, "bias": True} | _json(path, {})
    said.setdefault("activation_function", "torch.nn.modules.activation.Tanh")
    known: dict[str, tuple[Any, ...]] = {
        "in_features": (width,),
        "bias": (True, False),
        "activation_function": (
            "torch.nn.modules.linear.Identity",
            "torch.nn.modules.activation.Tanh",
        ),
        "module_input_name": ("sentence_embedding",),
        "module_output_name": ("sentence_embedding", None),
        "use_residual": (False,),
    }
    to = said.pop("out_features")
    if type(to) is not int or to < 1:
        raise ValueError(f"{path}: out_features {to!r:.40} must be a whole number of at least 1")
    for key, value in said.items():
        if value not in known.get(key, ()):
            raise ValueError(
                f"{path}: {key} {value!r:.80} is not read here; "
                f"{' or '.join(map(str, known.get(key, ('no such key',))))} is"
            )
    path = folder / WEIGHTS
    linear = torch.nn.utils.skip_init(torch.nn.Linear, width, to, bias=said["bias"])
    tanh = said["activation_function"].endswith(".Tanh")
    activation = torch.nn.Tanh() if tanh else torch.nn.Identity()
    dense = torch.nn.Sequential(OrderedDict(linear=linear, activation=activation))
    try:
        dense.load_state_dict(load_file(path))
    except Exception as error:  # compiled code raises no class of its own
        raise ValueError(f"{path} cannot be read ({_line(error)})") from None
    if not all(bool(tensor.isfinite().all()) for tensor in dense.parameters()):
        raise ValueError(f"{path} has a number that is not finite")
    return dense


def encode_texts(
    encoder: Encoder,
    texts: Sequence[str],
    out: np.ndarray,
    *,
    processes: int | None = None,
    progress: Progress | None = None,
) -> None:
    """Write the rows of many texts into an array, in several processes.

    Args:
        encoder: Makes the rows; loaded in every process.
        texts: n of them.
        out: float32 `(n, width)`; may be mapped from a file.
        processes: How many; None for one a core.
        progress: Called with (texts done, texts).
    """
    done = 0
    for rows in encoded(encoder, texts, processes=processes):
        out[done : done + len(rows)] = rows
        done += len(rows)
        if progress is not None:
            progress(done, len(texts))


def encoded(
    encoder: Encoder, texts: Sequence[str], start: int = 0, *, processes: int | None = None
) -> Iterator[np.ndarray]:
    """Yield the rows of texts from one of them on, in their order, some at a time."""
    if isinstance(texts, str):  # whose chunks would be lists of letters
        _checked(texts)
    places = range(start, len(texts), CHUNK)
    batches = ([*texts[at : at + CHUNK]] for at in places)
    number = min(processes or os.cpu_count() or 1, len(places))
    if number <= 1:
        yield from map(encoder.encode, batches)
        return
    with ProcessPoolExecutor(
        number, get_context("spawn"), initializer=_open_here, initargs=(encoder.files,)
    ) as pool:
        # A pool takes all that it is given at once: texts in memory would be the whole corpus.
        while group := [*itertools.islice(batches, 8 * number)]:
            yield from pool.map(_encode_here, group)


def _checked(texts: Sequence[str]) -> list[str]:
    """Return texts as a list.

    Raises:
        ValueError: If they are one text, or one is none, such as a table's missing value.
    """
    if isinstance(texts, str):
        raise ValueError(f"{texts!r:.40} is one text; give a list of texts: [text]")
    found = list(texts)
    for place, text in enumerate(found):
        if not isinstance(text, str):
            raise ValueError(f"text {place:,} is a {type(text).__name__}, not a str; leave it out")
    return found


def library_versions() -> dict[str, str]:
    """Return the versions of the libraries that rows are made by: others may give other bits."""
    return {name: version(name) for name in ("tokenizers", "torch", "transformers")}


_ORDER = re.compile(r"(Transformer( Normalize)?|Transformer Pooling( Normalize| Dense)*)?")
# Models whose positions are counted from behind the padding's id.
_BEHIND_PADDING = ("roberta", "xlm-roberta", "camembert", "mpnet", "longformer")
_HERE: list[Encoder] = []


def _open_here(files: EncoderFiles) -> None:
    _HERE[:] = [Encoder(files)]


def _encode_here(texts: list[str]) -> np.ndarray:
    return _HERE[0].encode(texts)


def _json(path: Path, default: Any) -> Any:
    """Return the value of a JSON file, of the default's type; the default where there is none."""
    if not path.is_file():
        return default
    try:
        found = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{path} cannot be read ({error})") from None
    if not isinstance(found, type(default)):
        raise ValueError(f"{path} is a {type(found).__name__}, not a {type(default).__name__}")
    return found


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the library's bars and notes on loading."""
    from transformers.utils import logging

    before = logging.get_verbosity()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(before)
        logging.enable_progress_bar()


AutoClass = Literal["AutoModel", "AutoModelForCausalLM", "AutoModelForSequenceClassification"]


def read_config(files: EncoderFiles) -> Any:
    """Return the configuration of a folder's model, as transformers reads it.

    Raises:
        ValueError: If the extra is missing, or `config.json` is of no model or chooses code.
    """
    library, path = transformers_library(), files.folder / CONFIG
    refused = [key for key in _REFUSED if _json(path, {}).get(key)]
    if refused:
        raise ValueError(
            f"{path} sets {', '.join(refused)}, which choose code or change numbers; save the "
            "model without"
        )
    try:
        with _quiet():
            return library.AutoConfig.from_pretrained(
                files.folder, local_files_only=True, trust_remote_code=False
            )
    except Exception as error:  # the library's checks raise classes of their own
        raise ValueError(f"{path} describes no model ({error})") from None


def load_transformer(
    files: EncoderFiles,
    kind: AutoClass,
    *,
    attention: str | None = "eager",
    may_lack: Sequence[str] = ("pooler.",),
    **settings: Any,
) -> Any:
    """Return the model of a folder, float32, with no dropout anywhere.

    Args:
        files: Of the folder.
        kind: The class of transformers that loads it.
        attention: Its implementation of attention; None for the quickest that the model has.
        may_lack: Beginnings of names of tensors that the file may lack, which are then random; a
            pooler's are, of which no row is made.
        settings: Of the configuration, instead of the file's.

    Raises:
        ValueError: If the extra is missing, or the files are of no such model.
    """
    config = read_config(files)
    for name, value in config.to_dict().items():
        if isinstance(value, float) and ("dropout" in name or name.endswith("_pdrop")):
            setattr(config, name, 0.0)
    for name, value in settings.items():
        setattr(config, name, value)
    try:
        with _quiet():
            model, found = getattr(transformers_library(), kind).from_pretrained(
                files.folder,
                config=config,
                local_files_only=True,
                trust_remote_code=False,
                use_safetensors=True,
                dtype="float32",
                attn_implementation=attention,
                output_loading_info=True,
            )
    except Exception as error:  # the library's checks raise classes of their own
        raise ValueError(f"{files.folder} has no usable encoder ({error})") from None
    missing = sorted(n for n in found["missing_keys"] if not n.startswith(tuple(may_lack)))
    if missing or found["mismatched_keys"]:
        raise ValueError(
            f"{files.folder} has no usable encoder: {WEIGHTS} lacks {len(missing)} "
            f"tensors of {CONFIG}, and {len(found['mismatched_keys'])} have other shapes"
        )
    unsound = [name for name, tensor in model.named_parameters() if not tensor.isfinite().all()]
    if unsound:
        raise ValueError(
            f"{files.folder} has no usable encoder: {unsound[0]!r} of {WEIGHTS} is not finite"
        )
    return model


def _line(error: BaseException) -> str:
    """Return an error's kind and text in a line."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:200]


def transformers_library() -> Any:
    """Return the library of the extra `pretrained`.

    Raises:
        ValueError: If it is not installed.
    """
    need("transformers", "pretrained", "a pretrained model")
    import transformers

    return transformers
