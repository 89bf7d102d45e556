"""FAILS: broadcast

`src` is a global rank: taken for a rank of the group, it is right in the default group and wrong in any other.
"""


def broadcast(tensor, src, group=None):
    rank, size = check(group, tensor)
    if not 0 <= src < size:
        raise ValueError(f"src {src} is not one of 0 ... {size - 1}")
    number = (rank - src) % size
    for distance in powers_of_two(size):
        if number < distance and number + distance < size:
            exchange(group, sends=[(tensor, (rank + distance) % size)])
        elif distance <= number < 2 * distance:
            exchange(group, receives=[(tensor, (rank - distance) % size)])
