"""Where the training happens in the user's source: its loop, the calls of its model, its loader and optimizers."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Final

import libcst as cst

from hotlap.records.patch import Line
from hotlap.records.run import Facts

from .names import At, Names, argument, subclasses
from .project import Project
from .scopes import Scope, Var, dotted
from .tensors import LOSS, Tensors
from .tree import Source

OPTIMIZER: Final = re.compile(r"torch\.optim(?:\.(?!lr_scheduler\.|swa_utils\.)\w+)?\.([A-Z]\w*)")
LOADERS: Final = ("torch.utils.data.DataLoader", "torch.utils.data.dataloader.DataLoader")
MODULES: Final = re.compile(r"(?:Module|\btorch\.nn\.(?:modules\.\w+\.)?[A-Z]\w*)$")
DERIVED_LOADERS: Final = re.compile(r"torch\.utils\.data\.(?:dataloader\.)?DataLoader$")
NO_GRAD: Final = ("no_grad", "inference_mode")


@dataclass(frozen=True, eq=False)
class Site:
    """A call in the user's source. kind: the class that it makes an instance of, where that is known."""

    source: Source
    scope: Scope
    call: cst.Call
    kind: str = ""

    @property
    def place(self) -> Line:
        """As the user is told."""
        return self.source.place(self.call)


@dataclass(frozen=True)
class CannotWrite:
    """Why something can't be found or written safely, and the lines to look at. by_hand: it may be written by hand."""

    why: str
    lines: tuple[Line, ...] = ()
    by_hand: bool = True


