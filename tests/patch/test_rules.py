"""What each lever's rule writes, where it refuses, and that a patched file is left as it is."""

import re
from pathlib import Path

import msgspec
import pytest
from patching import SETTINGS, Patcher

from agent.harness import Runner
from hotlap.levers import all_levers
from hotlap.patch.patch import write
from hotlap.patch.rules import all_rules
from hotlap.records.run import Facts, Lever, LoaderFacts, OptimizerFacts, RootFacts

ROOT = Path(__file__).parents[2]
FACTS = Facts(pid=1, rank=0, world=1, argv=(), python="3", torch="2", device="cuda")
HEAD = """\
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader
"""
MODEL = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)

    def forward(self, x):
        return self.conv(x)
"""
WINDOW = """
class Rows(torch.utils.data.Dataset):
    def __getitem__(self, at):
        return F.softmax(self.rows[at], 0)
"""
LOOP = """
def main():
    loader = DataLoader(Images(), batch_size=8)
    model = Net().cuda()  # the net
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in loader:
        # forward
        out = model(x.cuda())
        loss = F.cross_entropy(out, y.cuda())
        loss.backward()
        optimizer.step()

main()
"""
SCRIPT = HEAD + MODEL + LOOP
RECIPE = ["bf16-autocast", "channels-last", "compile", "cpu-threads", "fused-optimizer", "loader-workers", "tf32"]


def loop(*lines: str, head: str = HEAD + MODEL) -> str:
    """A script whose training loop has these lines."""
    body = "\n".join(f"    {line}" for line in lines)
    start = "\nloader = DataLoader(Images())\nmodel = Net()\noptimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
    return f"{head}{start}for x, y in loader:\n{body}\n    optimizer.step()\n"


UNWRITTEN = {name: lever.unwritten for name, lever in all_levers().items() if lever.unwritten is not None}


def test_every_lever_has_a_rule_or_a_reason() -> None:
    assert set(all_rules()) | set(UNWRITTEN) == set(all_levers())
    assert not set(all_rules()) & set(UNWRITTEN)
    assert set(SETTINGS) == set(all_rules())


def test_the_page_names_every_lever() -> None:
    page = (ROOT / "docs/patch.md").read_text()
    written, left = page.split("## What is not written")
    for name in all_rules():
        assert re.search(rf"^\| [^|]*\b{name}\b", written, re.MULTILINE), name
    for name in UNWRITTEN:
        assert re.search(rf"^\| {name} \|", left, re.MULTILINE), name


@pytest.mark.parametrize("name", sorted(UNWRITTEN))
def test_what_is_not_written_says_why_and_where(name: str, patched: Patcher) -> None:
    text = HEAD + WINDOW + MODEL + LOOP.replace("Images()", "Rows()")
    refused = patched(text, name, how="int8-weight", parts=2).refused[name]
    assert refused.why == UNWRITTEN[name].why
    assert refused.look_at
    assert refused.source


def test_a_whole_recipe(patched: Patcher) -> None:
    result = patched(SCRIPT, *RECIPE)
    assert not result.refused
    assert result.text() == HEAD + """
torch.set_num_threads(4)
torch.set_float32_matmul_precision("high")
""" + MODEL + """
def main():
    loader = DataLoader(Images(), batch_size=8,
                        num_workers=4, prefetch_factor=2, pin_memory=True, persistent_workers=True)
    model = Net().cuda()  # the net
    model.to(memory_format=torch.channels_last)
    model.compile()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=True)
    for x, y in loader:
        # forward
        with torch.autocast("cuda", dtype=torch.bfloat16):
            out = model(x.cuda()).float()
        loss = F.cross_entropy(out, y.cuda())
        loss.backward()
        optimizer.step()

