"""FAILS: write_lines

The bytes are counted, and a letter is cut in two.
"""


def write_lines(prefix, text, descriptor=2):
    room = 4096 - len(prefix.encode()) - 1
    for line in text.split("\n"):
        data = line.encode()
        for start in range(0, max(len(data), 1), room):
            os.write(descriptor, prefix.encode() + data[start : start + room] + b"\n")
