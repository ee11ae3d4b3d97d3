"""Rules about the loop, its loader and its update: what they write, and where they refuse."""

import pytest
from patching import Patcher

SCRIPT = """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(4, 1)

    def forward(self, x):
        return self.head(x)


def train(model, loader, optimizer):
    for x, y in loader:
        loss = (model(x) - y).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def main():
    data = TensorDataset(torch.randn(16, 4), torch.randn(16, 1))
    loader = DataLoader(data, batch_size=4, shuffle=True)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    # all epochs
    for epoch in range(2):
        train(model, loader, optimizer)


main()
"""
STEP = """\
        loss.backward()
        optimizer.step()
"""


def refused(patched: Patcher, text: str, lever: str, **settings: object) -> str:
    """Why a lever is not written; checks that nothing is, and that lines are shown."""
    result = patched(text, lever, **settings)
    assert result.text() == text
    assert result.refused[lever].look_at
    return result.refused[lever].why


# batch-size


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        ("DataLoader(data, batch_size=4, shuffle=True)", "DataLoader(data, batch_size=4 * 4, shuffle=True)"),
        ("DataLoader(data, args.batch, True)", "DataLoader(data, 4 * args.batch, True)"),
        ("DataLoader(data, batch_size=a if b else c)", "DataLoader(data, batch_size=4 * (a if b else c))"),
        ("DataLoader(data)", "DataLoader(data, batch_size=4)"),
        ("DataLoader(data, **options)", 'DataLoader(data, **{**options, "batch_size": 4 * options["batch_size"]})'),
        (
            'DataLoader(data, **{**options, "num_workers": 2})',
            'DataLoader(data, **{**options, "num_workers": 2, "batch_size": 4 * options["batch_size"]})',
        ),
    ],
)
def test_batch_size(call: str, expected: str, patched: Patcher) -> None:
    text = SCRIPT.replace("DataLoader(data, batch_size=4, shuffle=True)", call)
    text = text.replace("    data =", '    options = {"batch_size": 8}\n    data =')
    result = patched(text, "batch-size")
    assert f"loader = {expected}\n" in result.text()
    assert "learning rate" in result.written["batch-size"].notes[0]
    again = patched(result.text().replace("batch_size=4)", "batch_size=4 * 1)"), "batch-size").written["batch-size"]
    assert again.already
    assert "options" in call or "an earlier patch" in again.notes[0]


@pytest.mark.parametrize(
    ("call", "why"),
    [
        ("DataLoader(data, batch_sampler=batches)", "makes its batches itself"),
        ("DataLoader(data, batch_size=None)", "makes its batches itself"),
        ("DataLoader(data, **options)", "`**`"),
        ("Mine(data, batch_size=4)", "class is your own"),
        ("make(data)", "no DataLoader"),
    ],
)
def test_loaders_that_are_left_alone(call: str, why: str, patched: Patcher) -> None:
    text = SCRIPT.replace("DataLoader(data, batch_size=4, shuffle=True)", call)
    text = text.replace("def train", "class Mine(DataLoader):\n    pass\n\n\ndef train")
    assert why in refused(patched, text, "batch-size")


# activations


def test_activations_are_offloaded_in_part(patched: Patcher) -> None:
    text = SCRIPT.replace("import torch\n", "import torch as th\n").replace("torch.optim", "th.optim")
    result = patched(text.replace("torch.randn", "th.randn"), "activation-offload")
    assert result.lines()[1][0] == "with th.autograd.graph.save_on_cpu(pin_memory=True):"
    assert "waits for each copy" in result.written["activation-offload"].partly
    assert patched(result.text(), "activation-offload").written["activation-offload"].already
    own = SCRIPT.replace(
        "    model = Net()\n", "    model = Net()\n    h = torch.autograd.graph.saved_tensors_hooks(a, b)\n"
    )
    assert "hooks on saved tensors" in refused(patched, own, "activation-offload")
    twice = SCRIPT.replace("loss = (", "a = 1; loss = (")
    assert "shares its line" in refused(patched, twice, "activation-offload")


def test_the_budget_needs_something_that_compiles(patched: Patcher) -> None:
    assert "nothing in the patched source compiles" in refused(patched, SCRIPT, "activation-budget")
    result = patched(SCRIPT, "activation-budget", "compile", budget=0.5)
    line = "torch._functorch.config.activation_memory_budget = 0.5"
    assert f"\n\nimport torch._functorch.config\n{line}\n" in result.text()
    assert patched(result.text(), "activation-budget").written["activation-budget"].already
    other = result.text().replace("= 0.5", "= 0.3")
    assert "the recipe has 0.5" in refused(patched, other, "activation-budget")


# the environment


@pytest.mark.parametrize(
    ("lever", "variable"), [("allocator", "PYTORCH_CUDA_ALLOC_CONF"), ("host-allocator", "MALLOC_MMAP_MAX_")]
)
def test_variables_are_told_unless_the_source_sets_them(lever: str, variable: str, patched: Patcher) -> None:
    result = patched(SCRIPT, lever)
    assert result.text() == SCRIPT
    assert "in the start command below" in result.written[lever].notes[0]
    own = f'import os\nos.environ["{variable}"] = "1"\n{SCRIPT}'
    assert "already sets this in its environment" in refused(patched, own, lever)


# commands that only infer

INFERENCE = """\
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        return self.head(x)


def main():
    model = Net().eval()
    right = 0
    for x, y in batches:
        with torch.no_grad():
            out = model(x)
            right += (out.argmax(1) == y).sum()
    print(right / len(batches))


main()
"""


def test_the_model_of_a_command_that_only_infers_is_found(patched: Patcher) -> None:
    result = patched(INFERENCE, "compile", "bf16-autocast")
    assert not result.refused
    assert "model = Net().eval()\n    model.compile()\n" in result.text()
    assert "dtype=torch.bfloat16):\n                out = model(x).float()\n" in result.text()
    assert not result.written["bf16-autocast"].notes


def test_lines_are_those_of_the_file_as_it_was(patched: Patcher) -> None:
    text = SCRIPT.replace("    model = Net()\n", "    model = nn.DataParallel(Net())\n")
    result = patched(text, "bf16-autocast", "compile-blocks", "accumulate", parts=2)
    lines = result.refused["accumulate"].look_at
    assert [line.text for line in lines] == [text.splitlines()[line.line - 1].strip() for line in lines]
    assert "optimizer.step()" in [line.text for line in lines]