main()
"""  # fmt: skip


@pytest.mark.parametrize("name", ["examples/char_gpt", "examples/no_loader", "benchmarks/zoo/resnet50"])
def test_examples_and_zoo(name: str, patched: Patcher) -> None:
    result = patched((ROOT / f"{name}.py").read_text(), "loader-workers", "bf16-autocast", "compile", "fused-optimizer")
    assert set(result.refused) == ({"loader-workers"} if "no_loader" in name else set())
    assert all(item.where and not item.already for item in result.written.values())


def test_patching_twice_changes_nothing(patched: Patcher) -> None:
    once = patched(SCRIPT, *RECIPE)
    twice = patched(once.text(), *RECIPE)
    assert twice.text() == once.text()
    assert not twice.refused
    assert all(item.already for item in twice.written.values())


# autocast


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["loss = F.mse_loss(model(x), y)", "loss.backward()"],
         ["output = model(x).float()", "loss = F.mse_loss(output, y)"]),
        (["loss = model(x).view(-1).mean()", "loss.backward()"],
         ["loss = model(x).float().view(-1).mean()"]),
        (["out, extra = model(x)", "out.sum().backward()"], ["out, extra = model(x)", "out = out.float()"]),
        (["out, self.loss = model(x)", "self.loss.backward()"],
         ["out, self.loss = model(x)", "self.loss = self.loss.float()"]),
        (["outputs = model(x)", "outputs.loss.backward()"], ["outputs = model(x)", "outputs.loss.float().backward()"]),
    ],
)  # fmt: skip
def test_autocast_hands_float32_back(lines: list[str], expected: list[str], patched: Patcher) -> None:
    opaque = HEAD + "\nfrom somewhere import Net\n"
    result = patched(loop(*lines, head=opaque), "bf16-autocast")
    assert not result.refused
    _, came = result.lines()
    assert came == ['with torch.autocast("cuda", dtype=torch.bfloat16):', *expected]


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        (["out, hidden = model(x)", "keep(hidden)", "out.sum().backward()"], "`hidden` may not be a tensor"),
        (["loss = crit(draw(), model(x))", "loss.backward()"], "computed before the model"),
        (["loss = F.mse_loss(model(x) if y else x, y)", "loss.backward()"], "not always evaluated"),
        (["loss = F.mse_loss(model(x @ x), y)", "loss.backward()"], "argument is computed inside the call"),
        (["out = model(x); loss = F.mse_loss(out, y)", "loss.backward()"], "can't be split"),
        (["for o in model(x): o.backward()"], "can't be split"),
        (["things = model(x)", "train(things).backward()"], "may not be a tensor"),
    ],
)
def test_autocast_refuses(lines: list[str], why: str, patched: Patcher) -> None:
    opaque = HEAD + "\nfrom somewhere import Net\n"
    result = patched(loop(*lines, head=opaque), "bf16-autocast")
    assert why in result.refused["bf16-autocast"].why
    assert result.refused["bf16-autocast"].look_at
    assert result.text() == result.before.main.data.decode()


def test_autocast_on_the_cpu_and_under_another_name(patched: Patcher) -> None:
    text = "import torch as th\nnet = th.nn.Linear(1, 1)\nopt = th.optim.SGD(net.parameters())\n"
    result = patched(text + "y = net(th.ones(1))\ny.sum().backward()\n", "bf16-autocast", cuda=False)
    assert "argument" in result.refused["bf16-autocast"].why  # an argument that is computed in the call
    result = patched(text + "x = th.ones(1)\ny = net(x)\ny.sum().backward()\n", "bf16-autocast", cuda=False)
    assert 'with th.autocast("cpu", dtype=th.bfloat16):\n    y = net(x).float()\n' in result.text()


def test_a_hidden_state_that_is_asked_for_its_type_is_no_tensor(patched: Patcher) -> None:
    """PyTorch's word language model: an LSTM's hidden state is a tuple."""
    text = (
        HEAD
        + """
from somewhere import Net
def detach(h):
    if isinstance(h, torch.Tensor):
        return h.detach()
    return tuple(detach(v) for v in h)
"""
    )
    result = patched(
        loop("hidden = detach(hidden)", "out, hidden = model(x, hidden)", "out.sum().backward()", head=text),
        "bf16-autocast",
    )  # fmt: skip
    assert "`hidden`" in result.refused["bf16-autocast"].why


# compile, channels_last


def test_compile_stands_after_the_last_assignment(patched: Patcher) -> None:
    text = loop("model(x).sum().backward()").replace(
        "model = Net()\n", "model = Net()\nif wide:\n    model = nn.DataParallel(model)\nmodel.to(device)\n"
    )
    assert "model.to(device)\nmodel.compile()\noptimizer" in patched(text, "compile").text()


def test_compile_goes_to_where_the_model_is_made(patched: Patcher) -> None:
    trainer = """
class Trainer:
    def __init__(self, model):
        self.model = model.cuda()
    def fit(self, loader):
        for x in loader:
            self.model(x).sum().backward()
