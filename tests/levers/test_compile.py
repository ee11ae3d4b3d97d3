"""What compile and compile-blocks compile, and in which dtypes; by a compiler that runs its graphs as they are."""

import contextlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.aot_autograd import make_boxed_func
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from agent.harness import NO_KERNELS, Runner
from hotlap.levers import all_levers
from hotlap.levers.compiler import _create_graph, _graph, _worth_compiling
from hotlap.levers.compiler._create_graph import _files
from hotlap.levers.compiler._losses import switched_losses
from hotlap.levers.compiler._worth_compiling import FEW, MANY, Worth
from hotlap.records.run import Lever

LEVERS: dict[str, dict[str, Any]] = {"compile": {"mode": "default"}, "compile-blocks": {"shapes": "automatic"}}
PRODUCTS = ("mm", "addmm", "bmm")
Compiler = list[tuple[str, list[tuple[torch.dtype, ...]]]]


@pytest.fixture(autouse=True)
def graphs(monkeypatch: pytest.MonkeyPatch) -> Iterator[Compiler]:
    """Of each graph that was compiled: forward or backward, and the dtypes that its products take, in their order."""
    made: Compiler = []

    def compiler(kind: str) -> Callable[..., Any]:
        def compile_(graph: Any, inputs: Any) -> Any:
            calls = [node for node in graph.graph.nodes if getattr(node.target, "overloadpacket", None) is not None]
            products = [node for node in calls if node.target.overloadpacket._qualified_op_name[6:] in PRODUCTS]
            made.append((kind, [tuple(a.meta["val"].dtype for a in node.args) for node in products]))
            return make_boxed_func(graph.forward)

        return compile_

    class Inductor:
        def __init__(self, *how: Any) -> None:
            self.backend = aot_autograd(fw_compiler=compiler("forward"), bw_compiler=compiler("backward"))

        def __call__(self, graph: Any, inputs: Any) -> Any:
            return self.backend(graph, inputs)

        def reset(self) -> None:
            pass

    config = torch._functorch.config
    was = config.backward_pass_autocast
    torch._dynamo.reset()
    torch.manual_seed(0)
    monkeypatch.setattr(torch, "_TorchCompileInductorWrapper", Inductor)
    monkeypatch.setattr(nn.functional, "cross_entropy", nn.functional.cross_entropy)
    yield made
    config.backward_pass_autocast = was
    _graph.PASSES.clear()
    torch._dynamo.reset()


class Seams:
    """Where levers ask for what they want done to one model."""

    def __init__(self) -> None:
        self.roots: list[Any] = []
        self.forwards: list[tuple[int, Any]] = []

    def on_root(self, change: Any, undo: Any = None) -> None:
        self.roots.append(change)

    def switch(self, on: Any, off: Any) -> None:
        on()

    def wrap_forward(self, wrap: Any, order: int) -> None:
        self.forwards.append((order, wrap))

    def put_in(self, model: nn.Module) -> Callable[..., Any]:
        for change in self.roots:
            change(model)
        forward: Callable[..., Any] = model._call_impl
        for _, wrap in sorted(self.forwards, key=lambda item: item[0]):
            forward = wrap(model, forward)
        return forward


def under(model: nn.Module, *names: str) -> Callable[..., Any]:
    """A model's forward with levers of these names."""
    seams = Seams()
    for name in names:
        all_levers()[name].install(seams, LEVERS.get(name, {}))  # type: ignore[arg-type]
    return seams.put_in(model)


class Block(nn.Module):
    """island: of its two products one is in float32 whatever autocast is on."""

    def __init__(self, island: bool) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)
        self.island = island

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        if not self.island:
            return self.second(x).tanh()
        with torch.autocast("cpu", enabled=False):
            return self.second(x.float()).tanh()


class Blocks(nn.Module):
    def __init__(self, island: bool = False, checkpointed: bool = False) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.blocks = nn.ModuleList(Block(island) for _ in range(2))
        self.checkpointed = checkpointed

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.checkpointed else block(x)
        return x


@contextlib.contextmanager
def as_on_cuda(dtype: torch.dtype) -> Iterator[None]:
    """Autocast to a dtype that is on, though on the CPU it is not to be had: on CUDA one to float32 is."""
    was = torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")
    torch.set_autocast_enabled("cpu", True)
    torch.set_autocast_dtype("cpu", dtype)
    torch.autocast_increment_nesting()
    try:
        yield
    finally:
        if torch.autocast_decrement_nesting() == 0:
            torch.clear_autocast_cache()
        torch.set_autocast_enabled("cpu", was[0])
        torch.set_autocast_dtype("cpu", was[1])


