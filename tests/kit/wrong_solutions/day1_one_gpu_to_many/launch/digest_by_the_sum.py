"""FAILS: digest, assert_same_on_all_ranks

Elements that have changed places have the same sum, and NaN has none.
"""


def digest(tensor):
    kind = f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}".encode()
    total = f"{tensor.detach().cpu().to(torch.complex128).sum().item()}".encode()
    checksum = hashlib.sha256(kind + total).digest()[:16]
    return torch.tensor(list(checksum + kind[:48].ljust(48, b"\0")), dtype=torch.uint8)