"""
    text = "from trainer import Trainer\nfrom net import Net\nmodel = Net()\nTrainer(model).fit([])\n"
    net = "from torch import nn\nclass Net(nn.Module):\n    pass\n"
    result = patched(text, "compile", files={"trainer.py": trainer, "net.py": net})
    assert "        self.model = model.cuda()\n        self.model.compile()\n" in result.text("trainer.py")


def test_a_model_that_is_read_back_after_training_is_compiled_before_it(patched: Patcher) -> None:
    """PyTorch's word language model: `model = torch.load(best)` behind the loop, which is in a function."""
    text = (
        HEAD
        + MODEL
        + """
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def train(x):
    model(x).sum().backward()
for epoch in range(3):
    train(x)
model = torch.load("best")
"""
    )
    assert "model = Net()\nmodel.compile()\noptimizer" in patched(text, "compile").text()


MANY = msgspec.structs.replace(FACTS, roots=(RootFacts(name="Net", parameters=1, modules=1, classes=50257),))
FEW = msgspec.structs.replace(FACTS, roots=(RootFacts(name="Net", parameters=1, modules=1, classes=10),))
NOT_WRITTEN = "the lever also compiles cross-entropies"


def test_compile_takes_a_loss_over_many_classes_along(patched: Patcher) -> None:
    result = patched(SCRIPT, "compile", facts=MANY)
    assert "import DataLoader\n\ncompiled_cross_entropy = torch.compile(F.cross_entropy)\n" in result.text()
    assert "        loss = compiled_cross_entropy(out, y.cuda())\n" in result.text()
    assert "    model.compile()\n" in result.text() and not result.written["compile"].notes
    again = patched(result.text(), "compile", facts=MANY)
    assert again.text() == result.text()


@pytest.mark.parametrize("way", ["F.cross_entropy", "nn.functional.cross_entropy", "cross_entropy"])
def test_a_loss_is_compiled_as_it_is_spelled(way: str, patched: Patcher) -> None:
    head = HEAD + ("from torch.nn.functional import cross_entropy\n" if way == "cross_entropy" else "")
    result = patched(loop(f"loss = {way}(model(x), y)", "loss.backward()", head=head + MODEL), "compile", facts=MANY)
    assert f"compiled_cross_entropy = torch.compile({way})\n" in result.text()
    assert "loss = compiled_cross_entropy(model(x), y)" in result.text()


@pytest.mark.parametrize("facts", [None, FEW], ids=["not known", "few"])
def test_a_loss_over_few_classes_is_left_alone(facts: Facts | None, patched: Patcher) -> None:
    result = patched(SCRIPT, "compile", facts=facts)
    assert "F.cross_entropy(out" in result.text() and "compiled_cross" not in result.text()
    assert any(NOT_WRITTEN in note for note in result.written["compile"].notes)


@pytest.mark.parametrize(
    "text",
    [
        SCRIPT.replace("import torch.nn.functional as F\n", "").replace(
            "def main():\n", "def main():\n    import torch.nn.functional as F\n"
        ),
        SCRIPT.replace("import torch.nn.functional as F\n", "").replace(
            "\ndef main():\n", "\nimport torch.nn.functional as F\ndef main():\n"
        ),
        SCRIPT.replace("loss = F.cross_entropy", "loss = self.F.cross_entropy"),
        SCRIPT.replace("out, y.cuda())", "out, y.cuda()) + nn.functional.cross_entropy(out, y.cuda())"),
        SCRIPT.replace("\ndef main():\n", "\nF.cross_entropy = mine\ndef main():\n"),
    ],
    ids=["imported in the function", "imported further down", "another F", "spelled in two ways", "set"],
)
def test_a_loss_that_can_not_be_named_at_the_top_is_left_alone(text: str, patched: Patcher) -> None:
    result = patched(text, "compile", facts=MANY)
    assert "model.compile()" in result.text() and "compiled_cross" not in result.text()
    assert any(NOT_WRITTEN in note for note in result.written["compile"].notes)


def test_compile_with_dynamic_shapes(patched: Patcher) -> None:
    assert "model.compile(dynamic=True)" in patched(loop("model(x).sum().backward()"), "compile", mode="dynamic").text()


