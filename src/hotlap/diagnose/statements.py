"""What the statement does that the host's time is spent at, where it is one of those that people report most.

A row of `KNOWN` is a cause: the calls by which it is told, and what to write instead, with the user's own names in it.
"""

import ast
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Final

from hotlap.records.diagnosis import Bound, Place

from .source import calls_in, function_at, name_at, name_of, parsed, statements_at

COMPREHENSIONS: Final = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
BLOCKS: Final = (ast.For, ast.While, ast.If, ast.With, ast.Try, ast.FunctionDef, ast.ClassDef, ast.AsyncFunctionDef)


@dataclass(frozen=True)
class Cause:
    """What a statement does. instead: the change to make, `{it}` in it is the user's expression. bound: of what lies in
    the model's phases."""

    id: str
    title: str
    why: str
    instead: str
    bound: Bound = "unknown"


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


def _of_many(call: ast.Call) -> bool:
    """Whether something is made a tensor that is no number: a name, a list."""
    return bool(call.args) and not isinstance(call.args[0], (ast.Constant, ast.UnaryOp, ast.BinOp))


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
        tells=_of_many,
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
            "weighted-draw",
            "rows are drawn by weights or without repetition, one draw at a time",
            "each draw goes through the whole table of weights or rows again",
            "draw for many batches in one call (`size=`, `torch.multinomial`), or keep the sums: "
            "`np.searchsorted(cumulative, rng.random(n))`",
        ),
        ends=("choice", "multinomial", "choices"),
        tells=lambda call: any(one.arg in {"p", "weights", "replace"} for one in call.keywords) or len(call.args) > 3,
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
            "on-the-host",
            "a library computes it on the host",
            "each call is for itself, on one core, while the model waits, and for a sample again in each epoch",
            "what is the same each time: make it once and keep arrays; crop or select first, so that less is worked "
            "on; what is random: on whole batches with torch's own operations, on the device where there is one; else "
            "in worker processes, or more of them",
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
            "compute it only in the steps in which it is logged, every n or once an epoch: `if step % 50 == 0:` around "
            "`{it}`; or count with torch (`(logits.argmax(-1) == y).sum()`), add "
            "up, and read the sum at the epoch's end",
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
LAST: Final = Cause(
    "last-of-all",
    "all positions are computed, and the last one is used",
    "what is computed of the others is thrown away, and its backward is all zeros but for one position",
    "take the last position before it, not after: `self.head(x[:, -1])` in place of `self.head(x)[:, -1]`",
    "compute",
)
SHORT: Final = 60
"""Letters of the user's that are shown."""
_ONE_HOT, _DIAGONAL = frozenset({"one_hot"}), frozenset({"diag", "diag_embed"})
PRODUCTS: Final = frozenset({"matmul", "mm", "bmm", "linear", "einsum"})
OF_PARAMETERS: Final = frozenset({"parameters", "named_parameters", "state_dict"})
OF_FEW: Final = frozenset({"items", "keys", "values", "modules", "named_modules", "children", "named_children"})
PASSES_ON: Final = frozenset({"enumerate", "zip", "list", "tuple", "sorted", "reversed"})
"""Functions that go through as many as they are given: of several, as many as the shortest has."""
FEW: Final = 32
"""Turns of a loop, at most."""


def cause_at(place: Place, device: bool = False, ranks: int = 1, inside: str = "") -> Cause | None:
    """What the statement at a line does, with the user's expression in the change to make. device: the model is on
    one; ranks: how many there are; inside: the function that the host is in, where that is not the user's."""
    held = statements_at(place)
    if not held:
        return None
    own = held[0]
    inner = list(calls_in(own) if not isinstance(own, BLOCKS) else _of_head(own))
    known_here = [one for one in KNOWN if (device or not one.device) and (ranks > 1 or not one.ranks)]
    found = _by_what_it_calls(own, inner, place, inside, known_here)
    if found is not None:
        return found
    if over_parameters(place):
        return PARAMETERS
    return product_at(place)


