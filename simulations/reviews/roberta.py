"""RoBERTa as a classifier of sentences, its embeddings frozen; needs the extra `pretrained`.

Weights come from a folder on disk and from safetensors only: a pickled file can run code when it is
opened. Nothing is ever downloaded here.

Reference: Liu et al., "RoBERTa: A Robustly Optimized BERT Pretraining Approach" (2019).
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional

from fedpriv.datasets.encoders import CONFIG, WEIGHTS, transformers_library
from fedpriv.rng import Key

_ATTENTION = "fedpriv_eager"
_PICKLED = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
_HEAD, _BODY = "classifier.", "roberta."
#: What a pre-trained model has and a classifier of sentences has not.
_UNUSED = ("lm_head.", "roberta.pooler.", "roberta.embeddings.position_ids")


class RobertaClassifier(nn.Module):
    """A RoBERTa encoder and its classification head; tensors are named as in published weights.

    RoBERTa-base with two classes has 124,647,170 parameters; 39,000,576 of them are the
    embeddings (words, positions, kinds, and the layer norm behind them), which are frozen, so that
    85,646,594 are trained. All dropout goes through `nn.Dropout` layers, that of attention weights
    too: per-example gradients then give every example masks of its own.

    Args:
        config: A `transformers.RobertaConfig`.

    Raises:
        ValueError: If the extra is missing, or the configuration is of no model.
    """

    def __init__(self, config: Any) -> None:
        super().__init__()
        hub = transformers_library()
        hub.AttentionInterface.register(_ATTENTION, _attention)
        config._attn_implementation = _ATTENTION
        # Random weights, most of them overwritten: the process's own generator is left as it was.
        try:
            with torch.random.fork_rng(devices=[]):
                network = hub.RobertaForSequenceClassification(config)
        except (KeyError, TypeError, RuntimeError) as error:
            raise ValueError(f"no RoBERTa can be made of this configuration ({error})") from None
        self.config = config
        self.roberta, self.classifier = network.roberta, network.classifier
        embeddings: Any = self.roberta.embeddings
        # Integers that training never changes, given to every call instead.
        del embeddings.position_ids, embeddings.token_type_ids
        embeddings.token_type_embeddings = _Kinds(embeddings.token_type_embeddings.weight)
        embeddings.requires_grad_(False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits `(b, classes)` of token ids `(b, length)`; nothing looks at padding."""
        real = tokens != self.config.pad_token_id
        positions = real.long().cumsum(1) * real + self.config.pad_token_id
        # As transformers wants it: added to the scores (b, heads, from, to).
        dtype = self.classifier.dense.weight.dtype
        hidden = torch.zeros(tokens.shape, dtype=dtype, device=tokens.device)
        hidden = hidden.masked_fill(~real, torch.finfo(dtype).min)[:, None, None, :]
        states = self.roberta(
            tokens,
            attention_mask=hidden.expand(-1, -1, tokens.shape[1], -1),
            position_ids=positions,
            token_type_ids=torch.zeros_like(tokens),
        ).last_hidden_state
        return self.classifier(states)


class _Kinds(nn.Module):
    """The table of token kinds, of which RoBERTa has one.

    Not an `nn.Embedding`: layers of that class say which ids a module may be tried with.
    """

    def __init__(self, weight: nn.Parameter) -> None:
        super().__init__()
        self.weight = weight

    def forward(self, kinds: Tensor) -> Tensor:
        return functional.embedding(kinds, self.weight)


def random_roberta(options: Mapping[str, Any], key: Key) -> RobertaClassifier:
    """Return an untrained classifier of two classes, for tests and for runs without weights.

    Args:
        options: Of `transformers.RobertaConfig`, such as vocab_size and hidden_size.
        key: Of all weights.

    Raises:
        ValueError: If the extra is missing or an option does not fit.
    """
    module = RobertaClassifier(_config(options, "these options", None))
    return _drawn(module, module, key)


def new_head(module: RobertaClassifier, key: Key) -> RobertaClassifier:
    """Draw the classification head anew, in place: normal weights, zero biases."""
    return _drawn(module, module.classifier, key)


