"""Escapes, tried from inside before anything is graded: a sandbox that lets one through is not used.

Each probe is one way out, run on a rank as a learner's code would be. It returns what it got hold of, or nothing where
the way was barred.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import platform
import signal
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

Probe = Callable[["Outside"], str]
PROBES: dict[str, Probe] = {}
MOST_INSIDE = 16  # processes of a sandbox with one rank, and to spare
X86_64_CALLS = {"ptrace": 101, "keyctl": 250, "perf_event_open": 298, "bpf": 321, "userfaultfd": 323, "io_uring": 425}


@dataclass(frozen=True)
class Outside:
    """What a probe goes for.

    Attributes:
        pid: the grader's process.
        port: of a server of the grader's on the loopback interface.
        secret: a word in the grader's environment.
        files: paths outside that must not be there: solutions, tests, another submission, results.
        labs: the workspace, which must not be written.
        processes: how many the sandbox allows.
    """

    pid: int
    port: int
    secret: str
    files: tuple[str, ...]
    labs: str
    processes: int


def probe(name: str) -> Callable[[Probe], Probe]:
    def register(function: Probe) -> Probe:
        PROBES[name] = function
        return function

    return register


def try_all(outside: Outside) -> dict[str, str]:
    """By probe, what it got hold of; "" where it was barred. Runs on a rank."""
    found = {}
    for name, attempt in PROBES.items():
        try:
            found[name] = attempt(outside)
        except (OSError, MemoryError) as error:  # barred
            found[name] = "" if isinstance(error, MemoryError) or error.errno else f"unclear: {error}"
    return found


@probe("read the grader's files")
def _read_files(outside: Outside) -> str:
    return " ".join(file for file in (*outside.files, "/etc/shadow") if Path(file).exists())


@probe("write where others read")
def _write(outside: Outside) -> str:
    written = []
    for folder in (outside.labs, "/usr/bin", "/etc", "/", str(Path(__file__).parent)):
        with contextlib.suppress(OSError):
            (Path(folder) / "shardlab-probe").write_text("x")
            written.append(folder)
    return " ".join(written)


@probe("see or signal other processes")
def _processes(outside: Outside) -> str:
    seen = [int(name) for name in _processes_seen()]
    with contextlib.suppress(OSError):
        if outside.pid > MOST_INSIDE:  # else one of the sandbox's own may have the number
            os.kill(outside.pid, 0)
            return f"process {outside.pid}"
    return f"processes {seen}" if len(seen) > MOST_INSIDE else ""


def _processes_seen() -> list[str]:
    return [entry.name for entry in Path("/proc").iterdir() if entry.name.isdigit()]


@probe("end the init of the sandbox")
def _kill_init(outside: Outside) -> str:
    if Path("/proc/1/comm").read_text() != "bwrap\n":  # the machine's own: hands off
        return "process 1 is not the sandbox's"
    os.kill(1, signal.SIGSTOP)
    return "process 1 stopped" if " T " in Path("/proc/1/stat").read_text() else ""


@probe("reach a network")
def _network(outside: Outside) -> str:
    reached = []
    for address in (("127.0.0.1", outside.port), ("10.0.0.1", 80), ("169.254.169.254", 80)):
        with contextlib.suppress(OSError), socket.create_connection(address, timeout=1):
            reached.append(str(address))
    interfaces = [name for _, name in socket.if_nameindex() if name != "lo"]
    return " ".join([*reached, *interfaces])


@probe("other families of sockets")
def _sockets(outside: Outside) -> str:
    made = []
    for family in (17, 38, 40):  # AF_PACKET, AF_ALG, AF_VSOCK
        with contextlib.suppress(OSError):
            socket.socket(family, socket.SOCK_RAW if family == 17 else socket.SOCK_STREAM).close()
            made.append(str(family))
    return " ".join(made)


@probe("the grader's environment")
def _environment(outside: Outside) -> str:
    texts = [" ".join(os.environ.values())]
    for name in _processes_seen():
        with contextlib.suppress(OSError):
            texts.append(Path(f"/proc/{name}/environ").read_bytes().decode(errors="replace"))
    return "a secret of the grader" if any(outside.secret in text for text in texts) else ""


@probe("files the grader has open")
def _descriptors(outside: Outside) -> str:
    leaked, own = [], Path(os.environ["TMPDIR"]).parent
    for number in range(3, 256):
        with contextlib.suppress(OSError):
            target = Path(f"/proc/self/fd/{number}").readlink()
            if target.is_absolute() and target.is_file() and not target.is_relative_to(own):
                leaked.append(str(target))
    return " ".join(leaked)


@probe("memory of the supervisor")
def _memory(outside: Outside) -> str:
    with Path(f"/proc/{os.getppid()}/mem").open("rb"):
        return "the supervisor's memory opened"


@probe("new namespaces")
def _namespaces(outside: Outside) -> str:
    libc = ctypes.CDLL(None, use_errno=True)
    made = [hex(flag) for flag in (0x10000000, 0x00020000, 0x40000000) if libc.unshare(flag) == 0]
    return " ".join(made)


@probe("mounts and devices")
def _mounts(outside: Outside) -> str:
    libc = ctypes.CDLL(None, use_errno=True)
    got = []
    if libc.mount(b"tmpfs", b"/tmp", b"tmpfs", 0, None) == 0:
        got.append("mount")
    with contextlib.suppress(OSError):
        os.mknod("/tmp/shardlab-disk", 0o600 | 0o060000, os.makedev(8, 0))
        got.append("mknod")
    return " ".join(got)


@probe("system calls that are not for lessons")
def _system_calls(outside: Outside) -> str:
    libc = ctypes.CDLL(None, use_errno=True)
    if platform.machine() != "x86_64":  # the numbers below are that machine's
        return ""
    done = []
    for name, number in X86_64_CALLS.items():
        if libc.syscall(number, 0, 0, 0, 0, 0) >= 0 or ctypes.get_errno() not in (1, 38):  # EPERM, ENOSYS
            done.append(name)
    return " ".join(done)


@probe("privileges")
def _privileges(outside: Outside) -> str:
    status = dict(line.split(":\t", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":\t" in line)
    held = [name for name in ("CapPrm", "CapEff", "CapBnd", "CapInh", "CapAmb") if int(status[name], 16)]
    if os.getuid() == 0:
        held.append("root")
    if status["NoNewPrivs"] != "1" or status["Seccomp"] != "2":
        held.append("a way to new ones")
    return " ".join(held)


@probe("the kernel's settings")
def _settings(outside: Outside) -> str:
    file = Path("/proc/sys/kernel/hostname")
    file.write_text(file.read_text())
    return str(file)


@probe("memory without end")
def _much_memory(outside: Outside) -> str:
    with mmap.mmap(-1, 1 << 40, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS):
        return "1 TiB"


@probe("files without end")
def _much_disk(outside: Outside) -> str:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    file = Path(os.environ["TMPDIR"]) / "large"
    try:
        with file.open("wb") as large:
            os.posix_fallocate(large.fileno(), 0, 1 << 34)
        return "16 GiB"
    finally:
        file.unlink(missing_ok=True)


@probe("processes without end")
def _many_processes(outside: Outside) -> str:
    children = []
    try:
        while len(children) < outside.processes:
            child = os.fork()
            if child == 0:
                signal.pause()
            children.append(child)
        return f"{len(children)} processes"
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)
        for child in children:
            os.waitpid(child, 0)