def _searched(own: ast.stmt, place: Place) -> str | None:
    """What searches a list: `x in NAME` or `NAME.index(x)`, of an attribute that the file, or a name that the function
    or the file, makes a list and nothing else."""
    module, function = parsed(place.file), function_at(place)
    if module is None or isinstance(own, BLOCKS):
        return None
    given = [(one, ".") for one in ast.walk(module) if isinstance(one, ast.Assign)]
    given += [
        (one, "") for one in (*module.body, *(ast.walk(function) if function else ())) if isinstance(one, ast.Assign)
    ]
    made: dict[str, bool] = {}
    for one, dot in given:
        for name in map(ast.unparse, one.targets):
            if ("." in name) is bool(dot):
                made[name] = made.get(name, True) and _makes_list(one.value)
    for node in ast.walk(own):
        if isinstance(node, ast.Compare) and isinstance(node.ops[0], (ast.In, ast.NotIn)):
            if made.get(ast.unparse(node.comparators[0])):
                return _short(node)
        elif (
            isinstance(node, ast.Call) and made.get(name_of(node).removesuffix(".index")) and ".index" in name_of(node)
        ):
            return _short(node)
    return None


def _makes_list(node: ast.expr) -> bool:
    if isinstance(node, ast.BinOp):
        return _makes_list(node.left) or _makes_list(node.right)
    if isinstance(node, ast.Call):
        return name_of(node).split(".")[-1] in {"list", "sorted", "split", "splitlines", "readlines", "tolist"}
    return isinstance(node, (ast.List, ast.ListComp))


def last_of_all_at(place: Place) -> Cause | None:
    """Whether the statement at a line calls a part of the model of whose output only the last position is used."""
    held, function = statements_at(place), function_at(place)
    if not held or function is None or isinstance(held[0], BLOCKS):
        return None
    own = held[0]
    called = {ast.unparse(one) for one in calls_in(own) if name_of(one).startswith("self.")}
    names = {ast.unparse(target) for target in own.targets} if isinstance(own, ast.Assign) else set()
    given = names if isinstance(own, ast.Assign) and ast.unparse(own.value) in called else set()
    uses = [one for one in ast.walk(function) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Load)]
    for one in ast.walk(function):
        if isinstance(one, ast.Subscript) and _is_last(one.slice):
            of = ast.unparse(one.value)
            if of in called or (of in given and sum(use.id == of for use in uses) == 1):
                return LAST
    return None


def _is_last(index: ast.expr) -> bool:
    """`:, -1`, with more dimensions behind it or not."""
    at = index.elts if isinstance(index, ast.Tuple) else []
    return len(at) > 1 and isinstance(at[0], ast.Slice) and ast.unparse(at[1]) == "-1"


def product_at(place: Place) -> Cause | None:
    """What the statement at a line multiplies by, where that is mostly zeros."""
    held = statements_at(place)
    for made_by, cause, modules in ((_ONE_HOT, ONE_HOT, True), (_DIAGONAL, DIAGONAL, False)):
        if held and _multiplies(held[0], function_at(place) or held[0], made_by, modules):
            return cause
    return None


def cross_entropy_at(place: Place) -> Cause | None:
    """Whether the function around a line multiplies a logarithm by one-hot targets."""
    function = function_at(place)
    if function is None or _trains(function):
        return None
    called = {name_of(call).split(".")[-1] for call in calls_in(function)}
    products = any(isinstance(one, ast.BinOp) and isinstance(one.op, ast.Mult) for one in ast.walk(function))
    by_hand = "one_hot" in called and called & {"log", "log_softmax"} and products | ("mul" in called)
    return CROSS_ENTROPY if by_hand else None


