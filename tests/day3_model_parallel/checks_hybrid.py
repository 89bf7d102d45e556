"""What the tests of 3.5 expect, worked out without the lab: groups by looking at each rank, memory and traffic by hand,
and one process that trains the whole model on the whole batch."""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shardlab.models import FeedForward, Transformer, TransformerConfig, build
from shardlab.models.build import initial_value

CONFIG = TransformerConfig(vocab=24, hidden=16, layers=2, heads=4, kv_heads=2, ffn=24, sequence=8)  # tied embedding
EXPERTS, TOP_K, EXPERT_FFN = 4, 2, 12
ROWS = 8
LEARNING_RATE = 1.0  # of SGD: the parameters then show the gradient

Layout = dict[str, int]
USUAL = ("tp", "cp", "dp", "pp")


# --- Who is where, with whom ------------------------------------------------------------------------------------------


def size(layout: Layout, name: str) -> int:
    return layout.get(name, 1)


def ranks_of(layout: Layout) -> int:
    return size(layout, "tp") * size(layout, "cp") * size(layout, "dp") * size(layout, "pp")


def place(layout: Layout, rank: int, order: Sequence[str] = USUAL) -> dict[str, int]:
    """Coordinates of a rank, "ep" among them, and "block": which ep group of its data group it is in."""
    found, stride, in_data, data_stride = {}, 1, 0, 1
    for name in order:
        found[name] = rank // stride % size(layout, name)
        stride *= size(layout, name)
        if name in ("cp", "dp"):
            in_data += found[name] * data_stride
            data_stride *= size(layout, name)
    return {**found, "ep": in_data % size(layout, "ep"), "block": in_data // size(layout, "ep")}


SAME = {  # what the members of a group have in common
    "tp": ("cp", "dp", "pp"),
    "cp": ("tp", "dp", "pp"),
    "dp": ("tp", "cp", "pp"),
    "pp": ("tp", "cp", "dp"),
    "data": ("tp", "pp"),
    "ep": ("tp", "pp", "block"),
    "expert_data": ("tp", "pp", "ep"),
}


def groups(layout: Layout, name: str, order: Sequence[str] = USUAL) -> list[list[int]]:
    members = defaultdict(list)
    for rank in range(ranks_of(layout)):
        where = place(layout, rank, order)
        members[tuple(where[each] for each in SAME[name])].append(rank)
    return sorted(members.values())


# --- One process ------------------------------------------------------------------------------------------------------


class Experts(nn.Module):
    """All experts of a layer, top 2 of 4, softmax after the choice."""

    def __init__(self) -> None:
        super().__init__()
        shape = replace(CONFIG, ffn=EXPERT_FFN)
        self.router = nn.Linear(CONFIG.hidden, EXPERTS, bias=False)
        self.experts = nn.ModuleDict({str(number): FeedForward(shape) for number in range(EXPERTS)})

    def forward(self, x: Tensor) -> Tensor:
        best, chosen = self.router(x).topk(TOP_K)
        gates = torch.zeros(*x.shape[:-1], EXPERTS).scatter(-1, chosen, best.softmax(-1))
        return sum(gates[..., [number]] * self.experts[str(number)](x) for number in range(EXPERTS))


def whole_model(tied: bool = True, experts: bool = False) -> Transformer:
    """What every layout has parts of."""
    model = build(replace(CONFIG, tied=tied))
    for index, block in enumerate(model.blocks if experts else []):
        block.mlp = Experts()
        with torch.no_grad():
            for name, parameter in block.mlp.named_parameters(prefix=f"blocks.{index}.mlp"):
                parameter.copy_(initial_value(model, name, parameter, seed=0))
    return model


def make_batch(seed: int, rows: int = ROWS, tokens: int = CONFIG.sequence) -> tuple[Tensor, Tensor]:
    """Inputs and targets with very different numbers of valid targets by row and half; one row has none."""
    generator = torch.Generator().manual_seed(seed)
    inputs, targets = torch.randint(CONFIG.vocab, (2, rows, tokens), generator=generator)
    keep = torch.rand(rows, tokens, generator=generator) < torch.linspace(1, 0.2, rows)[:, None]
    keep[1, : tokens // 2], keep[2], keep[0] = False, False, True
    return inputs, targets.masked_fill(~keep, -100)


@dataclass
class Alone:
    """Training in one process: losses and norms of the steps, gradients of the first, parameters after the last."""

    losses: list[float]
    norms: list[float]
    gradients: dict[str, Tensor]
    parameters: dict[str, Tensor]


def train_alone(batch: tuple[Tensor, Tensor], steps: int, max_norm: float | None = None, **model: bool) -> Alone:
    whole = whole_model(**model)
    optimizer = torch.optim.SGD(whole.parameters(), lr=LEARNING_RATE)
    inputs, targets = batch
    losses, norms, gradients = [], [], {}
    for _ in range(steps):
        optimizer.zero_grad()
        loss = F.cross_entropy(whole(inputs).flatten(0, 1), targets.flatten(), ignore_index=-100)
        loss.backward()
        gradients = gradients or {name: each.grad.clone() for name, each in whole.named_parameters()}
        norms.append(nn.utils.clip_grad_norm_(whole.parameters(), max_norm or 1e9).item())
        losses.append(loss.item())
        optimizer.step()
    return Alone(losses, norms, gradients, {name: each.detach() for name, each in whole.named_parameters()})


CUT = {  # along which dimension tp ranks cut a parameter; nothing: each has all of it
    "embedding.weight": 0,
    "head.weight": 0,
    "attention.query.weight": 0,
    "attention.key.weight": 0,
    "attention.value.weight": 0,
    "attention.output.weight": 1,
    "mlp.gate.weight": 0,
    "mlp.up.weight": 0,
    "mlp.down.weight": 1,
}


def cut_of(name: str) -> int | None:
    """The dimension along which tp ranks cut the parameter of this name."""
    return next((dim for end, dim in CUT.items() if name.endswith(end) and "experts" not in name), None)


def replicas_of(name: str, tp: int) -> int:
    """How many neighbours in tp hold the same block."""
    if cut_of(name) is None:
        return tp
    return max(1, tp // CONFIG.kv_heads) if "key" in name or "value" in name else 1


def part_of(full: Tensor, name: str, tp: int, tp_rank: int) -> Tensor:
    """What a rank holds of a whole parameter."""
    dim, replicas = cut_of(name), replicas_of(name, tp)
    return full if dim is None else full.chunk(tp // replicas, dim)[tp_rank // replicas]


@cache
def shapes() -> dict[str, torch.Size]:
    """Of all parameters that a model of these tests has, untied and with experts."""
    models = whole_model(tied=False), whole_model(experts=True)
    return {name: each.shape for model in models for name, each in model.named_parameters()}


def numbered(seed: int, name: str) -> Tensor:
    """A gradient for the whole parameter of this name that any rank can make."""
    generator = torch.Generator().manual_seed(zlib.crc32(f"{seed} {name}".encode()))
    return torch.randn(shapes()[name], generator=generator)


# --- Plans by hand ----------------------------------------------------------------------------------------------------


def ceil(a: int, b: int) -> int:
    return -(-a // b)


def stage_parameters(config: TransformerConfig, pp: int, stage: int) -> int:
    if pp == 1:
        return config.parameters
    h, kv = config.hidden, config.kv_heads * config.head_dim
    layer = 2 * h * h + 2 * h * kv + 3 * h * config.ffn + 2 * h
    ends = config.vocab * h if stage in (0, pp - 1) else 0
    return ceil(config.layers, pp) * layer + ends + (h if stage == pp - 1 else 0)


def memory(config: TransformerConfig, layout: Layout, batch: int, zero: int, recompute: str, stage: int) -> dict:
    """Bytes by kind on a rank of a stage."""
    tp, pp, cp, dp = (size(layout, name) for name in ("tp", "pp", "cp", "dp"))
    h, kv, s = config.hidden, config.kv_heads * config.head_dim, config.sequence
    own = ceil(stage_parameters(config, pp, stage), tp)
    piece = ceil(own, dp * cp)
    layer = {
        "selective": ceil(8 * h * s, tp) + ceil((4 * h + 4 * kv + 8 * config.ffn) * s, tp),
        "full": ceil(2 * h * s, tp),
    }
    activations = min(pp - stage, batch // dp) * ceil(config.layers, pp) * layer[recompute]
    if recompute == "full":
        activations += layer["selective"]
    if stage == pp - 1:
        activations += ceil(s * (4 * h + 4 * config.vocab), tp)
    return {
        "parameters": 2 * (piece if zero == 3 else own),
        "gradients": 2 * (piece if zero >= 2 else own),
        "optimizer": 12 * (piece if zero >= 1 else own),
        "activations": ceil(activations, cp),
    }


def traffic(config: TransformerConfig, layout: Layout, batch: int, zero: int, recompute: str) -> dict[str, float]:
    """Bytes a rank sends per step."""
    tp, pp, cp, dp = (size(layout, name) for name in ("tp", "pp", "cp", "dp"))
    m, layers = batch // dp, ceil(config.layers, pp)
    one = 2 * config.sequence / cp * config.hidden
    kv = 4 * config.sequence / cp * config.kv_heads * config.head_dim / tp
    hops = 3 * cp - 2 + (cp - 1 if recompute == "full" else 0)
    weights = 2 * ceil(stage_parameters(config, pp, 0), tp)
    trips = {0: 2, 1: 2, 2: 1 + m, 3: 3 * m}[zero]
    return {
        "tp": (6 if recompute == "full" else 4) * m * layers * 2 * one * (tp - 1) / tp,
        "cp": m * layers * hops * kv if cp > 1 else 0,
        "pp": 2 * m * one / tp if pp > 1 else 0,
        "data": trips * weights * (dp * cp - 1) / (dp * cp),
    }


def seconds(
    config: TransformerConfig, layout: Layout, batch: int, recompute: str, peak: float, times: dict[str, float]
) -> float:
    """Of a step."""
    h, kv, s, tokens = config.hidden, config.kv_heads * config.head_dim, config.sequence, batch * config.sequence
    matrices = 2 * h * h + 2 * h * kv + 3 * h * config.ffn
    forward = config.layers * (2 * matrices + 4 * h * s)
    again = {"selective": config.layers * 4 * h * s, "full": forward}[recompute]
    flops = (3 * (forward + 2 * config.vocab * h) + again) * tokens
    speed = ranks_of(layout) * peak * 0.5
    hidden = 6 * config.layers * h * s * tokens / speed
    busy = flops / speed + times["tp"] + times["pp"] + max(0, times["cp"] - hidden)
    m = batch // size(layout, "dp")
    return busy * (m + size(layout, "pp") - 1) / m + max(0, times["data"] - 2 / 3 * flops / speed)