OUTSIDE: dict[str, Callable[[], Any]] = {
    "no autocast": contextlib.nullcontext,
    "autocast off": lambda: torch.autocast("cpu", enabled=False),
    "autocast to float32": lambda: as_on_cuda(torch.float32),
    "autocast to bfloat16": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
}


class Products(TorchDispatchMode):
    """The dtypes that products take, as they are computed."""

    def __init__(self) -> None:
        super().__init__()
        self.dtypes: list[tuple[torch.dtype, ...]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket._qualified_op_name[6:] in PRODUCTS:
            self.dtypes.append(tuple(a.dtype for a in args))
        return func(*args, **(kwargs or {}))


def step(model: nn.Module, forward: Callable[..., Any], around: Callable[[], Any]) -> tuple[float, list[Any]]:
    """A loss and gradients; the backward is called outside of autocast, as torch's documentation has it."""
    model.zero_grad()
    with around():
        output = forward(torch.linspace(-1, 1, 32).view(4, 8))
    loss = output.float().square().sum()
    loss.backward()
    return loss.item(), [p.grad.clone() for p in model.parameters() if p.grad is not None]


@pytest.mark.parametrize("island", [False, True], ids=["", "a product in float32"])
@pytest.mark.parametrize("outside", OUTSIDE)
@pytest.mark.parametrize("levers", [("compile",), ("compile", "attention"), ("compile-blocks",)], ids=" ".join)
def test_the_backward_is_in_the_dtypes_of_the_eager_one(
    levers: tuple[str, ...], outside: str, island: bool, graphs: Compiler
) -> None:
    bare, model = Blocks(island), Blocks(island)
    eager, around = under(bare, "bf16-autocast"), OUTSIDE[outside]
    with around():
        output = eager(torch.ones(4, 8))
    with Products() as seen:
        output.sum().backward()
    wanted = step(bare, eager, around)
    found = step(model, under(model, "bf16-autocast", *levers), around)
    backward = [dtypes for kind, of in graphs if kind == "backward" for dtypes in of]
    single = (torch.float32, torch.float32)
    assert set(backward) == set(seen.dtypes) and (single in seen.dtypes) is island
    if "compile" in levers:  # blocks may share a graph
        assert sorted(map(str, backward)) == sorted(map(str, seen.dtypes))
    assert found[0] == pytest.approx(wanted[0], rel=1e-2)
    torch.testing.assert_close(found[1], wanted[1], rtol=2e-2, atol=2e-2)


def test_what_the_script_chose_for_its_backward_stays(graphs: Compiler) -> None:
    torch._functorch.config.backward_pass_autocast = [{"device_type": "cpu", "dtype": torch.float16}]
    under(Blocks(), "compile")
    assert torch._functorch.config.backward_pass_autocast != "off"


@pytest.fixture(params=LEVERS)
def trained(request: pytest.FixtureRequest, graphs: Compiler) -> tuple[Blocks, Callable[..., Any], Compiler]:
    """A model that has made two steps, its forward, and what is compiled from then on."""
    model = Blocks(checkpointed=True)
    forward = under(model, request.param)
    for _ in range(2):
        forward(torch.ones(4, 8)).sum().backward()
    assert {kind for kind, _ in graphs} == {"forward", "backward"}
    graphs.clear()
    return model, forward, graphs


def without_gradients(trained: tuple[Blocks, Callable[..., Any], Compiler], *rows: int) -> int:
    """How many graphs are compiled for forwards without gradients of so many rows; all return what eager ones do."""
    model, forward, graphs = trained
    graphs.clear()
    for count in rows:
        x = torch.randn(count, 8)
        with torch.no_grad():
            found = forward(x)
        torch.testing.assert_close(found, eager(model, x))
    assert all(kind == "forward" for kind, _ in graphs)
    return len(graphs)


def eager(model: Blocks, x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        for block in model.blocks:
            x = block._call_impl(x)
    return x


def test_text_that_grows_is_sampled_as_it_was_written(trained: Any) -> None:
    for _ in range(3):
        assert without_gradients(trained, *range(5, 40)) == 0
        trained[1](torch.ones(4, 8)).sum().backward()
    assert not trained[2], "a checkpoint computes its block again, as it was compiled"


def test_an_evaluation_like_the_training_is_compiled_once(trained: Any) -> None:
    assert 1 <= without_gradients(trained, 4, 4, 4) <= 2, "of blocks with the same code there may be two graphs"
    trained[1](torch.ones(4, 8)).sum().backward()
    assert without_gradients(trained, 4, 4, 4) == 0


def test_sizes_between_those_of_the_training_are_compiled(trained: Any) -> None:
    assert without_gradients(trained, 7) == 0
    trained[1](torch.ones(9, 8)).sum().backward()
    assert without_gradients(trained, 7) >= 1
    assert without_gradients(trained, 8, 6, 5) <= 2 and without_gradients(trained, 10, 3, 2) == 0


def test_what_comes_often_is_compiled(trained: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_worth_compiling, "MANY", 6)
    assert without_gradients(trained, 20, 20, 13, 20) == 0
    trained[1](torch.ones(4, 8)).sum().backward()
    assert without_gradients(trained, 20, 13, 20) == 0
    assert without_gradients(trained, 20) >= 1
    assert without_gradients(trained, 20) == 0


@pytest.mark.parametrize("lever", LEVERS)
def test_a_command_that_only_infers_is_compiled_from_the_first_call_on(lever: str, graphs: Compiler) -> None:
    model = Blocks()
    forward = under(model, lever)
    assert without_gradients((model, forward, graphs), 4) >= 1
    assert without_gradients((model, forward, graphs), 5) >= 1
    assert without_gradients((model, forward, graphs), 6, 7, 8) == 0, "any number of rows, by now"
    forward(torch.ones(4, 8)).sum().backward()
    assert [kind for kind, _ in graphs][-1] == "backward", "it trains after all"
    assert without_gradients((model, forward, graphs), 40, 41) == 0


class Rule:
    """`Worth` of one model, asked without one."""

    def __init__(self) -> None:
        self.worth = Worth()

    def train(self, *args: Any, **kwargs: Any) -> None:
        assert self.worth(args, kwargs), "forwards with gradients are compiled"

    def __call__(self, *args: Any, **kwargs: Any) -> bool:
        with torch.no_grad():
            return self.worth(args, kwargs)


def rows(count: int) -> torch.Tensor:
    return torch.empty(count, 8)


def test_few_that_come_often() -> None:
    rule, sizes = Rule(), range(10, 10 + FEW + 2)
    rule.train(rows(4))
    assert not any(rule(rows(count)) for _ in range(MANY - 1) for count in sizes)
    for _ in range(2):
        assert [rule(rows(count)) for count in sizes] == [True] * FEW + [False] * 2
        rule.train(rows(4))


def test_arguments_of_all_kinds() -> None:
    class Cache:
        pass

    rule = Rule()
    rule.train({"ids": rows(4), "labels": [rows(2)]}, flag=True, at=3, scale=0.5, name="a", cache=None)
    rule.train({"ids": rows(6), "labels": [rows(2)]}, flag=True, at=5, scale=0.7, name="a", cache=None)
    like = {"ids": rows(5), "labels": [rows(2)]}
    assert rule(like, flag=True, at=4, scale=0.1, name="a", cache=None)
    assert not rule(like, flag=False, at=4, scale=0.1, name="a", cache=None)
    assert not rule(like, flag=True, at=6, scale=0.1, name="a", cache=None)
    assert not rule(like, flag=True, at=4, scale=0.1, name="b", cache=None)
    assert not rule({"ids": rows(5)}, flag=True, at=4, scale=0.1, name="a", cache=None)
    assert not rule({**like, "ids": rows(5).long()}, flag=True, at=4, scale=0.1, name="a", cache=None)
    assert not any(rule(rows(1), cache=Cache()) for _ in range(MANY + 1)), "what a cache holds grows unseen"
    rule.train(rows(1), cache=Cache())
    assert rule(rows(1), cache=Cache())


def test_a_nested_or_sparse_tensor_has_no_sizes_to_compare() -> None:
    ragged = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)
    for odd in (ragged, torch.eye(3).to_sparse()):
        rule = Rule()
        rule.train(odd)
        assert rule(odd) and not rule(rows(3))


@pytest.mark.parametrize("asked", [False, True])
def test_no_kernel_sums_along_rows_and_columns_at_once_unless_the_environment_asks(
    asked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such kernels lose a gradient's shape, or leave parts of it unwritten (pytorch#178080, #193061)."""
    from torch._inductor import config

    if asked:
        monkeypatch.setenv("TORCHINDUCTOR_MIX_ORDER_REDUCTION", "1")
    with config.patch({"triton.mix_order_reduction": True}):
        _graph.one_order_of_sums()
        assert config.triton.mix_order_reduction is asked


@pytest.mark.parametrize(("device", "chosen", "then"), [
    ("cuda", None, False), ("cpu", None, None), ("cuda", True, True),
])  # fmt: skip
def test_host_code_beside_a_gpu_is_made_without_looking_for_vector_instructions(
    device: str, chosen: bool | None, then: bool | None
) -> None:
    from types import SimpleNamespace

    from torch._inductor import config

    parameter = SimpleNamespace(device=torch.device(device))
    with config.patch({"cpp.vec_isa_ok": chosen}):
        _graph.scalars_on_host(SimpleNamespace(parameters=lambda: [parameter]))
        assert config.cpp.vec_isa_ok is then


PENALTIES = [("penalty.py", kind) for kind in ("inline", "late", "hidden")]
OF_BLOCKS = ("penalty.py", "inline", "blocks")


@pytest.mark.parametrize("script", [*PENALTIES, ("learnt_input.py",), OF_BLOCKS], ids=lambda script: script[-1])
def test_gradients_that_are_differentiated_again(script: tuple[str, ...], runner: Runner) -> None:
    """Forwards of a penalty run as they were written; all others are compiled, as of an input that is learnt."""
    name = "compile-blocks" if "blocks" in script else "compile"
    levers = (Lever(name=name, settings=LEVERS[name]),)
    ran, bare = runner.forked(*script, before=NO_KERNELS, levers=levers), runner.bare(*script)
    assert ran.code == bare.code == 0 and not ran.problems, ran.output
    assert ran.losses == pytest.approx(bare.losses, rel=1e-4)
    assert sum(one.graphs for one in ran.facts.compiled) >= 1


@pytest.mark.parametrize("name", LEVERS)
def test_gradients_of_parameters_that_are_differentiated_again(name: str, runner: Runner) -> None:
    """TRPO's updates and MAML's second order ended runs, after a tune that had not met them in its steps."""
    how = ("blocks",) if name == "compile-blocks" else ()
    bare = runner.bare("parameter_gradients.py", *how)
    levers = (Lever(name=name, settings=LEVERS[name]),)
    ran = runner.forked("parameter_gradients.py", *how, before=NO_KERNELS, levers=levers)
    assert (ran.code, ran.output) == (0, bare.output)
    (problem,) = ran.problems
    assert "differentiates parameter gradients again (parameter_gradients.py:14)" in problem.what


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("loss.backward(create_graph=True)", True),
        ("loss.backward(inputs=[x], create_graph=True)", False),
        ("self.scaler.scale(loss).backward(create_graph=create_graph)", False),
        ("grad(kl, policy.parameters(), create_graph=True)", True),
        ("torch.autograd.grad(loss, names_weights.values(), create_graph=second, allow_unused=True)", True),
        ("torch.autograd.grad(outputs=loss, inputs=fast_weights, create_graph=(epoch > 5))", True),
        ("torch.autograd.grad(loss, [p for p in self.params], create_graph=1)", True),
        ("torch.autograd.grad(loss, self.params, create_graph=False)", False),
        ("torch.autograd.grad(out.sum(), x, create_graph=True)[0]", False),
        ("torch.autograd.grad(outputs=d(x), inputs=x_hat, create_graph=True)", False),
        ("weights = make(create_graph=True)", False),
        ("loss.backward(create_graph=True", False),
    ],
)
def test_what_is_differentiated_again_is_told_by_how_it_is_written(
    text: str, told: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "script.py").write_text(f"import torch\n\n{text}\n")
    monkeypatch.setattr(_create_graph, "_files", lambda: [str(tmp_path / "gone.py"), str(tmp_path / "script.py")])
    why = _create_graph.differentiates_parameters()
    assert ("(script.py:3)" in why) is told and bool(why) is told


