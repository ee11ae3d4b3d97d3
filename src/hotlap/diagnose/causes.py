"""What lines of the user's do that costs time, and what to write instead, with the user's own names in it.

A row of `KNOWN` is a cause and the calls by which it is told; causes that `statements.py` finds by more than a call
follow.
"""

import ast
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import msgspec

from hotlap.records.diagnosis import Bound, Finding, Place

from .source import COMPREHENSIONS, called_in, name_of

FEW: Final = 32
"""Of a list that is written out, or turns of a loop, at most."""
NUMBERS: Final = frozenset({"bool", "float", "int", "len", "round"})
LONG: Final = (*COMPREHENSIONS, ast.Starred)
ARRAYS_OF: Final = frozenset({"array", "asarray", "list", "numpy", "tolist"})


@dataclass(frozen=True)
class Cause:
    """What a statement does. instead: the change to make, `{it}` in it is the user's expression. bound: of what lies in
    the model's phases."""

    id: str
    title: str
    why: str
    instead: str
    bound: Bound = "unknown"

    def finding(self, share: float, where: Place | None, evidence: str, cost_ms: float | None = None) -> Finding:
        """That a line does this."""
        blank = Finding(id=self.id, bound=self.bound, share=share, where=where, evidence=evidence, cost_ms=cost_ms)
        return self.named(blank)

    def named(self, finding: Finding) -> Finding:
        """The finding with this as its cause."""
        said = {"title": self.title, "why": self.why, "instead": self.instead}
        return msgspec.structs.replace(finding, named=True, **said)


@dataclass(frozen=True)
class Known:
    """A cause, and the calls that tell it: by the end of their names, which may be those of the user's own functions.
    whole: by the whole name. packages: by what the host is in; inside: by the very function. indexers: `x.NAME[...]`.
    tells: what more has to hold of the call. device: it costs only where the model is on one. ranks: only where there
    are several."""

    cause: Cause
    ends: tuple[str, ...] = ()
    whole: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    inside: re.Pattern[str] | None = None
    indexers: tuple[str, ...] = ()
    tells: Callable[[ast.Call], bool] = lambda call: True
    device: bool = False
    ranks: bool = False

    def is_inside(self, function: str) -> bool:
        """Whether the function that the host is in is one of these."""
        return self.inside is not None and self.inside.fullmatch(function) is not None

    def matches(self, call: ast.Call) -> bool:
        """Whether a call is one of these."""
        name = name_of(call)
        return (name.split(".")[-1] in self.ends or name in self.whole) and self.tells(call)


def _weighted(call: ast.Call) -> bool:
    return any(one.arg in {"p", "weights"} for one in call.keywords) or len(call.args) > 3


def _without_repetition(call: ast.Call) -> bool:
    """Whether it draws rows so, all alike, with a function that permutes them all."""
    given = {one.arg: one.value for one in call.keywords}
    replaces = call.args[2] if len(call.args) == 3 else given.get("replace")
    no = isinstance(replaces, ast.Constant) and replaces.value is False
    return no and not _weighted(call) and "shuffle" not in given


def of_many(call: ast.Call) -> bool:
    """Whether something is made a tensor that is no number: a name, a list."""
    return bool(call.args) and not isinstance(call.args[0], (ast.Constant, ast.UnaryOp, ast.BinOp))


def of_list(call: ast.Call) -> bool:
    """Whether a tensor may be made of a long list: not of a number, nor of one or a few that are written there."""
    if not of_many(call):
        return False
    given = call.args[0]
    if isinstance(given, ast.Call):
        return name_of(given) not in NUMBERS and not name_of(given).endswith(".item")
    if not isinstance(given, (ast.List, ast.Tuple)) or len(given.elts) > FEW:
        return True
    return bool(called_in(given) & ARRAYS_OF) or any(isinstance(one, LONG) for one in ast.walk(given))


