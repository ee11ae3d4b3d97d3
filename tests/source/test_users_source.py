"""Which files a command's source is, hostile ones among them, and what names in it stand for."""

from pathlib import Path

import pytest

from hotlap.records.errors import UsageError
from hotlap.source.names import Names
from hotlap.source.places import Places
from hotlap.source.project import entry_of, read_project
from hotlap.source.tree import LONGEST_FILE, Unreadable


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def places(folder: Path, **files: str) -> Places:
    for name, text in files.items():
        write(folder / f"{name}.py", text)
    return Places(read_project(("python", "train.py"), folder), None, True)


# which files


@pytest.mark.parametrize(
    ("command", "found", "module"),
    [
        ("python train.py --out a.py", "train.py", ""),
        ("python -u -X dev train.py", "train.py", ""),
        ("env A=1 torchrun --nproc-per-node 2 train.py", "train.py", ""),
        ("python -m pkg --lr 1", "pkg/__main__.py", "pkg.__main__"),
        ("python -m pkg.fit", "pkg/fit.py", "pkg.fit"),
        ("python -m torch.distributed.run train.py", "train.py", ""),
        ("./go", "go", ""),
    ],
)
def test_the_command_s_file(command: str, found: str, module: str, tmp_path: Path) -> None:
    for name in ("train.py", "pkg/__main__.py", "pkg/fit.py"):
        write(tmp_path / name, "")
    write(tmp_path / "go", "#!/usr/bin/env python\n")
    assert entry_of(command.split(), tmp_path) == ((tmp_path / found).resolve(), module)


@pytest.mark.parametrize("command", [("python", "-c", "x"), ("lightning", "fit"), ("python", "gone.py")])
def test_a_command_without_a_file_of_the_user_s(command: tuple[str, ...], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="Give the command after the recipe"):
        entry_of(command, tmp_path)


def test_local_imports_are_followed_and_no_others(tmp_path: Path) -> None:
    write(
        tmp_path / "train.py",
        "import os, torch, gone\nfrom lib import net\nimport lib.data.images as i\nimport broken\n",
    )
    write(tmp_path / "lib/__init__.py", "from . import util\n")
    write(tmp_path / "lib/net.py", "from .util import x\nfrom ..above import y\n")
    write(tmp_path / "lib/util.py", "import venv.thing\nimport train\n")
    write(tmp_path / "lib/data/images.py", "")
    write(tmp_path / "venv/thing.py", "")
    write(tmp_path / "unused.py", "")
    write(tmp_path / "broken.py", "def (:\n")
    project = read_project(("python", "train.py"), tmp_path)
    assert project.main.shown == "train.py"
    assert {source.shown for source in project.sources.values()} == {
        "train.py", "lib/__init__.py", "lib/net.py", "lib/util.py", "lib/data/images.py",
    }  # fmt: skip
    assert len(project.skipped) == 1
    assert "broken.py:1" in project.skipped[0]


# hostile files


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"def (:\n", "train.py:1: invalid syntax"),
        (b"x = '\xff'\n", "left alone"),
        (b"# coding: nonsense\n", "left alone"),
        (b"x = 1\0\n", "left alone"),
        (b"x = " + b"(" * 300 + b")" * 300, "left alone"),
        (b"x = " + b" + ".join([b"1"] * 5000), "nested too deeply"),
        (b"#" * (LONGEST_FILE + 1), "is not read"),
    ],
)
def test_files_that_are_no_python(data: bytes, why: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_bytes(data)
    with pytest.raises(Unreadable, match=why):
        read_project(("python", "train.py"), tmp_path)


# names


def test_names_that_are_assigned_from_each_other_take_no_forever(tmp_path: Path) -> None:
    tangled = [f"m{n}" for n in range(14)]
    text = "".join(f"{one} = f() or {two}\n{one} = {two}\n" for one in tangled for two in tangled)
    project = places(tmp_path, train=f"{text}m0(x)\n").project
    scope, call = project.main.walk.calls[-1]
    assert Names(project).origins(call.func, scope)


def test_an_imported_function_is_called_and_not_a_method_of_its_name(tmp_path: Path) -> None:
    lib = "class Fitter:\n    def fit(self, x): ...\n"
    names = places(tmp_path, train="import lib, run\nrun.fit(1)\n", lib=lib, run="def fit(x): ...\n").names
    (function,) = [scope for source in names.project.sources.values() for scope in source.walk.scopes.values()
                   if scope.qualname == "fit"]  # fmt: skip
    assert [skipped for _, _, skipped in names.callers[function]] == [0]


# where training begins

EPOCHS = """\
import torch


def train(x):
    for _ in x:
        {}.backward()


for epoch in range(2):
    train(x)
"""


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (EPOCHS.format("loss"), 9),
        (EPOCHS.format("loss") + "train(x)\n", 5),
        (EPOCHS.replace("    for _ in x:\n        {}", "    if x:\n        loss"), 9),
        (EPOCHS.replace("for _ in x", "if x").replace("for epoch in range(2)", "if x").format("loss"), 0),
    ],
    ids=["out of a function", "of two callers", "only the epochs", "no loop"],
)
def test_where_training_begins(text: str, line: int, tmp_path: Path) -> None:
    there = places(tmp_path, train=text)
    assert (there.start[0].source.line(there.start[1]) if there.start else 0) == line
