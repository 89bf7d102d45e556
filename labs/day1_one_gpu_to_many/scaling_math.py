"""Lesson 1.1: scaling mathematics, the numbers to know before renting a GPU.

Training a model of P parameters takes about 6 P floating-point operations per token, and 16 bytes per parameter before
the first activation is kept. Two sums with large consequences: one GPU would need decades for the first and cannot hold
the second. Here you write the sums, until they tell which parallelism a model needs on a cluster and why.

Work from top to bottom; later functions call earlier ones. Everything is plain arithmetic, nothing communicates. A
`config` is a `shardlab.models.TransformerConfig` (Llama: grouped queries, SwiGLU, RMSNorm, no biases, no dropout) or a
`GPTConfig` (GPT-3: as many KV heads as heads, GELU, LayerNorm, biases, dropout); ``isinstance`` tells them apart. At
the end of the file stands what is given: `GPTConfig`, `Recipe`, `MemoryBreakdown`, `Step`, `Gpu`, `Cluster`, `Choice`,
tables of models, recipes and GPUs, `share`, `in_gib` and `layouts`.

Units: bytes, FLOPs and tokens are plain numbers, never "billions". 1 GiB is 2**30 bytes and 1 GB is 10**9, 7 % less:
memory is counted in GiB here. FLOP/s of a GPU are dense, for bfloat16. Letters are those of the papers: s sequence, b
micro-batch, h hidden, a heads, f inner width of the feed-forward network, v vocabulary, L layers, t tensor parallelism.

Sources:
    Brown et al. 2020, "Language models are few-shot learners", arXiv:2005.14165, appendix D: 6 FLOPs.
    Rajbhandari et al. 2020, "ZeRO: memory optimizations toward training trillion parameter models", arXiv:1910.02054.
    Korthikanti et al. 2022, "Reducing activation recomputation in large transformer models", arXiv:2205.05198.
    Hoffmann et al. 2022, "Training compute-optimal large language models", arXiv:2203.15556: Chinchilla.
    Chowdhery et al. 2022, "PaLM", arXiv:2204.02311, appendix B: model FLOPs utilisation.
    Grattafiori et al. 2024, "The Llama 3 herd of models", arXiv:2407.21783, tables 3 and 4.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from shardlab import NotAttempted
from shardlab.models import TransformerConfig

RECOMPUTE = ("none", "selective", "full")
TOKENS_PER_PARAMETER = 20  # Chinchilla's rule, see `compute_optimal`
USABLE_SHARE = 0.9  # our assumption: the rest is for CUDA, NCCL's buffers, gathered layers and fragmentation
LARGEST_BATCH = 16 * 2**20  # tokens per step, as in the training of Llama 3 405B (table 4): more teach less and less


# --- Parameters -------------------------------------------------------------------------------------------------------


def layer_matrices(config: ModelConfig) -> int:
    """Weights in the matrices of one layer: those that multiply every token.

    - Attention: query and output are h x h; key and value lead from h to ``kv_heads * head_dim`` (grouped queries,
      Ainslie et al. 2023, arXiv:2305.13245), which is h in a `GPTConfig`.
    - Feed-forward: SwiGLU has three matrices of h x f (Shazeer 2020, arXiv:2002.05202), a `GPTConfig` two of h x 4h.

    Example, Llama with hidden 8, 4 heads, 2 KV heads, ffn 16: 2 x 64 + 2 x 32 + 3 x 128 = 576. A `GPTConfig` with
    hidden 8: 12 x 64 = 768.
    """
    raise NotAttempted("1.1 layer_matrices")


def count_parameters(config: ModelConfig) -> int:
    """Trainable parameters of the model, each once.

    - Llama: per layer the matrices and two norms of h; a norm of h at the end; an embedding of v x h and a head of
      the same size, which are one matrix if ``config.tied``.
    - `GPTConfig`: per layer the matrices, biases of all of them (3h + h in attention, 4h + h in the feed-forward) and
      two LayerNorms of 2h; a LayerNorm at the end; embeddings of v tokens and s positions; the head is tied.

    Examples: Llama 3 70B has 70,553,706,496, GPT-2 124,439,808.

    Hints:
        1. Where the head is tied, is it in the checkpoint twice? `torch.nn.Module.parameters` yields it once.
        2. `shardlab.models.Transformer` under ``torch.device("meta")`` costs no memory: count it, and compare.
    """
    raise NotAttempted("1.1 count_parameters")


# --- Memory: model states ---------------------------------------------------------------------------------------------


def model_state_bytes(params: int, recipe: Recipe, zero_stage: int = 0, data_parallel: int = 1) -> MemoryBreakdown:
    """Bytes of parameters, gradients and optimiser state that one rank holds (Rajbhandari et al. 2020, section 5).

    Plain data parallelism (stage 0) holds everything on every rank. ZeRO splits over the N data-parallel ranks: stage 1
    the optimiser state, stage 2 the gradients too, stage 3 the parameters too. A split is `share`, so the last rank may
    hold padding.

    Args:
        params: number of parameters, >= 0.
        recipe: bytes per parameter. Mixed-precision Adam has 2 + 2 + 12: parameters and gradients in 16 bits, then a
            copy of the parameters, momentum and variance in 32.
        zero_stage: 0, 1, 2 or 3.
        data_parallel: N, >= 1.

    Raises:
        ValueError: an argument outside its range.

    Example, the figure 1 of the paper: 7.5e9 parameters, mixed Adam, N = 64: 120, 31.4, 16.6 and 1.9 GB (10**9 bytes)
    in stages 0 to 3.

    Hints:
        1. For each of the three parts: from which stage on is it split?
    """
    raise NotAttempted("1.1 model_state_bytes")


# --- Memory: activations ----------------------------------------------------------------------------------------------


def saved_per_token(config: ModelConfig) -> tuple[int, int, int]:
    """Bytes that one layer keeps for backward, per token, all values in 16 bits: (whole, split, scores).

    Walk through the layer and ask of every operation what its backward needs. A matrix product needs its input, a norm
    its input, an activation function its input, a product both factors, dropout a mask of one *byte* per value.

    - whole: what each tensor-parallel rank keeps in full: inputs of the two norms, of attention and of the
      feed-forward, and the masks of dropout on the residual stream.
    - split: what t ranks share: query, key, value, input of the output projection, everything f (or 4h) wide.
    - scores: a x s values each: the softmax; with dropout on it also its mask and its result.

    `GPTConfig`: (10h, 24h, 5as), 34h + 5as in all, the counts of Korthikanti et al. 2022, section 4.1. Llama has no
    dropout, keys and values of ``kv_heads * head_dim``, and SwiGLU's down(silu(gate) * up).

    Example, Llama with hidden 8, 4 heads, 2 KV heads, ffn 16, sequence 32: (64, 176, 256).

    Hints:
        1. In SwiGLU four tensors of width f are kept. Which?
        2. Softmax and the product with V share the softmax's output, unless dropout comes between them.
    """
    raise NotAttempted("1.1 saved_per_token")


def activation_bytes(
    config: ModelConfig,
    micro_batch: int,
    recompute: str,
    tensor_parallel: int = 1,
    sequence_parallel: bool = False,
) -> int:
    """Bytes that all layers together keep for backward on one rank (Korthikanti et al. 2022, table 2).

    Per layer, for `GPTConfig`, in units of s b h bytes:

        recompute     no parallelism   tensor parallel          and sequence parallel
        "none"        34 + 5as/h       10 + 24/t + 5as/(ht)     34/t + 5as/(ht)
        "selective"   34               10 + 24/t                34/t
        "full"        2                2                        2/t

    "selective" computes the scores again (FlashAttention does so inside), "full" the whole layer from its input. With
    sequence parallelism the ranks share what tensor parallelism leaves whole, the layer's input too. K and V count as
    split also where t exceeds the KV heads and ranks would hold copies. The ends of the model are `end_bytes`.

    Args:
        micro_batch: sequences of ``config.sequence`` tokens in flight, >= 1.
        recompute: one of `RECOMPUTE`.
        tensor_parallel: t, >= 1, divides the heads.
        sequence_parallel: changes nothing at t = 1.

    Raises:
        ValueError: an argument outside its range.

    Example, GPT-3 175B, micro-batch 1, t = 8: 51.8 GiB without recomputation, 29.2 GiB selective, 4.5 GiB full.

    Hints:
        1. `saved_per_token` has the three parts. By what is each divided?
        2. `share` keeps bytes whole.
    """
    raise NotAttempted("1.1 activation_bytes")


def end_bytes(config: ModelConfig, micro_batch: int, tensor_parallel: int = 1) -> int:
    """Bytes that the two ends of the model keep for backward (Korthikanti et al. 2022, section 4.3, one stage).

    The inputs of the last norm and of the head, 2 bytes a value, and the logits in float32; in a `GPTConfig` also the
    mask of the embedding's dropout. All of it is shared by t ranks (with sequence parallelism).

    Example, Llama 3 70B, micro-batch 1: 8,192 x (4 x 8,192 + 4 x 128,256) bytes = 4.2 GiB, nearly all of it logits.
    """
    raise NotAttempted("1.1 end_bytes")


# --- Compute ----------------------------------------------------------------------------------------------------------


def training_flops(config: ModelConfig, tokens: int) -> int:
    """FLOPs of training on ``tokens`` tokens by the rule of thumb that papers quote: 6 P per token (C = 6 N D).

    A weight meets a token in one multiplication and one addition, forward; backward does that twice, for the gradient
    of the input and for that of the weight (Brown et al. 2020, appendix D).

    Examples: GPT-3 175B on 300e9 tokens 3.14e23, Llama 3 405B on 15.6e12 tokens 3.8e25, as published.
    """
    raise NotAttempted("1.1 training_flops")


def model_flops(config: ModelConfig, tokens: float) -> float:
    """FLOPs of the matrix products that training on ``tokens`` tokens needs, attention included.

    Three things that 6 P passes over: looking up an embedding, norms and biases are no matrix products, while the head
    is one, tied or not; the scores and their product with the values multiply activations, not weights: forward 2 x 2
    h s per token and layer, backward twice that (Chowdhery et al. 2022, appendix B; causal attention counts in full).

    Example: GPT-3 175B at s = 2,048 on 300e9 tokens 3.23e23, of which attention 2.7 %.

    Hints:
        1. Which weights multiply every token? What is multiplied in attention that is no weight?
        2. `shardlab.observe.flops` counts a real model. It should agree to the last FLOP.
    """
    raise NotAttempted("1.1 model_flops")


def hardware_flops(config: ModelConfig, tokens: float, recompute: str) -> float:
    """`model_flops` plus what ``recompute`` makes the hardware compute a second time.

    "selective": the scores and their product with the values, forward. "full": the forward of all layers; the head is
    not computed again.

    Equation 8 of Korthikanti et al. 2022 charges selective recomputation with 12 h s per token and layer, the cost of
    attention's forward *and* backward. Recomputed is the forward: 4 h s. (`torch.utils.checkpoint` stops as soon as it
    has what backward needs, so it even spares the last product of what it recomputes. Here all of it counts.)

    Raises:
        ValueError: ``recompute`` is not one of `RECOMPUTE`.

    Example, GPT-3 175B: 0.9 % more than the model's FLOPs with "selective", 33.2 % more with "full".
    """
    raise NotAttempted("1.1 hardware_flops")


def tokens_per_second(config: ModelConfig, step: Step) -> float:
    """Tokens that the whole job trains on per second.

    Example, sequence 2,048, micro-batch 2, 4 accumulation steps, 8 replicas, 16 s: 131,072 tokens in 16 s = 8,192.

    Hints:
        1. `Step` says what its seconds cover.
    """
    raise NotAttempted("1.1 tokens_per_second")


def mfu(config: ModelConfig, step: Step, gpu: Gpu) -> float:
    """Model FLOPs utilisation: the share of the GPUs' peak that went into FLOPs the *model* needs, 0 to 1.

    Recomputing more, or cutting the batch into more micro-batches, does not make training more useful: MFU only sees
    tokens and seconds (Chowdhery et al. 2022, appendix B).

    Example: table 5 of Korthikanti et al. 2022, 22B on 8 A100, batch 4 in 1.10 s: 41.7 % (printed as 41.5 %).
    """
    raise NotAttempted("1.1 mfu")


def hfu(config: ModelConfig, step: Step, gpu: Gpu, recompute: str) -> float:
    """Hardware FLOPs utilisation: as `mfu`, counting what was computed a second time as well.

    High HFU next to low MFU: the GPU is busy, with work that recomputation made.

    Example: the 22B of `mfu`, with "selective": 42.4 % where MFU is 41.7 %.
    """
    raise NotAttempted("1.1 hfu")


def training_days(config: ModelConfig, tokens: int, gpus: int, gpu: Gpu, mfu: float) -> float:
    """Days that training on ``tokens`` tokens takes on ``gpus`` GPUs at this MFU.

    Raises:
        ValueError: ``gpus`` < 1, or ``mfu`` not in 0 < mfu <= 1: 40 percent is 0.4.

    Example, Llama 3 70B, 1.4e12 tokens, 512 H100 at 0.4: 38.5 days.
    """
    raise NotAttempted("1.1 training_days")


def compute_optimal(flops: float) -> tuple[int, int]:
    """Parameters and tokens that use a budget of ``flops`` best, by Chinchilla's rule, rounded to whole numbers.

    Both grow with the square root of the budget (Hoffmann et al. 2022, approaches 1 and 2), at about
    `TOKENS_PER_PARAMETER` tokens per parameter (their table 3 runs from 20.0 to 22.4), and C = 6 N D.

    Raises:
        ValueError: ``flops`` is not positive.

    Example, Gopher's budget of 5.76e23: 69e9 parameters and 1.4e12 tokens. Chinchilla has 70e9 and saw 1.4e12.
    """
    raise NotAttempted("1.1 compute_optimal")


# --- What fits, and what must be sharded ------------------------------------------------------------------------------


def budget_bytes(gpu: Gpu) -> int:
    """Bytes of this GPU that a plan may fill: `USABLE_SHARE` of its memory, rounded down.

    Example, 80 GiB: 77,309,411,328. A card "with 80 GB" has 80 GiB, about: look at what `nvidia-smi` reports.
    """
    raise NotAttempted("1.1 budget_bytes")


def memory_per_gpu(
    config: ModelConfig,
    recipe: Recipe,
    gpus: int,
    zero_stage: int = 0,
    tensor_parallel: int = 1,
    pipeline_parallel: int = 1,
) -> MemoryBreakdown:
    """The least that training needs on each GPU: micro-batch 1, full recomputation, sequence parallelism.

    - Tensor and pipeline parallelism split the parameters first; gpus / (t p) data-parallel ranks share them by ZeRO.
    - Activations are the inputs of all layers, *one* layer as it is computed again ("selective", as attention is done
      by FlashAttention today), and the ends. Pipeline stages save nothing here: the first of p stages holds p
      micro-batches of L / p layers (Korthikanti et al. 2022, section 4.2.3).

    Args:
        gpus: a multiple of ``tensor_parallel * pipeline_parallel``.

    Raises:
        ValueError: it is not, or see `model_state_bytes` and `activation_bytes`.

    Example, Llama 3 70B, mixed Adam, 64 GPUs, ZeRO-3: 16.4 GiB of states and 16.7 GiB of activations.

    Hints:
        1. `dataclasses.replace` gives a `MemoryBreakdown` its activations.
    """
    raise NotAttempted("1.1 memory_per_gpu")


def minimum_gpus(config: ModelConfig, recipe: Recipe, gpu: Gpu) -> int:
    """The fewest GPUs that can train the model with ZeRO-3 alone, everything as in `memory_per_gpu`.

    Raises:
        ValueError: the activations of one sequence leave no room for any parameter: more GPUs do not help, as ZeRO
            shards model states only.

    Example, Llama 3 70B, mixed Adam: 20 H100, 10 H200.

    Hints:
        1. What of the memory does not depend on the number of GPUs? How many parameters have room in the rest?
    """
    raise NotAttempted("1.1 minimum_gpus")


def choose_parallelism(config: ModelConfig, cluster: Cluster) -> Choice:
    """The simplest way to train this model with mixed-precision Adam on all GPUs of this cluster, and why.

    Tensor parallelism changes the model's code, ZeRO does not, so take the pairs (t, p) of `layouts` one after the
    other, and for each the ZeRO stages from 0 to 3. The first that passes two tests is the answer:

    - Memory: `memory_per_gpu` is within `budget_bytes`.
    - Batch: each of the gpus / (t p) replicas trains on at least one sequence per step; together that is at most
      `LARGEST_BATCH` tokens.

    What decides further (the links' speed above all) is the matter of lessons 2.4 and 3.5.

    Returns:
        The strategy is "single GPU" on one GPU. Else "DDP" for stage 0, "ZeRO-1" to "ZeRO-3", with " + TP" if t > 1 and
        " + PP" if p > 1, such as "ZeRO-3 + TP". "does not fit" if nothing passes.
        The reason is a few sentences for a person: the GiB per GPU (`in_gib`) that the strategy needs, and why the last
        candidate before it failed on memory (GiB needed, GiB there) and the last on the batch (its tokens), where any
        did.

    Example, Llama 3 70B on 64 H100: "ZeRO-3", because "ZeRO-2 needs 162.5 GiB per GPU, where 71.7 GiB can be used.
    ZeRO-3 needs 33.1 GiB of 71.7 GiB per GPU."

    Hints:
        1. Two loops, two tests. Where a candidate fails, keep the sentence that says so.
    """
    raise NotAttempted("1.1 choose_parallelism")


# --- Given ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class GPTConfig:
    """Shape of a GPT-3 style decoder (Brown et al. 2020): a feed-forward network of width 4h, dropout, a tied head.

    Raises:
        ValueError: a field that is not positive, or heads that do not divide hidden.
    """

    vocab: int
    hidden: int
    layers: int
    heads: int
    sequence: int

    def __post_init__(self) -> None:
        sizes = (self.vocab, self.hidden, self.layers, self.heads, self.sequence)
        if min(sizes) < 1 or self.hidden % self.heads:
            raise ValueError(f"need positive sizes and heads that divide hidden: got {self}")


ModelConfig = TransformerConfig | GPTConfig


@dataclass(frozen=True)
class Recipe:
    """Bytes per parameter: of the parameter that forward uses, its gradient, and what the optimiser keeps."""

    parameter_bytes: int
    gradient_bytes: int
    optimizer_bytes: int


@dataclass(frozen=True)
class MemoryBreakdown:
    """Bytes on one rank, by kind."""

    parameters: int
    gradients: int
    optimizer: int
    activations: int = 0

    @property
    def total(self) -> int:
        return self.parameters + self.gradients + self.optimizer + self.activations


@dataclass(frozen=True)
class Step:
    """One optimiser step as it was measured.

    Args:
        micro_batch: sequences that a replica works on at once.
        accumulation: micro-batches, one after the other, whose gradients make one step.
        data_parallel: replicas of the model, each with its own sequences.
        gpus: of the whole job: replicas times the GPUs that share one replica.
        seconds: from the start of a step to the start of the next, all micro-batches inside.
    """

    micro_batch: int
    accumulation: int
    data_parallel: int
    gpus: int
    seconds: float


@dataclass(frozen=True)
class Gpu:
    """A GPU. ``memory_gib`` in GiB as nvidia-smi reports it (MiB / 1024); ``peak_flops`` in FLOP/s, bfloat16, dense."""

    name: str
    memory_gib: float
    peak_flops: float


@dataclass(frozen=True)
class Cluster:
    """``gpus`` GPUs of one kind in nodes of ``gpus_per_node``: fast links inside a node, slower ones between."""

    gpu: Gpu
    gpus: int
    gpus_per_node: int = 8


@dataclass(frozen=True)
class Choice:
    """A strategy's name, and the reason for it in sentences."""

    strategy: str
    reason: str


def share(total: int, ranks: int) -> int:
    """What the fullest of ``ranks`` ranks holds of ``total``: the quotient rounded up. ``share(10, 4) == 3``."""
    return -(-total // ranks)


def layouts(config: ModelConfig, cluster: Cluster) -> list[tuple[int, int]]:
    """Pairs (t, p) of tensor and pipeline parallelism that this cluster allows, simplest first.

    t = 1, 2, 4, ... within a node, dividing GPUs and heads; then, with the largest t, p = 2, 4, ... stages, dividing
    the GPUs, at most one per layer. 32 GPUs in nodes of 8: (1, 1), (2, 1), (4, 1), (8, 1), (8, 2), (8, 4).
    """
    powers = [1 << exponent for exponent in range(cluster.gpus.bit_length())]
    node = min(cluster.gpus, cluster.gpus_per_node)
    tensor = [t for t in powers if t <= node and cluster.gpus % t == 0 and config.heads % t == 0]
    largest = tensor[-1]
    stages = [p for p in powers[1:] if p <= config.layers and cluster.gpus % (largest * p) == 0]
    return [(t, 1) for t in tensor] + [(largest, p) for p in stages]


def in_gib(num_bytes: float) -> str:
    """``in_gib(3 * 2**29) == "1.5 GiB"``."""
    return f"{num_bytes / 2**30:,.1f} GiB"


RECIPES = {
    "mixed": Recipe(2, 2, 12),  # 16-bit parameters and gradients, Adam in 32 (Rajbhandari et al. 2020, section 3.1)
    "mixed, fp32 gradients": Recipe(2, 4, 12),  # Megatron-LM, megatron/training/theoretical_memory_usage.py: 18
    "fp32": Recipe(4, 4, 8),  # everything in 32 bits: momentum and variance are the optimiser's
    "bf16": Recipe(2, 2, 4),  # everything in 16 bits: small, and small updates round away
}

MODELS: dict[str, ModelConfig] = {
    # Llama 3.2 1B (its config.json) and Llama 3 8B, 70B, 405B (arXiv:2407.21783, table 3): vocab, hidden, layers, heads
    "llama-1b": TransformerConfig(128_256, 2_048, 16, 32, kv_heads=8, ffn=8_192, sequence=8_192),
    "llama-8b": TransformerConfig(128_256, 4_096, 32, 32, kv_heads=8, ffn=14_336, sequence=8_192, tied=False),
    "llama-70b": TransformerConfig(128_256, 8_192, 80, 64, kv_heads=8, ffn=28_672, sequence=8_192, tied=False),
    "llama-405b": TransformerConfig(128_256, 16_384, 126, 128, kv_heads=8, ffn=53_248, sequence=8_192, tied=False),
    "llama2-70b": TransformerConfig(32_000, 8_192, 80, 64, kv_heads=8, ffn=28_672, sequence=4_096, tied=False),
    # GPT-2 small; GPT-3 (arXiv:2005.14165, table 2.1)
    "gpt2": GPTConfig(50_257, 768, 12, 12, sequence=1_024),
    "gpt3-175b": GPTConfig(50_257, 12_288, 96, 96, sequence=2_048),
    # The models that arXiv:2205.05198 measures (table 3)
    "megatron-22b": GPTConfig(51_200, 6_144, 48, 64, sequence=2_048),
    "megatron-175b": GPTConfig(51_200, 12_288, 96, 96, sequence=2_048),
    "megatron-530b": GPTConfig(51_200, 20_480, 105, 128, sequence=2_048),
    "megatron-1t": GPTConfig(51_200, 25_600, 128, 160, sequence=2_048),
}

GPUS = {  # peaks from NVIDIA's data sheets, dense bfloat16
    "a100": Gpu("A100 80GB", memory_gib=81_920 / 1024, peak_flops=312e12),
    "h100": Gpu("H100 80GB", memory_gib=81_559 / 1024, peak_flops=989.4e12),
    "h200": Gpu("H200 141GB", memory_gib=143_771 / 1024, peak_flops=989.4e12),
}
