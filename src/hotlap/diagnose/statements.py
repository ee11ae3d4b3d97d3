"""What the statement does that the host's time is spent at, where it is one of those that people report most: which of
`causes.py`."""

import ast
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Final

from hotlap.records.diagnosis import Place

from .causes import (
    ADDS_UP,
    ARRAY,
    ARRAYS,
    CROSS_ENTROPY,
    CUT,
    DEQUE,
    DIAGONAL,
    ELEMENTS,
    FEW,
    JOINED,
    KNOWN,
    LAST,
    LENGTH,
    LIST,
    MANAGER,
    NORM,
    ONE_HOT,
    PAIRS,
    PARAMETERS,
    PENALTY,
    ROW,
    SORTED,
    Cause,
    Known,
    of_many,
)
from .source import (
    COMPREHENSIONS,
    Loop,
    called_in,
    calls_in,
    function_at,
    is_block,
    joins_itself,
    loops_at,
    name_at,
    name_of,
    parsed,
    place_at,
    simple_at,
    statement_at,
    statements_at,
)

SHORT: Final = 60
"""Letters of the user's that are shown."""
SHORT_BODY: Final = 12
"""Statements of a function that only normalizes."""
MEANS: Final = frozenset({"mean", "var", "std", "var_mean", "std_mean"})
NORMS: Final = {
    (True, "-1"): "F.layer_norm({x}, {x}.shape[-1:])",
    (False, "-1"): "F.rms_norm({x}, {x}.shape[-1:])",
    (True, "1"): "F.layer_norm({x}.movedim(1, -1), {x}.shape[1:2]).movedim(-1, 1)",
    (True, "(2, 3)"): "F.instance_norm({x})",
    (True, "(-2, -1)"): "F.instance_norm({x})",
    (True, "(1, 2, 3)"): "F.group_norm({x}, 1)",
}
"""What does the same in one operation, by whether a mean is taken off, and over which dimensions."""
_ONE_HOT, _DIAGONAL = frozenset({"one_hot"}), frozenset({"diag", "diag_embed"})
PRODUCTS: Final = frozenset({"matmul", "mm", "bmm", "linear", "einsum"})
OF_PARAMETERS: Final = frozenset({"parameters", "named_parameters", "state_dict"})
OF_FEW: Final = frozenset({"items", "keys", "values", "modules", "named_modules", "children", "named_children"})
OF_PENALTIES: Final = frozenset({"abs", "norm", "pow", "square", "vector_norm"})
PASSES_ON: Final = frozenset({"enumerate", "zip", "list", "tuple", "sorted", "reversed"})
"""Functions that go through as many as they are given: of several, as many as the shortest has."""
REPEATS: Final = frozenset({"repeat", "repeat_interleave", "tile", "expand", "expand_as", "broadcast_to"})
DRAWS: Final = frozenset({"sample", "choice", "choices", "randint", "randrange", "integers", "permutation", "randperm"})
SHORT_DEQUE: Final = 1024
"""Entries, from which on an access by index is a walk."""
WAITS: Final = frozenset({"next", "recv", "join", "acquire", "put"})
SORTS: Final = frozenset({"sorted", "np.sort", "np.argsort", "numpy.sort", "numpy.argsort"})
READS: Final = frozenset({"read", "read_bytes", "read_text", "recv", "getvalue", "tobytes", "bytes"})
LIGHT: Final = frozenset(
    {"append", "copy", "decode", "float", "from_bytes", "from_numpy", "frombuffer", "int", "len", "ord", "unpack"}
)
"""Functions that take little for a piece of a buffer."""


def cause_at(place: Place, device: bool = False, ranks: int = 1, inside: str = "") -> Cause | None:
    """What the statement at a line does, with the user's expression in the change to make. device: the model is on
    one; ranks: how many there are; inside: the function that the host is in, where that is not the user's."""
    own = statement_at(place)
    if own is None:
        return None
    if (place.function or "").partition(".<locals>.<")[0].endswith("__len__"):
        return LENGTH
    inner = list(_of_head(own) if is_block(own) else calls_in(own))
    known_here = [one for one in KNOWN if (device or not one.device) and (ranks > 1 or not one.ranks)]
    found = _by_what_it_calls(own, inner, place, inside, known_here)
    if found is not None:
        return found
    if over_parameters(place):
        return PARAMETERS
    return product_at(place)


