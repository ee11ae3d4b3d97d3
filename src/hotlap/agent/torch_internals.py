"""Every private name of torch's that hotlap uses, and what happens in a torch that lacks it.

Names are bound once, at import, to what `import torch` has loaded, so that a call costs what torch's own costs. The
compiler takes seconds to load: functions ask for its modules. A pair is an owner and the name of what is patched on it:
`getattr(*ENGINE)`, `setattr(*ENGINE, wrapper)`. Where no more is said, a function that is lacking raises
NotImplementedError when it is called, which takes the lever out that needs it.

Levers get this module by `levers/_internals.py`.
"""

import contextlib
import os
import sys
from collections.abc import Callable
from importlib import import_module
from operator import attrgetter, methodcaller
from types import CodeType
from typing import Any, Final

import torch
import torch.utils.data

LACKING: Final[set[str]] = set()
"""Names that this torch does not have."""


def _get(path: str, *otherwise: Any) -> Any:
    """What torch has at a path; where it lacks that, `otherwise`, or a function that raises."""
    try:
        return attrgetter(path)(torch)
    except AttributeError:
        LACKING.add(path)

    def lacks(*_args: Any, **_kwargs: Any) -> Any:
        raise NotImplementedError(f"this torch has no torch.{path}")

    return otherwise[0] if otherwise else lacks


# Backwards.

ENGINE: Final = (torch.autograd, "_engine_run_backward")
"""What every backward goes through; patched. Lacking: hotlap, or the lever that patches it, is off and says so."""
ENGINE_CODE: Final = getattr(_get("autograd.graph._engine_run_backward", None), "__code__", None)
"""To tell the frames around a backward. Lacking: None, and what the backward calls is charged to who called it."""
STEP_CODE: Final = torch.optim.Optimizer.profile_hook_step(lambda: None).__code__
"""Of the wrapper that torch puts around `Optimizer.step`, and that calls the step hooks. In every torch."""
graph_task: Final = _get("_C._current_graph_task_id", lambda: 0)
"""The backward that this thread runs, -1 for none. Lacking: 0, as within one; no update is recorded then."""
current_node: Final = _get("_C._current_autograd_node", lambda: None)
"""The node whose backward this thread runs, None outside of one. Lacking: what a backward takes has no line."""
keeps_graph: Final = _get("_C._autograd._get_current_graph_task_keep_graph")
"""In a backward, whether its graph may be used again. graph-training asks `missing_for_replays` first."""
PythonNode: Final = _get("_C._FunctionBase", object)
"""Of a graph: nodes with code of Python's. Lacking: any node may be one."""
next_sequence_number: Final = _get("_C._autograd._get_sequence_nr", lambda: -1)
"""Of the node that is made next. Lacking: -1, and nothing is known to have a node."""
gradient_metadata: Final = attrgetter("_input_metadata")
"""Of a node: shapes of the gradients that it takes. Lacking: AttributeError, and no shape is known."""
sequence_number: Final = methodcaller("_sequence_nr")
"""Of a node: when it was made among those of its thread. Lacking: AttributeError, which takes fewer-syncs out."""

# Tensors.

version_of: Final = attrgetter("_version")
"""How often a tensor was written to. In every torch, as are `base_of` and the hooks; else AttributeError."""
base_of: Final = attrgetter("_base")
"""What a tensor is a view of, else None."""
tensor_hooks: Final = attrgetter("_backward_hooks")
"""On a tensor's gradient; None or empty without any."""
storage_uses: Final = _get("_C._storage_Use_Count")
"""How many refer to a storage, by `storage`. graph-training asks `missing_for_replays` first."""
PLAIN: Final = frozenset({torch.Tensor, torch.nn.Parameter})
has_storage: Final = _get("_C._has_storage", lambda tensor: tensor.layout == torch.strided)
"""Whether a tensor has one. Lacking: by its layout."""
storage_reference: Final = _get("multiprocessing.reductions.StorageWeakRef", None)
"""A weak reference to a storage, as torch itself shares tensors by. Lacking: repeated calls are not found."""
COMPILERS_MARK: Final = "_dynamo"
"""Begins the names of what the compiler leaves on tensors. Lacking: nothing begins so."""
DisableTorchFunction: Final = _get("_C.DisableTorchFunction", contextlib.nullcontext)
"""Keeps subclasses' own functions from being called. Lacking: they are."""
copy_all: Final = _get("_foreach_copy_", lambda to, of: [one.copy_(other) for one, other in zip(to, of, strict=True)])
"""In place, many tensors at once. Lacking: one by one."""
tree_flatten: Final = _get("utils._pytree.tree_flatten")
tree_unflatten: Final = _get("utils._pytree.tree_unflatten")
tree_leaves: Final = _get("utils._pytree.tree_leaves")
"""Tensors in nested values, as torch itself takes these apart."""


