"""Rules about repeated blocks: where the lists of a model's blocks are found, and which blocks are left alone."""

import pytest
from patching import Patcher

HEAD = """\
import torch
from torch import nn
from torch.nn import ModuleList


class Mlp(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Sequential(nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        return self.down(self.up(x))


class Block(nn.Module):
    def __init__(self, width, drop=0.1):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.mlp = Mlp(width)
        self.drop = nn.Dropout(drop)

    def forward(self, x, mask=None):
        return x + self.drop(self.mlp(self.norm(x)))
"""
NET = """

class Net(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.inner = nn.Linear(4, width)
        self.blocks = nn.ModuleList([Block(width) for _ in range(3)])
        self.head = nn.Linear(width, 1)

    def forward(self, x):
        x = self.inner(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)
"""
LOOP = """

model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(4):
    x = torch.randn(2, 4)
    loss = model(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
SCRIPT = HEAD + NET + LOOP
LIST = "        self.blocks = nn.ModuleList([Block(width) for _ in range(3)])\n"
LOOPED = "        for block in self.blocks:\n            x = block(x)\n"
CHECKPOINT = "torch.utils.checkpoint.checkpoint"


def came(before: str, after: str) -> list[str]:
    """Lines of the text that are new, by how often they stand there."""
    old = before.splitlines()
    found = []
    for line in after.splitlines():
        if line in old:
            old.remove(line)
        elif line.strip():
            found.append(line.strip())
    return found


@pytest.mark.parametrize(
    ("made", "name"),
    [
        ("self.blocks = ModuleList(Block(width) for _ in range(3))", "self.blocks"),
        ("self.blocks = nn.Sequential(*[Block(width) for _ in range(3)])", "self.blocks"),
        ("self.blocks = nn.Sequential(Block(width), Block(width))", "self.blocks"),
        ("self.parts = nn.ModuleDict(dict(e=nn.Linear(1, 1), h=nn.ModuleList([Block(8) for _ in range(3)])))",
         "self.parts.h"),
        ('self.parts = nn.ModuleDict({"h": nn.ModuleList([Block(8) for _ in range(3)])})', "self.parts.h"),
        ("self.blocks = nn.ModuleList()\n        for _ in range(3):\n            self.blocks.append(Block(width))",
         "self.blocks"),
    ],
)  # fmt: skip
def test_blocks_are_compiled_where_their_list_is_made(made: str, name: str, patched: Patcher) -> None:
    text = SCRIPT.replace(LIST, f"        {made}\n")
    result = patched(text, "compile-blocks")
    loop = f"        for block in {name}:\n            block.compile()\n        self.head"
    assert f"        {made}\n{loop}" in result.text()
    again = patched(result.text(), "compile-blocks")
    assert again.written["compile-blocks"].already
    assert again.text() == result.text()


def test_blocks_of_a_part_and_of_another_file_with_dynamic_shapes(patched: Patcher) -> None:
    outer = """
