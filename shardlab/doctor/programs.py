"""Checks of programs beside Python that single lessons use: namespaces, Slurm, bubblewrap, slides, a browser."""

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

from shardlab.doctor.finding import Finding, install, limited, missing, sudo, works
from shardlab.slides import find_chromium, find_marp

NAMESPACE_SWITCHES = {
    "kernel.apparmor_restrict_unprivileged_userns": "0",  # Ubuntu since 23.10
    "kernel.unprivileged_userns_clone": "1",  # Debian before 11
}


def compiler() -> Finding:
    found = shutil.which("g++") or shutil.which("clang++")
    return works(_output(found, "--version")) if found else missing("no g++", install("g++", "gcc-c++", "gcc"))


def namespaces() -> Finding:
    """A network namespace made without root."""
    if sys.platform != "linux":
        return missing(f"not on {sys.platform}; a Linux virtual machine or container has them")
    denied = _failure("unshare", "-Urn", "true")
    return missing(denied, _allow_namespaces()) if denied else works("unshare -Urn")


def _allow_namespaces() -> str:
    for switch, value in NAMESPACE_SWITCHES.items():
        setting = Path("/proc/sys", *switch.split("."))
        if setting.exists() and setting.read_text().strip() != value:
            return sudo(f"sysctl -w {switch}={value}")
    return "docker run --privileged"


def links() -> Finding:
    lacking = [name for name in ("ip", "tc") if not shutil.which(name)]
    if lacking:
        return missing(f"no {' and no '.join(lacking)}", install("iproute2", "iproute iproute-tc"))
    return works("ip and tc")


def slurm() -> Finding:
    if not shutil.which("sbatch"):
        return missing("no sbatch", install("slurm-wlm munge", "slurm munge"))
    version = _output("sbatch", "--version")
    silent = _failure("sinfo", "--noheader")
    return limited(f"{version}, but no controller answers: {silent}", "sinfo") if silent else works(version)


def bubblewrap() -> Finding:
    if not shutil.which("bwrap"):
        return missing("no bwrap", install("bubblewrap"))
    denied = _failure("bwrap", "--ro-bind", "/", "/", "--unshare-all", "true")
    return limited(denied, _allow_namespaces()) if denied else works(_output("bwrap", "--version"))


def slides() -> Finding:
    if not shutil.which("node") or not shutil.which("npm"):
        return missing("no Node.js with npm", install("nodejs npm", homebrew="node"))
    node = f"Node.js {_output('node', '--version')}"
    return works(f"{node} and marp") if find_marp() else limited(f"{node}, but not marp yet", "make slides")


def chromium() -> Finding:
    browser = find_chromium()
    if not browser:
        return missing("not found", install("chromium", homebrew="--cask chromium"))
    version = _output(str(browser), "--version")
    return works(version) if version else limited(f"{browser} does not start", f"{browser} --version")


def playwright() -> Finding:
    found = importlib.util.find_spec("playwright")
    return works("installed") if found else missing("not installed", "tools/install.sh browser")


def _failure(*command: str) -> str:
    """Why the command does not work here, in one line; empty when it does."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20)
    except FileNotFoundError:
        return f"no {command[0]}"
    except subprocess.TimeoutExpired:
        return f"{command[0]} does not answer within 20 s"
    reason = done.stderr.strip() or f"{command[0]} left with exit code {done.returncode}"
    return reason.partition("\n")[0] if done.returncode else ""


def _output(*command: str) -> str:
    """The first line that the command prints; empty when it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip().partition("\n")[0] if done.returncode == 0 else ""
