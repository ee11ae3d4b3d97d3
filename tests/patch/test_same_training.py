"""What a patched script learns, in a process of its own: the same as the script under the lever that was written."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from patching import SETTINGS, Patcher

from agent.harness import Runner
from hotlap.records.run import Lever

TRAINING = """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(8, 16)
        self.down = nn.Linear(16, 8)
        self.drop = nn.Dropout(0.2)

    def forward(self, x):
        return x + self.drop(self.down(torch.relu(self.up(x))))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Block() for _ in range(3)])
        self.head = nn.Linear(8, 4)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def train(model, loader, optimizer):
    for x, y in loader:
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print("loss", repr(loss.item()))


torch.manual_seed(0)
data = TensorDataset(torch.randn(34, 8), torch.randint(4, (34,)))
loader = DataLoader(data, batch_size=4, shuffle=True)
model = Net()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
for epoch in range(2):
    train(model, loader, optimizer)
"""
LEVERS: list[tuple[dict[str, dict[str, Any]], int]] = [
    ({"activation-offload": {}}, 18),
    ({"checkpoint-blocks": {"every": 2}}, 18),
    ({"batch-size": {}, "checkpoint-blocks": {}}, 6),
]
"""Together where none could hide what another changes: losses are those of the levers, to the last bit."""
ROUNDED = ("activation-offload",)
"""torch's own hook gives what it kept another layout, for which matrix products have other kernels."""


@pytest.mark.parametrize(("levers", "steps"), LEVERS)
def test_a_patched_script_trains_as_under_the_levers(
    levers: dict[str, dict[str, Any]], steps: int, patched: Patcher, runner: Runner, tmp_path: Path
) -> None:
    losses = compared(TRAINING, levers, patched, runner, tmp_path)
    assert len(losses[1]) == steps
    rounded = not levers.keys().isdisjoint(ROUNDED)
    assert losses[0] == pytest.approx(losses[1], rel=1e-5 if rounded else 0, abs=0)


def test_compiled_blocks_are_called(patched: Patcher, runner: Runner, tmp_path: Path) -> None:
    """Called as they are: torch.compile's own arithmetic is not what is tested here, and takes long."""
    (tmp_path / "after.py").write_text(patched(TRAINING, "compile-blocks").text())
    eager = "import torch; torch.compiler.set_stance('force_eager')"
    after = runner.fork([str(tmp_path / "after.py")], tmp_path / "output.txt", before=eager)
    assert after.losses == runner.fork([str(tmp_path / "train.py")], tmp_path / "output.txt").losses
    assert len(after.losses) == 18


@pytest.mark.skipif(shutil.which("nvidia-smi") is None, reason="offloading is for CUDA devices")
@pytest.mark.parametrize("lever", ["activation-offload", "checkpoint-blocks"])
def test_a_patched_script_trains_as_under_the_lever_on_a_gpu(
    lever: str, patched: Patcher, runner: Runner, tmp_path: Path
) -> None:
    text = TRAINING.replace("model = Net()", "model = Net().cuda()").replace(
        "    for x, y in loader:\n", "    for x, y in loader:\n        x, y = x.cuda(), y.cuda()\n"
    )
    result = patched(text, lever)
    assert not result.refused
    (tmp_path / "after.py").write_text(result.text())
    shown = {"CUDA_VISIBLE_DEVICES": "0"}
    use = Lever(name=lever, settings=SETTINGS[lever])
    under = runner.under([str(tmp_path / "train.py")], levers=(use,), variables=shown)
    after = runner.in_child([str(tmp_path / "after.py")], variables=shown)
    assert (under.code, after.code) == (0, 0), under.output + after.output
    assert not [problem for problem in under.problems if lever in problem.where]
    assert len(after.losses) == 18
    assert after.losses == pytest.approx(under.losses, rel=1e-5)


def compared(
    text: str, levers: dict[str, dict[str, Any]], patched: Patcher, runner: Runner, folder: Path
) -> tuple[list[float], list[float]]:
    """What the script prints under levers, and what it prints patched, without hotlap."""
    (folder / "before.py").write_text(text)
    own = {name: {**SETTINGS[name], **settings} for name, settings in levers.items()}
    for name, settings in own.items():
        result = patched(text, name, cuda=False, **settings)
        assert not result.refused
        text = result.text()
    (folder / "after.py").write_text(text)
    under = runner.forked(str(folder / "before.py"), levers=tuple(Lever(name=n, settings=s) for n, s in own.items()))
    after = runner.fork([str(folder / "after.py")], folder / "output.txt")
    assert (under.code, after.code) == (0, 0), under.output + after.output
    assert not [problem for problem in under.problems if "lever" in problem.where]
    return under.losses, after.losses