def load_roberta(
    folder: str | os.PathLike[str], *, key: Key | None = None, dropout: float | None = None
) -> RobertaClassifier:
    """Return the classifier of a folder with `config.json` and `model.safetensors`.

    Args:
        folder: As `save_pretrained` of transformers makes it, of any RoBERTa; or `save_roberta`.
        key: Draws a new head, whatever the file has; None for the file's own.
        dropout: Rate everywhere; None for the rates of `config.json`.

    Raises:
        ValueError: If the extra is missing, if the folder has no such files or only pickled
            weights, or if they are damaged or not a RoBERTa's.
    """
    folder = Path(folder)
    weights = weights_path(folder)
    path, options = folder / CONFIG, _options(folder)
    module = RobertaClassifier(_config(options, str(path), dropout))
    own = module.state_dict()
    given = _renamed(_read(weights))
    if key is not None:
        given = {n: t for n, t in given.items() if not n.startswith(_HEAD)}
    missing = sorted(own.keys() - given.keys())
    if key is not None:
        missing = [name for name in missing if not name.startswith(_HEAD)]
    if missing:
        hint = "; give a key to draw a new head" if missing[0].startswith(_HEAD) else ""
        raise ValueError(f"{weights} lacks {len(missing)} tensors, such as {missing[0]!r}{hint}")
    odd = sorted(given.keys() - own.keys())
    if odd:
        raise ValueError(f"{weights} has tensors of another model, such as {odd[0]!r}")
    for name, tensor in given.items():
        if tensor.shape != own[name].shape or not tensor.is_floating_point():
            raise ValueError(
                f"{weights}: {name!r} is {tensor.dtype} {tuple(tensor.shape)}, but {path} asks for "
                f"floats {tuple(own[name].shape)}"
            )
    with torch.no_grad():
        for name, tensor in given.items():
            own[name].copy_(tensor)
    return module if key is None else new_head(module, key)


def save_roberta(module: RobertaClassifier, folder: str | os.PathLike[str]) -> None:
    """Write `config.json` and `model.safetensors`, head included, into a folder that exists."""
    options = {**module.config.to_diff_dict(), "model_type": "roberta"}
    Path(folder, CONFIG).write_text(json.dumps(options, indent=2, sort_keys=True) + "\n", "utf-8")
    tensors = {name: tensor.contiguous() for name, tensor in module.state_dict().items()}
    save_file(tensors, str(Path(folder, WEIGHTS)), metadata={"format": "pt"})


def tokens(folder: str | os.PathLike[str], sentences: Sequence[str], *, length: int) -> np.ndarray:
    """Return token ids int64 `(n, length)` by the tokeniser of a folder, cut off or padded.

    Every row begins with the sentence mark `<s>` and ends, before the padding, with `</s>`, cut off
    or not.

    Args:
        folder: With `config.json`, and `tokenizer.json` or `vocab.json` and `merges.txt`.
        sentences: n texts.
        length: At least 3, and at most what the model has positions for.

    Raises:
        ValueError: If the extra or the tokeniser's files are missing, or the length is not usable.
    """
    folder = Path(folder)
    if length < 3:
        raise ValueError(f"length {length!r} has no room for a word; give at least 3")
    try:
        made = _tokeniser(folder)
        made.enable_truncation(length)
        padding = made.token_to_id("<pad>")
        if padding is None or padding != _options(folder).get("pad_token_id", padding):
            raise ValueError(f"{folder}: the tokeniser pads with {padding}, {CONFIG} otherwise")
        made.enable_padding(length=length, pad_id=padding, pad_token="<pad>")
        found = [each.ids for each in made.encode_batch(list(sentences))]
    except ValueError:
        raise
    except Exception as error:  # compiled code raises no class of its own
        raise ValueError(f"the tokeniser in {folder} cannot be used ({error})") from None
    return np.array(found, dtype=np.int64).reshape(len(sentences), length)