from net import Net as Inner
class Outer(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = Inner()
    def forward(self, x):
        return self.encoder(x)
"""
    text = "import torch\nfrom torch import nn" + outer + LOOP.replace("Net()", "Outer()")
    result = patched(text, "compile-blocks", files={"net.py": HEAD + NET}, shapes="dynamic")
    assert "        for block in self.blocks:\n            block.compile(dynamic=True)\n" in result.text("net.py")
    assert result.text() == text


@pytest.mark.parametrize("lever", ["compile", "compile-blocks"])
def test_gradients_that_are_differentiated_again_are_not_compiled(lever: str, patched: Patcher) -> None:
    """A patched GAN with a penalty on gradients would have ended at the first of them."""
    asked = SCRIPT.replace("loss.backward()", "loss.backward(create_graph=True)")
    refused = patched(asked, lever).refused[lever]
    assert "`create_graph`" in refused.why and "create_graph=True" in refused.look_at[0].text
    assert not refused.source, "by hand it would raise as well"
    assert lever in patched(asked.replace("graph=True", "graph=False"), lever).written
    assert lever in patched(asked.replace("graph=True", "graph=second_order"), lever).written, "as scalers hand it on"


@pytest.mark.parametrize("lever", ["compile", "compile-blocks"])
def test_what_is_compiled_keeps_what_is_saved_where_the_source_asks(lever: str, patched: Patcher) -> None:
    kept = SCRIPT.replace("loss.backward()", "loss.backward(retain_graph=True)")
    line = "torch._functorch.config.donated_buffer = False\n"
    result = patched(kept, lever)
    assert f"import torch._functorch.config\n{line}" in result.text() and not result.refused
    assert "keeps graphs" in result.written[lever].notes[0]
    assert patched(result.text(), lever).written[lever].already
    for other in (SCRIPT, SCRIPT.replace("loss.backward()", "loss.backward(retain_graph=False)")):
        assert line not in patched(other, lever).text()
    renamed = kept.replace("import torch\n", "import torch as th\n").replace(" torch.", " th.")
    found = patched(renamed, lever)
    assert line not in found.text() and found.written[lever].notes[0].startswith("not written")


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("[Block(width) for _ in range(3)]", "[nn.Linear(8, 8) for _ in range(3)]", "no list of repeated blocks"),
        ("[Block(width) for _ in range(3)]", "[Block(width)]", "no list of repeated blocks"),
        ("[Block(width) for _ in range(3)]", "[Block(width), Mlp(width)]", "no list of repeated blocks"),
        ("[Block(width) for _ in range(3)]", "make(width)", "no list of repeated blocks"),
        ("model = Net()\n", "model = Net()\nmodel.compile()\n", "already compiles the model"),
        ("model = Net()\n", "model = nn.DataParallel(Net())\n", "DataParallel"),
        ("model = Net()\n", "from lib import Far\nmodel = Far()\n", "not in your files"),
        ("    loss.backward()\n", "", "no `.backward()`"),
    ],
)
def test_compile_blocks_refuses(old: str, new: str, why: str, patched: Patcher) -> None:
    result = patched(SCRIPT.replace(old, new), "compile-blocks")
    assert why in result.refused["compile-blocks"].why
    assert result.refused["compile-blocks"].look_at or "backward" in why
    assert result.text() == result.before.main.data.decode()


@pytest.mark.parametrize(
    ("every", "old", "new", "expected"),
    [
        (1, "", "", ["import torch.utils.checkpoint", f"x = {CHECKPOINT}(block, x, use_reentrant=False)"]),
        (2, "", "", ["import torch.utils.checkpoint", "for block_index, block in enumerate(self.blocks):",
                     f"x = {CHECKPOINT}(block, x, use_reentrant=False) if block_index % 2 == 0 else block(x)"]),
        (2, LOOPED, "        for i, b in enumerate(self.blocks):\n            x = 2 * b(x, mask=None) + x\n",
         ["import torch.utils.checkpoint",
          f"x = 2 * ({CHECKPOINT}(b, x, mask=None, use_reentrant=False) if i % 2 == 0 else b(x, mask=None)) + x"]),
    ],
)  # fmt: skip
def test_checkpoints_in_the_loop(every: int, old: str, new: str, expected: list[str], patched: Patcher) -> None:
    text = SCRIPT.replace(old, new) if old else SCRIPT
    result = patched(text, "checkpoint-blocks", every=every)
    assert not result.refused
    assert came(text, result.text()) == expected
    again = patched(result.text(), "checkpoint-blocks", every=every)
    assert again.written["checkpoint-blocks"].already


def test_a_sequential_is_written_out(patched: Patcher) -> None:
    text = SCRIPT.replace(LIST, "        self.blocks = nn.Sequential(*[Block(width) for _ in range(3)])\n")
    result = patched(text.replace(LOOPED, "        x = self.blocks(x)  # all\n"), "checkpoint-blocks", every=2)
    assert "        for block_index, block in enumerate(self.blocks):\n            x = torch.utils" in result.text()
    refused = patched(text.replace(LOOPED, "        x = self.blocks(x + 1)\n"), "checkpoint-blocks").refused
    assert "loop that calls" in refused["checkpoint-blocks"].why


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("nn.LayerNorm(width)", "nn.BatchNorm1d(width)", "`BatchNorm`"),
        ("nn.GELU(), ", "nn.utils.spectral_norm(nn.Linear(9, 9)), ", "`spectral_norm`"),
        ("        return x + self.drop", "        self.seen = x\n        return x + self.drop", "its own state"),
        ("        return x + self.drop", "        self.count.add_(1)\n        return x + self.drop", "its own state"),
        ("self.mlp = Mlp(width)", "self.mlp = make(width)", "the parts of Block are unknown"),
        ("self.drop = nn.Dropout(drop)", "self.drop = layers.DropPath(drop)", "the parts of Block are unknown"),
        ("model = Net()\n", "model = Net()\nmodel.register_forward_hook(show)\n", "hooks"),
        ("            x = block(x)\n", "            x = run(block, x)\n", "loop that calls"),
        ("            x = block(x)\n", "            x = block(x, preserve_rng_state=False)\n", "would use itself"),
        ("            x = block(x)\n", "            x = block(x, **more)\n", "would use itself"),
        ("            x = block(x)\n", "            x = block()\n", "would use itself"),
        ("for block in self.blocks:", "for block in reversed(self.blocks):", "loop that calls"),
        ("            x = block(x)\n",
         "            x = torch.utils.checkpoint.checkpoint(run, x, use_reentrant=True)\n", "already uses checkpoints"),
    ],
)  # fmt: skip
def test_checkpoint_blocks_refuses(old: str, new: str, why: str, patched: Patcher) -> None:
    text = SCRIPT.replace(old, new)
    assert text != SCRIPT
    result = patched(text, "checkpoint-blocks")
    assert why in result.refused["checkpoint-blocks"].why
    assert result.refused["checkpoint-blocks"].look_at
    assert result.text() == text