@pytest.mark.parametrize(
    ("made", "head"),
    [("nn.Sequential(nn.Linear(1, 1), nn.ReLU())", ""), ("Own()", "class Own(nn.Sequential):\n    pass\n")],
)
def test_compile_looks_past_models_of_torch_s_own(made: str, head: str, patched: Patcher) -> None:
    text = loop("model(x).sum().backward()", head=HEAD + head).replace("Net()", made)
    refused = patched(text, "compile").refused["compile"]
    assert "has no effect" in refused.why
    assert refused.look_at


def test_compile_does_nothing_to_a_layer_of_torch_s_own(runner: Runner, tmp_path: Path) -> None:
    """What the refusal stands on: if a later torch compiles these, the rule can write them."""
    (tmp_path / "own.py").write_text("""
import torch
from torch._dynamo.utils import counters
model = torch.nn.Sequential(torch.nn.Linear(1, 1), torch.nn.ReLU())
model.compile(backend="eager")
model(torch.ones(1))
print("frames", sum(counters["frames"].values()))
""")
    assert runner.bare(str(tmp_path / "own.py")).output.endswith("frames 0\n")


@pytest.mark.parametrize("own", ["model = torch.compile(model)", "if fast:\n    model.compile()"])
def test_compile_refuses_where_the_script_compiles(own: str, patched: Patcher) -> None:
    text = loop("model(x).sum().backward()").replace("model = Net()\n", f"model = Net()\n{own}\n")
    assert "already compiles the model" in patched(text, "compile").refused["compile"].why


def test_a_model_that_is_made_anew_in_the_loop_is_left_alone(patched: Patcher) -> None:
    text = loop("model = model.cuda()", "model(x).sum().backward()")
    assert "training loop" in patched(text, "compile").refused["compile"].why


@pytest.mark.parametrize("base", ["Module", "Linear"])
def test_a_module_s_own_parts_are_no_models(base: str, patched: Patcher) -> None:
    """Nor those of a layer derived from one of torch's, as in PyTorch's forward-forward example."""
    text = (
        HEAD
        + f"""
class Layer(nn.{base}):
    def __init__(self):
        self.relu = nn.ReLU()
        self.opt = torch.optim.Adam(self.parameters())
    def train(self, x):
        self.relu(x).sum().backward()
"""
    )
    assert "was not found" in patched(text, "compile").refused["compile"].why


@pytest.mark.parametrize(
    ("lever", "cuda", "told"),
    [("compile", False, True), ("channels-last", False, True), ("bf16-autocast", True, True),
     ("bf16-autocast", False, False), ("fused-optimizer", True, False)],
)  # fmt: skip
def test_levers_that_draw_other_random_numbers_say_so(lever: str, cuda: bool, told: bool, patched: Patcher) -> None:
    for drops in (False, True):
        text = loop("model(x).sum().backward()")
        text = text.replace("return self.conv(x)", "return F.dropout(self.conv(x))") if drops else text
        result = patched(text, lever, cuda=cuda)
        notes = result.written[lever].notes
        assert any("other random numbers" in note for note in notes) is (drops and told), result.refused


OWN_MAIN = """
import torch
from torch import nn

class Net(nn.Module):
    def forward(self, x):
        return x

if __name__ {equals} "__main__":
    net = nn.Linear(2, 2)
    optimizer = torch.optim.Adam(net.parameters())
    net(torch.ones(2)).sum().backward()
    optimizer.step()
"""


@pytest.mark.parametrize(("equals", "written"), [("==", True), ("!=", False)])
def test_what_a_module_does_as_a_command_of_its_own_is_passed_over(
    equals: str, written: bool, patched: Patcher
) -> None:
    text = loop("model(x).sum().backward()").replace("import torch\n", "import torch\nimport nets\n", 1)
    result = patched(text, "fused-optimizer", files={"nets.py": OWN_MAIN.replace("{equals}", equals)})
    assert set(result.written) == ({"fused-optimizer"} if written else set())
    assert result.text("nets.py") == OWN_MAIN.replace("{equals}", equals) or not written


def test_channels_last_is_left_where_a_model_is_wrapped(patched: Patcher) -> None:
    result = patched(loop("model(x).sum().backward()"), "channels-last")
    assert "model.to(memory_format=torch.channels_last)" in result.text()
    assert not result.written["channels-last"].notes
    dropping = loop("model(x).sum().backward()").replace("return self.conv(x)", "return F.dropout(self.conv(x))")
    assert "other random numbers" in patched(dropping, "channels-last").written["channels-last"].notes[0]
    wrapped = loop("model(x).sum().backward()").replace("Net()\n", "DDP(Net())\n").replace(
        "import torch\n", "import torch\nfrom torch.nn.parallel import DistributedDataParallel as DDP\n"
    )  # fmt: skip
    assert "wrapped" in patched(wrapped, "channels-last").refused["channels-last"].why