def calls(place: Place, known: Known) -> bool:
    """Whether the statement at a line calls one of these."""
    own = simple_at(place)
    return own is not None and any(map(known.matches, calls_in(own)))


def repeating(frames: Sequence[Place]) -> Place:
    """Where rows are repeated that come to a line: in the innermost frame in whose function a statement says so, and
    the call leads to the line through names; else the line itself. frames: the outermost first."""
    for place in reversed(frames):
        own, scope = statement_at(place), function_at(place) or parsed(place.file)
        if own is None or scope is None:
            continue
        names = _read_in(own)
        given = [one for one in ast.walk(scope) if isinstance(one, ast.Assign) and one.lineno < own.lineno]
        for one in (own, *sorted(given, key=lambda one: -one.lineno)):
            made = {name_at(node) for target in getattr(one, "targets", ()) for node in ast.walk(target)}
            if one is not own and not made & names:
                continue
            if found := next((call for call in calls_in(one) if name_at(call.func) in REPEATS), None):
                return place_at(place.file, found.lineno)
            names |= _read_in(one)
    return frames[-1]


def _read_in(node: ast.AST) -> set[str]:
    return {one.id for one in ast.walk(node) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Load)} - {"self"}


def own_cause_at(place: Place, device: bool, ranks: int, inside: str) -> Cause | None:
    """The same of time that is all the host's own."""
    cause = _shared(place, inside) or cause_at(place, device, ranks, inside)
    if cause is not None or inside:
        return cause
    cut, own = cut_at(place), statement_at(place)
    if cut is None and isinstance(own, ast.Assign) and next(joins_itself(own), None) is not None:
        return JOINED
    return cut[1] if cut is not None else elements(place)


def _shared(place: Place, inside: str) -> Cause | None:
    """What takes long of an object that is asked for its parts: of a Manager's, where the file makes one, or a deque
    of which rows are drawn."""
    module, own = parsed(place.file), simple_at(place)
    if module is None or own is None:
        return None
    called = [(name_at(call.func), call) for call in calls_in(own)]
    if inside.startswith("multiprocessing."):
        waits = any(name in WAITS or (name == "get" and not call.args) for name, call in called)
        made_here = any(re.search(r"\b(Sync|Base)?[mM]anager\b", name_of(call)) for call in calls_in(module))
        return MANAGER if made_here and not waits else None
    if inside and not inside.startswith("random."):
        return None
    given = [one for one in ast.walk(module) if isinstance(one, (ast.Assign, ast.AnnAssign))]
    made = {name_at(one.targets[0] if isinstance(one, ast.Assign) else one.target): one.value for one in given}
    deques = {name for name, value in made.items() if _is_long_deque(value)}
    drawn = [call.args[0] for name, call in called if name in {"sample", "choice", "choices"} and call.args]
    names = {name_at(one.args[0] if isinstance(one, ast.Call) and one.args else one) for one in drawn} - {""}
    if called_in(function_at(place) or own) & DRAWS:
        names |= {name_at(one.value) for one in ast.walk(own) if isinstance(one, ast.Subscript)} & deques
    passed = inside and deques and names - made.keys()  # it has another name where it is made
    return DEQUE if names & deques or passed else None


def _is_long_deque(node: ast.expr | None) -> bool:
    if not isinstance(node, ast.Call) or name_at(node.func) != "deque":
        return False
    most = [getattr(one, "value", None) for one in (*node.args[1:], *(one.value for one in node.keywords))]
    return not any(isinstance(one, int) and one <= SHORT_DEQUE for one in most)