def _by_what_it_calls(
    own: ast.stmt, calls: Sequence[ast.Call], place: Place, inside: str, known_here: Sequence[Known]
) -> Cause | None:
    qualified = (place.function or "").partition(".<locals>.<")[0]
    function, package = qualified.split(".")[-1], inside.partition(".")[0]
    indexed = [one for one in ast.walk(own) if isinstance(one, ast.Subscript)] if not isinstance(own, BLOCKS) else []
    for known in known_here:
        if known.is_inside(inside):
            return known.cause
    for known in known_here:
        for call in calls:
            if known.matches(call):
                return _about(known.cause, call)
        for one in indexed:
            if isinstance(one.value, ast.Attribute) and one.value.attr in known.indexers:
                return _with(known.cause, _short(one))
    for known in known_here:
        if function in known.ends or package in known.packages:
            return _with(known.cause, f"{function}(...)")
    if (searched := _searched(own, place)) is not None:
        return _with(LIST, searched)
    if re.search("[Tt]okeni[sz]", qualified):
        return next(one.cause for one in KNOWN if one.cause.id == "tokenizing")
    made = [call for call in calls if re.fullmatch(ARRAYS, name_of(call)) and _of_many(call)]
    return _about(ARRAY, made[0]) if made and package in {"", "numpy"} else None


def elements(place: Place, nested: bool = False) -> Cause | None:
    """That the statement at a line is one of a loop in its function that does not train, and that is not over a few
    things, as the items of a dict. nested: of one in another."""
    held = statements_at(place)
    inner = takewhile(lambda one: not isinstance(one, (ast.FunctionDef, ast.AsyncFunctionDef)), held)
    loops: list[ast.AST] = [one for one in inner if isinstance(one, (ast.For, ast.While)) and not _trains(one)]
    if held and not isinstance(held[0], BLOCKS):
        loops = [*(one for one in ast.walk(held[0]) if isinstance(one, COMPREHENSIONS)), *loops]
    loops = [one for one in loops if not _of_few(one, parsed(place.file))]
    if len(loops) < 1 + nested:
        return None
    head = (
        loops[0].iter if isinstance(loops[0], ast.For) else loops[0].test if isinstance(loops[0], ast.While) else None
    )
    return _with(ELEMENTS, _short(loops[0] if head is None else head))


def _of_few(loop: ast.AST, module: ast.Module | None) -> bool:
    """Whether a loop is over a dict's items, a module's modules, things that it calls (modules, transforms), or a few
    that are written there or as a constant of the file."""
    assigned = [one for one in getattr(module, "body", ()) if isinstance(one, ast.Assign)]
    given = {name_at(one.targets[0]): one.value for one in assigned}

    def few(over: ast.expr) -> bool:
        over = given.get(over.id, over) if isinstance(over, ast.Name) else over
        if isinstance(over, (ast.Tuple, ast.List, ast.Set, ast.Dict)):
            return 0 < len(over.keys if isinstance(over, ast.Dict) else over.elts) <= FEW
        if not isinstance(over, ast.Call):
            return False
        name = name_of(over).split(".")[-1]
        if name == "range":
            return all(
                isinstance(one, ast.Constant) and isinstance(one.value, int) and one.value <= FEW for one in over.args
            )
        return name in OF_FEW or (name in PASSES_ON and any(map(few, over.args)))

    heads = loop.generators if isinstance(loop, COMPREHENSIONS) else [loop] if isinstance(loop, ast.For) else []
    names = {node.id for one in heads for node in ast.walk(one.target) if isinstance(node, ast.Name)}
    calls_them = any(isinstance(call.func, ast.Name) and call.func.id in names for call in calls_in(loop))
    return bool(heads) and (calls_them or all(few(one.iter) for one in heads))


def _multiplies(own: ast.stmt, function: ast.AST, made_by: frozenset[str], modules: bool = False) -> bool:
    """Whether the statement multiplies by what a function of one of these names made, in it or before it in the
    function. modules: or hands that to a module of the model's."""
    products = [one for one in ast.walk(own) if isinstance(one, ast.BinOp) and isinstance(one.op, ast.MatMult)]
    operands = [operand for one in products for operand in (one.left, one.right)]
    for call in calls_in(own):
        name = name_of(call)
        if name.split(".")[-1] in PRODUCTS or (modules and name.startswith("self.")):
            operands += call.args

    def is_it(node: ast.AST) -> bool:
        return isinstance(node, ast.Call) and name_of(node).split(".")[-1] in made_by

    return any(_holds(operand, is_it, function) for operand in operands)


