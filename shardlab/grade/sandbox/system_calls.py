"""The filter of system calls: what no lesson needs and every escape begins with.

A list of what is refused, not of what is allowed: torch, gloo and Python use some 120 calls that change with their
versions, and the namespaces are what isolates. The filter takes away the kernel's larger doors (seccomp(2)).
"""

from __future__ import annotations

import errno
import tempfile
from itertools import pairwise
from typing import IO

REFUSED = (
    # other processes
    *("ptrace", "process_vm_readv", "process_vm_writev", "process_madvise", "kcmp", "pidfd_getfd"),
    # mounts and namespaces
    *("mount", "umount2", "pivot_root", "chroot", "move_mount", "open_tree", "fsopen", "fsconfig", "fsmount", "fspick"),
    *("mount_setattr", "unshare", "setns", "name_to_handle_at", "open_by_handle_at"),
    # young and large parts of the kernel
    *("io_uring_setup", "io_uring_enter", "io_uring_register", "userfaultfd", "bpf", "perf_event_open"),
    # keys, modules, the machine itself
    *("add_key", "request_key", "keyctl", "init_module", "finit_module", "delete_module", "kexec_load"),
    *("kexec_file_load", "reboot", "swapon", "swapoff", "acct", "quotactl", "syslog", "settimeofday", "clock_settime"),
)
NAMESPACE_FLAGS = 0x7E020000 | 0x80  # CLONE_NEW* of clone(2)
SOCKET_FAMILIES = (1, 2, 10, 16)  # unix, IPv4, IPv6, netlink (interfaces are listed through it)


def filter_file() -> IO[bytes]:
    """An open file with the filter as the kernel reads it; gone when closed."""
    import pyseccomp as seccomp

    denied = seccomp.ERRNO(errno.EPERM)
    rules = seccomp.SyscallFilter(seccomp.ALLOW)
    for name in REFUSED:
        rules.add_rule(denied, name)
    for bit in range(32):
        flag = 1 << bit
        if flag & NAMESPACE_FLAGS:
            rules.add_rule(denied, "clone", seccomp.Arg(0, seccomp.MASKED_EQ, flag, flag))
    rules.add_rule(seccomp.ERRNO(errno.ENOSYS), "clone3")  # its flags are in memory: libc falls back to clone
    _refuse_sockets(seccomp, rules)
    for request in (0x5412, 0x541C):  # TIOCSTI and TIOCLINUX type into somebody's terminal
        rules.add_rule(denied, "ioctl", seccomp.Arg(1, seccomp.MASKED_EQ, 0xFFFFFFFF, request))
    file = tempfile.TemporaryFile()  # noqa: SIM115  # the caller closes it
    rules.export_bpf(file)
    file.flush()
    file.seek(0)
    return file


def _refuse_sockets(seccomp: object, rules: object) -> None:
    """All families but `SOCKET_FAMILIES`, by the gaps between them: AF_VSOCK reaches the host of a virtual machine."""
    denied = seccomp.ERRNO(errno.EPERM)
    for below, above in pairwise(SOCKET_FAMILIES):
        for family in range(below + 1, above):
            rules.add_rule(denied, "socket", seccomp.Arg(0, seccomp.EQ, family))
    rules.add_rule(denied, "socket", seccomp.Arg(0, seccomp.GT, SOCKET_FAMILIES[-1]))
