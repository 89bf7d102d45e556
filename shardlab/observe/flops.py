"""Floating-point operations of one training step, and the share of the machine they use."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.flop_counter import FlopCounterMode


def flops(model: torch.nn.Module, batch: Any) -> int:
    """FLOPs of one forward and backward pass of `model` on `batch`: a multiply and an add are two.

    Counted are matrix products, convolutions and attention, as `torch.utils.flop_counter` does. The pass runs on the
    meta device: nothing is computed, and parameters, gradients, buffers and random state stay as they are. Attention
    is counted in full, causal or not (the convention of PaLM, arXiv 2204.02311, appendix B).

    Args:
        model: any module whose control flow does not depend on tensor values. Without trainable parameters only
            forward is counted.
        batch: the argument of ``model(batch)``: a tensor, or a tuple (``model(*batch)``) or dict (``model(**batch)``).
    """
    shadow = _on_meta(model)
    batch = tree_map(lambda leaf: leaf.to("meta") if isinstance(leaf, torch.Tensor) else leaf, batch)
    with FlopCounterMode(display=False) as counter, torch.enable_grad():
        result = _call(shadow, batch)
        outputs = [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
        if outputs:
            torch.autograd.backward(outputs, [torch.empty_like(output) for output in outputs])
    return counter.get_total_flops()


def mfu(step_flops: int, seconds: float, peak_flops: float) -> float:
    """Model FLOPs utilisation (arXiv 2204.02311): the share of peak arithmetic a step turned into model FLOPs.

    Args:
        step_flops: of forward and backward over all micro-batches of the step, without recomputation.
        seconds: of the step.
        peak_flops: FLOP/s of the hardware that did it, all devices together.
    """
    if step_flops < 0 or seconds <= 0 or peak_flops <= 0:
        given = f"step_flops={step_flops}, seconds={seconds}, peak_flops={peak_flops}"
        raise ValueError(f"mfu needs step_flops >= 0, seconds > 0 and peak_flops > 0, not {given}")
    return step_flops / seconds / peak_flops


def _on_meta(model: torch.nn.Module) -> torch.nn.Module:
    """A copy without memory: every tensor is handed to deepcopy as already copied to the meta device."""
    memo: dict[int, Any] = {}
    for parameter in model.parameters():
        shadow = torch.nn.Parameter(torch.empty_like(parameter, device="meta"), parameter.requires_grad)
        memo[id(parameter)] = shadow
    for buffer in model.buffers():
        memo[id(buffer)] = torch.empty_like(buffer, device="meta")
    return copy.deepcopy(model, memo)


def _call(model: torch.nn.Module, batch: Any) -> Any:
    if isinstance(batch, dict):
        return model(**batch)
    return model(*batch) if isinstance(batch, (tuple, list)) else model(batch)