def cut_at(place: Place) -> tuple[Place, Cause] | None:
    """Where bytes, a text or a list are cut from their front, `x = x[n:]`: in the loop around a line, or a generator
    that it goes through. Python lets others look at its next call: if that takes little itself, it is told."""
    own, loop, module = statement_at(place), next(loops_at(place), None), parsed(place.file)
    if module is None or own is None or loop is None or _trains(loop) or ".<locals>.<" in (place.function or ""):
        return None
    if any(name_at(call.func) not in LIGHT for call in (_of_head(own) if is_block(own) else calls_in(own))):
        return None
    of = name_at(loop.iter.func) if isinstance(loop, ast.For) and isinstance(loop.iter, ast.Call) else ""
    generators = [one for one in ast.walk(module) if isinstance(one, ast.FunctionDef) and one.name == of]
    inner = [one for each in generators for one in ast.walk(each) if isinstance(one, Loop)]
    for each in (loop, *inner):
        for at, cut in enumerate(each.body):
            then = next((one for one in each.body[at + 1 :] if _has(one, ast.Call, ast.Yield)), None)
            yields = then is not None and not _has(then, ast.Call)  # and the caller's next call comes first
            if each is not loop or yields:
                then = next((one for one in loop.body if each is not loop and yields and _has(one, ast.Call)), cut)
            if isinstance(cut, ast.Assign) and own in {cut, then or loop}:
                found = place_at(place.file, cut.lineno)
                if _is_cut(cut, found):
                    return found, with_text(CUT, short(cut))
    return None


def _has(node: ast.AST, *kinds: type[ast.AST]) -> bool:
    return any(isinstance(one, kinds) for one in ast.walk(node))


def _is_cut(node: ast.Assign, at: Place) -> bool:
    """Whether it is `x = x[n:]`, and x copies what it is sliced to: its function, or the file where it is an attribute,
    makes it of bytes, a text or a list and nothing else."""
    target, value = node.targets[0], node.value
    if not isinstance(value, ast.Subscript) or not isinstance(value.slice, ast.Slice):
        return False
    if ast.unparse(value.value) != ast.unparse(target) or value.slice.upper or value.slice.step:
        return False
    within = parsed(at.file) if isinstance(target, ast.Attribute) else function_at(at) or parsed(at.file)
    given = [one for one in ast.walk(within or node) if isinstance(one, ast.Assign) and one.value is not value]
    made = [one.value for one in given if ast.unparse(target) in map(ast.unparse, one.targets)]
    begins = value.slice.lower is not None and not isinstance(value.slice.lower, ast.UnaryOp)  # -n keeps the last ones
    return begins and bool(made) and all(map(_makes_copied, made))


def _makes_copied(node: ast.expr) -> bool:
    if isinstance(node, ast.Call) and name_at(node.func) in READS:
        return True
    return _makes_list(node) or (isinstance(node, ast.Constant) and isinstance(node.value, (bytes, str)))


def _searched(own: ast.stmt, place: Place) -> str | None:
    """What searches a list: `x in NAME` or `NAME.index(x)`, of an attribute that the file, or a name that the function
    or the file, makes a list and nothing else."""
    module, function = parsed(place.file), function_at(place)
    if module is None or is_block(own):
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
                return short(node)
        elif (
            isinstance(node, ast.Call) and made.get(name_of(node).removesuffix(".index")) and ".index" in name_of(node)
        ):
            return short(node)
    return None


def _sorts_for_few(node: ast.Subscript) -> bool:
    """Whether it is an end of what numpy or Python sorts: `np.argsort(x)[:, :20]`, `sorted(x)[-20:]`."""
    last = node.slice.elts[-1] if isinstance(node.slice, ast.Tuple) and node.slice.elts else node.slice
    if not isinstance(node.value, ast.Call) or name_of(node.value) not in SORTS or not isinstance(last, ast.Slice):
        return False
    if last.step is not None or (last.lower is None) == (last.upper is None):
        return False
    from_behind = isinstance(last.lower or last.upper, ast.UnaryOp)  # `[1:]` and `[:-1]` are all but one
    return from_behind == (last.upper is None)


def _makes_list(node: ast.expr) -> bool:
    if isinstance(node, ast.BinOp):
        return _makes_list(node.left) or _makes_list(node.right)
    if isinstance(node, ast.Call):
        return name_at(node.func) in {"list", "sorted", "split", "splitlines", "readlines", "tolist"}
    return isinstance(node, (ast.List, ast.ListComp))