def local_part(tensor: Any) -> Any:
    """Of a DTensor what lies on this device; any other tensor itself."""
    return getattr(tensor, "_local_tensor", tensor)


def memory_of(tensor: Any) -> tuple[Any, int, int] | None:
    """Its storage, with address and bytes. None without memory of its own: sparse, on meta, or a wrapper of others."""
    if not has_storage(tensor) or tensor.is_meta:
        return None
    found = tensor.untyped_storage()
    try:
        return found, found.data_ptr(), found.nbytes()
    except RuntimeError:  # a subclass that holds others has a storage that may not be asked
        return None


def is_dense(tensor: Any) -> bool:
    """The one guard before a tensor's numbers, strides or storage are asked for: whether they are all in its storage.
    They are not where it is sparse, nested, quantized or meta, or stands for another inside of `torch.func`."""
    known = tensor.layout is torch.strided and has_storage(tensor) and not tensor.is_meta
    return bool(known and not tensor.is_nested and not tensor.is_quantized and not is_transformed(tensor))


def is_plain(tensor: Any) -> bool:
    """Whether it is dense, and no subclass, which may compute something when it is asked."""
    return type(tensor) in PLAIN and is_dense(tensor)


def sizes(tensor: Any) -> tuple[int, ...]:
    """The shape of a tensor; of a nested one how many it holds, as each of these has one of its own."""
    return (int(tensor.size(0)),) if tensor.is_nested else tuple(tensor.shape)


def storage(tensor: Any) -> int:
    """Tells storages apart, while they live; a tensor that has none (sparse) from all others."""
    return int(tensor.untyped_storage()._cdata) if has_storage(tensor) else id(tensor)


# Transforms, modes and tracing.

interpreter: Final = _get("_C._functorch.peek_interpreter_stack", lambda: None)
interpreters: Final = _get("_C._functorch.get_interpreter_stack", lambda: None)
"""Transforms of `torch.func` that look on, None without any. Lacking: None."""
VMAP: Final = _get("_C._functorch.TransformType.Vmap", None)
"""The key of an interpreter that is vmap. Lacking: None, which is none's."""
is_transformed: Final = _get("_C._functorch.is_functorch_wrapped_tensor", lambda tensor: False)
"""Whether a tensor is one inside of a transform. Lacking: False."""
is_mapped: Final = _get("_C._functorch.is_batchedtensor", lambda tensor: False)
unwrapped: Final = _get("_C._functorch.get_unwrapped")
"""Of those: whether it is vmap, and what it stands for. Asked only where `is_transformed`."""
tracing_state: Final = _get("_C._get_tracing_state", lambda: None)
"""None while nothing is traced by TorchScript. Lacking: None."""
modes: Final = _get("_C._len_torch_dispatch_stack")
"""How many dispatch modes are on. Lacking: looks at tensors and modes end; graph-training as below."""
saved_hooks: Final = _get("_C._autograd._top_saved_tensors_default_hooks")
"""Hooks on what autograd saves. graph-training asks `missing_for_replays` first."""
DispatchMode: Final = _get("utils._python_dispatch.TorchDispatchMode", object)
"""The class of a mode that sees ops. Lacking: it sees none."""
mode_stack: Final = _get("utils._python_dispatch._get_current_dispatch_mode_stack", lambda: [None])
"""Modes that are on. Lacking: one that nobody knows, so that lines are not looked for by ours."""
function_modes: Final = _get("_C._len_torch_function_stack", int)
function_mode_stack: Final = _get("overrides._get_current_function_mode_stack", list)
"""Modes that see torch's functions: how many are on, and which. Lacking: none is."""
push_mode: Final = _get("utils._python_dispatch._push_mode")
pop_mode: Final = _get("utils._python_dispatch._pop_mode")
"""Put one on the stack, or take it off. Lacking: the window of lines fails and is recorded; the profile ends."""
HigherOrderOperator: Final = _get("_ops.HigherOrderOperator", ())
"""Ops made of ops. Lacking: none is known for one, and its schema is asked for in vain."""
SCHEMA: Final = "_schema"
schema_of: Final = attrgetter(SCHEMA)
"""Of an op: its name and arguments. In every torch; else AttributeError."""
REGIONS: Final = frozenset({"_enter_autocast", "_exit_autocast", "_set_grad_enabled"})
"""Of a traced graph: nodes that begin and end regions. Lacking: such nodes are not found."""
_FORWARD_AD: Final = _get("autograd.forward_ad", None)


