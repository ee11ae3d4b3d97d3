"""The public training scripts of `field.toml`, and the folders and commands that they run with.

A `command` is what follows `python` (or what `start` names). `flags` and `expert` are added to it, as `OPTIONS OF
field_launcher.py | OPTIONS OF THE SCRIPT`: TF32, bf16 and compilation by flags, and what an expert sets in an hour
without an edit. Where a script has an option of its own, that is used. `cpu` makes a script small enough for
`field.py check --cpu`; one without it needs a GPU.
"""

import os
import shlex
import shutil
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

import field_data

HERE = Path(__file__).resolve().parent
REPOSITORIES = HERE.parent / ".field"
WORK = Path(os.environ.get("FIELD_WORK", "/tmp/field"))
STARTS = {
    "python": "",
    "torchrun": "-m torch.distributed.run --standalone --nproc-per-node=2",
    "accelerate": (
        "-m accelerate.commands.launch --num_processes=1 --num_machines=1 --mixed_precision=no --dynamo_backend=no"
    ),
}
OFFLINE = {"HF_HUB_OFFLINE": "1", "WANDB_MODE": "disabled", "YOLO_OFFLINE": "true", "MPLBACKEND": "Agg"}


@dataclass(frozen=True)
class Script:
    """`folder` is that of the repository in `.field`; `inside` and `path` in it: working folder, PYTHONPATH."""

    name: str
    repo: str
    kind: str
    folder: str
    command: str
    flags: str
    expert: str
    data: str = "nothing"
    cpu: str | None = None
    start: str = "python"
    inside: str = "."
    path: str = "."
    steps: int = 60
    """Steady steps of a measured run."""
    gpus: int = 1

    @property
    def root(self) -> Path:
        """The copy of the repository that runs, with the data in it."""
        return WORK / f"{self.folder}-{self.data}"

    def prepare(self) -> Path:
        """Make the copy and its data where they are not there yet; the working folder."""
        if not (self.root / "data-is-there").exists():
            shutil.rmtree(self.root, ignore_errors=True)
            self.root.mkdir(parents=True)
            if (REPOSITORIES / self.folder).exists():
                shutil.copytree(REPOSITORIES / self.folder, self.root, dirs_exist_ok=True)
            before = Path.cwd()
            os.chdir(self.root)
            try:
                getattr(field_data, self.data)()
            finally:
                os.chdir(before)
            (self.root / "data-is-there").touch()
        return self.root / self.inside

    def argv(self, kind: str, more: str = "") -> list[str]:
        """The command of a kind: `bare`, `flags` or `expert`."""
        ours, _, own = getattr(self, kind, "").partition("|")
        launcher = [str(HERE / "field_launcher.py"), *ours.split()] if ours.strip() else []
        words = [*shlex.split(STARTS[self.start]), *launcher, *shlex.split(f"{self.command} {own} {more}")]
        return [sys.executable, *words]

    def environment(self, base: dict[str, str]) -> dict[str, str]:
        """Packages of the repository first; hotlap itself may be only in this checkout."""
        own = [str(self.root / each) for each in self.path.split()]
        known = base.get("PYTHONPATH", "").split(os.pathsep)
        paths = [*own, *filter(None, known), str(HERE.parent / "src")]
        return {**base, **OFFLINE, "TORCH_HOME": str(self.root / "hub"), "PYTHONPATH": os.pathsep.join(paths)}


def scripts(only: str | None = None) -> list[Script]:
    """Those named, in the order of the table; all without a name. Raises KeyError for a name that is not there."""
    rows = tomllib.loads((HERE / "field.toml").read_text(encoding="utf-8"))
    return [Script(name, **rows[name]) for name in (only.split(",") if only else rows)]