# loader, optimizer


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        ("DataLoader(data, num_workers=0)",
         "DataLoader(data, num_workers=4, prefetch_factor=2, pin_memory=True, persistent_workers=True)"),
        ("DataLoader(data, num_workers=args.workers, pin_memory=cuda)",
         "DataLoader(data, num_workers=max(4, args.workers), pin_memory=True, prefetch_factor=2, "
         "persistent_workers=True)"),
        ("DataLoader(data, 8, True, None, None, 2)",
         "DataLoader(data, 8, True, None, None, 4, prefetch_factor=2, pin_memory=True, persistent_workers=True)"),
        ("DataLoader(data, num_workers=9, prefetch_factor=2, pin_memory=True, persistent_workers=True)", None),
        ("DataLoader(data, **options)",
         'DataLoader(data, **{**options, "num_workers": 4, "prefetch_factor": 2, "pin_memory": True, '
         '"persistent_workers": True})'),
    ],
)  # fmt: skip
def test_loader_arguments(call: str, expected: str | None, patched: Patcher) -> None:
    text = "#" * 130 + f"\n{HEAD}loader = {call}\nfor x in loader:\n    net(x).backward()\n"
    result = patched(text, "loader-workers")
    assert f"loader = {expected or call}\n" in result.text()
    assert result.written["loader-workers"].already == (expected is None)


@pytest.mark.parametrize(
    ("line", "persists"),
    [
        ("data.draw_negatives()", False),
        ("loader.dataset.draw_negatives()", False),
        ("data.epoch = epoch", False),
        ("data.epoch += 1", False),
        ("data.rows[0] = epoch", False),
        ("del data.rows[0]", False),
        ("random.shuffle(data.rows)", False),
        ("data.transform.set_size(epoch)", False),
        ("setattr(data, 'epoch', epoch)", False),
        ("print(data)", True),
        ("other.rows[0] = len(data)", True),
        ("size = data.vocabulary()", True),
        ("print(epoch)", True),
    ],
)
def test_workers_persist_where_nothing_changes_the_dataset(line: str, persists: bool, patched: Patcher) -> None:
    text = (
        f"{HEAD}data = Data()\nloader = DataLoader(data)\nfor epoch in range(2):\n    {line}\n    for x in loader:\n"
        "        net(x).backward()\n"
    ).replace("DataLoader\n", "DataLoader\n\n\nclass Data:\n    pass\n\n\n", 1)
    result = patched("#" * 130 + "\n" + text, "loader-workers")
    assert ("persistent_workers=True" in result.text()) is persists
    assert any(line in note or "may change the dataset" in note for note in result.written["loader-workers"].notes) is (
        not persists
    )


@pytest.mark.parametrize(
    ("cuda", "own", "expected"),
    [
        (True, "pin_memory=True", "pin_memory=False"),
        (True, "**options", '**{**options, "num_workers": 4, "prefetch_factor": 2, "pin_memory": False, '),
        (False, "pin_memory=True", "pin_memory=True"),  # on a CPU it makes no difference, and may be meant for a GPU
    ],
)
def test_memory_that_is_not_to_be_pinned(cuda: bool, own: str, expected: str, patched: Patcher) -> None:
    text = "#" * 130 + f"\n{HEAD}loader = DataLoader(data, {own})\nfor x in loader:\n    net(x).backward()\n"
    assert expected in patched(text, "loader-workers", cuda=cuda, pin_memory=False).text()


def test_nothing_is_said_of_pinning_where_the_source_does_not(patched: Patcher) -> None:
    text = f"{HEAD}loader = DataLoader(data)\nfor x in loader:\n    net(x).backward()\n"
    assert "pin_memory" not in patched(text, "loader-workers", pin_memory=False).text()


