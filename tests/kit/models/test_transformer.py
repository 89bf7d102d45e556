"""The Transformer against closed formulas and the properties that define its parts."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

from shardlab.models import Attention, FeedForward, Transformer, TransformerConfig, build, rotary_embedding

SMALL = {"vocab": 37, "hidden": 24, "layers": 3, "heads": 6, "kv_heads": 2, "ffn": 40, "sequence": 16}


def small(**changes) -> TransformerConfig:
    return TransformerConfig(**{**SMALL, **changes})


def some_tokens(batch: int = 2, sequence: int = 16, vocab: int = 37) -> torch.Tensor:
    return torch.randint(vocab, (batch, sequence), generator=torch.Generator().manual_seed(5))


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("kv_heads", [1, 2, 6])
def test_parameter_count_is_the_closed_formula(tied, kv_heads):
    config = small(tied=tied, kv_heads=kv_heads)
    assert sum(parameter.numel() for parameter in Transformer(config).parameters()) == config.parameters


@pytest.mark.parametrize(
    ("published", "config"),
    [
        # Llama 7B: arXiv 2302.13971, table 2. Llama 3 8B: arXiv 2407.21783, table 3. Counts of the released weights.
        (6738415616, {"vocab": 32000, "hidden": 4096, "layers": 32, "heads": 32, "kv_heads": 32, "ffn": 11008}),
        (8030261248, {"vocab": 128256, "hidden": 4096, "layers": 32, "heads": 32, "kv_heads": 8, "ffn": 14336}),
    ],
)
def test_parameter_count_of_published_models(published, config):
    assert TransformerConfig(**config, sequence=2048, tied=False).parameters == published


def test_no_token_sees_a_later_one():
    model, tokens = build(small()), some_tokens()
    before = model(tokens)
    for position in (0, 7, 15):
        changed = tokens.clone()
        changed[:, position] = (changed[:, position] + 1) % 37
        after = model(changed)
        assert_close(after[:, :position], before[:, :position], rtol=0, atol=0)
        assert not torch.allclose(after[:, position], before[:, position])


def test_rotary_scores_depend_on_the_distance_alone():
    generator = torch.Generator().manual_seed(0)
    query, key = torch.randn(2, 1, 1, 1, 8, generator=generator, dtype=torch.float32)

    def score(query_position: int, key_position: int) -> float:
        turned_query = rotary_embedding(query, torch.tensor([query_position]), 10000.0)
        turned_key = rotary_embedding(key, torch.tensor([key_position]), 10000.0)
        return (turned_query * turned_key).sum().item()

    assert score(9, 4) == pytest.approx(score(105, 100), rel=1e-4)
    assert score(9, 4) != pytest.approx(score(9, 5), rel=1e-3)
    assert score(0, 0) == pytest.approx((query * key).sum().item(), rel=1e-6)


def test_rotary_turns_by_position_times_frequency():
    x = torch.zeros(1, 1, 1, 4)
    x[..., 0] = 1.0  # the pair (0, 2) has frequency theta^0 = 1
    turned = rotary_embedding(x, torch.tensor([3]), 100.0)
    assert_close(turned.flatten(), torch.tensor([math.cos(3), 0.0, math.sin(3), 0.0]))
    x = torch.zeros(1, 1, 1, 4)
    x[..., 1] = 1.0  # the pair (1, 3) has frequency 100^(-1/2) = 0.1
    turned = rotary_embedding(x, torch.tensor([3]), 100.0)
    assert_close(turned.flatten(), torch.tensor([0.0, math.cos(0.3), 0.0, math.sin(0.3)]))


def test_rotary_keeps_lengths_and_takes_positions_per_sequence():
    x = torch.randn(2, 5, 3, 8, generator=torch.Generator().manual_seed(1))
    positions = torch.stack((torch.arange(5), torch.arange(5) + 7))
    turned = rotary_embedding(x, positions, 10000.0)
    assert_close(turned.norm(dim=-1), x.norm(dim=-1))
    assert_close(turned[1:], rotary_embedding(x[1:], torch.arange(5) + 7, 10000.0))


def test_rotary_angles_do_not_suffer_from_bfloat16():
    x = torch.ones(1, 2, 1, 2, dtype=torch.bfloat16)
    turned = rotary_embedding(x, torch.tensor([4000, 4001]), 10000.0)
    assert turned.dtype == torch.bfloat16
    expected = math.cos(4001) - math.sin(4001)
    assert turned[0, 1, 0, 0].item() == pytest.approx(expected, rel=1e-2)


def test_grouped_queries_are_multi_head_attention_with_repeated_key_and_value_heads():
    grouped, full = Attention(small(kv_heads=2)), Attention(small(kv_heads=6))
    full.query.load_state_dict(grouped.query.state_dict())
    full.output.load_state_dict(grouped.output.state_dict())
    for name in ("key", "value"):
        weight = getattr(grouped, name).weight.detach().unflatten(0, (2, 4))  # [kv_heads, head_dim, hidden]
        getattr(full, name).weight.data.copy_(weight.repeat_interleave(3, dim=0).flatten(0, 1))
    x = torch.randn(2, 16, 24, generator=torch.Generator().manual_seed(2))
    assert grouped.key.weight.shape == (8, 24)
    assert_close(grouped(x, torch.arange(16)), full(x, torch.arange(16)))


def test_attention_is_the_softmax_formula():
    attention = Attention(small(heads=1, kv_heads=1, hidden=4))
    x = torch.randn(1, 5, 4, generator=torch.Generator().manual_seed(3))
    positions = torch.arange(5)
    query = rotary_embedding(attention.query(x).unsqueeze(2), positions, 10000.0).squeeze(2)
    key = rotary_embedding(attention.key(x).unsqueeze(2), positions, 10000.0).squeeze(2)
    scores = (query @ key.transpose(1, 2) / 2.0).masked_fill(torch.ones(5, 5).triu(1).bool(), -torch.inf)
    expected = attention.output(scores.softmax(-1) @ attention.value(x))
    assert_close(attention(x, positions), expected)


def test_the_mixing_of_attention_can_be_replaced():
    config = TransformerConfig(vocab=16, hidden=8, layers=2, heads=2, kv_heads=1, ffn=16, sequence=5)
    model, tokens = build(config), torch.arange(5).unsqueeze(0)
    usual, seen = model(tokens), []
    for block in model.blocks:
        block.attention.mix = lambda query, key, value: seen.append(query.shape) or torch.zeros_like(query)
    assert not torch.equal(model(tokens), usual)
    assert seen == [(1, 2, 5, 4)] * 2


def test_feed_forward_is_swiglu():
    layer = FeedForward(small())
    x = torch.randn(2, 3, 24, generator=torch.Generator().manual_seed(4))
    gate = x @ layer.gate.weight.T
    assert_close(layer(x), (gate * torch.sigmoid(gate) * (x @ layer.up.weight.T)) @ layer.down.weight.T)


def test_positions_shift_the_rotation_but_not_the_result():
    """Only distances matter, so the whole model gives the same logits anywhere in the sequence."""
    model, tokens = build(small()), some_tokens()
    assert_close(model(tokens, torch.arange(16) + 1000), model(tokens), rtol=1e-3, atol=1e-4)
    assert not torch.allclose(model(tokens, torch.arange(16) * 2), model(tokens), rtol=1e-3, atol=1e-4)


def test_tied_weight_collects_both_gradients():
    tied, untied, tokens = build(small(tied=True)), build(small(tied=False)), some_tokens()
    untied.load_state_dict(tied.state_dict())
    for model in (tied, untied):
        F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()).backward()
    assert tied.head.weight is tied.embedding.weight
    assert_close(tied.embedding.weight.grad, untied.embedding.weight.grad + untied.head.weight.grad)


def test_dropout_acts_in_training_only():
    model, tokens = build(small(dropout=0.5)), some_tokens()
    assert not torch.equal(model(tokens), model(tokens))
    model.eval()
    assert torch.equal(model(tokens), model(tokens))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"heads": 5}, "hidden must be divisible by heads: got hidden=24, heads=5"),
        ({"kv_heads": 4}, "kv_heads must divide heads: got kv_heads=4, heads=6"),
        ({"hidden": 18}, "must be even"),
        ({"layers": 0}, "layers must be an integer of 1 or more, got 0"),
        ({"vocab": 3.5}, "vocab must be an integer"),
        ({"ffn": True}, "ffn must be an integer"),
        ({"dropout": 1.0}, r"dropout must be in \[0, 1\), got 1.0"),
        ({"dropout": float("nan")}, "dropout"),
        ({"rope_theta": 0.0}, "rope_theta must be a positive number, got 0.0"),
    ],
)
def test_a_config_that_cannot_be_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        small(**changes)


@pytest.mark.parametrize(
    ("shape", "message"), [((17,), "batch, sequence"), ((1, 17), "17 tokens are more than the model's sequence of 16")]
)
def test_tokens_that_do_not_fit_are_refused(shape, message):
    with pytest.raises(ValueError, match=message):
        build(small())(torch.zeros(shape, dtype=torch.int64))
