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
        "torch.distributions checks its arguments each time",
        "for each distribution and each log_prob all values are compared with their bounds, in small operations of "
        "their own, and on a device the host waits for the answer",
        "`torch.distributions.Distribution.set_default_validate_args(False)` before the loop, or `validate_args=False` "
        "for the one that is made here; values out of bounds then raise no error",
        "launch",
    ),
    inside=re.compile(r"torch\.(_\w+\.check|Distribution\.(__init__|_validate_sample))"),
)
PARAMETRIZED: Final = Known(
    Cause(
        "parametrized-again",
        "a parametrization is computed at each use of its weight",
        "`torch.nn.utils.parametrizations` (orthogonal, weight_norm, spectral_norm) make the weight anew each time "
        "that it is read, and the backward goes through all of that",
        "`with torch.nn.utils.parametrize.cached():` around the forward, in which the weight is made once; or read it "
        "once, before the loop",
        "compute",
    ),
    inside=re.compile(r"torch\.(_Orthogonal|_WeightNorm|_SpectralNorm|ParametrizationList)\..*"),
)
JACOBIAN: Final = Known(
    Cause(
        "jacobian-by-rows",
        "a Jacobian or Hessian is made row by row",
        "each output has a backward of its own, issued by itself, and over a batch most of it are zeros between rows "
        "that do not depend on each other",
        "of such rows the gradient of the sum, which is one backward: `torch.autograd.grad(y.sum(), x, "
        "create_graph=True)`; else `torch.func.vmap(torch.func.jacrev(f))(x)`",
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
            "an order of all rows is drawn for an epoch",
            "a sampler draws a number for each row of the dataset and makes Python objects of them, however few "
            "batches an epoch uses",
            "`RandomSampler(data, replacement=True, num_samples=...)` draws only as many; or fewer, longer epochs: "
            "keep one iterator across them",
            "input",
        ),
        inside=re.compile(r"torch\.(\w*Random|Distributed)Sampler\.__iter__"),
    ),
    Known(
        Cause(
            "tensor-as-text",
            "tensors are formatted as text",
            "each is reduced and copied several times to choose a format, and on a device the host waits; an f-string "
            "does so before a logger looks at its level",
            "only in the steps that show it: `if step % 50 == 0:`; `logger.debug('%s', x)` formats nothing that is not "
            "shown, and of one number `x.item()` is enough",
        ),
        inside=re.compile(r"torch\.(Tensor\.__(format|repr|str)__|_(tensor_)?str\w*|_Formatter\..*)"),
    ),
    Known(
        Cause(
            "collect",
            "Python's garbage collector is called",
            "it goes through all objects of the program each time, and frees what reference counts free anyway",
            "take out `{it}`, or call it once an epoch; `gc.freeze()` before the loop where automatic collections cost",
        ),
        whole=("gc.collect",),
    ),
    Known(
        Cause(
            "empty-cache",
            "the allocator's cache is emptied",
            "memory goes back to the driver and is asked for again, which waits for the device",
            "take out `{it}`; where memory is short, PYTORCH_ALLOC_CONF=expandable_segments:True",
        ),
        ends=("empty_cache",),
        device=True,
    ),
    Known(
        Cause(
            "tensor-of-list",
            "a tensor is made of a list",
            "each number is copied by itself, and of a list of arrays many times as slowly as of one array",
            "`torch.from_numpy(numpy.stack({it}))`, or `torch.stack` where they are tensors; best, hold one array",
        ),
        whole=("torch.tensor", "torch.as_tensor", "torch.Tensor", "torch.FloatTensor", "torch.LongTensor"),
        tells=of_list,
    ),
    Known(
        Cause(
            "copy-of-all",
            "objects are copied deeply",
            "each tensor is allocated and copied by itself, in a walk through Python objects",
            "copy into tensors that are there: `torch._foreach_copy_(old, new)`, and only when the copy is used",
        ),
        ends=("deepcopy",),
    ),
    Known(
        Cause(
            "checkpointing",
            "a checkpoint is written",
            "the loop stands still until all tensors are on the host and in the file",
            "save less often, or in a thread: `torch.distributed.checkpoint.async_save`",
        ),
        ends=("save_checkpoint", "save_pretrained", "async_save"),
        whole=("torch.save",),
    ),
    Known(
        Cause(
            "logging",
            "values are logged",
            "what is logged is computed, copied and written while the model stands still",
            "log every n steps, and compute only in these what is logged: `if step % 50 == 0: {it}`; histograms once "
            "an epoch",
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
            "the same bytes are unpacked or parsed again each time, on one core, while the step waits",
            "decode each once and keep arrays: in memory, or on disk uncompressed (numpy.save, memmap); else in worker "
            "processes",
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
            "the step waits for the file system and the decoder, sample by sample",
            "decode once and keep arrays (numpy.save, memmap, WebDataset shards), or make batches in worker processes",
        ),
        ends=("imread", "read_image", "decode_image", "decode_jpeg"),
        whole=("open", "Image.open", "PIL.Image.open", "np.load", "numpy.load", "torch.load", "torchaudio.load"),
    ),
    Known(
        Cause(
            "draw-without-repetition",
            "rows are drawn without repetition, by a permutation of all of them",
            "`replace=False` of numpy.random permutes all rows at each call, however few it draws",
            "`rng.choice(n, k, replace=False, shuffle=False)` of `rng = np.random.default_rng()`, which makes k "
            "numbers; or `rng.integers(n, size=k)` where a row may come twice",
        ),
        ends=("choice",),
        tells=_without_repetition,
    ),
    Known(
        Cause(
            "weighted-draw",
            "rows are drawn by weights, one draw at a time",
            "each draw goes through the whole table of weights again",
            "weights that stay: their sums once, and `np.searchsorted(cumulative, rng.random(n))` or "
            "`random.choices(..., cum_weights=cumulative)`, or many batches in one call; weights that change: "
            "`torch.multinomial` of one tensor that is written into in place, or a sum tree",
        ),
        ends=("choice", "multinomial", "choices"),
        tells=_weighted,
    ),
    Known(
        Cause(
            "tokenizing",
            "texts are tokenized",
            "a tokenizer is host code, and the same text gives the same tokens each epoch",
            "tokenize once before the loop and keep the ids; else many texts in one call, in worker processes; of "
            "words that come again, a cache: `functools.lru_cache`",
        ),
        ends=("tokenizer", "tokenize", "encode_plus", "batch_encode_plus"),
        packages=("nltk", "re", "sentencepiece", "spacy", "tokenize", "tokenizers"),
    ),
    Known(
        Cause(
            "rows-of-a-table",
            "rows of a DataFrame are taken one by one",
            "each access looks up labels and makes an object of the row, which takes far longer than an array's",
            "in place of `{it}` an index into arrays that are made once, before the loop: `table.to_numpy()`, or a "
            "tensor of each column",
        ),
        ends=("iterrows", "itertuples"),
        indexers=("iloc", "loc", "iat"),
    ),
    Known(
        Cause(
            "queries",
            "a database is asked for each sample",
            "each query is planned and run by itself, and `OFFSET n` goes over n rows",
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
            "to disk once, before the training; else many at once, in worker processes with `prefetch_factor`",
        ),
        ends=("urlopen", "urlretrieve", "hf_hub_download", "get_object", "download_file"),
        packages=("aiohttp", "boto3", "botocore", "fsspec", "http", "requests", "urllib", "urllib3"),
    ),
    Known(
        Cause(
            "processes",
            "a program is started in the loop",
            "each time a process is made, the program loaded and its end waited for, and it takes a core meanwhile",
            "only in the steps that show it: `if step % 50 == 0:` around `{it}`; without a process: `psutil`, "
            "`resource.getrusage`, `/proc`, a library in place of the program; or one process that stays, with a pipe",
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
            "all at once, `rng.integers(n, size=k)` or `rng.permutation(n)` of numpy's, `torch.randint`; and one index "
            "with them into an array or a tensor",
        ),
        inside=re.compile(r"random\.Random\.(sample|shuffle|choice|rand\w+|_randbelow\w*|uniform|gauss|\w+variate)"),
    ),
    Known(
        Cause(
            "sleeping",
            "the loop sleeps",
            "nothing is computed meanwhile",
            "take out `{it}`; wait for what is waited for, or let another thread or process do it",
        ),
        whole=("time.sleep", "sleep"),
    ),
    Known(
        Cause(
            "environment",
            "the environment steps on the host",
            "it is Python for one step of one environment, and the model waits for each",
            "several environments at once, in processes (`gymnasium.vector.AsyncVectorEnv`), whose observations are "
            "one batch; or act while the last update runs",
        ),
        whole=("env.step", "self.env.step", "envs.step", "self.envs.step", "environment.step"),
        packages=("gym", "gymnasium", "pettingzoo"),
    ),
    Known(
        Cause(
            "convolution-on-the-host",
            "a convolution is computed tap by tap on the host",
            "its work is the length of the data times that of the kernel, on one core",
            "a Gaussian, or another product of rows and columns, in two passes of one dimension: "
            "`scipy.ndimage.gaussian_filter`, `convolve1d` along each axis; other long kernels by FFT: "
            "`scipy.signal.oaconvolve`; or whole batches by torch's `conv1d`, `conv2d`",
        ),
        inside=re.compile(r"numpy\.(convolve|correlate)|scipy\.(convolve2d|correlate2d|_correlate_or_convolve)"),
    ),
    Known(
        Cause(
            "on-the-host",
            "a library computes it on the host",
            "each call is for itself, on one core, while the model waits, and for a sample again in each epoch",
            "what is the same each time: make it once and keep arrays; crop or select first; what is random: on whole "
            "batches with torch's own operations, on the device where there is one; else in more worker processes",
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
            "predictions go through numpy and Python, on one core, while the model stands still",
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
            "each step then takes as long as its slowest rank, and the backward's exchange keeps them together anyway",
            "take out `{it}`; before a file is read that another rank writes, once",
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
            "each exchange waits for all ranks, however few its bytes",
            "numbers for a log: add them up on each rank, and every n steps exchange them all in one all_reduce, "
            "`torch.stack(numbers)`; gradients: after the last micro-batch only, and by DistributedDataParallel "
            "(`no_sync()` before the last), which sends them while the backward still runs",
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
            "the host waits until all that was launched is computed, and has nothing ahead of the device afterwards",
            "keep it on the device (`total += loss.detach()`), and read it every n steps",
        ),
        ends=("item", "tolist", "cpu", "numpy"),
        device=True,
    ),
)  # fmt: skip
ARRAY: Final = Cause(
    "array-of-list",
    "a numpy array is made of a list, or joined anew",
    "each of its objects is looked at and copied, however few of them are new",
    "in place of `{it}` an array that is made once, as large as it may become (`numpy.zeros(capacity)`), and written "
    "into in place",
)
ROW: Final = Cause(
    "array-of-list",
    "a numpy array is made of a few parts each time",
    "each call makes one of its own and copies the parts, which for a few numbers takes longer than the numbers do",
    "`{it}` of all rows by one call, before the loop or in `__init__`, and only an index of that here; what differs "
    "each time: of all rows of a batch together",
)
ARRAYS: Final = r"(np|numpy)\.(array|asarray|stack|vstack|hstack|concatenate|append)"
PARAMETERS: Final = Cause(
    "loop-over-parameters",
    "a Python loop over parameters",
    "each of them costs a launch and Python of its own",
    "all at once: `torch._foreach_lerp_(averages, parameters, 1 - decay)` for moving averages "
    "(torch.optim.swa_utils.AveragedModel), `torch.nn.utils.clip_grad_norm_`, `torch.nn.utils.get_total_norm`; an "
    "optimizer of your own: `torch._foreach_mul_`, `torch._foreach_add_` of lists, or `torch.compile` of its step",
)
CELL: Final = Cause(
    "cell-by-cell",
    "a recurrent cell is called step by step",
    "each call is a few small operations, issued one after another, forward and backward",
    "the whole sequence at once, which is one call: `nn.LSTM(...)(x)` in place of `nn.LSTMCell`, `nn.GRU` of "
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
THROUGH_NUMPY: Final = Cause(
    "through-numpy",
    "tensors go through numpy and back",
    "it is computed on the host, on one core, in several passes over memory, while the model stands still",
    "the same with torch's own operations on the tensors that are there, without `.numpy()`; then it runs where the "
    "model does, on all cores, and can be compiled",
)
ELEMENTS: Final = Cause(
    "element-by-element",
    "a Python loop over single elements",
    "each turn passes through Python, and where it reads or writes tensors through the dispatcher too, for one element",
    "in place of `{it}` whole arrays at once: slices, an index, `torch.tensor(...)` of a row, `pad_sequence`, numpy's "
    "functions, `torch.bincount` for counts; what is the same each time: make it once, before the loop",
)
ADDS_UP: Final = (
    "; what each turn adds to the last: `cumsum`, `cumprod`, a recursion from the end that keeps the sum, or a closed "
    "form"
)
PAIRS: Final = Cause(
    "all-pairs",
    "differences of all pairs are held in memory",
    "for n and m rows of d numbers each operation on them writes and reads n x m x d of them, and so does its backward",
    "`torch.cdist(x, y)`, whose square is the squared distance, or by a product: "
    "`x.square().sum(1)[:, None] + y.square().sum(1) - 2 * x @ y.T`",
    "bandwidth",
)
ONE_HOT: Final = Cause(
    "one-hot-product",
    "rows are looked up by a product with a one-hot matrix",
    "all rows are multiplied by zeros to keep one of them, and the backward does it again",
    "`F.embedding(index, weight)` or `nn.Embedding`, or `weight[index]`, in place of the product",
    "compute",
)
DIAGONAL: Final = Cause(
    "diagonal-product",
    "a product with a diagonal matrix",
    "all of a row is multiplied by zeros, to scale its elements by one number each",
    "scale by broadcasting: `d[:, None] * A * d` for `diag(d) @ A @ diag(d)`; what is the same in each step once, "
    "before the loop",
    "compute",
)
CROSS_ENTROPY: Final = Cause(
    "cross-entropy-by-hand",
    "a cross entropy by hand",
    "softmax, logarithm, a one-hot matrix and their product each write and read a number for each class of each row, "
    "and so do their backwards",
    "`F.cross_entropy(logits, targets)` with the classes' numbers, without `one_hot` (`label_smoothing=` where targets "
    "are softened): it keeps little and goes over the logits once each way",
    "bandwidth",
)
LIST: Final = Cause(
    "list-search",
    "a list is searched from its beginning",
    "`in` and `.index` compare one entry after another until one is equal",
    "in place of `{it}` a dict that is made once, `{word: at for at, word in enumerate(words)}`, or a set; what is the "
    "same in each epoch: make it once and keep the result",
)
SORTED: Final = Cause(
    "sorted-for-few",
    "all values are sorted on the host, and only some at one end are used",
    "a sort puts all the others in order too, each row of a table on one core",
    "in place of `{it}` `np.argpartition(x, k)[..., :k]`, and a sort of these alone; `torch.topk(x, k)` where the "
    "values are made, on the device; of a list `heapq.nsmallest`",
)
DEQUE: Final = Cause(
    "deque-by-index",
    "rows are taken from the middle of a deque",
    "an access by index walks there from the nearer end, and `list(...)` copies all of it",
    "a list that is written round in place of the deque (`rows[at % capacity] = row`); best an array or tensor of each "
    "field, and one index for the batch: `states[rng.integers(n, size=k)]`",
)
SLEEPS: Final = Cause(
    "sleeps",
    "the thread sleeps or waits there",
    "it does not run meanwhile, whatever the code takes: a sleep, a cap on frames or requests, or an answer of another "
    "process, a socket or a device that it waits for",
    "no cap or sleep while it trains, in `{it}` or what that calls; what it waits for begun a step ahead, in a thread "
    "or a process of its own, or for many at once",
)
MANAGER: Final = Cause(
    "manager-proxy",
    "objects of a Manager are asked in its process",
    "each access is pickled, sent to the manager's process, which all workers share, and answered",
    "an ordinary dict or list, of which each worker has a copy; best one tensor or array and an index "
    "(`tensor.share_memory_()` where workers write); else all of it once, before the loop: `.copy()`",
)
JOINED: Final = Cause(
    "whole-copies",
    "a tensor or an array is joined with what is new, and so copied whole",
    "all that it holds is read and written again for each few rows",
    "one of the full size, made once, and written into in place at a position that goes round (ring buffer): "
    "`data[at : at + n] = new`; a history as parts in a list, joined once",
)
CUT: Final = Cause(
    "cut-from-its-front",
    "a buffer is cut from its front again and again",
    "that copies all that is left for each piece: twice as many pieces take four times as long",
    "in place of `{it}` an offset that grows (`struct.unpack_from(form, data, at)`), `memoryview(data)`, which copies "
    "nothing, or `read(n)` of the file or an `io.BytesIO`; of a list `deque.popleft()`",
)
LENGTH: Final = Cause(
    "length-computed",
    "a length is computed each time that it is asked for",
    "`len(loader)` calls the dataset's `__len__`, in a loop in each step",
    "the result is the same each time: compute it once, in `__init__`, and keep it; or `len(...)` once, before the "
    "loop",
)
LAST: Final = Cause(
    "last-of-all",
    "all positions are computed, and the last one is used",
    "what is computed of the others is thrown away, and its backward is all zeros but for one position",
    "take the last position before it, not after: `self.head(x[:, -1])` in place of `self.head(x)[:, -1]`",
    "compute",
)
ALL_ITEMS: Final = Cause(
    "items-of-all",
    "an iterator makes all items of the dataset before it begins",
    "they are read or computed and thrown away again, in the process that trains, each time that an epoch begins",
    "what it asks of them, as their lengths, once: in `__init__`, and keep it; best of what is there before an item is "
    "made, as the length of a text or the size of a file",
    "input",
)
