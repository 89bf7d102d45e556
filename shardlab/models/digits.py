"""A small convolutional network for 28x28 digits."""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shardlab.models.config import require_positive_int

IMAGE_SIZE = 28


@dataclass(frozen=True)
class DigitsConfig:
    """Shape of a `DigitsNet`.

    Args:
        channels: feature maps of the first convolution; the second has twice as many.
        hidden: width of the layer before the classes.
        classes: number of labels.

    Raises:
        ValueError: a field that is not an integer of 1 or more.
    """

    channels: int = 16
    hidden: int = 64
    classes: int = 10

    def __post_init__(self) -> None:
        for name in ("channels", "hidden", "classes"):
            require_positive_int(name, getattr(self, name))

    @property
    def parameters(self) -> int:
        """Number of trainable parameters."""
        pixels = (IMAGE_SIZE // 4) ** 2
        first = self.channels * (9 + 1)
        second = 2 * self.channels * (9 * self.channels + 1)
        hidden = self.hidden * (2 * self.channels * pixels + 1)
        return first + second + hidden + self.classes * (self.hidden + 1)


class DigitsNet(nn.Module):
    """Two convolutions with max-pooling, two linear layers.

    No batch norm: its statistics depend on how the batch is split, and "same as one process" would not hold.
    """

    def __init__(self, config: DigitsConfig | None = None) -> None:
        super().__init__()
        self.config = config or DigitsConfig()
        channels, pixels = self.config.channels, (IMAGE_SIZE // 4) ** 2
        self.conv1 = nn.Conv2d(1, channels, kernel_size=3, padding=1)
        self.conv2 = nn.Conv2d(channels, 2 * channels, kernel_size=3, padding=1)
        self.hidden = nn.Linear(2 * channels * pixels, self.config.hidden)
        self.head = nn.Linear(self.config.hidden, self.config.classes)

    def forward(self, images: Tensor) -> Tensor:
        """Args: images [B, 1, 28, 28] float. Returns logits [B, classes].

        Raises:
            ValueError: images of another shape.
        """
        if images.dim() != 4 or images.shape[1:] != (1, IMAGE_SIZE, IMAGE_SIZE):
            raise ValueError(f"images must be [batch, 1, 28, 28], got {list(images.shape)}")
        x = F.max_pool2d(F.relu(self.conv1(images)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        return self.head(F.relu(self.hidden(x.flatten(1))))

    def initial_std(self, name: str, shape: torch.Size) -> float:
        """Standard deviation to draw a weight of this shape with: sqrt(2 / fan-in) (He et al., arXiv 1502.01852)."""
        return math.sqrt(2 / shape[1:].numel())
