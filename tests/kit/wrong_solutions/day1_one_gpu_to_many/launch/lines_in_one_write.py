"""FAILS: write_lines, rank_logger

All lines in one write: too long for the kernel to keep together, and only the first has the prefix.
"""


def write_lines(prefix, text, descriptor=2):
    os.write(descriptor, f"{prefix}{text}\n".encode())