def missing_for_replays() -> str:
    """What this torch lacks of what calls are looked at with that a replay may stand for, "" nothing."""
    inner = "_storage_Use_Count", "_current_graph_task_id", "_get_tracing_state", "_len_torch_dispatch_stack"
    more = "_top_saved_tensors_default_hooks", "_get_current_graph_task_keep_graph"
    names = {*inner, "_functorch.peek_interpreter_stack", *(f"_autograd.{name}" for name in more)}
    lacks = sorted(name for name in names if f"_C.{name}" in LACKING)
    return ", ".join(lacks if hasattr(_FORWARD_AD, "_current_level") else [*lacks, "forward_ad._current_level"])


def nothing_around() -> bool:
    """Whether nothing else of torch's stands around a call that a replay would pass by, or that would be in its way:
    transforms and forward-mode derivatives, tracing, dispatch modes, hooks on saved tensors, another backward."""
    return (
        graph_task() == -1
        and interpreter() is None
        and _FORWARD_AD._current_level == -1
        and tracing_state() is None
        and not modes()
        and saved_hooks(True) is None
    )


def unset_fake() -> Any:
    """While a graph is compiled: within it, tensors are real. Lacking: ImportError, the pass is not made."""
    return import_module("torch._subclasses.fake_tensor").unset_fake_temporarily()


# Modules.

IMPL: Final = "_compiled_call_impl"
"""Of a module: what is called in place of its own `CALL`, if anything. Lacking: forwards are not seen."""
CALL: Final = "_call_impl"
"""Of a module: hooks and forward. In every torch; else AttributeError."""
CALL_CODE: Final = getattr(_get("nn.Module._wrapped_call_impl", None), "__code__", None)
"""Of what looks for `IMPL`. Lacking: None, and DataParallel's copies run the model's own weights."""
PARTS: Final = "_modules"
OWN: Final = (PARTS, "_parameters", "_buffers")
own_modules, own_parameters, own_buffers = map(attrgetter, OWN)
"""A module's, by name, without those of its parts. In every torch, as are hooks; else AttributeError."""
Convolution: Final = _get("nn.modules.conv._ConvNd", (torch.nn.Conv1d, torch.nn.Conv2d, torch.nn.Conv3d))
Dropout: Final = _get("nn.modules.dropout._DropoutNd", (torch.nn.Dropout, torch.nn.Dropout2d, torch.nn.Dropout3d))
BatchNorm: Final = _get("nn.modules.batchnorm._NormBase", (torch.nn.BatchNorm1d, torch.nn.BatchNorm2d))
"""Classes that these have in common. Lacking: the usual ones."""
FLAT_WEIGHTS, FLAT_REFERENCES = "_flat_weights", "_flat_weight_refs"
"""Of an RNN: its weights once more. Lacking: KeyError, what they are in is not recorded."""
CLIPPING: Final = ((torch.nn.utils.clip_grad, "_clip_grads_with_norm_"), (torch.nn.utils.clip_grad, "clip_grad_value_"))
"""What clips gradients; patched. Lacking: left out, and parity compares clipped gradients alone."""


