"""That torch's private names stand in one file, and that this can be imported where one of them is lacking."""

import ast
import importlib.util
import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from operator import attrgetter
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from hotlap.agent import torch_internals

FILE = Path(torch_internals.__file__)
PACKAGE = FILE.parents[1]
OF_OBJECTS = frozenset(
    {
        *("_version", "_base", "_backward_hooks", "_post_accumulate_grad_hooks", "_sequence_nr", "_cdata", "_schema"),
        *("_modules", "_parameters", "_buffers", "_forward_hooks", "_forward_pre_hooks", "_backward_pre_hooks"),
        *("_compiled_call_impl", "_call_impl", "_wrapped_call_impl", "_flat_weights", "_flat_weight_refs"),
        *("_init_group", "_step_supports_amp_scaling", "_need_device_dtype_check_for_fused", "_get_ddp_logging_data"),
        *("_iterator", "_get_iterator", "_dataset_fetcher", "_task_info", "_rcvd_idx", "_send_idx", "_workers"),
        *("_num_workers", "_prefetch_factor", "_data_queue", "_worker_result_queue", "_tasks_outstanding"),
        *("_persistent_workers", "_shutdown_workers", "_num_yielded", "_engine_run_backward", "_prepare_trace"),
        *("_clip_grads_with_norm_", "_pool_set", "_ready_future", "__script_if_tracing_wrapper", "__original_fn"),
    }
)
"""Private names of torch's on objects whose class the walk can't see; as attributes, and as words for `getattr`."""

MODULE = re.compile(r"torch(\.\w+)+")
GETTERS = (["getattr"], ["setattr"], ["hasattr"], ["delattr"])


def private(path: str) -> bool:
    return any(
        part.startswith("_") and not part.startswith("_hotlap") and part[-2:] != "__" for part in path.split(".")
    )


def chain(node: ast.expr) -> list[str]:
    """`a.b.c` as its words; empty where it does not begin with a name."""
    if isinstance(node, ast.Attribute):
        before = chain(node.value)
        return [*before, node.attr] if before else []
    return [node.id] if isinstance(node, ast.Name) else []


def used(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Lines, and the private names of torch's that stand there."""
    bound: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for one in node.names:
                if one.name.split(".")[0] == "torch":
                    bound[one.asname or "torch"] = one.name if one.asname else "torch"
                    yield node.lineno, one.name
        elif isinstance(node, ast.ImportFrom) and not node.level and (node.module or "").split(".")[0] == "torch":
            for one in node.names:
                path = bound[one.asname or one.name] = f"{node.module}.{one.name}"
                yield node.lineno, path
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            first, *rest = chain(node) or [""]
            yield node.lineno, ".".join([bound[first], *rest]) if first in bound else ""
            yield node.lineno, node.attr if node.attr in OF_OBJECTS and first not in {"self", "cls"} else ""
        elif isinstance(node, ast.Constant) and (node.value in OF_OBJECTS or MODULE.fullmatch(str(node.value))):
            yield node.lineno, str(node.value)  # as for `sys.modules`
        elif isinstance(node, ast.Call) and len(node.args) > 1 and chain(node.func)[-1:] in GETTERS:
            owner, name = chain(node.args[0]), node.args[1]
            if owner and owner[0] in bound and isinstance(name, ast.Constant):
                yield node.lineno, ".".join([bound[owner[0]], *owner[1:], str(name.value)])


def found(source: str) -> set[str]:
    return {path for _, path in used(ast.parse(source)) if path and private(path)}


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("import torch\ntorch._C._dynamo.guards", {"torch._C", "torch._C._dynamo", "torch._C._dynamo.guards"}),
        ("from torch.utils import _pytree as p\np.tree_map", {"torch.utils._pytree", "torch.utils._pytree.tree_map"}),
        ("def f():\n    import torch._dynamo.config", {"torch._dynamo.config"}),
        ("import torch\ngetattr(torch.cuda.memory, '_snapshot', None)", {"torch.cuda.memory._snapshot"}),
        ("module._forward_hooks, self._version", {"_forward_hooks"}),
        ("vars(optimizer).pop('_init_group')", {"_init_group"}),
        ("import sys\nsys.modules.get('torch._dynamo.utils')", {"torch._dynamo.utils"}),
        ("import torch\ntorch.__version__, torch.Tensor.__init__, torch.Tensor._hotlap_mark, mine._torch", set()),
    ],
)
def test_the_walk_sees(source: str, names: set[str]) -> None:
    assert found(source) == names


ALONE = {"launch/measure_peaks.py", "patch/rules/_compiled.py", "patch/rules/activation_budget.py"}
"""The first runs without hotlap, in the command's Python; the others write such a name into the user's source."""


def test_private_names_stand_in_one_file() -> None:
    others = [path for path in PACKAGE.rglob("*.py") if path != FILE and str(path.relative_to(PACKAGE)) not in ALONE]
    assert len(others) > 300
    uses = [
        f"{path.relative_to(PACKAGE)}:{line}: {name}"
        for path in others
        for line, name in used(ast.parse(path.read_text(encoding="utf-8")))
        if name and private(name)
    ]
    assert not uses, "these belong into agent/torch_internals.py"
    assert found(FILE.read_text(encoding="utf-8")), "and there they are"


