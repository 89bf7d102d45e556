"""Graded tests of lesson 1.1.

Three kinds of truth: what papers printed, what a real model on the meta device holds and computes, and shapes drawn
from the seed, so that no table of known answers will do. Where a slip is a classic, the message names it.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import Any

import drivers_scaling_math as drivers
import pytest
import torch
from torch import nn

from shardlab.grade import exercise
from shardlab.models import Transformer, TransformerConfig
from shardlab.observe import flops

GIB = 2**30
RECOMPUTE = ("none", "selective", "full")
USABLE_SHARE, LARGEST_BATCH = 0.9, 16 * 2**20  # as the lab gives them

LLAMA_8B = TransformerConfig(128_256, 4_096, 32, 32, kv_heads=8, ffn=14_336, sequence=8_192, tied=False)
LLAMA_70B = TransformerConfig(128_256, 8_192, 80, 64, kv_heads=8, ffn=28_672, sequence=8_192, tied=False)
LLAMA_405B = TransformerConfig(128_256, 16_384, 126, 128, kv_heads=8, ffn=53_248, sequence=8_192, tied=False)
LLAMA_1B = TransformerConfig(128_256, 2_048, 16, 32, kv_heads=8, ffn=8_192, sequence=8_192, tied=True)

Shape = TransformerConfig | dict  # a dict stands for the lab's GPTConfig


# --- Descriptions of what the lab's classes hold ----------------------------------------------------------------------


def gpt(vocab: int, hidden: int, layers: int, heads: int, sequence: int) -> dict:
    return {"class": "GPTConfig", "vocab": vocab, "hidden": hidden, "layers": layers, "heads": heads} | {
        "sequence": sequence
    }


def recipe(parameter: int, gradient: int, optimizer: int) -> dict:
    names = ("parameter_bytes", "gradient_bytes", "optimizer_bytes")
    return {"class": "Recipe"} | dict(zip(names, (parameter, gradient, optimizer), strict=True))


def gpu(memory_gib: float = 80.0, peak_flops: float = 312e12) -> dict:
    return {"class": "Gpu", "name": "test card", "memory_gib": memory_gib, "peak_flops": peak_flops}


def step(micro_batch: int, accumulation: int, data_parallel: int, gpus: int, seconds: float) -> dict:
    names = ("micro_batch", "accumulation", "data_parallel", "gpus", "seconds")
    return {"class": "Step"} | dict(zip(names, (micro_batch, accumulation, data_parallel, gpus, seconds), strict=True))


def cluster(gpus: int, memory_gib: float = 80.0, gpus_per_node: int = 8) -> dict:
    return {"class": "Cluster", "gpu": gpu(memory_gib), "gpus": gpus, "gpus_per_node": gpus_per_node}


GPT3 = gpt(50_257, 12_288, 96, 96, 2_048)
GPT2 = gpt(50_257, 768, 12, 12, 1_024)
MIXED = recipe(2, 2, 12)
# Table 3 and table 5 of arXiv:2205.05198: shape, global batch, GPUs (A100), seconds per step, MFU
MEGATRON = {
    "22B": (gpt(51_200, 6_144, 48, 64, 2_048), 4, 8, 1.10, 0.415),
    "175B": (gpt(51_200, 12_288, 96, 96, 2_048), 64, 64, 13.75, 0.514),
    "530B": (gpt(51_200, 20_480, 105, 128, 2_048), 280, 280, 37.83, 0.560),
    "1T": (gpt(51_200, 25_600, 128, 160, 2_048), 512, 512, 71.49, 0.563),
}


def drawn_llama(seed: int, tied: bool = False) -> TransformerConfig:
    draw = random.Random(seed)
    kv_heads, queries, head_dim = draw.choice([2, 3, 4]), draw.choice([2, 4]), draw.choice([8, 12, 16])
    heads = kv_heads * queries
    return TransformerConfig(
        vocab=draw.randrange(100, 999),
        hidden=heads * head_dim,
        layers=draw.randrange(2, 6),
        heads=heads,
        kv_heads=kv_heads,
        ffn=8 * draw.randrange(5, 60),
        sequence=8 * draw.randrange(3, 40),
        tied=tied,
    )


def drawn_gpt(seed: int) -> dict:
    draw = random.Random(seed)
    heads = draw.choice([4, 8])
    hidden = heads * draw.choice([8, 24])
    return gpt(draw.randrange(100, 999), hidden, draw.randrange(2, 6), heads, 8 * draw.randrange(3, 40))


def size(config: Shape, name: str) -> int:
    return config[name] if isinstance(config, dict) else getattr(config, name)


# --- Real models, which the answers are held against ------------------------------------------------------------------


def real_model(config: Shape) -> nn.Module:
    """The model itself, on the meta device: no memory, all shapes. The GPT is its parameters, without a forward."""
    with torch.device("meta"):
        return Transformer(config) if isinstance(config, TransformerConfig) else _gpt_parts(config)


def _gpt_parts(config: dict) -> nn.Module:
    hidden = config["hidden"]
    blocks = nn.ModuleList(
        nn.ModuleList(
            [
                nn.LayerNorm(hidden),
                nn.Linear(hidden, 3 * hidden),
                nn.Linear(hidden, hidden),
                nn.LayerNorm(hidden),
                nn.Linear(hidden, 4 * hidden),
                nn.Linear(4 * hidden, hidden),
            ]
        )
        for _ in range(config["layers"])
    )
    ends = [nn.Embedding(config["vocab"], hidden), nn.Embedding(config["sequence"], hidden), nn.LayerNorm(hidden)]
    model = nn.ModuleList([*ends, blocks])
    model.blocks = blocks
    return model


def parameters_of(config: Shape) -> int:
    return sum(parameter.numel() for parameter in real_model(config).parameters())


def matrices_of(config: Shape) -> int:
    """Weights in the matrices of the first layer."""
    return sum(parameter.numel() for parameter in real_model(config).blocks[0].parameters() if parameter.dim() == 2)


def counted_flops(config: TransformerConfig, sequences: int) -> int:
    """Of forward and backward, as torch's own counter sees them."""
    return flops(real_model(config), torch.zeros(sequences, config.sequence, dtype=torch.int64))