def forward_hooks(part: Any) -> tuple[Any, Any]:
    """A module's own hooks on its forward."""
    return part._forward_hooks, part._forward_pre_hooks


def is_hooked(part: Any) -> bool:
    """Whether it has any of these, but for that of `weight_norm`, which computes the same whenever it is called."""
    before = part._forward_pre_hooks.values()
    return bool(part._forward_hooks or any(type(one).__name__ != "WeightNorm" for one in before))


def hooks_of(part: Any) -> tuple[Any, ...]:
    """A module's own."""
    return *forward_hooks(part), part._backward_hooks, part._backward_pre_hooks


def hooks_of_all() -> tuple[Any, ...]:
    """Those that every module calls."""
    everywhere = torch.nn.modules.module
    forward = everywhere._global_forward_hooks, everywhere._global_forward_pre_hooks
    return *forward, everywhere._global_backward_hooks, everywhere._global_backward_pre_hooks


def ddp_log(model: Any) -> dict[str, int]:
    """What DistributedDataParallel has measured of its exchange. Lacking: nothing."""
    read = getattr(getattr(model, "logger", None), "_get_ddp_logging_data", None)
    return getattr(read(), "ints_map", {}) if read is not None else {}


# Optimizers.

INIT_GROUP: Final = "_init_group"
"""Of an optimizer: collects a group's tensors, before each update. Lacking: AttributeError, it is not made fused."""
FUSED_FLAGS: Final = ("_step_supports_amp_scaling", "_need_device_dtype_check_for_fused")
"""Of optimizers that were made fused; a GradScaler looks at the first. Lacking: nobody looks at them."""

# Loaders.

BatchIterator: Final = _get("utils.data.dataloader._BaseDataLoaderIter", None)
MAKE_ITERATOR: Final = (torch.utils.data.DataLoader, "_get_iterator")
"""What makes batches, and what makes that; both patched. Lacking: hotlap is off, and says so."""
WORKER_LOOP: Final = (_get("utils.data._utils.worker"), "_worker_loop")
"""What a worker process of a loader runs; patched in a profile. Lacking: workers are not sampled."""
TAKES_OVER: Final = _get("multiprocessing.reductions.__file__", "")
"""The file in whose functions a thread is that takes tensors over from another process. Lacking: none is."""
WorkersIterator: Final = _get("utils.data.dataloader._MultiProcessingDataLoaderIter", ())
"""The iterator of a loader with workers. Lacking: none is known for one."""
MapFetcher: Final = _get("utils.data._utils.fetch._MapDatasetFetcher", None)
"""Makes a batch of a dataset's items. Lacking: how samples are made is unknown, and draws can't be pinned."""
FETCHER: Final = "_dataset_fetcher"
ITERATOR, TASKS, WORKERS = "_iterator", "_task_info", "_num_workers"
"""Of a loader: its iterator, where that lives on. Of an iterator: batches that are asked for, and how many make them.
Lacking: there are none."""
outlives_epoch: Final = attrgetter("_persistent_workers")
end_workers: Final = methodcaller("_shutdown_workers")
batches_given: Final = attrgetter("_num_yielded")
"""Of an iterator with workers, as all that follows; lacking, AttributeError: hotlap or the lever is off."""


def all_came(iterator: Any) -> bool:
    """Whether no batch is asked for."""
    return bool(iterator._rcvd_idx == iterator._send_idx)


def awaited_worker(iterator: Any) -> tuple[int, Any] | None:
    """Which worker makes the batch that is waited for: its number, and its process. Lacking: None."""
    task = getattr(iterator, TASKS, {}).get(getattr(iterator, "_rcvd_idx", None))
    return (task[0], iterator._workers[task[0]]) if task else None


def worker_pids(iterator: Any) -> list[int]:
    """Of worker processes. Lacking: none."""
    return [worker.pid for worker in getattr(iterator, "_workers", ()) if worker.pid is not None]


