"""FAILS: digest, assert_same_on_all_ranks

A matrix and its flat copy have the same bytes, and so do float32 and int32.
"""


def digest(tensor):
    plain = tensor.detach().cpu().contiguous().flatten()
    checksum = hashlib.sha256(plain.view(torch.uint8).numpy() if plain.numel() else b"").digest()[:16]
    return torch.tensor(list(checksum + b"float32[6, 4]".ljust(48, b"\0")), dtype=torch.uint8)