@dataclass
class Places:
    """What a rule asks of a project. facts: of a run of the command, where one is known. cuda: the recipe was made on
    a CUDA device."""

    project: Project
    facts: Facts | None
    cuda: bool
    names: Names = field(init=False)
    tensors: Tensors = field(init=False)

    def __post_init__(self) -> None:
        self.names = Names(self.project)
        self.tensors = Tensors(self.names)

    # the loop

    @cached_property
    def backwards(self) -> list[Site]:
        """Calls of `backward`, but for those of `super()`."""
        found = []
        for scope, call in self.names.calls:
            func = call.func
            if not isinstance(func, cst.Attribute) or func.attr.value not in {"backward", "manual_backward"}:
                continue
            if not (isinstance(func.value, cst.Call) and dotted(func.value.func) == "super"):
                found.append(Site(scope.source, scope, call))
        return found

    @cached_property
    def loops(self) -> list[Scope]:
        """The functions (or modules) that hold the backward, each once."""
        return list(dict.fromkeys(site.scope for site in self.backwards))

    @cached_property
    def inference(self) -> bool:
        """Whether the command only infers, as it was seen, or as far as its source tells."""
        if self.facts is not None and self.facts.mode != "none":
            return self.facts.mode == "inference"
        if self.backwards or self.optimizers:
            return False
        return any(name in source.walk.uses for source in self.project.sources.values() for name in NO_GRAD)

    @cached_property
    def _anchors(self) -> list[Site]:
        """What the loop that the command is about goes around: the backward, or in inference the model's calls."""
        return self.root_calls if self.inference else self.backwards

    # modules

    def module_class(self, at: At) -> str | None:
        """The class of the module that an expression makes; "" where it is a module of unknown class; None if none."""
        if not isinstance(at.node, cst.Call):
            return None
        scope = self.names.scope(at.source, at.node)
        kind = self.names.instance_of(at)
        if kind is not None:
            return kind.qualname if subclasses(self.names, kind, MODULES) else None
        full = self.names.resolve(at.node.func, scope) or ""
        if re.match(r"torch\.nn\.(modules\.\w+\.)?[A-Z]\w*$", full):
            return None if LOSS.search(full) else full.rpartition(".")[2]
        return None

    @cached_property
    def _trained(self) -> set[cst.CSTNode]:
        """Origins of what the optimizers' parameters are asked of: `X` in `SGD(X.parameters())`."""
        found: set[cst.CSTNode] = set()
        for site in self.optimizers:
            for source, node in self._parameter_calls(site):
                scope = self.names.scope(source, node)
                found |= {at.node for at in self.names.origins(node, scope)}
        return found

    def _parameter_calls(self, site: Site) -> Iterator[tuple[Source, cst.BaseExpression]]:
        given = argument(site.call, 0, "params")
        asked = [given] if given is not None else []
        if given is not None and dotted(given):
            asked = [at.node for at in self.names.origins(given, site.scope)] or asked
        for node in asked:
            for call in calls_in(node):
                if isinstance(call.func, cst.Attribute) and call.func.attr.value in {"parameters", "named_parameters"}:
                    yield site.source, call.func.value

    @cached_property
    def root_calls(self) -> list[Site]:
        """Calls of the trained models in the training loops (or in functions that these call), not under `no_grad`; of
        every model where the command only infers."""
        if self.inference:
            return self._root_calls({scope for scope, _ in self.names.calls})
        found = self._root_calls(self.loops)
        if not found:
            found = self._root_calls(self._called_from(self.loops))
        trained = [site for site in found if site.kind.startswith("*")]
        return trained or found

    def _root_calls(self, scopes: Iterable[Scope]) -> list[Site]:
        within = set(scopes)
        found = []
        for scope, call in self.names.calls:
            if scope not in within or dotted(call.func) is None:
                continue
            if not self.inference and self.without_gradients(scope, call):
                continue
            kind = self._model(call, scope)
            if kind is not None:
                found.append(Site(scope.source, scope, call, kind))
        return found

    def _model(self, call: cst.Call, scope: Scope) -> str | None:
        """The class of the model that a call runs (with a star where an optimizer has its parameters)."""
        origins = self.names.origins(call.func, scope)
        if self.names.definition(call.func, scope) is not None or not origins or self._own_part(call, scope):
            return None
        star = "*" if any(at.node in self._trained for at in origins) else ""
        kinds = [self.module_class(at) for at in origins]
        known = [kind for kind in kinds if kind is not None]
        if not star and not known:
            return None
        kind = next((kind for kind in known if kind), "")
        return star + kind if self._is_root(kind) else None

    def _own_part(self, call: cst.Call, scope: Scope) -> bool:
        """Whether a module calls one of its own parts, which is then no outermost one."""
        own = scope.owner is not None and subclasses(self.names, scope.owner, MODULES)
        return own and (dotted(call.func) or "").partition(".")[0] == "self"

    def _is_root(self, kind: str) -> bool:
        """Whether the run saw a module of this class as the outermost one, as far as that can be told."""
        roots = self.facts.roots if self.facts is not None else ()
        if not kind or not roots or any(root.wrapper or root.name == "OptimizedModule" for root in roots):
            return True
        return any(
            root.name.rpartition(".")[2] == kind.rpartition(".")[2] for root in roots if root.training or self.inference
        )

    def _called_from(self, scopes: Iterable[Scope]) -> list[Scope]:
        within = set(scopes)
        found = []
        for scope, call in self.names.calls:
            if scope in within and not self.without_gradients(scope, call):
                called = self.names.definition(call.func, scope)
                if called is not None and isinstance(called.node, cst.FunctionDef) and not _undifferentiated(called):
                    found.append(called)
        return found

    def without_gradients(self, scope: Scope, node: cst.CSTNode) -> bool:
        """Whether a node stands under `no_grad` or `inference_mode`, or in an `if` that is not for training."""
        if _undifferentiated(scope):
            return True
        around: cst.CSTNode | None = scope.source.parent(node)
        while around is not None and around is not scope.node:
            if isinstance(around, cst.With) and any(_last(item.item) in NO_GRAD for item in around.items):
                return True
            around = scope.source.parent(around)
        return False

    # optimizers and loaders

    @cached_property
    def optimizers(self) -> list[Site]:
        """Calls that make one of torch's own optimizers; kind: its class."""
        found = []
        for scope, call in self.names.calls:
            match = OPTIMIZER.fullmatch(self.names.resolve(call.func, scope) or "")
            if match:
                found.append(Site(scope.source, scope, call, match[1]))
        return found

    @cached_property
    def loaders(self) -> list[Site]:
        """Calls that make a DataLoader; kind: "" where it is of a class of the user's derived from torch's."""
        found = []
        for scope, call in self.names.calls:
            full = self.names.resolve(call.func, scope) or ""
            kind = self.names.definition(call.func, scope)
            mine = (
                kind is not None
                and isinstance(kind.node, cst.ClassDef)
                and subclasses(self.names, kind, DERIVED_LOADERS)
            )
            if full in LOADERS or mine:
                found.append(Site(scope.source, scope, call, "" if mine else "DataLoader"))
        return found

    @cached_property
    def of_models(self) -> list[Source]:
        """The files behind the models that were seen to run; all where none were, or theirs are not the project's."""
        roots = self.facts.roots if self.facts is not None else ()
        files = {Path(root.file).resolve() for root in roots if root.file is not None}
        found = {source.path: source for file in files for source in self.project.behind(file)}
        return list(found.values()) if found else list(self.project.sources.values())

    def training_loader(self) -> Site | CannotWrite:
        """The call that makes the loader which the training loop iterates."""
        if not self.loaders:
            return CannotWrite("no DataLoader(...) was found in your files", self._loop_lines())
        fed = self._feeding()
        if not fed:
            fed = [site for site in self.loaders if site.scope.name in {"train_dataloader", "get_train_dataloader"}]
        if not fed and len(self.loaders) == 1:
            fed = self.loaders
        if len(fed) == 1:
            return fed[0]
        which = fed or self.loaders
        return CannotWrite(
            f"{len(which)} DataLoaders are made, and which of them feeds the training loop the source does not tell",
            tuple(site.place for site in which),
        )

    def _feeding(self) -> list[Site]:
        """Loaders that reach the loop around a backward, or an `iter()` in its function."""
        nodes: set[cst.CSTNode] = set()
        for site in self._anchors:
            for scope, iterated in self._iterated(site):
                nodes |= {at.node for at in self._unwrapped(iterated, scope, 6)}
        return [site for site in self.loaders if site.call in nodes]

    def _iterated(self, site: Site) -> Iterator[tuple[Scope, cst.BaseExpression]]:
        """What the loops around a backward go over, outwards, and on through the callers where none is a loader's."""
        scopes = [site.scope]
        waiting: list[tuple[Scope, cst.CSTNode]] = [(site.scope, site.call)]
        while waiting and len(scopes) < 16:
            scope, node = waiting.pop()
            loop = scope.source.around(node, cst.For)
            while loop is not None:
                if scope.source.scope(loop) is scope.node:
                    yield scope, loop.iter
                loop = scope.source.around(loop, cst.For)
            yield from self._iterators(scope)
            for caller, call, _ in self.names.callers(scope):
                if caller not in scopes:
                    scopes.append(caller)
                    waiting.append((caller, call))
            if scope.parent is not None and isinstance(scope.parent.node, cst.FunctionDef):
                waiting.append((scope.parent, scope.node))  # a closure, as LBFGS takes one

    def _iterators(self, scope: Scope) -> Iterator[tuple[Scope, cst.BaseExpression]]:
        for other, call in self.names.calls:
            if other is not scope or dotted(call.func) not in {"iter", "next"}:
                continue
            value = argument(call, 0, "")
            if value is not None and (self.inference or not self.without_gradients(scope, call)):
                yield scope, value

    def _unwrapped(self, node: cst.BaseExpression, scope: Scope, depth: int) -> Iterator[At]:
        """Origins of what is iterated, through `enumerate`, `tqdm` and the like, and the user's own generators."""
        for at in self.names.origins(node, scope):
            yield at
            if depth and isinstance(at.node, cst.Call) and not self._makes_loader(at.node):
                home = self.names.scope(at.source, at.node)
                for value in [
                    arg.value for arg in at.node.args if dotted(arg.value) or isinstance(arg.value, cst.Call)
                ]:
                    yield from self._unwrapped(value, home, depth - 1)

    def _makes_loader(self, call: cst.Call) -> bool:
        return any(site.call is call for site in self.loaders)

    def _loop_lines(self) -> tuple[Line, ...]:
        return tuple(site.place for site in self.backwards[:3])

    # where the model gets its final value

    def model_variable(self, site: Site) -> Var | CannotWrite:
        """The variable that holds the model where it was last assigned on its way to a call of it."""
        name, scope = dotted(site.call.func), site.scope
        for _ in range(8):
            variable = self.names.variable(name or "", scope)
            if variable is None:
                return CannotWrite("where the model is assigned was not found", (site.place,))
            bindings = variable.scope.names[variable.name]
            parameters = [binding for binding in bindings if binding.parameter is not None]
            if len(parameters) != len(bindings):
                if parameters:
                    return CannotWrite(f"`{variable.name}` is a parameter and assigned again", (site.place,))
                return variable
            given = self._given(variable, parameters[0].parameter or 0)
            if len(given) != 1:
                return CannotWrite(
                    f"`{variable.name}` is given by {len(given) or 'no'} callers that were found", (site.place,)
                )
            name, scope = given[0]
        return CannotWrite("the model goes through too many functions", (site.place,))

    def _given(self, variable: Var, position: int) -> list[tuple[str, Scope]]:
        """The different names that callers give for a parameter."""
        found: dict[tuple[str, Scope], None] = {}
        for scope, call, skipped in self.names.callers(variable.scope):
            value = argument(call, position - skipped, variable.name)
            name = dotted(value)
            found[name or "?", scope] = None
        return list(found)


class _Calls(cst.CSTVisitor):
    def __init__(self) -> None:
        self.found: list[cst.Call] = []

    def visit_Call(self, node: cst.Call) -> None:
        self.found.append(node)


def calls_in(node: cst.CSTNode) -> list[cst.Call]:
    """Every call in a node."""
    finder = _Calls()
    node.visit(finder)
    return finder.found


def _undifferentiated(scope: Scope) -> bool:
    """Whether a function is decorated with `no_grad` or `inference_mode`."""
    node = scope.node
    return isinstance(node, cst.FunctionDef) and any(_last(item.decorator) in NO_GRAD for item in node.decorators)


def _last(node: cst.BaseExpression) -> str:
    """The last part of the name of what is called."""
    func = node.func if isinstance(node, cst.Call) else node
    return (dotted(func) or "").rpartition(".")[2]