def is_late(iterator: Any) -> bool:
    """A batch that workers make is asked for: whether it is not there yet, as far as that shows: what is there may be
    another worker's, which then comes before its turn."""
    task = iterator._task_info.get(iterator._rcvd_idx, ())  # with its data, where it came before its turn
    return len(task) < 2 and bool(iterator._data_queue.empty())


def is_starved(iterator: Any) -> bool:
    """Of a batch that is late: whether workers have made hardly any other either, a quarter at most of those that they
    make ahead. One that takes its worker longer is late though the others' are there; an epoch's first ones are late as
    its workers begin together."""
    ahead, there = iterator._num_workers * iterator._prefetch_factor, batches_there(iterator)
    return there <= ahead // 4 and bool(iterator._rcvd_idx >= ahead)


def batches_there(iterator: Any) -> int:
    """Batches that workers have made and the loop did not take yet."""
    queues = {id(queue): queue for queue in (iterator._data_queue, iterator._worker_result_queue)}  # one if not pinned
    return early(iterator) + sum(int(queue.qsize()) for queue in queues.values())


def early(iterator: Any) -> int:
    """Batches that came before their turn, and are kept until then."""
    return max(0, int(iterator._send_idx - iterator._rcvd_idx - iterator._tasks_outstanding))


# Devices and ranks.

record_event: Final[Callable[[Any, Any], None]] = _get("_C._CudaEventBase.record", torch.cuda.Event.record)
is_capturing: Final = _get("_C._cuda_isCurrentStreamCapturing", torch.cuda.is_current_stream_capturing)
current_device: Final = _get("_C._cuda_getDevice", torch.cuda.current_device)
raw_stream: Final = _get("_C._cuda_getCurrentRawStream", lambda device: torch.cuda.current_stream(device).cuda_stream)
"""What the public functions call, which cost several times as much. Lacking: these."""
end_pool: Final = _get("_C._cuda_endAllocateToPool")
"""Ends what a failed capture left begun in the allocator; its NotImplementedError is let go, as its RuntimeError."""
nccl_number: Final = _get("_C._nccl_version", int)
"""NCCL's version as a number. Lacking: 0, it is unknown."""
BF16_CHECKS: Final = (
    _get("cpu._is_avx512_bf16_supported", bool), _get("cpu._is_amx_tile_supported", bool),
)  # fmt: skip
"""Whether the processor multiplies bfloat16. Lacking: it is said not to."""
MAKE_STORE: Final = (sys.modules.get("torch.distributed.rendezvous"), "_create_c10d_store")
"""What makes the store at which ranks meet, for `env://` and `tcp://`; patched. Lacking: a port that a script names is
taken by the first side of a tune."""


def default_store() -> Any:
    """Of the process group. Lacking: AttributeError, hotlap is off; ranks that can't agree must not end each alone."""
    return torch.distributed.distributed_c10d._get_default_store()


# Profilers.

PREPARE_TRACE: Final = (torch.autograd.profiler.profile, "_prepare_trace")
"""How any profiler begins; patched in a run with a profile. Lacking: hotlap is off in such a run."""
profiler_enabled: Final = _get("autograd._profiler_enabled", lambda: False)
_profiler_type: Final = _get("_C._autograd._profiler_type", None)
"""Whether a profiler is on, and which. Lacking: none is."""
memory_snapshot: Final = _get("cuda.memory._snapshot")
observe_out_of_memory: Final = _get("_C._cuda_attach_out_of_memory_observer")
"""Call this when the allocator gives up. Lacking, as without CUDA: what was live then is not told."""
when_cuda_begins: Final = _get("cuda._lazy_call")
"""Call this once the script has initialised CUDA. Lacking: memory before the loop is not told."""
RECORD_MEMORY: Final = (torch.cuda.memory, "_record_memory_history")
"""By which a script records it; patched. Lacking: nothing is."""
record_memory: Final = _get("cuda.memory._record_memory_history")
dump_memory: Final = _get("cuda.memory._dump_snapshot")
memory_is_recorded: Final = _get("_C._cuda_isHistoryEnabled", lambda: True)
"""The allocator's history: begin or end it, write it, whether it is on. Lacking: no snapshot is taken, since to end it
would end the script's own."""


