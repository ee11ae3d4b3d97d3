"""That what a patch writes is what its diff says, of odd files too, and that nothing else is changed."""

import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from patching import Patcher

from hotlap.patch import patch as patching
from hotlap.patch.copy import copy
from hotlap.patch.diff import diff
from hotlap.patch.patch import facts_beside, make
from hotlap.patch.verify import as_fast
from hotlap.records.errors import RecipeError, RecordError, UsageError
from hotlap.records.tune import Interval
from hotlap.source.project import read_project

SCRIPT = """\
import torch
net = torch.nn.Linear(1, 1)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
x = torch.ones(1)
y = net(x)
y.sum().backward()
opt.step()
"""
RECIPE = """\
format = 1
hotlap = "0"
command = ["python", "train.py"]
[[lever]]
name = "fused-optimizer"
risk = "numeric"
"""


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def git(folder: Path, *arguments: str, stdin: bytes | None = None) -> None:
    names = {f"GIT_{who}_{what}": "x@y" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    subprocess.run(
        ["git", *arguments], cwd=folder, env=os.environ | names, input=stdin, check=True, capture_output=True
    )


# hostile files


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data.replace(b"\n", b"\r\n"),
        lambda data: b"\xef\xbb\xbf" + data,
        lambda data: b"# coding: latin-1\n# \xe9\n" + data,
        lambda data: data[:-1],
        lambda data: b"if 1:\n\t" + data.replace(b"\n", b"\n\t").rstrip() + b"\n",
        lambda data: b"async def main():\n  " + data.replace(b"\n", b"\n  ").rstrip() + b"\n",
        lambda data: (
            b"@deco(lambda f: f)\ndef main():\n    def inner():\n        " + data.replace(b"\n", b"\n        ")
        ),
        lambda data: b"\x0c\n" + data + b"z = '\x0c\x1c\xe2\x80\xa8'\n",
    ],
    ids=["crlf", "bom", "latin-1", "no-end", "tabs", "async", "nested", "separators"],
)
def test_odd_files_keep_what_is_odd(change: object, patched: Patcher, tmp_path: Path) -> None:
    data = change(SCRIPT.encode())  # type: ignore[operator]
    result = patched(data, "fused-optimizer", "bf16-autocast", "compile")
    new = result.after.main.data
    assert b"fused=True" in new
    assert b"float()" in new
    assert new.count(b"\r\n") in {0, new.count(b"\n")}
    apply_diff(tmp_path, data, new)


def apply_diff(folder: Path, old: bytes, new: bytes, name: str = "train.py") -> None:
    """`git apply` of the diff makes exactly the new file."""
    (folder / name).write_bytes(old)
    git(folder, "init", "-q")
    git(folder, "apply", "--whitespace=nowarn", "-", stdin=diff(name, old, new))
    assert (folder / name).read_bytes() == new


LINES = st.lists(st.sampled_from([b"a", b"b", b"", b"\xff\xfe", b"\r", b"\x0c", b"--- a", b"+++ b", b"@@"]), max_size=9)


@given(LINES, LINES, st.booleans(), st.booleans())
def test_diff_against_an_oracle(old: list[bytes], new: list[bytes], one_ends: bool, two_ends: bool) -> None:
    one, two = b"\n".join(old) + b"\n" * one_ends, b"\n".join(new) + b"\n" * two_ends
    text = diff("a b.py", one, two)
    assert (text == b"") == (one == two)
    assert applied(one, text) == two


def applied(old: bytes, text: bytes) -> bytes:
    """A unified diff applied by the book."""
    if not text:
        return old
    lines, out, at, last = old.split(b"\n"), [], 0, b""
    kept = [line + b"\n" for line in lines[:-1]] + ([lines[-1]] if lines[-1] else [])
    for line in text.split(b"\n")[2:-1]:
        if line.startswith(b"@@"):
            start, _, count = line.split(b" ")[1][1:].partition(b",")
            begin = int(start) - (count != b"0")
            out += kept[at:begin]
            at = begin
        elif line.startswith(b"\\"):
            if last == b"+":
                out[-1] = out[-1][:-1]
        else:
            last = line[:1]
            at += last != b"+"
            if last == b" ":
                out.append(kept[at - 1])
            elif last == b"+":
                out.append(line[1:] + b"\n")
    return b"".join(out + kept[at:])


@pytest.mark.parametrize("name", ["my train.py", "trän.py", 'q"uote.py'])
def test_git_applies_to_strange_names(name: str, tmp_path: Path) -> None:
    apply_diff(tmp_path, b"a\n", b"a\nb", name)