VALIDATES: Final = Known(
    Cause(
        "validated-arguments",
        "torch.distributions checks its arguments on each call",
        "each distribution and each log_prob compares all values with their bounds, in small operations, and "
        "the host reads the result",
        "`torch.distributions.Distribution.set_default_validate_args(False)` before the loop, or "
        "`validate_args=False` here; values out of bounds then raise no error",
        "launch",
    ),
    inside=re.compile(r"torch\.(_\w+\.check|Distribution\.(__init__|_validate_sample))"),
)
PARAMETRIZED: Final = Known(
    Cause(
        "parametrized-again",
        "a parametrization is recomputed at each use of its weight",
        "`torch.nn.utils.parametrizations` (orthogonal, weight_norm, spectral_norm) recompute the weight each "
        "time it is read, and the backward goes through all of them",
        "`with torch.nn.utils.parametrize.cached():` around the forward computes the weight once; or read it "
        "once, before the loop",
        "compute",
    ),
    inside=re.compile(r"torch\.(_Orthogonal|_WeightNorm|_SpectralNorm|ParametrizationList)\..*"),
)
JACOBIAN: Final = Known(
    Cause(
        "jacobian-by-rows",
        "a Jacobian or Hessian is made row by row",
        "each output has its own backward; over a batch most entries are zeros, as rows do not depend on each other",
        "for independent rows, one backward of the sum: `torch.autograd.grad(y.sum(), x, create_graph=True)`; "
        "else `torch.func.vmap(torch.func.jacrev(f))(x)`",
        "launch",
    ),
    whole=tuple(
        package + name
        for name in ("jacobian", "hessian")
        for package in ("", "F.", "functional.", "autograd.functional.", "torch.autograd.functional.")
    ),
    tells=lambda call: all(one.arg != "vectorize" for one in call.keywords),
)
KNOWN: Final = (
    VALIDATES,
    PARAMETRIZED,
    Known(
        Cause(
            "order-of-all-rows",
            "a permutation of all rows is drawn for each epoch",
            "a sampler draws a Python number for each row of the dataset, however few batches an epoch uses",
            "`RandomSampler(data, replacement=True, num_samples=...)` draws only the rows that are used; or "
            "make fewer, longer epochs with one iterator",
            "input",
        ),
        inside=re.compile(r"torch\.(\w*Random|Distributed)Sampler\.__iter__"),
    ),
    Known(
        Cause(
            "tensor-as-text",
            "tensors are formatted as text",
            "each is reduced and read several times to choose a format; an f-string does this even if the "
            "logger drops the message",
            "only in the steps that show it: `if step % 50 == 0:`; `logger.debug('%s', x)` formats only what is "
            "shown; for one number use `x.item()`",
        ),
        inside=re.compile(r"torch\.(Tensor\.__(format|repr|str)__|_(tensor_)?str\w*|_Formatter\..*)"),
    ),
    Known(
        Cause(
            "collect",
            "Python's garbage collector is called",
            "each call goes through all objects of the program; reference counts free nearly everything without it",
            "take out `{it}`, or call it once an epoch; `gc.freeze()` before the loop if automatic collections "
            "take long",
        ),
        whole=("gc.collect",),
    ),
    Known(
        Cause(
            "empty-cache",
            "the allocator's cache is emptied",
            "memory goes back to the driver and is requested again, which waits for the device",
            "take out `{it}`; if memory is short, PYTORCH_ALLOC_CONF=expandable_segments:True",
        ),
        ends=("empty_cache",),
        device=True,
    ),
    Known(
        Cause(
            "tensor-of-list",
            "a tensor is made from a list",
            "each number is copied separately; a list of arrays is many times slower than one array",
            "`torch.from_numpy(numpy.stack({it}))`, or `torch.stack` if they are tensors; best, keep one array",
        ),
        whole=("torch.tensor", "torch.as_tensor", "torch.Tensor", "torch.FloatTensor", "torch.LongTensor"),
        tells=of_list,
    ),
    Known(
        Cause(
            "copy-of-all",
            "objects are copied deeply",
            "each tensor is allocated and copied separately, in a walk through Python objects",
            "copy into existing tensors: `torch._foreach_copy_(old, new)`, and only if the copy is used",
        ),
        ends=("deepcopy",),
    ),
    Known(
        Cause(
            "checkpointing",
            "a checkpoint is written",
            "the loop waits until all tensors are on the host and in the file",
            "save less often, or in a thread: `torch.distributed.checkpoint.async_save`",
        ),
        ends=("save_checkpoint", "save_pretrained", "async_save"),
        whole=("torch.save",),
    ),
    Known(
        Cause(
            "logging",
            "values are logged",
            "what is logged is computed, copied and written while the model waits",
            "log every n steps, and compute what is logged only then: `if step % 50 == 0: {it}`; histograms "
            "once an epoch",
        ),
        ends=(
            "add_histogram", "add_scalar", "add_scalars", "add_image", "log_dict", "log_metrics", "histogram", "histc",
            "savefig", "set_postfix",
        ),
        whole=("wandb.log", "mlflow.log_metric", "json.dump", "json.dumps", "pickle.dump", "pickle.dumps"),
        packages=("logging", "matplotlib", "mlflow", "rich", "tensorboard", "tqdm", "wandb"),
    ),
    Known(
        Cause(
            "decoding",
            "files or texts are decoded",
            "the same bytes are decoded again each time, on one core, while the step waits",
            "decode each once and keep arrays, in memory or uncompressed on disk (numpy.save, memmap); else "
            "decode in worker processes",
        ),
        packages=(
            "PIL", "av", "bz2", "csv", "cv2", "gzip", "h5py", "imageio", "json", "librosa", "lzma", "pandas", "pyarrow",
            "skimage", "soundfile", "tarfile", "zipfile",
        ),
        inside=re.compile(r"numpy\.(read_array|NpzFile\.\w+)"),
    ),
    Known(
        Cause(
            "files",
            "a file is opened and read",
            "the step waits for the file system and the decoder for each sample",
            "decode once and keep arrays (numpy.save, memmap, WebDataset shards), or make batches in worker processes",
        ),
        ends=("imread", "read_image", "decode_image", "decode_jpeg"),
        whole=("open", "Image.open", "PIL.Image.open", "np.load", "numpy.load", "torch.load", "torchaudio.load"),
    ),
    Known(
        Cause(
            "draw-without-repetition",
            "rows are drawn without repetition by permuting all of them",
            "numpy.random with `replace=False` permutes all rows at each call, however few it draws",
            "`rng.choice(n, k, replace=False, shuffle=False)` of `rng = np.random.default_rng()` draws only k "
            "numbers; or `rng.integers(n, size=k)` if a row may come twice",
        ),
        ends=("choice",),
        tells=_without_repetition,
    ),
    Known(
        Cause(
            "weighted-draw",
            "rows are drawn by weights, one draw at a time",
            "each draw goes through all weights again",
            "fixed weights: compute their sums once, then `np.searchsorted(cumulative, rng.random(n))` or "
            "`random.choices(..., cum_weights=cumulative)`, or draw many batches in one call; changing weights: "
            "`torch.multinomial` of one tensor updated in place, or a sum tree",
        ),
        ends=("choice", "multinomial", "choices"),
        tells=_weighted,
    ),
    Known(
        Cause(
            "tokenizing",
            "texts are tokenized",
            "a tokenizer is host code, and the same text gives the same tokens each epoch",
            "tokenize once before the loop and keep the ids; else many texts in one call, in worker processes; "
            "for repeated words a cache: `functools.lru_cache`",
        ),
        ends=("tokenizer", "tokenize", "encode_plus", "batch_encode_plus"),
        packages=("nltk", "re", "sentencepiece", "spacy", "tokenize", "tokenizers"),
    ),
    Known(
        Cause(
            "rows-of-a-table",
            "rows of a DataFrame are taken one by one",
            "each access looks up labels and makes an object of the row, which takes far longer than indexing "
            "an array",
            "in place of `{it}` index arrays made once, before the loop: `table.to_numpy()`, or one tensor for "
            "each column",
        ),
        ends=("iterrows", "itertuples"),
        indexers=("iloc", "loc", "iat"),
    ),
    Known(
        Cause(
            "queries",
            "a database is queried for each sample",
            "each query is planned and run separately, and `OFFSET n` skips over n rows",
            "read the table into arrays once, before the loop; or many rows in one query, by the primary key "
            "(`WHERE rowid IN (...)`)",
        ),
        ends=("executemany", "fetchone", "fetchall", "fetchmany", "read_sql", "read_sql_query"),
        packages=("psycopg", "psycopg2", "pymongo", "redis", "sqlalchemy", "sqlite3"),
    ),
    Known(
        Cause(
            "network",
            "data come over the network",
            "each request waits for an answer, one after another",
            "download them once, before training; else request many at once, in worker processes with "
            "`prefetch_factor`",
        ),
        ends=("urlopen", "urlretrieve", "hf_hub_download", "get_object", "download_file"),
        packages=("aiohttp", "boto3", "botocore", "fsspec", "http", "requests", "urllib", "urllib3"),
    ),
    Known(
        Cause(
            "processes",
            "a program is started in the loop",
            "each time a process starts, loads the program and is waited for; it also occupies a core",
            "only in the steps that show it: `if step % 50 == 0:` around `{it}`; without a process: `psutil`, "
            "`resource.getrusage`, `/proc` or a library in place of the program; or one process that keeps "
            "running, with a pipe",
        ),
        whole=(
            "os.system", "os.popen", "subprocess.run", "subprocess.call", "subprocess.check_call",
            "subprocess.check_output", "subprocess.getoutput", "subprocess.Popen",
        ),
        packages=("subprocess",),
    ),
    Known(
        Cause(
            "numbers-one-by-one",
            "Python's `random` draws numbers one by one",
            "each takes several calls in Python",
            "draw all at once with numpy's `rng.integers(n, size=k)` or `rng.permutation(n)`, or "
            "`torch.randint`, then index an array or tensor once",
        ),
        inside=re.compile(r"random\.Random\.(sample|shuffle|choice|rand\w+|_randbelow\w*|uniform|gauss|\w+variate)"),
    ),
    Known(
        Cause(
            "sleeping",
            "the loop sleeps",
            "nothing is computed meanwhile",
            "take out `{it}`; wait for the event itself, or move this to another thread or process",
        ),
        whole=("time.sleep", "sleep"),
    ),
    Known(
        Cause(
            "environment",
            "the environment steps on the host",
            "Python runs each step of one environment, and the model waits for it",
            "run several environments in processes (`gymnasium.vector.AsyncVectorEnv`), with one batch of "
            "observations; or act while the last update runs",
        ),
        whole=("env.step", "self.env.step", "envs.step", "self.envs.step", "environment.step"),
        packages=("gym", "gymnasium", "pettingzoo"),
    ),
    Known(
        Cause(
            "convolution-on-the-host",
            "a convolution is computed tap by tap on the host",
            "its work grows with the data's length times the kernel's, on one core",
            "separable kernels such as a Gaussian: one pass for each axis (`scipy.ndimage.gaussian_filter`, "
            "`convolve1d`); other long kernels: FFT (`scipy.signal.oaconvolve`); or whole batches by torch's "
            "`conv1d`, `conv2d`",
        ),
        inside=re.compile(r"numpy\.(convolve|correlate)|scipy\.(convolve2d|correlate2d|_correlate_or_convolve)"),
    ),
    Known(
        Cause(
            "on-the-host",
            "a library computes it on the host",
            "each call runs on one core while the model waits, and again for the same sample in each epoch",
            "compute fixed results once and keep arrays; crop or select first; random ones: on whole batches "
            "with torch operations, on the device if there is one; else in more worker processes",
        ),
        packages=("albumentations", "audiomentations", "imgaug", "networkx", "scipy", "shapely", "sklearn"),
        inside=re.compile(
            r"torchvision\.(\w*(Resize|Crop|Flip|Jitter|Rotation|Affine|Blur|Normalize|ToTensor|Augment|Perspective)\w*\..*"
            r"|resize|\w*crop|\w*flip|rotate|affine|gaussian_blur|adjust_\w+|normalize|to_tensor|pil_to_tensor|perspective)"
        ),
    ),
    Known(
        Cause(
            "metric-on-host",
            "a metric is computed on the host",
            "predictions go through numpy and Python, on one core, while the model waits",
            "`{it}` only in the steps that log it, `if step % 50 == 0:`, or once an epoch; or count with torch "
            "(`(logits.argmax(-1) == y).sum()`), add up, and read the sum at the epoch's end",
        ),
        ends=(
            "accuracy_score", "f1_score", "roc_auc_score", "confusion_matrix", "precision_score", "recall_score",
            "average_precision_score", "classification_report", "auc", "roc_curve", "precision_recall_curve",
        ),
    ),
    Known(
        Cause(
            "barrier",
            "all ranks wait for one another",
            "each step then takes as long as its slowest rank; the gradient exchange keeps ranks together anyway",
            "take out `{it}`; one barrier is enough before reading a file that another rank writes",
            "communication",
        ),
        ends=("monitored_barrier", "wait_for_everyone"),
        whole=("dist.barrier", "torch.distributed.barrier"),
        ranks=True,
    ),
    Known(
        Cause(
            "exchange-in-loop",
            "the loop exchanges tensors between ranks itself",
            "each exchange waits for all ranks, however small it is",
            "numbers for a log: sum them on each rank, and every n steps exchange all in one all_reduce of "
            "`torch.stack(numbers)`; gradients: only after the last micro-batch, by DistributedDataParallel "
            "(`no_sync()` before the last), which sends them during the backward",
            "communication",
        ),
        ends=("gather_for_metrics", "reduce_dict", "all_gather_object"),
        whole=("dist.all_reduce", "torch.distributed.all_reduce", "dist.reduce", "torch.distributed.reduce"),
        ranks=True,
    ),
    Known(
        Cause(
            "read-value",
            "a value is read from a tensor",
            "the host waits until all that was launched is computed; then the device has nothing queued",
            "keep it on the device (`total += loss.detach()`), and read it every n steps",
        ),
        ends=("item", "tolist", "cpu", "numpy"),
        device=True,
    ),
)  # fmt: skip
ARRAY: Final = Cause(
    "array-of-list",
    "a numpy array is made from a list, or joined again",
    "all its elements are copied, however few of them are new",
    "in place of `{it}` one array of the largest size (`numpy.zeros(capacity)`), made once and written in place",
)
ROW: Final = Cause(
    "array-of-list",
    "a numpy array is made from a few parts each time",
    "each call allocates an array and copies the parts, which takes far longer than computing a few numbers",
    "call `{it}` once for all rows, before the loop or in `__init__`, and index the result here; if it differs "
    "each time: once for all rows of a batch",
)
ARRAYS: Final = r"(np|numpy)\.(array|asarray|stack|vstack|hstack|concatenate|append)"
PARAMETERS: Final = Cause(
    "loop-over-parameters",
    "a Python loop over parameters",
    "each of them costs a launch and Python time",
    "all at once: `torch._foreach_lerp_(averages, parameters, 1 - decay)` for moving averages "
    "(torch.optim.swa_utils.AveragedModel), `torch.nn.utils.clip_grad_norm_`, `torch.nn.utils.get_total_norm`; "
    "in your own optimizer: `torch._foreach_mul_`, `torch._foreach_add_` on lists, or `torch.compile` of its "
    "step",
)
CELL: Final = Cause(
    "cell-by-cell",
    "a recurrent cell is called step by step",
    "each call is a few small operations, forward and backward",
    "one call for the whole sequence: `nn.LSTM(...)(x)` in place of `nn.LSTMCell`, `nn.GRU` in place of "
    "`nn.GRUCell`; else `torch.compile`",
    "compute",
)
NORM: Final = Cause(
    "norm-by-hand",
    "a normalization is computed by hand",
    "means, differences, squares, roots and products each read and write all numbers once more, and so do their "
    "backwards",
    "`{it}`, one operation each way, with your weight and bias; `nn.BatchNorm` where rows of a batch are normalized "
    "together, `F.group_norm` for channels; `std` and `var` are of n - 1 unless `unbiased=False`, those of torch's "
    "norms of n",
    "bandwidth",
)
PENALTY: Final = Cause(
    "weight-penalty",
    "a penalty on all weights is part of the loss",
    "each weight is read several times, and its backward makes a gradient as large as it and adds that",
    "for `c * (w ** 2).sum()` the optimizer's own, `weight_decay=2 * c` (not AdamW, whose decay is another); for "
    "another norm add its gradient after the backward, for `c * w.abs().sum()`: `torch._foreach_add_(grads, "
    "torch._foreach_sign(weights), alpha=c)` under `torch.no_grad()`",
    "bandwidth",
)
THROUGH_NUMPY: Final = Cause(
    "through-numpy",
    "tensors go through numpy and back",
    "numpy computes on the host, on one core, in several passes over memory, while the model waits",
    "use torch operations on the same tensors, without `.numpy()`: they run where the model does, on all cores, "
    "and can be compiled",
)
ELEMENTS: Final = Cause(
    "element-by-element",
    "a Python loop over single elements",
    "each turn handles one element in Python; reading or writing a tensor goes through the dispatcher too",
    "in place of `{it}` work on whole arrays: slices, an index, `torch.tensor(...)` of a row, `pad_sequence`, "
    "numpy functions, `torch.bincount`; compute what never changes once, before the loop",
)
ADDS_UP: Final = "; for running sums: `cumsum`, `cumprod`, a recursion from the end, or a closed form"
PAIRS: Final = Cause(
    "all-pairs",
    "differences of all pairs are held in memory",
    "for n and m rows of d numbers, each operation and its backward read and write n x m x d numbers",
    "`torch.cdist(x, y)` (squared for squared distances), or a matrix product: `x.square().sum(1)[:, None] + "
    "y.square().sum(1) - 2 * x @ y.T`",
    "bandwidth",
)
ONE_HOT: Final = Cause(
    "one-hot-product",
    "rows are looked up by a product with a one-hot matrix",
    "all rows are multiplied, nearly all by zero, to keep one; the backward does it again",
    "`F.embedding(index, weight)` or `nn.Embedding`, or `weight[index]`, in place of the product",
    "compute",
)
DIAGONAL: Final = Cause(
    "diagonal-product",
    "a product with a diagonal matrix",
    "nearly all products are with zeros, only to scale each row by one number",
    "scale by broadcasting: `d[:, None] * A * d` for `diag(d) @ A @ diag(d)`; if it is the same in each step, "
    "once before the loop",
    "compute",
)
CROSS_ENTROPY: Final = Cause(
    "cross-entropy-by-hand",
    "a cross entropy by hand",
    "softmax, logarithm, one-hot matrix and product each read and write all logits, and so do their backwards",
    "`F.cross_entropy(logits, targets)` with class indices instead of `one_hot` (`label_smoothing=` for "
    "smoothed targets): it reads the logits once each way and keeps little",
    "bandwidth",
)
LIST: Final = Cause(
    "list-search",
    "a list is searched from its beginning",
    "`in` and `.index` compare entries one by one until one matches",
    "in place of `{it}` a dict that is made once, `{word: at for at, word in enumerate(words)}`, or a set; if "
    "the result is the same in each epoch, compute it once and keep it",
)
SORTED: Final = Cause(
    "sorted-for-few",
    "all values are sorted on the host, but only a few at one end are used",
    "the sort orders all the others too, on one core",
    "in place of `{it}` `np.argpartition(x, k)[..., :k]`, then sort only these; `torch.topk(x, k)` on the "
    "device, if the values are there; for a list `heapq.nsmallest`",
)
DEQUE: Final = Cause(
    "deque-by-index",
    "rows are taken from the middle of a deque",
    "an index walks there from the nearer end, and `list(...)` copies everything",
    "use a list as a ring buffer (`rows[at % capacity] = row`); best an array or tensor for each field, and one "
    "index for the batch: `states[rng.integers(n, size=k)]`",
)
SLEEPS: Final = Cause(
    "sleeps",
    "the thread sleeps or waits there",
    "it does not run meanwhile: a sleep, a cap on frames or requests, or a wait for another process, a socket "
    "or a device",
    "no cap or sleep in `{it}` or what it calls while training; start what it waits for a step ahead, in a "
    "thread or process, or for many at once",
)
MANAGER: Final = Cause(
    "manager-proxy",
    "objects of a multiprocessing Manager are read from another process",
    "each access is pickled, sent to the manager's one process and answered",
    "an ordinary dict or list, copied to each worker; best one tensor or array and an index "
    "(`tensor.share_memory_()` if workers write); else `.copy()` it once, before the loop",
)
JOINED: Final = Cause(
    "whole-copies",
    "a tensor or array is copied whole to append to it",
    "everything in it is read and written again for a few new rows",
    "allocate the full size once and write in place, as a ring buffer: `data[at : at + n] = new`; for a "
    "history, collect parts in a list and join them once",
)
CUT: Final = Cause(
    "cut-from-its-front",
    "a buffer is cut from its front again and again",
    "each cut copies the rest: twice as many pieces take four times as long",
    "in place of `{it}` a growing offset (`struct.unpack_from(form, data, at)`), `memoryview(data)`, which "
    "copies nothing, or `read(n)` of a file or `io.BytesIO`; for a list `deque.popleft()`",
)
LENGTH: Final = Cause(
    "length-computed",
    "a length is recomputed each time it is read",
    "`len(loader)` calls the dataset's `__len__`, in a loop in each step",
    "compute it once, in `__init__`, and keep it; or call `len(...)` once, before the loop",
)
LAST: Final = Cause(
    "last-of-all",
    "all positions are computed, but only the last one is used",
    "results at the other positions are thrown away, and their backward is all zeros",
    "select the last position first: `self.head(x[:, -1])` in place of `self.head(x)[:, -1]`",
    "compute",
)
ALL_ITEMS: Final = Cause(
    "items-of-all",
    "an iterator makes all items of the dataset before the first batch",
    "at each epoch's start the training process reads or computes all of them and throws them away",
    "get what it needs of them, such as lengths, once in `__init__`; best without making the items, such as "
    "from text lengths or file sizes",
    "input",
)
