"""A BERT of random weights with a word-piece tokeniser, in the files of a published encoder."""

import json

ALPHABET = "abcdefghijklmnopqrstuvwxyz"
WORDS = ("company", "start", "how", "to", "a", "the", "fund", "##ing", "tax", "law", "pay", "##s")
LETTERS = tuple("abcdefghijklmnopqrstuvwxyz") + tuple(
    f"##{c}" for c in "abcdefghijklmnopqrstuvwxyz"
)


def write_tiny_bert(folder, *, seed=0, width=16, pooling="mean", normalised=True, max_tokens=32):
    """Write the files of a model, a tokeniser and sentence-transformers' settings."""
    import torch
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
    from transformers import BertConfig, BertModel

    pieces = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", *LETTERS, *WORDS)
    made = Tokenizer(models.WordPiece({p: n for n, p in enumerate(pieces)}, unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer(lowercase=True)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    made.enable_truncation(8)  # of an example: not the model's
    made.enable_padding(length=8)
    folder.mkdir(parents=True, exist_ok=True)
    made.save(str(folder / "tokenizer.json"))
    config = BertConfig(
        vocab_size=len(pieces), hidden_size=width, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=2 * width, max_position_embeddings=64,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        BertModel(config).save_pretrained(folder)
    modules = [{"idx": 0, "type": "sentence_transformers.models.Transformer"}]
    modules += [{"idx": 2, "type": "sentence_transformers.models.Normalize"}] * normalised
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": max_tokens}))
    (folder / "1_Pooling").mkdir(exist_ok=True)
    modes = {"mean": "mean_tokens", "cls": "cls_token", "max": "max_tokens"}
    chosen = {f"pooling_mode_{mode}": kind == pooling for kind, mode in modes.items()}
    (folder / "1_Pooling/config.json").write_text(json.dumps(chosen))
    return folder


def embed_tiny(corpus, folder):
    """Embed a corpus's titles by an encoder in the cache of this test; return a task's options."""
    from fedpriv.datasets.encoders import Encoder, add_encoder
    from fedpriv.datasets.stackexchange.embeddings import make_embeddings

    encoder = Encoder(add_encoder(write_tiny_bert(folder)))
    make_embeddings(corpus, encoder, ("title",), processes=1)
    return {"encoder": encoder.files.id}
