"""The loss, on numbers worked out by hand."""

import math

import pytest
import torch

from shardlab.models import next_token_loss


def test_uniform_logits_cost_the_logarithm_of_the_vocabulary():
    loss = next_token_loss(torch.zeros(2, 5, 8), torch.randint(8, (2, 5)))
    assert loss.item() == pytest.approx(math.log(8))


def test_the_target_is_the_next_token():
    tokens = torch.tensor([[0, 1, 2]])
    certain = torch.full((1, 3, 4), -100.0)
    certain[0, 0, 1] = certain[0, 1, 2] = 100.0  # the last position predicts nothing
    assert next_token_loss(certain, tokens).item() == pytest.approx(0.0)


def test_ignored_positions_are_not_in_the_mean():
    logits = torch.zeros(1, 4, 2)
    logits[0, 0, 0] = 3.0
    tokens = torch.tensor([[0, 1, -100, 0]])
    expected = (math.log(1 + math.exp(3)) + math.log(2)) / 2
    assert next_token_loss(logits, tokens).item() == pytest.approx(expected)


def test_nothing_to_predict_gives_zero_loss_and_zero_gradients():
    logits = torch.zeros(1, 3, 4, requires_grad=True)
    loss = next_token_loss(logits, torch.full((1, 3), -100))
    loss.backward()
    assert loss.item() == 0.0
    assert torch.equal(logits.grad, torch.zeros(1, 3, 4))


def test_half_precision_logits_are_summed_in_float32():
    loss = next_token_loss(torch.zeros(4, 64, 50, dtype=torch.bfloat16), torch.zeros(4, 64, dtype=torch.int64))
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(math.log(50), rel=1e-6)


@pytest.mark.parametrize(
    ("logits", "tokens", "message"),
    [((2, 4, 5), (2, 3), "for tokens"), ((2, 5), (2, 5), "logits must be"), ((2, 1, 5), (2, 1), "no next token")],
)
def test_shapes_that_do_not_belong_together_are_refused(logits, tokens, message):
    with pytest.raises(ValueError, match=message):
        next_token_loss(torch.zeros(logits), torch.zeros(tokens, dtype=torch.int64))