def counted_layer_forward(config: TransformerConfig, sequences: int) -> int:
    block = real_model(config).blocks[0].requires_grad_(False)
    x = torch.empty(sequences, config.sequence, config.hidden, device="meta")
    return flops(block, (x, torch.arange(config.sequence)))


# --- Calling and comparing --------------------------------------------------------------------------------------------


def results(lab: Any, name: str, calls: Sequence[tuple]) -> list[Any]:
    return lab.on_ranks(1).run(drivers.call_each, name, calls)[0].value


def result(lab: Any, name: str, *arguments: Any) -> Any:
    return results(lab, name, [arguments])[0]


def refused(lab: Any, name: str, calls: Sequence[tuple], mentions: Sequence[str] = ()) -> None:
    """Every call must raise ValueError, and say what it was given."""
    errors = lab.on_ranks(1).run(drivers.errors_of, name, calls)[0].value
    for arguments, (kind, message), mention in zip(calls, errors, mentions or [""] * len(calls), strict=True):
        given = f"{name}{arguments}"
        assert kind == "ValueError", f"{given} must raise ValueError: {f'it raised {kind}' if kind else 'it returned'}"
        assert len(message) > 15 and mention in message, f"{given}: say what was given and what is allowed: {message!r}"


def check(what: str, got: float, want: float, rel: float = 0.0, slips: Iterable[tuple[float, str]] = ()) -> None:
    """Fail with expected and got, and with the slip that gives exactly this wrong value."""
    if math.isclose(got, want, rel_tol=rel):
        return
    slip = next((text for value, text in slips if math.isclose(got, value, rel_tol=max(rel, 1e-9))), "")
    pytest.fail(f"{what}: expected {want:,}, got {got:,} ({got / want - 1:+.2%}). {slip}" if want else f"{what}: {got}")


# --- Parameters -------------------------------------------------------------------------------------------------------


@exercise("1.1", "layer_matrices", points=2)
@pytest.mark.parametrize("family", ["llama", "gpt"])
def test_matrices_of_a_layer(lab, seed, family):
    configs = [(drawn_llama if family == "llama" else drawn_gpt)(seed + index) for index in range(4)]
    for config, got in zip(configs, results(lab, "layer_matrices", [(config,) for config in configs]), strict=True):
        hidden, want, slips = size(config, "hidden"), matrices_of(config), []
        if isinstance(config, TransformerConfig):
            all_heads = 2 * hidden * (hidden - config.kv_heads * config.head_dim)
            slips.append((want + all_heads, "Key and value have kv_heads heads, not heads."))
            slips.append((want - hidden * config.ffn, "SwiGLU has three matrices: gate, up and down."))
        check(f"layer_matrices({config})", got, want, slips=slips)


@exercise("1.1", "count_parameters", points=2)
@pytest.mark.parametrize("kind", ["tied", "untied", "gpt"])
def test_every_parameter_is_counted_once(lab, seed, kind):
    draw = {"tied": lambda s: drawn_llama(s, tied=True), "untied": drawn_llama, "gpt": drawn_gpt}[kind]
    configs = [draw(seed + index) for index in range(4)]
    for config, got in zip(configs, results(lab, "count_parameters", [(config,) for config in configs]), strict=True):
        want, table = parameters_of(config), size(config, "vocab") * size(config, "hidden")
        slips = [
            (want + table, "A tied head is the embedding: one matrix, counted once."),
            (want - table, "An untied head is a matrix of its own, as large as the embedding."),
            (want - size(config, "hidden"), "The last norm is missing."),
        ]
        check(f"count_parameters({config})", got, want, slips=slips)


