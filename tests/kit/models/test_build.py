"""Same weights everywhere: the promise every "same as one process" test of the course stands on."""

import hashlib
import subprocess
import sys

import pytest
import torch

from shardlab.models import DigitsConfig, DigitsNet, Transformer, TransformerConfig, build, initialise

CONFIG = TransformerConfig(vocab=37, hidden=24, layers=3, heads=6, kv_heads=2, ffn=40, sequence=16)
DIGEST = """
import hashlib, torch
from shardlab.models import TransformerConfig, build
torch.manual_seed({noise}); torch.rand({noise}); torch.set_num_threads({threads})
model = build({config!r}, seed=3)
print(hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest())
"""


def digest(model: torch.nn.Module) -> str:
    weights = b"".join(parameter.detach().numpy().tobytes() for parameter in model.parameters())
    return hashlib.sha256(weights).hexdigest()


def test_another_process_with_another_random_state_builds_the_same_bits():
    script = DIGEST.format(noise=11, threads=1, config=CONFIG)
    printed = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert printed.strip() == digest(build(CONFIG, seed=3))
    assert len({digest(build(CONFIG, seed)) for seed in (0, 3, 4, 2**32 + 3, -1)}) == 5


def test_no_two_weights_begin_with_the_same_numbers():
    weights = [parameter for parameter in build(CONFIG).parameters() if parameter.dim() > 1]
    starts = {tuple((weight.flatten()[:8] / weight.std()).tolist()) for weight in weights}
    assert len(starts) == len(weights)


@pytest.mark.parametrize("config", [CONFIG, DigitsConfig()], ids=["transformer", "digits"])
def test_the_global_random_state_is_neither_read_nor_moved(config):
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = digest(build(config))
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    assert digest(build(config)) == first


def test_the_default_device_is_ignored():
    torch.set_default_device("meta")
    try:
        model = build(CONFIG)
    finally:
        torch.set_default_device(None)
    assert {parameter.device.type for parameter in model.parameters()} == {"cpu"}
    assert digest(model) == digest(build(CONFIG))


@pytest.mark.parametrize("tied", [True, False])
def test_a_model_from_the_meta_device_gets_the_same_weights(tied):
    config = TransformerConfig(vocab=37, hidden=24, layers=2, heads=6, kv_heads=2, ffn=40, sequence=16, tied=tied)
    with torch.device("meta"):
        model = Transformer(config)
    assert all(parameter.is_meta for parameter in model.parameters())
    model = initialise(model.to_empty(device="cpu"), seed=3)
    assert (model.head.weight is model.embedding.weight) == tied
    assert digest(model) == digest(build(config, seed=3))


def test_a_deeper_model_begins_with_the_same_embedding():
    """A pipeline stage holds some layers only: what a layer gets may not depend on the layers before it."""
    deeper = TransformerConfig(vocab=37, hidden=24, layers=5, heads=6, kv_heads=2, ffn=40, sequence=16)
    shallow, deep = build(CONFIG), build(deeper)
    assert torch.equal(shallow.embedding.weight, deep.embedding.weight)
    assert torch.equal(shallow.blocks[2].attention.query.weight, deep.blocks[2].attention.query.weight)


def test_weights_are_spread_as_the_sources_say():
    wide = TransformerConfig(vocab=512, hidden=128, layers=8, heads=4, kv_heads=2, ffn=256, sequence=16)
    block = build(wide).blocks[5]
    assert block.attention.query.weight.std().item() == pytest.approx(0.02, rel=0.03)
    assert block.mlp.down.weight.std().item() == pytest.approx(0.02 / 4, rel=0.03)
    expert = build(wide).initial_std("blocks.5.mlp.experts.3.down.weight", torch.Size((128, 256)))
    assert expert == pytest.approx(0.02 / 4)
    assert torch.equal(block.mlp_norm.weight, torch.ones(128))
    digits = build(DigitsConfig(channels=32))
    assert digits.conv2.weight.std().item() == pytest.approx((2 / (9 * 32)) ** 0.5, rel=0.03)
    assert torch.equal(digits.conv2.bias, torch.zeros(64))


def test_digits_network_counts_its_parameters_and_refuses_other_images():
    model = build(DigitsConfig(channels=4, hidden=8))
    assert sum(parameter.numel() for parameter in model.parameters()) == model.config.parameters
    assert model(torch.zeros(3, 1, 28, 28)).shape == (3, 10)
    assert isinstance(DigitsNet().config, DigitsConfig)
    with pytest.raises(ValueError, match=r"images must be \[batch, 1, 28, 28\], got \[3, 28, 28\]"):
        model(torch.zeros(3, 28, 28))
    with pytest.raises(ValueError, match="classes must be an integer of 1 or more, got 0"):
        DigitsConfig(classes=0)


def test_an_unknown_config_is_refused():
    with pytest.raises(ValueError, match="no model for a dict; build takes one of: TransformerConfig, DigitsConfig"):
        build({"hidden": 8})
