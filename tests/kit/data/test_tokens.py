"""Tokenizer, stream and batches: exact round trips, and the same numbers in every process."""

import pytest
import torch

from shardlab import data
from shardlab.data.tokens import END_OF_TEXT

SAMPLE = "In the beginning God created the heaven and the earth. " * 20


@pytest.mark.parametrize("text", ["And God said,\n Let there be light", "Ünï — 漢字\t\r\n  x", "", "\x00\x7f"])
def test_any_text_comes_back_from_its_tokens(text):
    tokenizer = data.train_tokenizer([SAMPLE], 280)
    assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_the_vocabulary_has_the_size_asked_for_and_begins_with_the_end_of_text():
    tokenizer = data.train_tokenizer([SAMPLE], 280)
    assert tokenizer.get_vocab_size() == 280
    assert tokenizer.token_to_id(END_OF_TEXT) == 0
    assert len(tokenizer.encode(" the").ids) == 1  # a common word is one token


def test_a_vocabulary_smaller_than_the_bytes_is_refused():
    with pytest.raises(ValueError, match="vocab_size must be at least 257"):
        data.train_tokenizer([SAMPLE], 256)


def test_the_cached_tokenizer_is_the_trained_one():
    """Fails when the training changes and CACHE_FORMAT does not."""
    assert data.tokenizer(1024).to_str() == data.train_tokenizer([data.text_corpus().train], 1024).to_str()


def test_the_corpus_as_tokens_is_the_corpus():
    valid = data.corpus_tokens("valid")
    assert valid.dtype == torch.int64
    assert data.tokenizer().decode(valid.tolist()) == data.text_corpus().valid
    assert torch.equal(data.corpus_tokens("valid"), valid)


def test_an_unknown_split_is_refused():
    with pytest.raises(ValueError, match="split must be 'train' or 'valid', got 'test'"):
        data.corpus_tokens("test")


def take(count: int, **arguments) -> list[torch.Tensor]:
    batches = data.token_batches(torch.arange(103), batch=3, sequence=10, **arguments)
    return [next(batches) for _ in range(count)]


def test_an_epoch_deals_each_window_at_most_once():
    epoch = torch.cat(take(3))
    assert epoch.shape == (9, 10)
    assert epoch.unique().numel() == 90
    assert torch.equal(epoch - epoch[:, :1], torch.arange(10).expand(9, 10))
    assert (epoch[:, 0] % 10 == 0).all()


def test_epochs_and_seeds_have_orders_of_their_own():
    first, second = torch.cat(take(6)).split(9)
    assert not torch.equal(first, second)
    assert not torch.equal(first, torch.cat(take(3, seed=1)))
    assert torch.equal(first, torch.cat(take(3)))


@pytest.mark.parametrize("start", [0, 1, 3, 7])
def test_starting_later_gives_what_remains(start):
    for resumed, whole in zip(take(4, start=start), take(start + 4)[start:], strict=True):
        assert torch.equal(resumed, whole)


def test_batches_do_not_depend_on_the_global_random_state():
    torch.manual_seed(1)
    first = take(3)
    torch.manual_seed(2)
    before = torch.get_rng_state()
    assert all(torch.equal(a, b) for a, b in zip(first, take(3), strict=True))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    ("shape", "sizes", "message"),
    [
        ((20,), {"batch": 3, "sequence": 10}, "20 tokens give 2 windows of 10, fewer than a batch of 3"),
        ((2, 10), {"batch": 1, "sequence": 10}, r"tokens must be a stream \[T\]"),
        ((20,), {"batch": 0, "sequence": 10}, "batch and sequence start at 1"),
        ((20,), {"batch": 1, "sequence": 1, "start": -1}, "start at 0"),
    ],
)
def test_sizes_that_cannot_be_are_refused_before_the_first_batch(shape, sizes, message):
    with pytest.raises(ValueError, match=message):
        data.token_batches(torch.zeros(shape, dtype=torch.int64), **sizes)
