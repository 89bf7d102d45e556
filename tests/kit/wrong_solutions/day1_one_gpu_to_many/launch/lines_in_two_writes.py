"""FAILS: write_lines, rank_logger

The line, then its end: another rank's text comes in between.
"""


def write_lines(prefix, text, descriptor=2):
    for line in text.split("\n"):
        os.write(descriptor, f"{prefix}{line}".encode())
        os.write(descriptor, b"\n")
