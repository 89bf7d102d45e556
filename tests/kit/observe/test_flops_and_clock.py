"""Arithmetic against closed formulas; the clock against its own numbers."""

import pytest
import torch
from torch import nn

from shardlab.models import Transformer, TransformerConfig
from shardlab.observe import StepClock, flops, mfu


def test_linear_layers_cost_two_flops_a_weight_forward_and_four_backward():
    model = nn.Sequential(nn.Linear(10, 20), nn.ReLU(), nn.Linear(20, 5))
    rows, weights = 3, 10 * 20 + 20 * 5
    no_input_gradient = 2 * rows * 10 * 20
    assert flops(model, torch.ones(rows, 10)) == 6 * rows * weights - no_input_gradient


def test_a_transformer_costs_six_flops_a_weight_and_token_plus_attention():
    """6 N per token for the matrices, 12 L h s per token for scores and values (PaLM, arXiv 2204.02311, appendix B)."""
    config = TransformerConfig(vocab=50, hidden=32, layers=2, heads=4, kv_heads=2, ffn=48, sequence=16)
    model = Transformer(config)
    batch, sequence = 3, 16
    head = config.hidden // config.heads
    attention = config.hidden * (config.heads + 2 * config.kv_heads) * head + config.hidden**2
    matrices = config.layers * (attention + 3 * config.hidden * config.ffn) + config.hidden * config.vocab
    tokens = batch * sequence
    expected = 6 * matrices * tokens + 12 * config.layers * config.hidden * sequence * tokens
    assert flops(model, torch.zeros(batch, sequence, dtype=torch.int64)) == expected


def test_counting_leaves_no_trace():
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout())
    before = {name: value.clone() for name, value in model.state_dict().items()}
    random_state = torch.get_rng_state()
    assert flops(model, torch.randn(2, 4, generator=torch.Generator().manual_seed(0))) > 0
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert torch.equal(torch.get_rng_state(), random_state)


def test_frozen_models_are_counted_forward_only():
    model = nn.Linear(10, 20).requires_grad_(False)
    assert flops(model, torch.ones(3, 10)) == 2 * 3 * 10 * 20


def test_mfu_is_a_share_of_peak():
    assert mfu(step_flops=600, seconds=2.0, peak_flops=1000.0) == pytest.approx(0.3)
    with pytest.raises(ValueError, match="seconds > 0"):
        mfu(1, 0.0, 1.0)


def test_the_clock_takes_the_median_of_the_steps_after_warm_up():
    clock = StepClock(tokens_per_step=100, warmup=1)
    with pytest.raises(ValueError, match="time more steps"):
        _ = clock.seconds
    for _ in range(4):
        with clock.step():
            torch.ones(10).sum()
    assert len(clock.all_seconds) == 4
    assert clock.seconds == sorted(clock.all_seconds[1:])[1]
    assert clock.tokens_per_second == pytest.approx(100 / clock.seconds)


def test_the_clock_refuses_nonsense():
    with pytest.raises(ValueError, match="tokens_per_step"):
        StepClock(tokens_per_step=0)
