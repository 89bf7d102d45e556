"""FAILS: write_lines

4,096 letters are up to 16,384 bytes.
"""


def write_lines(prefix, text, descriptor=2):
    room = 4096 - len(prefix) - 1
    for line in text.split("\n"):
        for start in range(0, max(len(line), 1), room):
            os.write(descriptor, f"{prefix}{line[start : start + room]}\n".encode())
