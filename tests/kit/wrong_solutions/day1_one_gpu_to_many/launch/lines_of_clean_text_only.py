"""FAILS: write_lines

A log line about a broken file name, and the training ends.
"""


def write_lines(prefix, text, descriptor=2):
    room = select.PIPE_BUF - len(f"{prefix}\n".encode())
    if room < 4:
        raise ValueError("the prefix is too long")
    for line in text.split("\n"):
        while True:
            piece = line.encode()[:room].decode(errors="ignore")
            os.write(descriptor, f"{prefix}{piece}\n".encode())
            line = line[len(piece) :]
            if not line:
                break