def profiler_on() -> bool:
    """Whether a profiler that keeps what it sees is on; those for NVTX and ITT do not. Lacking: none is."""
    return bool(_profiler_type is not None and profiler_enabled() and _profiler_type().name in ("KINETO", "LEGACY"))


# Compilers.

SCRIPTING: Final = (sys.modules.get("torch.jit._recursive"), "infer_concrete_type_builder")
TRACING: Final = (sys.modules.get("torch.jit._trace"), "trace_module")
"""What TorchScript reads a module by, and what traces one; patched. Lacking: the owner is None, or has no such name."""
COMPILE_WORKER: Final = os.path.join("torch", "_inductor", "compile_worker")
"""Where the main module of processes is that compile for others."""


def compiler_loaded() -> bool:
    """Whether anything can be compiled. It is not imported for the question."""
    return "torch._dynamo" in sys.modules


def inductor_for(mode: str | None, dynamic: bool | None) -> Any:
    """What `torch.compile` makes of its mode, looked up as late as that does. Lacking: AttributeError."""
    return torch._TorchCompileInductorWrapper(mode, None, dynamic)


def dynamo_config() -> Any:
    """Settings of the compiler; as below, ImportError where it is lacking, which takes the lever out."""
    return import_module("torch._dynamo.config")


def inductor_config() -> Any:
    """Settings of what makes kernels."""
    return import_module("torch._inductor.config")


def functorch_config() -> Any:
    """Settings of what makes backwards."""
    return import_module("torch._functorch.config")


def compilations() -> list[Any]:
    """The compiler's own records of what it compiled, without importing it. Lacking: none."""
    metrics = getattr(sys.modules.get("torch._dynamo.utils"), "get_compilation_metrics", None)
    return list(metrics()) if metrics is not None else []


def compiled_frames() -> int:
    """Frames that torch.compile has compiled so far, without importing it."""
    utils = sys.modules.get("torch._dynamo.utils")
    frames = utils.counters.get("frames") if utils is not None else None  # `counters` makes what it is asked for
    return frames.get("total", 0) if frames else 0


def skip_frame(code: CodeType, and_what_it_calls: bool) -> bool:
    """Have the compiler pass over a function. Lacking: False, torch.compile sees a little more."""
    try:
        from torch._C._dynamo import eval_frame

        skip, default = eval_frame._FrameAction.SKIP, eval_frame._FrameAction.DEFAULT
        strategy = eval_frame._FrameExecStrategy(skip, skip if and_what_it_calls else default)
        eval_frame.set_code_exec_strategy(code, strategy)
    except (ImportError, AttributeError):
        return False
    return True


def usual_call(old: Any, new: Any) -> None:
    """Let the compiler take another function for the usual call of a module. Lacking: nothing is done."""
    dynamo = sys.modules.get("torch._dynamo.variables.nn_module")
    if dynamo is not None and getattr(dynamo, "unpatched_nn_module_call", None) in {old, new}:
        dynamo.unpatched_nn_module_call = new  # type: ignore[attr-defined]


def compile_pools() -> tuple[list[Any], Any]:
    """Pools of processes in which Inductor compiles, and the job of theirs that does nothing. Lacking: no pools."""
    module = sys.modules.get("torch._inductor.async_compile")
    return list(getattr(module, "_pool_set", ())), getattr(getattr(module, "AsyncCompile", None), "_ready_future", None)


def tensor_guard(tensors: Any) -> Any:
    """What compilers look at tensors with: `check` tells of all at once whether their classes, dtypes, sizes and
    strides are as they are now, and whether the same ones need a gradient. Lacking: None."""
    kind = _get("_C._dynamo.guards.TensorGuards", None)
    return None if kind is None else kind(*tensors, dynamic_dims_sizes=None, dynamic_dims_strides=None)


def script_instead(wrapper: Any, original: Any) -> None:
    """Let TorchScript take the original in the wrapper's place. Lacking: it reads the wrapper, and may refuse it."""
    setattr(wrapper, "__script_if_tracing_wrapper", True)
    setattr(wrapper, "__original_fn", original)
