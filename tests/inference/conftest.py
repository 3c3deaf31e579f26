from pathlib import Path

import pytest
import tokenizers
from support.models import tiny_llama
from tokenizers import decoders, models, pre_tokenizers


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder: a random Llama and a byte-level tokenizer, one token a byte after three special ones."""
    folder = tmp_path_factory.mktemp("tiny")
    specials = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    tiny_llama(vocab_size=len(specials) + 256, max_position_embeddings=512).save_pretrained(folder)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {piece: i for i, piece in enumerate([*specials, *alphabet])}
    tokenizer = tokenizers.Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(specials)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text('{"eos_token": "<|im_end|>"}')
    return folder