@exercise("1.1", "count_parameters", points=1)
def test_published_parameter_counts(lab):
    published = [(LLAMA_8B, 8_030_261_248), (LLAMA_70B, 70_553_706_496), (LLAMA_405B, 405_853_388_800)]
    published += [(LLAMA_1B, 1_235_814_400), (GPT2, 124_439_808)]
    counts = results(lab, "count_parameters", [(config,) for config, _ in published])
    for (config, want), got in zip(published, counts, strict=True):
        check(f"count_parameters({config})", got, want)


# --- Model states -----------------------------------------------------------------------------------------------------


def parts(breakdown: Any) -> tuple[int, int, int]:
    return breakdown.parameters, breakdown.gradients, breakdown.optimizer


@exercise("1.1", "model_state_bytes", points=1)
def test_mixed_precision_adam_takes_16_bytes_per_parameter(lab, seed):
    params = 10**9 + seed
    got = parts(result(lab, "model_state_bytes", params, MIXED))
    assert got == (2 * params, 2 * params, 12 * params), (
        f"{params:,} parameters in mixed precision need 2, 2 and 12 bytes each for parameters, gradients and optimiser "
        f"state (ZeRO paper, section 3.1): got {[part / params for part in got]} bytes"
    )


@exercise("1.1", "model_state_bytes", points=1)
def test_figure_1_of_the_zero_paper(lab):
    stages = results(lab, "model_state_bytes", [(7_500_000_000, MIXED, stage, 64) for stage in range(4)])
    for stage, (breakdown, gigabytes) in enumerate(zip(stages, (120, 31.4, 16.6, 1.9), strict=True)):
        got = sum(parts(breakdown)) / 1e9
        assert abs(got - gigabytes) < 0.05, f"stage {stage}: the paper has {gigabytes} GB, got {got:.2f} GB"


@exercise("1.1", "model_state_bytes", points=2)
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_each_stage_splits_what_it_should(lab, seed, stage):
    draw = random.Random(seed)
    params, ranks = draw.randrange(10**6, 10**9) * 7 + 1, 7  # a remainder of 1: somebody holds padding
    widths = draw.sample(range(1, 20), 3)
    got = parts(result(lab, "model_state_bytes", params, recipe(*widths), stage, ranks))
    split = params // ranks + 1
    names = ("parameters", "gradients", "optimiser state")
    for name, width, bytes_held, first in zip(names, widths, got, (3, 2, 1), strict=True):
        want = width * (split if stage >= first else params)
        other = width * (params if stage >= first else split)
        slip = f"ZeRO splits the {name} from stage {first} on."
        truncated = "The fullest rank counts: share rounds up."
        check(f"{name}, stage {stage}", bytes_held, want, slips=[(other, slip), (width * (split - 1), truncated)])


@exercise("1.1", "model_state_bytes", points=1)
def test_bad_states_are_refused(lab):
    calls = [(10, MIXED, 4, 2), (10, MIXED, -1, 2), (10, MIXED, 1, 0), (-1, MIXED, 1, 2)]
    refused(lab, "model_state_bytes", calls, ["4", "-1", "0", "-1"])


# --- Activations ------------------------------------------------------------------------------------------------------


@exercise("1.1", "saved_per_token", points=1)
def test_a_gpt_layer_keeps_what_the_paper_counts(lab, seed):
    config = drawn_gpt(seed)
    hidden, scores = config["hidden"], config["heads"] * config["sequence"]
    whole, split, got_scores = result(lab, "saved_per_token", config)
    check("whole", whole, 10 * hidden, slips=[(12 * hidden, "A dropout mask has one byte per value.")])
    check("split", split, 24 * hidden)
    slips = [(4 * scores, "The dropout's mask, one byte per score, is missing."), (2 * scores, "Softmax AND dropout.")]
    check("scores", got_scores, 5 * scores, slips=slips)


