"""Git bundles: read out of git's store, with nothing of theirs run and no link made."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from small_course import CODE, SPLITS, SUMS

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="git is missing")
LEFT_OUT = "Left out, as only the lab files of lessons are graded: "


class Repository:
    """A student's repository, made with git's plumbing where git itself would not make it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        self.git("init", "--quiet", "--initial-branch=main")

    def git(self, *arguments: str, data: bytes = b"") -> str:
        settings = ["-c", "user.name=S", "-c", "user.email=s@example.org", "-c", "core.protectHFS=false"]
        environment = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
        done = subprocess.run(
            ["git", *settings, *arguments],
            cwd=self.folder,
            input=data,
            env=environment,
            capture_output=True,
            check=True,
        )
        return done.stdout.decode().strip()

    def write(self, name: str, data: bytes) -> None:
        (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
        (self.folder / name).write_bytes(data)

    def commit(self) -> None:
        self.git("add", "--all")
        self.git("commit", "--quiet", "--message=work")

    def blob(self, data: bytes) -> str:
        return self.git("hash-object", "-w", "--stdin", data=data)

    def tree(self, *entries: tuple[str, str, str]) -> str:
        """A tree object of (mode, object, name), of whatever names."""
        kinds = {"40000": "tree", "160000": "commit"}
        lines = "".join(f"{mode} {kinds.get(mode, 'blob')} {what}\t{name}\0" for mode, what, name in entries)
        return self.git("mktree", "-z", "--missing", data=lines.encode())

    def commit_tree(self, tree: str) -> None:
        self.git("update-ref", "refs/heads/main", self.git("commit-tree", tree, "-m", "work"))

    def bundle(self, *revisions: str) -> Path:
        path = self.folder.with_suffix(".bundle")
        self.git("bundle", "create", "--quiet", str(path), *(revisions or ("HEAD", "main")))
        return path


@pytest.fixture
def repository(tmp_path) -> Repository:
    return Repository(tmp_path / "s1")


@pytest.mark.parametrize("revisions", [("HEAD",), ("main",), ("--all",), ("other",)])
def test_the_newest_commit_counts(take, repository, revisions):
    repository.write(f"labs/{SUMS}", b"old")
    repository.write("conftest.py", b"raise SystemExit")
    repository.commit()
    repository.write(f"labs/{SUMS}", CODE)
    repository.commit()
    repository.git("branch", "other")
    submission = take(repository.bundle(*revisions))
    assert (submission.folder / SUMS).read_bytes() == CODE
    assert submission.problems == (f"{LEFT_OUT}conftest.py.",)


def test_a_bundle_that_cannot_be_read_is_refused_with_the_command_that_makes_one(refused, repository, tmp_path):
    repository.write(SUMS, CODE)
    repository.commit()
    repository.git("branch", "a")
    repository.git("branch", "b")
    assert refused(repository.bundle("a", "b")) == (
        "The bundle has no HEAD and no main branch (branches: refs/heads/a, refs/heads/b): "
        "make it with `git bundle create FILE HEAD`."
    )
    repository.write(SPLITS, CODE)
    repository.commit()
    assert "git cannot read the bundle (error: Repository lacks these prerequisite commits:)" in refused(
        repository.bundle("main~1..main")
    ).replace("Git", "git")
    broken = tmp_path / "broken.bundle"
    broken.write_bytes(repository.bundle("main").read_bytes()[:200])
    assert "make it with `git bundle create FILE HEAD`." in refused(broken)
    broken.write_bytes(b"no bundle")
    assert "make it with `git bundle create FILE HEAD`." in refused(broken)


def test_hooks_filters_and_settings_of_the_repository_do_not_run(take, repository, tmp_path):
    ran = tmp_path / "ran"
    repository.write(SUMS, CODE)
    repository.write(".gitattributes", b"* filter=evil\n*.py filter=lfs diff=lfs merge=lfs -text\n")
    repository.write(".gitmodules", b'[submodule "x"]\n\tpath = x\n\turl = ext::sh -c "touch ran"\n')
    repository.write(".lfsconfig", b"[lfs]\n\turl = http://localhost:1/\n")
    repository.commit()
    for hook in ("post-checkout", "post-merge", "reference-transaction", "post-index-change"):
        file = repository.folder / ".git" / "hooks" / hook
        file.write_text(f"#!/bin/sh\ntouch '{ran}'\n")
        file.chmod(0o755)
    bundle = repository.bundle()
    ran.unlink(missing_ok=True)
    submission = take(bundle)
    assert (submission.folder / SUMS).read_bytes() == CODE
    assert not ran.exists()


def test_links_and_other_repositories_are_never_made(take, refused, repository):
    blob, link = repository.blob(CODE), repository.blob(b"/etc")
    day = repository.tree(("100755", blob, "sums.py"))
    entries = [("120000", link, "etc"), ("160000", "1" * 40, "module"), ("40000", day, "day1_small")]
    repository.commit_tree(repository.tree(*entries))
    submission = take(repository.bundle())
    assert submission.problems == (f"{LEFT_OUT}etc, module.",)
    repository.commit_tree(repository.tree(("40000", repository.tree(("120000", link, "sums.py")), "day1_small")))
    assert refused(repository.bundle()) == f'"{SUMS}" is a link: hand in the file itself.'


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("..", "climbs out of its folder with .."),
        ("a\\b", "a name with a backslash"),
        ("C:", "begins with a drive letter"),
    ],
)
def test_trees_with_names_that_git_itself_would_not_make_are_refused(refused, repository, name, sentence):
    blob = repository.blob(CODE)
    day = repository.tree(("100644", blob, "sums.py"))
    inner = repository.tree(("100644", blob, "x.py"))
    repository.commit_tree(repository.tree(("40000", day, "day1_small"), ("40000", inner, name)))
    assert sentence in refused(repository.bundle())


def test_a_lab_in_two_spellings_is_refused(refused, repository):
    blob = repository.blob(CODE)
    day = repository.tree(("100644", blob, "sums.py"), ("100644", repository.blob(b"other"), "SUMS.py"))
    repository.commit_tree(repository.tree(("40000", day, "day1_small")))
    assert f'twice, as "day1_small/SUMS.py" and "{SUMS}"' in refused(repository.bundle())


def test_trees_that_repeat_each_other_are_refused(refused, repository):
    """A few hundred bytes that name 10^10 files."""
    tree = repository.tree(*(("100644", repository.blob(CODE), f"file{number}") for number in range(10)))
    for _ in range(9):
        tree = repository.tree(*(("40000", tree, f"folder{number}") for number in range(10)))
    repository.commit_tree(tree)
    assert refused(repository.bundle()) == "The bundle takes more time or room to read than any honest one."


def test_a_large_blob_is_refused_unread(refused, repository):
    day = repository.tree(("100644", repository.blob(bytes(100 * 2**20)), "sums.py"))
    repository.commit_tree(repository.tree(("40000", day, "day1_small")))
    assert refused(repository.bundle()) == f'"{SUMS}" has more than 1,048,576 bytes; a lab has some 10,000.'