def last_of_all_at(place: Place) -> Cause | None:
    """Whether the statement at a line calls a part of the model of whose output only the last position is used."""
    own, function = simple_at(place), function_at(place)
    if own is None or function is None:
        return None
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
    own = statement_at(place)
    for made_by, cause, modules in ((_ONE_HOT, ONE_HOT, True), (_DIAGONAL, DIAGONAL, False)):
        if own is not None and _multiplies(own, function_at(place) or own, made_by, modules):
            return cause
    return None


def cross_entropy_at(place: Place) -> Cause | None:
    """Whether the function around a line multiplies a logarithm by one-hot targets."""
    function = function_at(place)
    if function is None or _trains(function):
        return None
    called = called_in(function)
    products = any(isinstance(one, ast.BinOp) and isinstance(one.op, ast.Mult) for one in ast.walk(function))
    by_hand = "one_hot" in called and called & {"log", "log_softmax"} and products | ("mul" in called)
    return CROSS_ENTROPY if by_hand else None


def norm_at(place: Place) -> Cause | None:
    """Whether the function around a line normalizes its first argument by hand: by a root of a mean of squares, with
    `keepdim`, and does little else."""
    function = function_at(place)
    if not isinstance(function, ast.FunctionDef) or _trains(function) or len(function.body) > SHORT_BODY:
        return None
    nodes, called = list(ast.walk(function)), called_in(function)
    powers = {ast.unparse(one.right) for one in nodes if isinstance(one, ast.BinOp) and isinstance(one.op, ast.Pow)}
    squared = called & {"pow", "square", "var", "std", "var_mean", "std_mean"} or "2" in powers
    rooted = called & {"sqrt", "rsqrt", "std", "std_mean"} or powers & {"0.5", "-0.5"}
    keeps = any(isinstance(one, ast.keyword) and one.arg == "keepdim" for one in nodes)
    given = [one.arg for one in function.args.args if one.arg != "self"]
    if not (squared and rooted and keeps and given) or not called & MEANS:
        return None
    x = given[0]
    centred = any(isinstance(one, ast.BinOp) and isinstance(one.op, ast.Sub) and _is(one.left, x) for one in nodes)
    means = [one for one in calls_in(function) if name_of(one).split(".")[-1] in MEANS]
    over = {ast.unparse(arg) for one in means for arg in _dimension(one)}
    instead = NORMS.get((centred, over.pop() if len(over) == 1 else ""))
    return with_text(NORM, instead.replace("{x}", x)) if instead else None


def layer_norm_at(place: Place) -> Cause | None:
    """The same where a mean is taken off: on the CPU torch computes `rms_norm` as one does by hand."""
    cause = norm_at(place)
    return cause if cause is not None and "rms_norm" not in cause.instead else None


def _dimension(call: ast.Call) -> list[ast.expr]:
    """Over which it reduces, as it is written: of `torch.mean(x, -1)` the second, of `x.mean(-1)` the first."""
    named = [one.value for one in call.keywords if one.arg in {"dim", "axis"}]
    return named or call.args[name_of(call).startswith("torch.") :][:1]


