"""The programs that make slides: marp on Node.js (in slides/node_modules), Chromium for PDF."""

import shutil
import subprocess
import sys
from pathlib import Path

from shardlab.bad_input import BadInput
from shardlab.syllabus import ROOT

HOME = ROOT / "slides"  # holds package.json and its lock
CHROMIUMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "microsoft-edge")
MAC_CHROMIUMS = (
    Path("/Applications/Chromium.app/Contents/MacOS/Chromium"),
    Path("/Applications/Google Chrome.app/Contents/MacOS/Google Chrome"),
)
OLDEST_NODE = 18


def find_chromium() -> Path | None:
    """A Chromium or a relative of it on this machine."""
    found = next(filter(None, map(shutil.which, CHROMIUMS)), None)
    if found:
        return Path(found)
    return next((path for path in MAC_CHROMIUMS if sys.platform == "darwin" and path.exists()), None)


def find_marp() -> Path | None:
    """The marp of slides/node_modules, if it is what the lock file asks for."""
    marp, stamp = HOME / "node_modules" / ".bin" / "marp", HOME / "node_modules" / ".shardlab-lock.json"
    lock = HOME / "package-lock.json"
    return marp if marp.exists() and stamp.exists() and stamp.read_bytes() == lock.read_bytes() else None


def install_marp() -> Path:
    """Makes slides/node_modules as the lock file says; the stamp comes last, so an interrupted install begins again."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if not node or not npm:
        raise BadInput(
            f"slides need Node.js {OLDEST_NODE} or newer with npm; `shardlab doctor` says how to install it."
        )
    version = subprocess.run([node, "--version"], capture_output=True, text=True, check=True).stdout.strip()
    if int(version.removeprefix("v").partition(".")[0]) < OLDEST_NODE:
        raise BadInput(f"slides need Node.js {OLDEST_NODE} or newer, {node} is {version}; install a newer one.")
    done = subprocess.run(
        [npm, "ci", "--no-fund", "--no-audit", "--loglevel=error"], cwd=HOME, capture_output=True, text=True
    )
    if done.returncode:
        reason = (done.stderr.strip() or done.stdout.strip()).partition("\n")[0]
        raise BadInput(f"marp could not be installed ({reason}); check the network and run `make slides` again.")
    shutil.copy(HOME / "package-lock.json", HOME / "node_modules" / ".shardlab-lock.json")
    return HOME / "node_modules" / ".bin" / "marp"