def test_the_loader_of_the_training_loop_is_chosen(patched: Patcher) -> None:
    text = (
        HEAD
        + """
def loaders():
    return DataLoader(a, batch_size=2), DataLoader(b, batch_size=3)
def train(model, batches):
    for i, x in enumerate(batches):
        model(x).backward()
one, two = loaders()
train(net, two)
"""
    )
    _, came = patched(text, "loader-workers").lines()
    assert came[0] == "return DataLoader(a, batch_size=2), DataLoader(b, batch_size=3,"
    assert came[1].startswith("num_workers=4")


def test_loaders_that_can_t_be_told_apart_are_shown(patched: Patcher) -> None:
    text = HEAD + "pair = {1: DataLoader(a), 2: DataLoader(b)}\nfor x in pair[k]:\n    net(x).backward()\n"
    refused = patched(text, "loader-workers").refused["loader-workers"]
    assert [(line.file, line.line) for line in refused.look_at] == [("train.py", 5)]


def test_a_loader_class_of_the_user_s_is_left_alone(patched: Patcher) -> None:
    text = HEAD + "class Mine(DataLoader):\n    pass\nfor x in Mine(a):\n    net(x).backward()\n"
    assert "class is your own" in patched(text, "loader-workers").refused["loader-workers"].why


def test_iterable_datasets_get_no_workers(patched: Patcher) -> None:
    text = (
        HEAD
        + """
class Stream(torch.utils.data.IterableDataset):
    pass
for x in DataLoader(Stream()):
    net(x).backward()
"""
    )
    assert "iterable" in patched(text, "loader-workers").refused["loader-workers"].why
    seen = LoaderFacts(dataset="D", iterable=True, workers=0, training=True)
    facts = msgspec.structs.replace(FACTS, loaders=(seen,))
    assert (
        "iterable"
        in patched(text.replace("Stream()", "d"), "loader-workers", facts=facts).refused["loader-workers"].why
    )


@pytest.mark.parametrize(
    ("call", "why"),
    [
        ("torch.optim.AdamW(p, **extra)", "`**`"),
        ("torch.optim.Adam(p, foreach=True)", "`foreach`"),
        ("torch.optim.Adam(p, fused=quick)", "`fused`"),
        ("torch.optim.LBFGS(p)", "no fused LBFGS"),
        ("getattr(torch.optim, name)(p)", "no call of a torch.optim"),
    ],
)
def test_fused_refuses(call: str, why: str, patched: Patcher) -> None:
    text = f"import torch\noptimizer = {call}\noptimizer.step()\n"
    assert why in patched(text, "fused-optimizer").refused["fused-optimizer"].why


def test_a_schedule_is_no_optimizer(patched: Patcher) -> None:
    text = (
        "import torch\nfrom torch.optim.lr_scheduler import StepLR\nopt = torch.optim.Adadelta(p)\ns = StepLR(opt, 1)\n"
    )
    assert [line.line for line in patched(text, "fused-optimizer").refused["fused-optimizer"].look_at] == [3]


def test_fused_takes_the_optimizer_that_the_run_used(patched: Patcher) -> None:
    text = "from torch.optim import AdamW as A, SGD\nif sgd:\n    opt = SGD(p, 0.1)\nelse:\n    opt = A(p, 0.1)\n"
    text += "opt.step()\n"
    refused = patched(text, "fused-optimizer").refused["fused-optimizer"]
    assert [line.line for line in refused.look_at] == [3, 5]
    facts = msgspec.structs.replace(FACTS, optimizers=(OptimizerFacts(name="AdamW", builtin=True, tensors=1),))
    assert patched(text, "fused-optimizer", facts=facts).lines()[1] == ["opt = A(p, 0.1, fused=True)"]


def test_both_optimizers_of_a_gan(patched: Patcher) -> None:
    text = "import torch\na = torch.optim.Adam(p)\nb = torch.optim.Adam(q)\na.step()\nb.step()\n"
    assert patched(text, "fused-optimizer").text().count("fused=True") == 2


# flags, environment


@pytest.mark.parametrize(
    "line",
    ["torch.backends.cuda.matmul.allow_tf32 = True", 'torch.set_float32_matmul_precision("medium")',
     'torch.backends.cuda.matmul.fp32_precision = "ieee"'],
)  # fmt: skip
def test_tf32_does_not_mix_with_the_script_s_own(line: str, patched: Patcher) -> None:
    refused = patched(f"import torch\n{line}\n", "tf32").refused["tf32"]
    assert refused.look_at[0].text == line