def test_a_forward_that_trains_is_left_as_it_was_written(runner: Runner) -> None:
    """MAML's outermost module: the compiler traced into its optimizer's steps, for which hotlap then saw none."""
    bare = runner.bare("step_inside.py")
    levers = (Lever(name="compile", settings={"mode": "default"}),)
    ran = runner.forked("step_inside.py", before=NO_KERNELS, levers=levers)
    assert (ran.code, ran.output) == (0, bare.output) and ran.facts.optimizer_steps == 12
    assert [one.what for one in ran.problems] == ["Refused: the forward of Meta calls backward itself"]


@pytest.mark.parametrize("name", ["compile-blocks", "checkpoint-blocks"])
def test_hooks_that_come_later_are_called_once_and_those_that_go_no_more(name: str, runner: Runner) -> None:
    """torch.compile passes over them unless it is told to look."""
    bare = runner.bare("hooks_later.py")
    settings = {"every": 1} if name == "checkpoint-blocks" else LEVERS.get(name, {})
    ran = runner.forked("hooks_later.py", before=NO_KERNELS, levers=(Lever(name=name, settings=settings),))
    assert (ran.code, ran.problems) == (0, []), ran.output
    assert ran.losses == pytest.approx(bare.losses, rel=1e-4)
    assert "seen 3\n" in ran.output and "seen 3\n" in bare.output


