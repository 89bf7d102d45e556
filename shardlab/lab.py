"""JupyterLab over a checkout of the course."""

import os
import socket
import sys
from pathlib import Path

from shardlab.bad_input import BadInput

FIRST_PORT = 8888


def open_lab(root: Path, notebook: Path | None = None, port: int | None = None) -> None:
    """Turns this process into JupyterLab over the folder `root`, opened on `notebook`, a file under it.

    With `port` given, BadInput when it cannot be had; without, the first free one from 8888 on.
    """
    if port is not None and not _is_free(port):
        raise BadInput(f"port {port} is in use or not allowed; name another, or leave --port away to get a free one.")
    command = lab_command(root, notebook, port)
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # for torchrun in terminals
    os.execv(command[0], command)


def lab_command(root: Path, notebook: Path | None, port: int | None) -> list[str]:
    """The command that starts JupyterLab; it listens on this machine only and asks nothing of the network."""
    page = f"/lab/tree/{notebook.relative_to(root)}" if notebook else "/lab"
    command = [sys.executable, "-m", "jupyterlab", f"--ServerApp.root_dir={root}", f"--LabApp.default_url={page}"]
    command += [f"--ServerApp.port={port or FIRST_PORT}", f"--ServerApp.port_retries={0 if port else 50}"]
    command += ["--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate"]
    command += ["--LabApp.extension_manager=readonly"]
    return command + (["--allow-root"] if os.geteuid() == 0 else [])


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except (OSError, OverflowError):
            return False
    return True