def test_torch_is_imported_where_only_parts_of_it_are(patched: Patcher) -> None:
    text = '"""Doc."""\nfrom torch import nn\nimport os\n\nx = 1\n'
    assert patched(text, "tf32").text().splitlines()[3:] == [
        "", "import torch", 'torch.set_float32_matmul_precision("high")', "", "x = 1",
    ]  # fmt: skip


def test_a_lever_without_a_rule_is_said(patched: Patcher, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hotlap.patch.patch.all_rules", dict)
    refused = patched(SCRIPT, "tf32").refused["tf32"]
    assert "no rule" in refused.why
    assert refused.source


def test_rules_work_on_what_the_last_one_left(patched: Patcher) -> None:
    result = patched(SCRIPT, "compile", "fused-optimizer")
    again, written, _ = write(result.after, [Lever(name="tf32")], None, True)
    assert written
    assert "model.compile()" in again.main.data.decode()


# attention

ATTENTION = """
class Attention(nn.Module):
    def __init__(self, block):
        super().__init__()
        self.register_buffer("mask", torch.tril(torch.ones(block, block)).view(1, 1, block, block))

    def forward(self, q, k, v, T):
        att = (q @ k.transpose(-2, -1)) / math.sqrt(k.size(-1))
        att = att.masked_fill(self.mask[:, :, :T, :T] == 0, float("-inf"))
        att = F.softmax(att, dim=-1)
        y = (att @ v).transpose(1, 2)
        return y
"""


def test_attention_is_written_and_computes_the_same(patched: Patcher) -> None:
    import torch

    result = patched("import math\n" + HEAD + ATTENTION, "attention")
    call = "F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=1.0 / math.sqrt(k.size(-1)))"
    assert f"    def forward(self, q, k, v, T):\n        y = {call}.transpose(1, 2)\n" in result.text()
    outputs = []
    for source in (result.before, result.after):
        names: dict[str, type] = {}
        exec(source.main.data.decode(), names)  # our own text
        torch.manual_seed(0)
        outputs.append(names["Attention"](8)(*torch.randn(3, 2, 4, 5, 16), 5))
    assert torch.allclose(*outputs, atol=1e-6)
    assert patched(result.text(), "attention").written["attention"].already


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("self.mask[:, :, :T, :T] == 0", "padding", "attn_mask=~(padding)"),
        ("torch.tril(torch.ones(block, block))", "torch.tril(torch.ones(block, block), 1)",
         "attn_mask=self.mask[:, :, :T, :T] != 0"),
        ("/ math.sqrt(k.size(-1))", "* 0.25", "is_causal=True, scale=0.25)"),
        ("/ math.sqrt(k.size(-1))", "* (1.0 / math.sqrt(k.size(-1)))", "scale=(1.0 / math.sqrt(k.size(-1))))"),
        ("/ math.sqrt(k.size(-1))", "* k.size(-1) ** -0.5", "scale=k.size(-1) ** -0.5)"),
        ("        att = F.softmax(att, dim=-1)\n", "", "is_causal"),
    ],
)  # fmt: skip
def test_attention_forms(old: str, new: str, expected: str, patched: Patcher) -> None:
    text = ATTENTION.replace(old, new)
    text = text if "softmax" in text else text.replace("(att @ v)", "(torch.softmax(att, -1) @ v)")
    assert expected in patched("import math\n" + HEAD + text, "attention").text()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("return y", "return y, att"),
        ("dim=-1", "dim=-2"),
        ("        att = F.softmax(att, dim=-1)", "        att = self.drop(F.softmax(att, dim=-1))"),
        ("/ math.sqrt(k.size(-1))", "/ self.temperature"),
        ("k.transpose(-2, -1)", "k.transpose(1, 2)"),
        ("        y = (att", "        q = q + 1\n        y = (att"),
        ("        y = (att @ v)", "        y = (att @ v) + (att @ q)"),
        ("        y = (att @ v).transpose(1, 2)", "        for i in range(2):\n            y = att @ v"),
        ('float("-inf")', "-1e9"),
    ],
)
def test_attention_is_left_alone_where_it_is_not_proven(old: str, new: str, patched: Patcher) -> None:
    result = patched("import math\n" + HEAD + ATTENTION.replace(old, new), "attention")
    refused = result.refused["attention"]
    assert "softmax" in refused.look_at[0].text
    assert result.text() == result.before.main.data.decode()