@exercise("1.1", "saved_per_token", points=3)
def test_a_llama_layer_keeps(lab, seed):
    for index in range(3):
        config = drawn_llama(seed + index)
        hidden, kv_width = config.hidden, config.kv_heads * config.head_dim
        whole, split, scores = result(lab, "saved_per_token", config)
        inputs = {"attention norm": hidden, "attention": hidden, "feed-forward norm": hidden, "feed-forward": hidden}
        check(f"whole of {config}", whole, 2 * sum(inputs.values()), slips=[(10 * hidden, "Llama has no dropout.")])
        widths = {"query": hidden, "key": kv_width, "value": kv_width, "output projection": hidden}
        swiglu = dict.fromkeys(("gate", "up", "silu(gate)", "silu(gate) * up"), config.ffn)
        want = 2 * sum((widths | swiglu).values())
        slips = [
            (want + 4 * (hidden - kv_width), "Keys and values are kv_heads * head_dim wide."),
            (want - 2 * config.ffn, f"Kept of the feed-forward: {', '.join(swiglu)}."),
            (want - 4 * config.ffn, f"Kept of the feed-forward: {', '.join(swiglu)}."),
        ]
        check(f"split of {config}", split, want, slips=slips)
        values = config.heads * config.sequence
        check("scores", scores, 2 * values, slips=[(5 * values, "Without dropout only the softmax's output is kept.")])


@exercise("1.1", "activation_bytes", points=3)
@pytest.mark.parametrize("name", list(MEGATRON))
def test_table_2_of_the_paper(lab, name):
    config = MEGATRON[name][0]
    s, h, a, layers, b, t = config["sequence"], config["hidden"], config["heads"], config["layers"], 2, 8
    scores = 5 * a * s / h
    rows = {  # recompute, t, sequence parallelism: units of s b h
        ("none", 1, False): 34 + scores,
        ("none", t, False): 10 + 24 / t + scores / t,
        ("none", t, True): 34 / t + scores / t,
        ("selective", 1, False): 34,
        ("selective", t, False): 10 + 24 / t,
        ("selective", t, True): 34 / t,
        ("full", 1, False): 2,
        ("full", t, False): 2,
        ("full", t, True): 2 / t,
    }
    values = results(lab, "activation_bytes", [(config, b, *row) for row in rows])
    for (row, want), got in zip(rows.items(), values, strict=True):
        unit = s * b * h * layers
        assert abs(got / unit - want) <= 0.02 * want, (
            f"{name}, recompute {row[0]!r}, t = {row[1]}, sequence parallel {row[2]}: table 2 of arXiv:2205.05198 has "
            f"{want:.2f} s b h bytes per layer, got {got / unit:.2f}"
        )


@exercise("1.1", "activation_bytes", points=1)
def test_activations_of_llama(lab, seed):
    config = drawn_llama(seed)
    tokens, hidden, t = 3 * config.sequence, config.hidden, config.kv_heads
    kv_width, inner, scores = config.kv_heads * config.head_dim, config.ffn, 2 * config.heads * config.sequence
    split = 4 * hidden + 4 * kv_width + 8 * inner
    wants = {
        ("none", 1, False): 8 * hidden + split + scores,
        ("selective", t, False): 8 * hidden + Fraction(split, t),
        ("none", t, True): Fraction(8 * hidden + split + scores, t),
        ("full", t, True): Fraction(2 * hidden, t),
    }
    values = results(lab, "activation_bytes", [(config, 3, *row) for row in wants])
    for (row, want), got in zip(wants.items(), values, strict=True):
        exact = config.layers * tokens * want
        assert exact <= got <= exact + 2 * config.layers, (
            f"{config}, {row}: expected {float(exact):,.1f} bytes, up to one more per layer and part where ranks share "
            f"bytes that t does not divide: got {got:,}"
        )


@exercise("1.1", "activation_bytes", points=1)
def test_bad_activations_are_refused(lab):
    calls = [(GPT3, 0, "none"), (GPT3, 1, "some"), (GPT3, 1, "none", 0), (GPT3, 1, "none", 7)]
    refused(lab, "activation_bytes", calls, ["0", "some", "0", "7"])


