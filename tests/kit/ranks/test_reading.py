"""What a rank leaves where its result is expected may be anything, and is never followed, waited for or loaded."""

import json
import os
import stat
import struct
from pathlib import Path

import pytest

from shardlab.ranks import RankError, run_ranks
from shardlab.ranks.reading import read_regular
from shardlab.ranks.status_page import read_last_call


def call_folder() -> Path:
    return Path(os.environ["TMPDIR"]).parent


def put(where: str, how: str) -> None:
    """Put something else where rank 0's own file is expected, and leave."""
    path = call_folder() / where
    path.unlink(missing_ok=True)
    if how == "link":
        path.symlink_to("/etc/passwd")
    elif how == "fifo":
        os.mkfifo(path)
    elif how == "folder":
        path.mkdir()
    elif how == "huge":
        path.touch()
        os.truncate(path, 1 << 40)
    else:
        path.write_bytes(WORDS[how])
    os._exit(0)


def message(header: object, rest: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("!Q", len(text)) + text + rest


WORDS = {
    "nothing": b"",
    "half a header": b"\0\0\0",
    "no JSON": message(b"{nonsense"),
    "nested": message(b"[" * 100_000),
    "a list": message(["list", []]),
    "another state": message(["dict", [["state", "perfect"], ["value", 1]]]),
    "a wrong type": message(["dict", [["state", "raised"], ["message", 3]]]),
    "more than it may": message(["dict", [["state", "returned"], ["rank", 7]]]),
    "a tensor of 2**60": message(["dict", [["state", "returned"], ["value", ["tensor", "float32", [1 << 60]]]]]),
    "no such dtype": message(["dict", [["state", "returned"], ["value", ["tensor", "load", [0]]]]]),
}


@pytest.mark.parametrize("how", ["link", "fifo", "folder", "huge", *WORDS])
def test_a_forged_result_is_no_result(how):
    with pytest.raises(RankError) as caught:
        run_ranks(put, 1, "result-0", how)
    assert caught.value.reports[0].state in ("unsendable", "exited")


@pytest.mark.parametrize("where", ["output-0", "stack-0", "status-0"])
@pytest.mark.parametrize("how", ["link", "fifo", "folder", "huge", "nested"])
def test_other_files_may_be_anything_too(where, how):
    with pytest.raises(RankError) as caught:
        run_ranks(put, 1, where, how)
    assert "root:" not in str(caught.value) + caught.value.reports[0].output
    assert len(caught.value.reports[0].output) <= (1 << 20) + 100


def writes_to_the_supervisor():
    """Tries every descriptor it has inherited for the line to the caller."""
    line = json.dumps({"how": "returned", "fates": []}).encode() + b"\n"
    sent = 0
    for descriptor in range(3, 256):
        try:
            if stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                sent += os.write(descriptor, line)
        except OSError:
            continue
    return sent


def test_a_rank_cannot_speak_for_its_supervisor():
    assert run_ranks(writes_to_the_supervisor, 1) == [0]
    assert run_ranks(abs, 1, -3) == [3]


def test_regular_files_are_read_whole_or_at_their_end(tmp_path):
    file = tmp_path / "file"
    assert read_regular(file) is None
    file.write_bytes(b"0123456789")
    assert read_regular(file) == b"0123456789"
    assert read_regular(file, 4, end=True) == b"6789"
    with pytest.raises(ValueError, match="10 bytes, more than 4"):
        read_regular(file, 4)


def test_a_last_call_of_wrong_types_is_none(tmp_path):
    page = tmp_path / "status"
    call = {"op": "send", "numel": 1, "dtype": "float32", "shape": [1], "payload_bytes": 4, "sent_bytes": 4}
    call |= {"ranks": [0, 1], "async_op": False, "sequence": "first", "peer": 1, "file": "x.py", "line": 1}
    for sequence, found in (("first", False), (1, True)):
        text = json.dumps({**call, "sequence": sequence}).encode()
        page.write_bytes(struct.pack("!I", len(text)) + text)
        assert (read_last_call(page) is not None) == found