def test_modules_of_torchscript_are_left(runner: Runner) -> None:
    bare = runner.bare("torchscript_model.py")
    ran = runner.forked("torchscript_model.py", levers=(Lever(name="compile", settings={"mode": "default"}),))
    assert (ran.code, ran.losses) == (0, bare.losses)
    assert [one.what for one in ran.problems] == ["Refused: torch.compile does not compile TorchScript modules"]
    assert ran.facts.roots[0].compiled


def scripted(logits: torch.Tensor, classes: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(logits, classes)


def test_torchscript_takes_the_loss_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(functional, "cross_entropy", functional.cross_entropy)
    put_in, _ = switched_losses()
    put_in()
    logits, classes = torch.randn(4, 5), torch.tensor([0, 1, 2, 3])
    assert torch.equal(torch.jit.script(scripted)(logits, classes), scripted(logits, classes))


def test_each_layer_that_is_called_by_itself_is_compiled(runner: Runner) -> None:
    """More of them than one piece of code may have graphs."""
    levers = (Lever(name="compile", settings={"mode": "default"}),)
    ran = runner.forked("layers_by_themselves.py", before=NO_KERNELS, levers=levers)
    assert ran.code == 0 and not ran.problems, ran.output
    assert "recompile_limit" not in ran.output
    assert sum(one.graphs for one in ran.facts.compiled) >= 12 and not any(one.recompiles for one in ran.facts.compiled)


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("loss.backward(retain_graph=True)", True),
        ("loss.backward(retain_graph = again)", True),
        ("torch.autograd.grad(loss, x, retain_graph=not_last)", True),
        ("torch.autograd.grad(loss, x, create_graph=second_order)", True),
        ("loss.backward(retain_graph=False)", False),
        ("def backward(self, retain_graph=None): ...", False),
        ("config.retain_graph == 1", False),
        ("loss.backward()", False),
    ],
)
def test_what_is_saved_is_kept_where_the_script_asks_for_it(
    text: str, kept: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "script.py"
    file.write_text(text)
    module = ModuleType("script")
    module.__file__ = str(file)
    monkeypatch.setitem(sys.modules, "script", module)
    assert str(file) in _files()
    monkeypatch.setattr(_create_graph, "_files", lambda: [str(tmp_path / "gone.py"), str(file)])
    with torch._functorch.config.patch(donated_buffer=True):
        _create_graph.keep_what_is_saved()
        assert torch._functorch.config.donated_buffer is not kept


def test_files_of_the_users_alone_are_read() -> None:
    found = _files()
    assert __file__ in found and not any("/torch/" in name or "/hotlap/levers/" in name for name in found)


def test_what_the_compiler_fails_on_later_runs_as_it_was_written(runner: Runner) -> None:
    """A first failure is one of the lever's: a trial of it ends."""
    lever = Lever(name="compile-blocks", settings=LEVERS["compile-blocks"])
    for step, code in ((6, 0), (0, 1)):
        arguments = ("late_branch.py", str(step))
        ran, bare = runner.forked(*arguments, before=NO_KERNELS, levers=(lever,)), runner.bare(*arguments)
        assert bare.code == 0 and ran.code == code, ran.output
        assert code or ran.losses == pytest.approx(bare.losses, rel=1e-4)
        assert code or any(one.failed.startswith("backend=") for one in ran.facts.compiled), ran.facts.compiled