@exercise("1.1", "end_bytes", points=1)
def test_the_ends_of_the_model(lab, seed):
    for config in (drawn_llama(seed), drawn_gpt(seed)):
        hidden, vocab = size(config, "hidden"), size(config, "vocab")
        want = 2 * size(config, "sequence") * (2 * hidden + 2 * hidden + 4 * vocab + hidden * isinstance(config, dict))
        slips = [(want - 4 * size(config, "sequence") * vocab, "Logits are kept in float32: 4 bytes.")]
        whole, half = results(lab, "end_bytes", [(config, 2), (config, 2, 2)])
        check(f"end_bytes({config}, 2)", whole, want, slips=slips)
        check(f"end_bytes({config}, 2, tensor_parallel=2)", half, want // 2, slips=[(want, "The ranks share it.")])


# --- Compute ----------------------------------------------------------------------------------------------------------


@exercise("1.1", "training_flops", points=2)
@pytest.mark.parametrize(
    ("name", "config", "tokens", "published"),
    [("GPT-3 175B", GPT3, 300 * 10**9, 3.14e23), ("Llama 3 405B", LLAMA_405B, 15_600 * 10**9, 3.8e25)],
)
def test_published_training_flops(lab, name, config, tokens, published):
    slips = [(published / 3, "That is the forward pass alone: backward takes twice as much on top.")]
    check(name, result(lab, "training_flops", config, tokens), published, rel=0.005, slips=slips)


@exercise("1.1", "model_flops", points=2)
def test_model_flops_are_those_of_a_real_model(lab, seed):
    for tied in (False, True):
        config = drawn_llama(seed, tied)
        sequences, tokens = 3, 3 * config.sequence
        want = counted_flops(config, sequences)
        table, attention = config.vocab * config.hidden, config.layers * config.hidden * config.sequence
        slips = [
            (want - 12 * attention * tokens, "The attention scores are missing."),
            (want + 6 * table * tokens, "Looking up an embedding is no matrix product."),
            (want - 6 * table * tokens, "The head is a matrix product, tied or not."),
            (want - 6 * attention * tokens, "Scores times values, or the causal half: count both products in full."),
        ]
        check(f"model_flops({config})", result(lab, "model_flops", config, tokens), want, slips=slips)


@exercise("1.1", "model_flops", points=1)
def test_model_flops_of_the_papers_models(lab):
    for name, (config, *_) in MEGATRON.items():
        s, h, layers, v = config["sequence"], config["hidden"], config["layers"], config["vocab"]
        want = 72 * layers * s * h**2 * (1 + s / (6 * h) + v / (12 * h * layers))  # equation 7 of arXiv:2205.05198
        check(f"{name}, one sequence", result(lab, "model_flops", config, s), want, rel=1e-9)


@exercise("1.1", "hardware_flops", points=2)
def test_what_recomputation_adds(lab, seed):
    config = drawn_llama(seed)
    tokens, base = 2 * config.sequence, counted_flops(config, 2)
    scores = 4 * config.hidden * config.sequence * tokens
    layer = counted_layer_forward(config, 2)
    values = results(lab, "hardware_flops", [(config, tokens, recompute) for recompute in RECOMPUTE])
    wants = (base, base + config.layers * scores, base + config.layers * layer)
    slips = [
        (base + 3 * config.layers * scores, "Only the forward of attention is computed again, not its backward."),
        (base * 4 / 3, "The head and the loss are not computed again: only the layers are."),
        (base + config.layers * (layer - scores), "The scores are part of a layer's forward."),
    ]
    for recompute, got, want in zip(RECOMPUTE, values, wants, strict=True):
        check(f"hardware_flops({config}, recompute={recompute!r})", got, want, slips=slips)


@exercise("1.1", "hardware_flops", points=1)
def test_unknown_recomputation_is_refused(lab):
    refused(lab, "hardware_flops", [(GPT2, 1024, "some"), (GPT2, 1024, "")], ["some", ""])


@exercise("1.1", "tokens_per_second", points=1)
def test_tokens_of_a_step(lab, seed):
    draw = random.Random(seed)
    config = drawn_llama(seed)
    b, k, n = (draw.randrange(2, 9) for _ in range(3))
    want = b * k * n * config.sequence / 2.5
    slips = [
        (want / k, "All micro-batches of the step train: times accumulation."),
        (want / n, "Every replica trains on its own sequences."),
        (want / config.sequence, "Tokens, not sequences."),
        (want * 4, "GPUs that share a replica do not train on tokens of their own."),
    ]
    check("tokens/s", result(lab, "tokens_per_second", config, step(b, k, n, 4 * n, 2.5)), want, 1e-9, slips)


@exercise("1.1", "mfu", points=2)
@pytest.mark.parametrize("name", list(MEGATRON))
def test_published_mfu(lab, name):
    config, batch, gpus, seconds, published = MEGATRON[name]
    got = result(lab, "mfu", config, step(1, batch, 1, gpus, seconds), gpu())
    slips = [(published * 100, "A share from 0 to 1, no percentage."), (published / batch, "Count all micro-batches.")]
    check(f"MFU of {name}", got, published, rel=0.005, slips=slips)


@exercise("1.1", "mfu", points=2)
def test_mfu_does_not_depend_on_accumulation_steps(lab, seed):
    config, seconds = drawn_llama(seed), 0.5
    one, *others = results(
        lab, "mfu", [(config, step(48 // k, k, 2, 2, seconds), gpu(peak_flops=1e12)) for k in (1, 2, 4, 16)]
    )
    for k, got in zip((2, 4, 16), others, strict=True):
        assert math.isclose(got, one, rel_tol=1e-9), (
            f"48 sequences per replica in {seconds} s: MFU {one:.4g} in one micro-batch, {got:.4g} in {k} of them, "
            f"{got / one:.4g} times that. The seconds of a step cover all its micro-batches, so must its tokens."
        )


@exercise("1.1", "hfu", points=2)
def test_hfu_counts_what_the_hardware_does(lab, seed):
    config, peak = drawn_llama(seed), 1e12
    one_step = step(2, 1, 1, 1, 0.25)
    base, layer = counted_flops(config, 2), counted_layer_forward(config, 2)
    values = results(lab, "hfu", [(config, one_step, gpu(peak_flops=peak), recompute) for recompute in RECOMPUTE])
    extra = config.layers * 2 * config.sequence * 4 * config.hidden * config.sequence
    wants = [base, base + extra, base + config.layers * layer]
    for recompute, got, want in zip(RECOMPUTE, values, wants, strict=True):
        slip = "That is MFU: the recomputed FLOPs are missing."
        check(f"HFU with {recompute!r}", got, want / 0.25 / peak, 1e-9, [(base / 0.25 / peak, slip)])


@exercise("1.1", "mfu", points=1)
def test_mfu_counts_tokens_and_the_whole_job(lab):
    config, batch, gpus, seconds, published = MEGATRON["175B"]
    slow, large = results(
        lab,
        "mfu",
        [
            (config, step(1, batch, 1, gpus, 18.13), gpu()),  # full recomputation took 18.13 s: table 5
            (config, step(1, batch, 8, 8 * gpus, seconds), gpu()),
        ],
    )
    slip = "Recomputation makes the step longer, not the model larger: MFU falls."
    check("MFU of the 175B with full recomputation", slow, published * seconds / 18.13, 0.005, [(slow, slip)])
    check("MFU of 8 replicas on 8 times the GPUs", large, published, 0.005, [(8 * published, "Divide by all GPUs.")])


@exercise("1.1", "training_days", points=1)
def test_gpt3_takes_34_days(lab):
    utilisation = 140 / 312 * 3 / 4  # 140 of 312 TFLOP/s, a quarter of it recomputation
    got = result(lab, "training_days", GPT3, 300 * 10**9, 1024, gpu(), utilisation)
    assert abs(got - 34) <= 1.02, (
        f"Narayanan et al. 2021 (arXiv:2104.04473, section 5.1): GPT-3 on 1,024 A100 takes 34 days, got {got:.4g}"
    )


@exercise("1.1", "training_days", points=1)
def test_training_days(lab, seed):
    config, tokens = drawn_llama(seed), 10**9
    want = counted_flops(config, 1) / config.sequence * tokens / (3 * 2e12 * 0.4) / 86_400
    got = result(lab, "training_days", config, tokens, 3, gpu(peak_flops=2e12), 0.4)
    check("days", got, want, 1e-9, [(want * 24, "That is hours."), (want * 3, "More GPUs, fewer days.")])
    bad = [(config, tokens, 0, gpu(), 0.4), (config, tokens, 8, gpu(), 40), (config, tokens, 8, gpu(), 0)]
    refused(lab, "training_days", bad, ["0", "40", "0"])


# Table 3 of arXiv:2203.15556: parameters, FLOPs, tokens
CHINCHILLA = [(400e6, 1.92e19, 8.0e9), (1e9, 1.21e20, 20.2e9), (10e9, 1.23e22, 205.1e9), (67e9, 5.76e23, 1.5e12)]
CHINCHILLA += [(175e9, 3.85e24, 3.7e12), (280e9, 9.90e24, 5.9e12), (520e9, 3.43e25, 11.0e12)]
CHINCHILLA += [(1e12, 1.27e26, 21.2e12), (10e12, 1.30e28, 216.2e12)]


@exercise("1.1", "compute_optimal", points=2)
def test_the_chinchilla_table(lab, seed):
    for (params, flops_, tokens), got in zip(
        CHINCHILLA, results(lab, "compute_optimal", [(budget,) for _, budget, _ in CHINCHILLA]), strict=True
    ):
        assert abs(got[0] / params - 1) < 0.08 and abs(got[1] / tokens - 1) < 0.08, (
            f"{flops_:.2e} FLOPs: table 3 has {params:.3g} parameters and {tokens:.3g} tokens, got {got[0]:.3g} and "
            f"{got[1]:.3g}. Parameters and tokens both grow with the square root of the budget."
        )
    budget = 1e20 * (1 + seed / 2**32)
    params, tokens = result(lab, "compute_optimal", budget)
    check("6 N D", 6 * params * tokens, budget, rel=1e-6)
    check("tokens per parameter", tokens / params, 20, rel=1e-6)
    refused(lab, "compute_optimal", [(0.0,), (-1e20,)], ["0", "-1e+20"])


# --- What fits --------------------------------------------------------------------------------------------------------


def states(config: TransformerConfig, widths: Sequence[int], gpus: int, stage: int, split: int = 1) -> int:
    """Bytes of model states per GPU."""
    own, ranks = -(-config.parameters // split), gpus // split
    shard = -(-own // ranks)
    return sum(width * (shard if stage >= first else own) for width, first in zip(widths, (3, 2, 1), strict=True))


def activations(config: TransformerConfig, t: int = 1) -> float:
    """Bytes of inputs of all layers, one layer at work, and the ends; micro-batch 1, all of it split by t."""
    hidden, kv_width = config.hidden, config.kv_heads * config.head_dim
    layer = 12 * hidden + 4 * kv_width + 8 * config.ffn
    ends = 4 * hidden + 4 * config.vocab
    return config.sequence * (config.layers * 2 * hidden + layer + ends) / t


def memory(config: TransformerConfig, gpus: int, stage: int, t: int = 1, p: int = 1) -> float:
    """Bytes per GPU with mixed-precision Adam."""
    return states(config, (2, 2, 12), gpus, stage, t * p) + activations(config, t)


@exercise("1.1", "budget_bytes", points=1)
def test_memory_is_counted_in_gib(lab):
    got = results(lab, "budget_bytes", [(gpu(80.0),), (gpu(24.0),)])
    for value, gibibytes in zip(got, (80, 24), strict=True):
        slips = [
            (USABLE_SHARE * gibibytes * 1e9, "That takes a GiB for a GB: 10**9 bytes, 7 % less than 2**30."),
            (gibibytes * GIB, "A plan may fill USABLE_SHARE of the memory."),
        ]
        check(f"budget of {gibibytes} GiB", value, USABLE_SHARE * gibibytes * GIB, 1e-9, slips)


@exercise("1.1", "memory_per_gpu", points=2)
@pytest.mark.parametrize(("stage", "t", "p"), [(0, 1, 1), (1, 1, 1), (3, 1, 1), (2, 2, 1), (3, 2, 2)])
def test_memory_per_gpu(lab, seed, stage, t, p):
    config = drawn_llama(seed)
    gpus, widths = 8, random.Random(seed).sample(range(1, 15), 3)
    got = result(lab, "memory_per_gpu", config, recipe(*widths), gpus, stage, t, p)
    want = states(config, widths, gpus, stage, t * p)
    wrong_ranks = states(config, widths, gpus * t * p, stage, t * p)
    slips = [(wrong_ranks, "Of the GPUs only gpus / (t p) are data-parallel ranks: the others hold other parameters.")]
    check(f"model states of {config}, stage {stage}, t = {t}, p = {p}", sum(parts(got)), want, slips=slips)
    expected = activations(config, t)
    assert abs(got.activations - expected) <= 4 * config.layers + 4, (
        f"activations of {config} with t = {t}: inputs of all layers, one layer at work and the ends are "
        f"{expected:,.0f} bytes, got {got.activations:,}. Pipeline stages do not change them."
    )


@exercise("1.1", "memory_per_gpu", points=1)
def test_gpus_that_cannot_be_laid_out_are_refused(lab):
    refused(lab, "memory_per_gpu", [(GPT2, MIXED, 6, 3, 4), (GPT2, MIXED, 0), (GPT2, MIXED, 8, 3, 4, 4)])


@exercise("1.1", "minimum_gpus", points=2)
@pytest.mark.parametrize("config", [LLAMA_8B, LLAMA_70B, LLAMA_405B], ids=["8B", "70B", "405B"])
def test_one_gpu_less_does_not_fit(lab, seed, config):
    gibibytes = 64 + seed % 97
    (got,) = results(lab, "minimum_gpus", [(config, MIXED, gpu(gibibytes))])
    budget = USABLE_SHARE * gibibytes * GIB
    fits, less = (memory(config, count, 3) <= budget for count in (got, max(1, got - 1)))
    states_alone = -(-16 * config.parameters // int(budget))
    assert fits and (got == 1 or not less), (
        f"{got} GPUs of {gibibytes} GiB: per GPU {memory(config, got, 3) / GIB:.2f} GiB are needed and "
        f"{budget / GIB:.2f} may be filled; with one GPU less {memory(config, max(1, got - 1), 3) / GIB:.2f}. "
        + (f"{states_alone} is what the model states alone need: activations take room too." * (got == states_alone))
    )


@exercise("1.1", "minimum_gpus", points=1)
def test_more_gpus_do_not_help_against_activations(lab):
    long_text = TransformerConfig(128_256, 4_096, 32, 32, kv_heads=8, ffn=14_336, sequence=131_072, tied=False)
    refused(lab, "minimum_gpus", [(long_text, MIXED, gpu(80.0))], ["GiB"])


# --- The choice -------------------------------------------------------------------------------------------------------

SUFFIXES = {(1, 1): "", (2, 1): " + TP", (4, 1): " + TP", (8, 1): " + TP", (8, 2): " + TP + PP", (8, 4): " + TP + PP"}
ZERO = ("DDP", "ZeRO-1", "ZeRO-2", "ZeRO-3")


def gib_in(reason: str) -> list[float]:
    return [float(number.replace(",", "")) for number in re.findall(r"([\d,]*\.?\d+)\s*GiB", reason)]


@exercise("1.1", "choose_parallelism", points=3)
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_the_choice_flips_where_the_arithmetic_says(lab, stage):
    """Memory 1 % above and below what a stage needs: it must be chosen, and passed over. GB for GiB is 7 % off."""
    gibibytes = memory(LLAMA_8B, 64, stage) / USABLE_SHARE / GIB
    above, below = results(
        lab, "choose_parallelism", [(LLAMA_8B, cluster(64, gibibytes * factor)) for factor in (1.01, 0.99)]
    )
    assert above.strategy == ZERO[stage], (
        f"Llama 3 8B on 64 GPUs: {ZERO[stage]} needs {memory(LLAMA_8B, 64, stage) / GIB:.2f} GiB per GPU, there is 1 % "
        f"more than that, and {above.strategy!r} was chosen"
    )
    want = expected_choice(LLAMA_8B, 64, gibibytes * 0.99)
    assert below.strategy == want, (
        f"Llama 3 8B on 64 GPUs: {ZERO[stage]} needs {memory(LLAMA_8B, 64, stage) / GIB:.2f} GiB per GPU, there is 1 % "
        f"less than that, so {want!r} is next: got {below.strategy!r}"
    )


@exercise("1.1", "choose_parallelism", points=2)
def test_the_choice_on_many_clusters(lab, seed):
    draw = random.Random(seed)
    cases = []
    for gpus in (1, 2, 8, 32, 1024):
        for (t, p), suffix in SUFFIXES.items():
            if gpus % (t * p) == 0 and (t == 1 or gpus >= t):
                needs = [memory(LLAMA_8B, gpus, stage, t, p) for stage in range(4 if gpus > 1 else 1)]
                cases.append((gpus, draw.choice(needs) * draw.uniform(1.02, 1.2) / USABLE_SHARE / GIB, suffix))
    cases += [(gpus, 640.0, "") for gpus in (2048, 4096, 16_384, 65_536)]  # the batch decides
    cases += [(8, 10.0, ""), (1, 80.0, "")]  # nothing fits
    choices = results(lab, "choose_parallelism", [(LLAMA_8B, cluster(gpus, gib)) for gpus, gib, _ in cases])
    for (gpus, gib, _), choice in zip(cases, choices, strict=True):
        want = expected_choice(LLAMA_8B, gpus, gib)
        assert choice.strategy == want, (
            f"Llama 3 8B on {gpus} GPUs of {gib:.1f} GiB: expected {want!r}, got {choice.strategy!r} because "
            f"{choice.reason!r}"
        )


def expected_choice(config: TransformerConfig, gpus: int, gibibytes: float) -> str:
    pairs = [pair for pair in [*SUFFIXES, (8, 8), (8, 16), (8, 32)] if gpus % (pair[0] * pair[1]) == 0]
    for t, p in pairs:
        for stage, zero in enumerate(ZERO if gpus > 1 else ["single GPU"]):
            small_enough = gpus // (t * p) * config.sequence <= LARGEST_BATCH
            if memory(config, gpus, stage, t, p) <= USABLE_SHARE * gibibytes * GIB and small_enough:
                return zero + SUFFIXES.get((t, p), " + TP + PP")
    return "does not fit"


@exercise("1.1", "choose_parallelism", points=1)
def test_the_reason_is_for_a_person(lab):
    tight, batch = results(
        lab, "choose_parallelism", [(LLAMA_70B, cluster(64, 80.0)), (LLAMA_70B, cluster(4096, 80.0))]
    )
    for choice, amounts in (
        (tight, {"ZeRO-3 (chosen)": memory(LLAMA_70B, 64, 3), "ZeRO-2 (passed over)": memory(LLAMA_70B, 64, 2)}),
        (batch, {"ZeRO-3 + TP (chosen)": memory(LLAMA_70B, 4096, 3, 2)}),
    ):
        assert len(choice.reason.split()) >= 8, f"a reason has sentences: {choice.reason!r}"
        for what, num_bytes in amounts.items():
            assert any(abs(number - num_bytes / GIB) < 0.06 for number in gib_in(choice.reason)), (
                f"the reason should give the {num_bytes / GIB:.1f} GiB per GPU of {what}: {choice.reason!r}"
            )
    assert "token" in batch.reason and "33,554,432" in batch.reason, (
        f"4,096 replicas make a batch of 33,554,432 tokens, which is why ZeRO-3 alone is passed over: {batch.reason!r}"
    )