def _is(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def _by_what_it_calls(
    own: ast.stmt, calls: Sequence[ast.Call], place: Place, inside: str, known_here: Sequence[Known]
) -> Cause | None:
    qualified = (place.function or "").partition(".<locals>.<")[0]
    function, package = qualified.split(".")[-1], inside.partition(".")[0]
    indexed = [] if is_block(own) else [one for one in ast.walk(own) if isinstance(one, ast.Subscript)]
    for known in known_here:
        if known.is_inside(inside):
            return known.cause
    for known in known_here:
        for call in calls:
            if known.matches(call):
                return _about(known.cause, call)
        for one in indexed:
            if isinstance(one.value, ast.Attribute) and one.value.attr in known.indexers:
                return with_text(known.cause, short(one))
    for known in known_here:
        if function in known.ends or package in known.packages:
            return with_text(known.cause, f"{function}(...)")
    if (searched := _searched(own, place)) is not None:
        return with_text(LIST, searched)
    if (cut := next(filter(_sorts_for_few, indexed), None)) is not None:
        return with_text(SORTED, short(cut))
    if re.search("[Tt]okeni[sz]", qualified):
        return next(one.cause for one in KNOWN if one.cause.id == "tokenizing")
    made = [call for call in calls if re.fullmatch(ARRAYS, name_of(call)) and of_many(call)]
    return _about(_of_array(own, made[0]), made[0]) if made and package in {"", "numpy"} else None


def _of_array(own: ast.stmt, call: ast.Call) -> Cause:
    """The cause at an array that is made: of a few parts that are written there, none of which outlives the call or is
    what is assigned to, nothing grows."""
    parts = call.args[0] if call.args else None
    if not isinstance(parts, (ast.Tuple, ast.List)) or len(parts.elts) > FEW or _has(parts, ast.Starred):
        return ARRAY
    kept = any(isinstance(one, ast.Attribute) and name_at(one.value) == "self" for one in parts.elts)
    return ARRAY if kept or (isinstance(own, ast.Assign) and any(joins_itself(own))) else ROW


def elements(place: Place, nested: bool = False) -> Cause | None:
    """That the statement at a line is one of a loop in its function that does not train, and that is not over a few
    things, as the items of a dict. nested: of one in another."""
    own, simple = statement_at(place), simple_at(place)
    made = [one for one in ast.walk(simple) if isinstance(one, COMPREHENSIONS)] if simple is not None else []
    loops: list[ast.AST] = [*made, *(one for one in loops_at(place) if not _trains(one))]
    loops = [one for one in loops if not _of_few(one, parsed(place.file))]
    if own is None or len(loops) < 1 + nested:
        return None
    loop = loops[0]
    cause = with_text(ELEMENTS, short(loop.iter if isinstance(loop, ast.For) else getattr(loop, "test", loop)))
    return replace(cause, instead=cause.instead + ADDS_UP) if _adds_up(own, loop) else cause


def _adds_up(own: ast.stmt, loop: ast.AST) -> bool:
    """Whether each turn of a loop goes on from what the one before made, by sums or products."""
    if any(name_of(call) == "sum" for call in calls_in(own)):
        return True
    nodes = [] if isinstance(loop, COMPREHENSIONS) else list(ast.walk(loop))
    if any(isinstance(one, ast.AugAssign) and not isinstance(one.value, ast.Constant) for one in nodes):
        return True
    given = [one for one in nodes if isinstance(one, ast.Assign)]
    again = {name_at(one.targets[0]) for one in given if name_at(one.targets[0]) in map(name_at, ast.walk(one.value))}
    operands = {name_at(side) for one in nodes if isinstance(one, ast.BinOp) for side in (one.left, one.right)}
    return bool((again - {""}) & operands)


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
        name = name_at(over.func)
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
        return isinstance(node, ast.Call) and name_at(node.func) in made_by

    return any(_holds(operand, is_it, function) for operand in operands)


def pairs_at(place: Place) -> Cause | None:
    """Whether the statement at a line computes with the differences of all pairs: `x[:, None] - y[None]`."""
    own = simple_at(place)
    if own is None:
        return None
    function = function_at(place) or own
    given = [(one, _new_dimension(one.value)) for one in ast.walk(function) if isinstance(one, ast.Assign)]
    dimensions = {ast.unparse(target): at for one, at in given if at for target in one.targets}

    def is_pairs(node: ast.AST) -> bool:
        if not (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub)):
            return False
        left, right = (_new_dimension(side) or dimensions.get(ast.unparse(side)) for side in (node.left, node.right))
        return bool(left and right and left != right)

    return PAIRS if _holds(own, is_pairs, function) else None


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
    calls = (call for call in calls_in(node) if name_at(call.func) == "unsqueeze")
    return next((ast.unparse(call.args[-1]) for call in calls if call.args), "")


def trains(place: Place) -> bool:
    """Whether the function around a line holds the loop's backward or update."""
    function = function_at(place)
    return function is None or _trains(function)


def _trains(node: ast.AST) -> bool:
    return bool(called_in(node) & {"backward", "step"})


def through_numpy(place: Place) -> bool:
    """Whether the statement at a line computes with numpy, or makes an array of a tensor."""
    own = simple_at(place)
    names = {one.id for one in ast.walk(own) if isinstance(one, ast.Name)} if own is not None else set()
    return bool(names & {"np", "numpy"}) or (own is not None and "numpy" in called_in(own))


