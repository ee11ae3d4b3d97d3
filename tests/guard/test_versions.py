"""Commits laid out beside the user's source tree, on real repositories."""

import os
import subprocess
from pathlib import Path

import pytest

from hotlap.guard.versions import Repository, at_commit, own_files, range_of, workplace
from hotlap.records.errors import RecordError, UsageError


def git(folder: Path, *words: str) -> str:
    who = ("-c", "user.name=t", "-c", "user.email=t@t", "-c", "init.defaultBranch=main")
    done = subprocess.run(["git", *who, *words], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two commits; data that git ignores, and a file that it does not know."""
    root = tmp_path / "project"
    (root / "pkg").mkdir(parents=True)
    git(root, "init", "-q")
    (root / ".gitignore").write_text("data/\n__pycache__/\n")
    (root / "pkg" / "train.py").write_text("one\n")
    git(root, "add", "-A")
    git(root, "commit", "-qm", "first")
    git(root, "tag", "v1")
    (root / "pkg" / "train.py").write_text("two\n")
    git(root, "commit", "-qam", "second")
    for name in ("data", "hotlap-runs", "pkg/__pycache__"):
        (root / name).mkdir()
        (root / name / "x").write_text("here")
    (root / "notes.txt").write_text("mine")
    return root


def test_a_commit_is_laid_out_with_links_to_what_git_does_not_follow(folder: Path) -> None:
    repository = Repository.of(folder / "pkg")
    script = str(folder / "pkg" / "train.py")
    with workplace() as place:
        with at_commit(repository, "v1", repository.commit("v1"), ["python", script, "/x"], place / "base") as found:
            cwd = Path(found.cwd)
            assert cwd == place / "base" / "pkg"
            assert found.command == ("python", str(cwd / "train.py"), "/x")
            assert (cwd / "train.py").read_text() == "one\n"
            assert (cwd.parent / "data" / "x").read_text() == "here" and (cwd.parent / "data").is_symlink()
            assert (cwd.parent / "notes.txt").read_text() == "mine"
            assert not (cwd.parent / "hotlap-runs").exists() and not (cwd / "__pycache__").exists()
            assert len(git(folder, "worktree", "list").splitlines()) == 2
        assert not (place / "base").exists()
    assert not place.exists()
    assert len(git(folder, "worktree", "list").splitlines()) == 1
    assert (folder / "data" / "x").read_text() == "here" and (folder / "pkg" / "train.py").read_text() == "two\n"


def test_a_path_of_modules_in_the_source_tree_leads_into_the_worktree(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = Repository.of(folder)
    with workplace() as place:
        monkeypatch.setenv("PYTHONPATH", f"/elsewhere:{folder}/pkg")
        with at_commit(repository, "v1", repository.commit("v1"), ["x"], place / "base") as found:
            assert found.variables == {"PYTHONPATH": f"/elsewhere:{place}/base/pkg"}
        monkeypatch.setenv("PYTHONPATH", "/elsewhere")
        with at_commit(repository, "v1", repository.commit("v1"), ["x"], place / "base") as found:
            assert not found.variables


def test_files_beside_those_of_git_are_linked_one_by_one_up_to_a_limit(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(4):
        (folder / "pkg" / f"{number}.bin").write_text("x")
    repository = Repository.of(folder)
    with workplace() as place, at_commit(repository, "v1", repository.commit("v1"), ["x"], place / "base") as found:
        assert (Path(found.cwd) / "pkg" / "3.bin").read_text() == "x"
    monkeypatch.setattr("hotlap.guard.versions.MOST_LINKS", 4)
    with (
        workplace() as place,
        pytest.raises(RecordError, match="put them into a folder of their own"),
        at_commit(repository, "v1", repository.commit("v1"), ["x"], place / "base"),
    ):
        pass


def test_it_is_gone_after_an_error_too(folder: Path) -> None:
    repository = Repository.of(folder)
    with (
        pytest.raises(KeyError),
        workplace() as place,
        at_commit(repository, "v1", repository.commit("v1"), ["x"], place / "base"),
    ):
        raise KeyError
    assert len(git(folder, "worktree", "list").splitlines()) == 1


def test_what_a_killed_check_left_does_not_stand_in_the_way(folder: Path, tmp_path: Path) -> None:
    repository, stale = Repository.of(folder), tmp_path / "gone"
    git(folder, "worktree", "add", "--detach", str(stale), "v1")
    subprocess.run(["rm", "-rf", str(stale)], check=True)
    with workplace() as place, at_commit(repository, "v1", repository.commit("v1"), ["x"], place / "base") as found:
        assert Path(found.cwd).is_dir()
    assert len(git(folder, "worktree", "list").splitlines()) == 1


def test_no_hook_of_the_users_runs(folder: Path, tmp_path: Path) -> None:
    hook = folder / ".git" / "hooks" / "post-checkout"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(f"#!/bin/sh\ntouch {tmp_path}/hooked\n")
    hook.chmod(0o755)
    repository = Repository.of(folder)
    with workplace() as place, at_commit(repository, "v1", repository.commit("v1"), ["x"], place / "base"):
        pass
    assert not (tmp_path / "hooked").exists()


def test_the_source_tree_as_it_is(folder: Path) -> None:
    repository = Repository.of(folder)
    assert repository.now() == (repository.commit("HEAD"), False)
    (folder / "pkg" / "train.py").write_text("three\n")
    commit, changed = repository.now()
    assert changed and commit != repository.commit("HEAD")
    with workplace() as place, at_commit(repository, "now", commit, ["x"], place / "head", changed) as found:
        assert (Path(found.cwd) / "pkg" / "train.py").read_text() == "three\n" and found.changed
    assert git(folder, "stash", "list") == "" and (folder / "pkg" / "train.py").read_text() == "three\n"


def test_commits_between(folder: Path) -> None:
    repository = Repository.of(folder)
    assert repository.between("v1", "HEAD") == [repository.commit("HEAD")]
    assert repository.subject("HEAD") == "second"


@pytest.mark.parametrize("revision", ["nothing", "--help", "", "HEAD^{tree}:x"])
def test_a_commit_that_git_does_not_know(folder: Path, revision: str) -> None:
    with pytest.raises(UsageError, match="git knows no commit"):
        Repository.of(folder).commit(revision)


def test_a_folder_that_a_commit_does_not_have(folder: Path) -> None:
    (folder / "new").mkdir()
    repository = Repository.of(folder / "new")
    with (
        workplace() as place,
        pytest.raises(RecordError, match="has no folder new"),
        at_commit(repository, "v1", repository.commit("v1"), ["x"], place / "base"),
    ):
        pass
    assert len(git(folder, "worktree", "list").splitlines()) == 1


def test_outside_of_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", os.fspath(tmp_path.parent))
    with pytest.raises(UsageError, match="in no git repository"):
        Repository.of(tmp_path)


def test_a_submodule_is_the_users_own(folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    git(other, "init", "-q")
    (other / "f").write_text("of the submodule")
    git(other, "add", "-A")
    git(other, "commit", "-qm", "x")
    git(folder, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(other), "sub")
    git(folder, "commit", "-qm", "with a submodule")
    repository = Repository.of(folder)
    with workplace() as place, at_commit(repository, "HEAD", repository.commit("HEAD"), ["x"], place / "head") as found:
        assert (Path(found.cwd) / "sub" / "f").read_text() == "of the submodule"


def test_files_of_the_users_own_tree(folder: Path) -> None:
    repository = Repository.of(folder)
    own = str(folder / "pkg" / "train.py")
    assert own_files(repository, [own, str(folder / "data" / "x"), "/elsewhere/train.py"]) == [own]


@pytest.mark.parametrize(
    ("text", "found"), [("a..b", ("a", "b")), ("a..", ("a", None)), ("v1.2..HEAD~3", ("v1.2", "HEAD~3"))]
)
def test_a_range(text: str, found: tuple[str, str | None]) -> None:
    assert range_of(text) == found


@pytest.mark.parametrize("text", ["a", "..b", "", "a...b"])
def test_what_is_no_range(text: str) -> None:
    with pytest.raises(UsageError, match="no range of commits"):
        range_of(text)