def of_all_pairs(place: Place) -> bool:
    """Whether the statement at a line computes with the differences of all pairs: `x[:, None] - y[None]`."""
    held = statements_at(place)
    if not held or isinstance(held[0], BLOCKS):
        return False
    function = function_at(place) or held[0]
    given = [(one, _new_dimension(one.value)) for one in ast.walk(function) if isinstance(one, ast.Assign)]
    dimensions = {ast.unparse(target): at for one, at in given if at for target in one.targets}

    def is_pairs(node: ast.AST) -> bool:
        if not (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub)):
            return False
        left, right = (_new_dimension(side) or dimensions.get(ast.unparse(side)) for side in (node.left, node.right))
        return bool(left and right and left != right)

    return _holds(held[0], is_pairs, function)


def _holds(node: ast.AST, is_it: Callable[[ast.AST], bool], function: ast.AST) -> bool:
    """Whether there is one in it, or a name that was given to one in the function."""
    made = [one for one in ast.walk(function) if isinstance(one, ast.Assign) and any(map(is_it, ast.walk(one.value)))]
    names = {ast.unparse(target) for one in made for target in one.targets}
    return any(is_it(one) or (isinstance(one, ast.expr) and ast.unparse(one) in names) for one in ast.walk(node))


def _new_dimension(node: ast.expr) -> str:
    """Where a tensor gets one: "0" of `x.unsqueeze(0)` and of `x[None]`; "" where it gets none."""
    if isinstance(node, ast.Subscript):
        index = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        return next(
            (str(at) for at, one in enumerate(index) if isinstance(one, ast.Constant) and one.value is None), ""
        )
    calls = (call for call in calls_in(node) if name_of(call).split(".")[-1] == "unsqueeze")
    return next((ast.unparse(call.args[-1]) for call in calls if call.args), "")


def trains(place: Place) -> bool:
    """Whether the function around a line holds the loop's backward or update."""
    function = function_at(place)
    return function is None or _trains(function)


def _trains(node: ast.AST) -> bool:
    return any(name_of(call).split(".")[-1] in {"backward", "step"} for call in calls_in(node))


def through_numpy(place: Place) -> bool:
    """Whether the statement at a line computes with numpy, or makes an array of a tensor."""
    held = statements_at(place)
    if not held or isinstance(held[0], BLOCKS):
        return False
    names = {one.id for one in ast.walk(held[0]) if isinstance(one, ast.Name)}
    return bool(names & {"np", "numpy"}) or any(name_of(call).split(".")[-1] == "numpy" for call in calls_in(held[0]))


def _about(cause: Cause, call: ast.Call) -> Cause:
    return _with(cause, _short(call.args[0] if cause.id == "tensor-of-list" else call))


def _short(node: ast.AST) -> str:
    text = " ".join(ast.unparse(node).split())
    if len(text) <= SHORT:
        return text
    return f"{name_of(node)}(...)" if isinstance(node, ast.Call) and name_of(node) else f"{text[:SHORT]} ..."


def _with(cause: Cause, it: str) -> Cause:
    return replace(cause, instead=cause.instead.replace("{it}", it))


def _of_head(block: ast.stmt) -> Iterator[ast.Call]:
    """Calls in the line that begins a block, not in what it holds."""
    for name in ("iter", "test"):
        if (head := getattr(block, name, None)) is not None:
            yield from calls_in(head)
    for item in getattr(block, "items", ()):
        yield from calls_in(item.context_expr)


def over_parameters(place: Place) -> bool:
    """Whether the statement at a line is in a loop over parameters."""
    return any(isinstance(one, ast.For) and _over_parameters(one) for one in statements_at(place))


def _over_parameters(loop: ast.For) -> bool:
    """`for p in model.parameters()`, or an optimizer's `for p in group["params"]`."""
    held = [one.slice for one in ast.walk(loop.iter) if isinstance(one, ast.Subscript)]
    if any(isinstance(one, ast.Constant) and one.value == "params" for one in held):
        return True
    return any(name_of(call).split(".")[-1] in OF_PARAMETERS for call in calls_in(loop.iter))