# recipes and writing


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write(tmp_path / "train.py", SCRIPT)
    write(tmp_path / "recipe.toml", RECIPE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_apply_refuses_what_git_does_not_have(project: Path) -> None:
    patched = make(project / "recipe.toml", (), project)
    with pytest.raises(UsageError, match="not committed"):
        patching.apply(patched, force=False)
    git(project, "init", "-q")
    git(project, "add", "-A")
    git(project, "commit", "-qm", "x")
    (project / "train.py").chmod(0o755)
    git(project, "commit", "-qam", "y")
    patching.apply(patched, force=False)
    assert (project / "train.py").read_text() == SCRIPT.replace("lr=0.1", "lr=0.1, fused=True")
    assert (project / "train.py").stat().st_mode & 0o777 == 0o755
    with pytest.raises(UsageError, match="not committed"):
        patching.apply(patched, force=False)


def test_apply_refuses_a_file_that_changed_meanwhile(project: Path) -> None:
    patched = make(project / "recipe.toml", (), project)
    write(project / "train.py", SCRIPT + "# mine\n")
    with pytest.raises(RecordError, match="changed during patching"):
        patching.apply(patched, force=True)
    assert (project / "train.py").read_text().endswith("# mine\n")


def test_apply_leaves_nothing_half_written(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(project / "other.py", "import torch\nopt = torch.optim.SGD(p, 1)\nopt.step()\n")
    write(project / "train.py", "import other\n" + SCRIPT.replace("opt ", "own ").replace("opt.", "own."))
    patched = make(project / "recipe.toml", (), project)
    assert len(patched.record.files) == 2
    real, calls = patching.write_atomic, []

    def full(path: Path, data: bytes) -> None:
        calls.append(path)
        if len(calls) == 2:
            raise RecordError("disk full")
        real(path, data)

    monkeypatch.setattr(patching, "write_atomic", full)
    old = {path: path.read_bytes() for path in project.glob("*.py")}
    with pytest.raises(RecordError, match="disk full"):
        patching.apply(patched, force=True)
    assert {path: path.read_bytes() for path in project.glob("*.py")} == old


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [("fused-optimizer", "nitro", "no such lever"), ('risk = "numeric"', "settings = {a = 1}", "has no settings"),
     ("format = 1", "format = 9", "format 9")],
)  # fmt: skip
def test_a_recipe_is_not_trusted(old: str, new: str, why: str, project: Path) -> None:
    write(project / "recipe.toml", RECIPE.replace(old, new))
    with pytest.raises(RecipeError, match=why):
        make(project / "recipe.toml", (), project)


def test_facts_of_a_broken_tune_are_passed_over(project: Path) -> None:
    assert facts_beside(project / "recipe.toml") is None
    write(project / "tune.json", "{")
    assert facts_beside(project / "recipe.toml") is None


def test_variables_go_with_the_command(project: Path) -> None:
    more = '[[lever]]\nname = "allocator"\nsettings = {conf = "roundup_power2_divisions:8"}\nrisk = "exact"\n'
    write(project / "recipe.toml", RECIPE + more)
    record = make(project / "recipe.toml", (), project).record
    assert "PYTORCH_ALLOC_CONF=roundup_power2_divisions:8" in record.launch and record.launch[-2:] == (
        "python",
        "train.py",
    )


# the copy that is measured


def test_a_copy_runs_the_patched_files_among_the_user_s_own(tmp_path: Path) -> None:
    home = tmp_path / "home"
    write(home / "src/train.py", "import lib.net\nprint(open('../data/x').read(), lib.net.V, __file__)\n")
    write(home / "src/lib/net.py", "V = 1\n")
    write(home / "data/x", "data")
    write(home / "src/big/file", "")
    project = read_project(("python", "train.py"), home / "src")
    place = copy(project, ("python", str(home / "src/train.py")), tmp_path / "copy")
    assert Path(place.command[1]).is_relative_to(tmp_path / "copy")
    assert (place.cwd / "big").is_symlink()
    assert not (place.cwd / "lib/net.py").is_symlink()
    done = subprocess.run(place.command, cwd=place.cwd, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["data", "1", place.command[1]]


def test_as_fast_is_said_only_where_the_runs_can_tell() -> None:
    assert as_fast(Interval(low=0.97, high=1.02)) is True
    assert as_fast(Interval(low=0.8, high=0.9)) is False
    assert as_fast(Interval(low=0.7, high=1.3)) is None