def _about(cause: Cause, call: ast.Call) -> Cause:
    return with_text(cause, short(call.args[0] if cause.id == "tensor-of-list" else call))


def of_all_times(place: Place) -> str:
    """The call at a line of a loop with whole tensors in place of what the loop takes of them: `model(x, state)` of
    `model(x[:, t : t + 1], state)`, or, where that is not seen, what such a call looks like."""
    own, loops = statement_at(place), [one for one in loops_at(place) if isinstance(one, ast.For)]
    over = {node.id for one in loops[:1] for node in ast.walk(one.target) if isinstance(node, ast.Name)}

    def whole(node: ast.expr) -> ast.expr:
        if not isinstance(node, ast.Subscript):
            return node
        return node.value if any(getattr(one, "id", "") in over for one in ast.walk(node.slice)) else node

    for call in calls_in(own) if own is not None else ():
        if (args := [*map(whole, call.args)]) != call.args:
            return short(ast.Call(call.func, args, call.keywords))
    return "out, state = self.rnn(x, state)"


def kept_at(place: Place) -> str:
    """A line with what it keeps from step to step read without its graph: `mean = 0.9 * mean.detach() + new`."""
    own = simple_at(place)
    if isinstance(own, ast.AugAssign):
        own = ast.Assign([own.target], ast.BinOp(own.target, own.op, own.value), lineno=own.lineno)
    if isinstance(own, ast.Assign) and len(own.targets) == 1:
        target, value = (re.escape(ast.unparse(own.targets[0])), ast.unparse(own.value))
        said, times = re.subn(rf"(?<![\w.]){target}(?![\w.(])", lambda found: f"{found[0]}.detach()", value)
        if times:
            return f"{ast.unparse(own.targets[0])} = {said}"
    return "state = state.detach()"


def short(node: ast.AST) -> str:
    """Its text, where that is short; else its beginning."""
    text = " ".join(ast.unparse(node).split())
    if len(text) <= SHORT:
        return text
    return f"{name_of(node)}(...)" if isinstance(node, ast.Call) and name_of(node) else f"{text[:SHORT]} ..."


def with_text(cause: Cause, it: str) -> Cause:
    """The cause with an expression of the user's in its advice."""
    return replace(cause, instead=cause.instead.replace("{it}", it))


def _of_head(block: ast.stmt) -> Iterator[ast.Call]:
    """Calls in the line that begins a block, not in what it holds."""
    for name in ("iter", "test"):
        if (head := getattr(block, name, None)) is not None:
            yield from calls_in(head)
    for item in getattr(block, "items", ()):
        yield from calls_in(item.context_expr)


def penalty_at(place: Place) -> Cause | None:
    """Whether a line adds up norms of parameters for a loss, in a loop over them. Norms of gradients, and of weights
    that are only read, as for a log, are none."""
    own, blocks = simple_at(place), [one for one in statements_at(place) if isinstance(one, ast.With)]
    if own is None or not over_parameters(place):
        return None
    named = {one.attr for one in ast.walk(own) if isinstance(one, ast.Attribute)}
    powers = any(isinstance(one, ast.BinOp) and isinstance(one.op, ast.Pow) for one in ast.walk(own))
    if named & {"grad", "data", "detach", "item"} or not (powers or called_in(own) & OF_PENALTIES):
        return None
    differentiated = not any("no_grad" in ast.unparse(item) for block in blocks for item in block.items)
    return PENALTY if differentiated else None


def over_parameters(place: Place) -> bool:
    """Whether the statement at a line is in a loop over parameters."""
    own = statement_at(place)
    inline = ast.walk(own) if own is not None and not is_block(own) else ()
    loops = (one for one in (*statements_at(place), *inline) if isinstance(one, ast.For | ast.comprehension))
    return any(map(_over_parameters, loops))


def _over_parameters(loop: ast.For | ast.comprehension) -> bool:
    """`for p in model.parameters()`, or an optimizer's `for p in group["params"]`."""
    indices = [one.slice for one in ast.walk(loop.iter) if isinstance(one, ast.Subscript)]
    if any(isinstance(one, ast.Constant) and one.value == "params" for one in indices):
        return True
    return bool(called_in(loop.iter) & OF_PARAMETERS)