def _tokeniser(folder: Path) -> Any:
    """Return RoBERTa's tokeniser, byte-level pairs, from either form of its files."""
    transformers_library()
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    whole, parts = folder / "tokenizer.json", (folder / "vocab.json", folder / "merges.txt")
    if whole.is_file():
        return Tokenizer.from_file(str(whole))
    if not all(part.is_file() for part in parts):
        raise ValueError(f"{folder} has no tokenizer.json, nor vocab.json and merges.txt")
    made = Tokenizer(models.BPE.from_file(*map(str, parts)))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    begin, end = made.token_to_id("<s>"), made.token_to_id("</s>")
    if begin is None or end is None:
        raise ValueError(f"{parts[0]} does not know <s> and </s>; it is not a RoBERTa's")
    made.post_processor = processors.RobertaProcessing(("</s>", end), ("<s>", begin))
    return made


def _drawn(module: RobertaClassifier, part: nn.Module, key: Key) -> RobertaClassifier:
    scale = float(module.config.initializer_range)
    with torch.no_grad():
        for name, parameter in part.named_parameters():
            if parameter.ndim > 1:
                numbers = key.fold(name).generator().standard_normal(tuple(parameter.shape))
                parameter.copy_(torch.from_numpy(scale * numbers))
            else:
                parameter.fill_(float(name.endswith("LayerNorm.weight")))
    return module


def _options(folder: Path) -> dict[str, Any]:
    """Return what `config.json` says of a RoBERTa."""
    path = folder / CONFIG
    try:
        options = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} cannot be read ({error}); it describes the weights") from None
    kind = options.get("model_type") if isinstance(options, dict) else type(options).__name__
    if kind != "roberta":
        raise ValueError(f"{path} is of a {kind!r}; give the folder of a RoBERTa")
    return options


def _config(options: Mapping[str, Any], where: str, dropout: float | None) -> Any:
    """Return a configuration for an encoder with two classes."""
    chosen: dict[str, Any] = {**options, "num_labels": 2, "is_decoder": False}
    for name in ("id2label", "label2id", "model_type", "architectures"):
        chosen.pop(name, None)
    if dropout is not None:
        if not 0.0 <= dropout < 1.0:
            raise ValueError(f"dropout {dropout!r} is no rate; give 0 up to, not including, 1")
        rates = ("hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout")
        chosen.update(dict.fromkeys(rates, dropout))
    try:
        return transformers_library().RobertaConfig(**chosen)
    except Exception as error:  # its checks raise classes of their own
        raise ValueError(f"{where} do not describe a RoBERTa ({error})") from None


def weights_path(folder: str | os.PathLike[str]) -> Path:
    """Return the path of a folder's weights, which need not be whole.

    Raises:
        ValueError: If there are none, or only pickled ones.
    """
    folder = Path(folder)
    path = folder / WEIGHTS
    if path.is_file():
        return path
    if not folder.is_dir():
        raise ValueError(f"there is no folder {folder}; give one with {CONFIG} and {WEIGHTS}")
    pickled = sorted(p.name for p in folder.iterdir() if p.suffix in _PICKLED)
    if pickled:
        raise ValueError(
            f"{folder} has pickled weights ({pickled[0]}), which can run code when they are opened "
            f"and are not read here. If you trust them, convert them once: python -c "
            f'"from transformers import RobertaModel as M; '
            f"M.from_pretrained('{folder}').save_pretrained('{folder}')\""
        )
    raise ValueError(f"{folder} has no {WEIGHTS}; sharded weights have to be one file")


def _read(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(str(path))
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{path} is not a complete safetensors file ({error})") from None


def _renamed(given: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors by this module's names, without those of other heads."""
    bare = not any(name.startswith(_BODY) for name in given)
    named = {
        _BODY + name if bare and not name.startswith((_HEAD, "lm_head.")) else name: tensor
        for name, tensor in given.items()
    }
    return {name: t for name, t in named.items() if not name.startswith(_UNUSED)}


def _attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **options: Any,
) -> tuple[Tensor, Tensor]:
    """Return what attention gives, `(b, from, heads, width)`, and its weights.

    transformers' own functions drop weights by a call and not by the layer that is there for it, so
    that examples could have no masks of their own.
    """
    scores = query @ key.transpose(2, 3) * (query.shape[-1] ** -0.5 if scaling is None else scaling)
    if attention_mask is not None:
        scores = scores + attention_mask
    weights = module.dropout(scores.softmax(dim=-1))
    return (weights @ value).transpose(1, 2).contiguous(), weights
