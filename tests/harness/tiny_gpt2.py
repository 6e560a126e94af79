"""A GPT-2 of random weights with a tokeniser of bytes, in the files of a published model."""


def write_tiny_gpt2(folder, *, seed=0, width=16, positions=64):
    """Write the files of a model of two layers and a tokeniser of 256 bytes and one mark."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import GPT2Config, GPT2LMHeadModel

    mark = "<|endoftext|>"
    pieces = [*sorted(pre_tokenizers.ByteLevel.alphabet()), mark]
    made = Tokenizer(models.BPE(vocab={p: n for n, p in enumerate(pieces)}, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([mark])
    folder.mkdir(parents=True, exist_ok=True)
    made.save(str(folder / "tokenizer.json"))
    last = len(pieces) - 1
    config = GPT2Config(
        vocab_size=len(pieces), n_positions=positions, n_embd=width, n_layer=2, n_head=2,
        bos_token_id=last, eos_token_id=last,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        GPT2LMHeadModel(config).save_pretrained(folder)
    return folder