def test_what_is_asked_of_it_is_there() -> None:
    """`internals().name` is not seen by mypy."""
    for path in (PACKAGE / "levers").rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        held = {
            name.id
            for node in ast.walk(tree)
            if isinstance(node, ast.Assign) and "internals()" in ast.unparse(node.value)
            for target in node.targets
            for name in ast.walk(target)
            if isinstance(name, ast.Name) and name.id == "inner"
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and ast.unparse(node.value) in {"internals()", *held}:
                assert hasattr(torch_internals, node.attr), f"{path.name}:{node.lineno}"


def asked(node: ast.AST | None) -> str:
    """The path of a call of `_get`, "" of anything else."""
    call = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "_get"
    return str(ast.literal_eval(node.args[0])) if call and isinstance(node, ast.Call) else ""


TREE = ast.parse(FILE.read_text(encoding="utf-8"))
PATHS = {path: "" for node in ast.walk(TREE) if (path := asked(node))}
PATHS |= {
    path: ast.unparse(node.target)
    for node in ast.walk(TREE)
    if isinstance(node, ast.AnnAssign) and (path := asked(node.value))
}
"""What is looked up at import, by its path from torch on, and the name that it has here, if it is bound to one."""


def anew() -> ModuleType:
    """The file as a module of its own."""
    spec = importlib.util.spec_from_file_location("internals_anew", FILE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def take_out(patch: pytest.MonkeyPatch, path: str) -> None:
    """As in a torch that lacks it, or the nearest owner of it that can be taken out."""
    owner, _, name = path.rpartition(".")
    try:
        patch.delattr(attrgetter(owner)(torch) if owner else torch, name, raising=False)
    except (TypeError, AttributeError):  # of a class written in C, or not in this build
        if owner.count("."):
            take_out(patch, owner)


@pytest.mark.parametrize("path", sorted(PATHS))
def test_a_name_that_is_lacking(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        take_out(patch, path)
        module = anew()
        assert module.tensor_guard([]) is None if path.endswith("TensorGuards") else True
        assert path in module.LACKING
        stands_in = getattr(module, PATHS[path], None) if PATHS[path] else None
    if inspect.isfunction(stands_in) and stands_in.__name__ == "lacks":
        with pytest.raises(NotImplementedError, match=path.rpartition(".")[2]):
            stands_in(None)


LIKE = {
    "graph_task": ((), 0),
    "interpreter": ((), None),
    "interpreters": ((), None),
    "tracing_state": ((), None),
    "is_transformed": ((torch.zeros(1),), False),
    "is_mapped": ((torch.zeros(1),), False),
    "has_storage": ((torch.zeros(1),), True),
    "nccl_number": ((), 0),
    "profiler_enabled": ((), False),
    "memory_is_recorded": ((), True),
    "mode_stack": ((), [None]),
}
"""What stands in, what it is called with here, and what it says."""


@pytest.fixture(scope="module")
def bare() -> ModuleType:
    """The file in a torch that has none of the names."""
    with pytest.MonkeyPatch.context() as patch:
        for path in PATHS:
            take_out(patch, path)
        return anew()


@pytest.mark.parametrize("name", sorted(LIKE))
def test_what_stands_in_answers(name: str, bare: ModuleType) -> None:
    args, answer = LIKE[name]
    assert getattr(bare, name)(*args) == answer


def test_what_stands_in_computes(bare: ModuleType) -> None:
    to, of = [torch.ones(2), torch.ones(3)], [torch.full((2,), 2.0), torch.full((3,), 3.0)]
    bare.copy_all(to, of)
    assert all(torch.equal(one, other) for one, other in zip(to, of, strict=True))
    assert bare.storage(to[0]) == torch_internals.storage(to[0]) != bare.storage(to[1])
    assert isinstance(torch.nn.Conv2d(1, 1, 1), bare.Convolution) and isinstance(torch.nn.Dropout(), bare.Dropout)
    assert isinstance(torch.nn.BatchNorm2d(1), bare.BatchNorm) and not isinstance(to[0], bare.WorkersIterator)
    assert not bare.profiler_on() and not any(check() for check in bare.BF16_CHECKS)
    assert bare.ENGINE_CODE is None and bare.CALL_CODE is None and bare.memory_is_recorded()
    with bare.DisableTorchFunction():
        assert bare.DispatchMode is object
    told = bare.missing_for_replays()
    assert "_storage_Use_Count" in told and "peek_interpreter_stack" in told and "_current_level" in told
    assert torch_internals.missing_for_replays() == ""


def test_compilers_that_are_lacking(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("torch._dynamo.utils", "torch._inductor.async_compile", "torch._dynamo.variables.nn_module"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    with pytest.raises(AttributeError):
        torch_internals.compiled_frames()
    assert torch_internals.compilations() == [] and torch_internals.compile_pools() == ([], None)
    torch_internals.usual_call(None, len)
    for name in ("torch._dynamo.utils", "torch._dynamo.config", "torch._subclasses.fake_tensor", "torch._C._dynamo"):
        monkeypatch.setitem(sys.modules, name, None)
    assert torch_internals.compilations() == []
    assert not torch_internals.skip_frame((lambda: None).__code__, True)
    for asked in (torch_internals.dynamo_config, torch_internals.unset_fake):
        with pytest.raises(ImportError):
            asked()


def test_objects_of_another_torch_have_none() -> None:
    thing: Any = object()
    assert torch_internals.awaited_worker(thing) is None and torch_internals.worker_pids(thing) == []
    assert torch_internals.ddp_log(thing) == {}
    for reads in (torch_internals.version_of, torch_internals.base_of, torch_internals.is_late):
        with pytest.raises(AttributeError):
            reads(thing)


def test_it_imports_no_compiler_and_adds_no_module() -> None:
    code = (
        "import sys, torch, torch.utils.data\nbefore = {*sys.modules}\nimport hotlap.agent.torch_internals\n"
        "print(sorted({*sys.modules} - before), *{'torch._dynamo', 'torch._inductor'} & {*sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=PACKAGE.parent, capture_output=True, text=True, check=True)
    assert done.stdout == "['hotlap', 'hotlap.agent', 'hotlap.agent.torch_internals']\n"
