"""Where the training happens in the user's source: its loop, the calls of its model, its loader and optimizers."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile
from typing import Final

import libcst as cst

from hotlap.records.errors import HotlapError
from hotlap.records.patch import Line
from hotlap.records.run import Facts

from .names import At, Names, argument
from .project import Project
from .scopes import Scope, Source, Var, dotted, is_method_call, last_name, nodes
from .tensors import LOSS, Tensors

OPTIMIZER: Final = re.compile(r"torch\.optim(?:\.(?!lr_scheduler\.|swa_utils\.)\w+)?\.([A-Z]\w*)")
LOADER: Final = re.compile(r"torch\.utils\.data\.(?:dataloader\.)?DataLoader$")
MODULES: Final = re.compile(r"(?:Module|\btorch\.nn\.(?:modules\.\w+\.)?[A-Z]\w*)$")
LAYER: Final = re.compile(r"torch\.nn\.(modules\.\w+\.)?[A-Z]\w*$")
NO_GRAD: Final = ("no_grad", "inference_mode")


@dataclass(frozen=True, eq=False)
class Site:
    """A call in the user's source. kind: the class that it makes an instance of, where that is known."""

    scope: Scope
    call: cst.Call
    kind: str = ""

    @property
    def source(self) -> Source:
        """The file that it stands in."""
        return self.scope.source

    @property
    def place(self) -> Line:
        """As the user is told."""
        return self.source.place(self.call)


class CannotTell(HotlapError):
    """What the source does not tell for sure, and the lines to look at."""

    def __init__(self, why: str, lines: Iterable[Line | Site] = ()) -> None:
        super().__init__(why)
        self.why = why
        self.lines = lines_of(lines)


def lines_of(sites: Iterable[Line | Site]) -> tuple[Line, ...]:
    """The lines of some calls, each once."""
    return tuple(dict.fromkeys(site.place if isinstance(site, Site) else site for site in sites))


@dataclass(frozen=True)
class Places:
    """What is asked of a project. facts: of a run of the command, where one is known. cuda: it is for a CUDA device."""

    project: Project
    facts: Facts | None
    cuda: bool

    @cached_property
    def names(self) -> Names:
        """What its names stand for."""
        return Names(self.project)

    @cached_property
    def tensors(self) -> Tensors:
        """What is known of its variables."""
        return Tensors(self.names)

    def calls_named(self, *last: str) -> list[Site]:
        """Every call whose function's name ends in one of these."""
        return [Site(scope, call) for scope, call in self.names.calls if last_name(call) in last]

    def calls_of(self, *full: str) -> list[Site]:
        """Every call of what is imported by one of these full names."""
        return [Site(scope, call) for scope, call in self.names.calls if self.names.resolve(call.func, scope) in full]

    def assigned(self, *last: str) -> list[tuple[Source, cst.Assign]]:
        """Every assignment to an attribute whose dotted name ends so."""
        return [
            (source, node)
            for source in self.project.sources.values()
            for node in source.every(cst.Assign)
            if any((dotted(target.target) or "").endswith(last) for target in node.targets)
        ]

    # the loop

    @cached_property
    def backwards(self) -> list[Site]:
        """Calls of `backward`, but for those of `super()`."""
        return [
            site
            for site in self.calls_named("backward", "manual_backward")
            if is_method_call(site.call) and last_name(site.call.func.value) != "super"
        ]

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

    # modules

    def origins(self, site: Site) -> list[At]:
        """What makes that which is called."""
        return self.names.origins(site.call.func, site.scope)

    def same_model(self, node: cst.BaseExpression, scope: Scope, sites: Iterable[Site]) -> bool:
        """Whether an expression is one of the models that are called."""
        own = {at.node for at in self.names.origins(node, scope)}
        return any(at.node in own for site in sites for at in self.origins(site))

    def methods_of(self, sites: Iterable[Site], name: str) -> list[Site]:
        """Calls of a method of one of the models that are called."""
        return [
            site
            for site in self.calls_named(name)
            if is_method_call(site.call) and self.same_model(site.call.func.value, site.scope, sites)
        ]

    def module_class(self, at: At) -> str | None:
        """The class of the module that an expression makes; None if it makes none, or a loss."""
        kind = self.names.instance_of(at)
        if kind is not None:
            return kind.qualname if self.names.derives(kind, MODULES) else None
        full = self.names.made_by(at)
        return full.rpartition(".")[2] if LAYER.match(full) and not LOSS.search(full) else None

    @cached_property
    def _trained(self) -> set[cst.CSTNode]:
        """Origins of what the optimizers' parameters are asked of: `X` in `SGD(X.parameters())`."""
        found: set[cst.CSTNode] = set()
        for site in self.optimizers:
            given = argument(site.call, 0, "params")
            if given is None:
                continue
            for at in self.names.origins(given, site.scope) if dotted(given) else [At(site.source, given)]:
                for call in nodes(at.node, cst.Call):
                    if is_method_call(call, "parameters", "named_parameters"):
                        found |= {one.node for one in self.names.origins(call.func.value, at.source.scope(call))}
        return found

    @cached_property
    def root_calls(self) -> list[Site]:
        """Calls of the trained models in the training loops (or in functions that these call), not under `no_grad`; of
        every model where the command only infers."""
        if self.inference:
            return self._root_calls({scope for scope, _ in self.names.calls})
        found = self._root_calls(self.loops) or self._root_calls(self._called_from(self.loops))
        trained = [site for site in found if any(at.node in self._trained for at in self.origins(site))]
        return trained or found

    def _root_calls(self, scopes: Iterable[Scope]) -> list[Site]:
        within = set(scopes)
        return [
            Site(scope, call)
            for scope, call in self.names.calls
            if scope in within and dotted(call.func) and (self.inference or not without_gradients(scope, call))
            if self._runs_model(scope, call)
        ]

    def _runs_model(self, scope: Scope, call: cst.Call) -> bool:
        """Whether a call runs an outermost module: not one of its own parts, which a module calls."""
        own_part = self.in_module(scope) and (dotted(call.func) or "").startswith("self.")
        if own_part or self.names.definition(call.func, scope) is not None:
            return False
        origins = self.names.origins(call.func, scope)
        known = [kind for at in origins if (kind := self.module_class(at)) is not None]
        if known:
            return self._is_root(known[0])
        return any(at.node in self._trained for at in origins)

    def in_module(self, scope: Scope) -> bool:
        """Whether a function is a method of a module of the user's."""
        return scope.owner is not None and self.names.derives(scope.owner, MODULES)

    def _is_root(self, kind: str) -> bool:
        """Whether the run saw a module of this class as the outermost one, as far as that can be told."""
        roots = self.facts.roots if self.facts is not None else ()
        if not roots or any(root.wrapper or root.name == "OptimizedModule" for root in roots):
            return True
        seen = [root.name for root in roots if root.training or self.inference]
        return kind.rpartition(".")[2] in {name.rpartition(".")[2] for name in seen}

    def _called_from(self, scopes: Iterable[Scope]) -> list[Scope]:
        within = set(scopes)
        calls = [(s, call) for s, call in self.names.calls if s in within and not without_gradients(s, call)]
        called = [self.names.definition(call.func, scope) for scope, call in calls]
        return [one for one in called if one is not None and not one.is_class and not _undifferentiated(one)]

    @property
    def start(self) -> tuple[Scope, cst.CSTNode] | None:
        """Where training begins: the outermost loop around each backward, with its scope; None where it is not one."""
        found = {self._outermost_loop(site) for site in self.backwards}
        return found.pop() if len(found) == 1 else None

    def _outermost_loop(self, site: Site) -> tuple[Scope, cst.CSTNode] | None:
        """Out of functions too, as long as one place calls them."""
        best: tuple[Scope, cst.CSTNode] | None = None
        seen: set[Scope] = set()
        scope: Scope = site.scope
        node: cst.CSTNode = site.call
        while scope not in seen:
            seen.add(scope)
            for above in scope.source.above(node):
                if isinstance(above, cst.For | cst.While) and scope.source.scope(above) is scope:
                    best = scope, above
            callers = self.names.callers[scope]
            if len(callers) == 1:
                scope, node, _ = callers[0]
            elif not callers and scope.parent is not None and not scope.parent.is_class:
                scope, node = scope.parent, scope.node  # a closure, as LBFGS takes one
        return best

    # optimizers and loaders

    @cached_property
    def optimizers(self) -> list[Site]:
        """Calls that make one of torch's own optimizers; kind: its class."""
        return [
            Site(scope, call, match[1])
            for scope, call in self.names.calls
            if (match := OPTIMIZER.fullmatch(self.names.resolve(call.func, scope)))
        ]

    @cached_property
    def loaders(self) -> list[Site]:
        """Calls that make a DataLoader; kind: "" where it is of a class of the user's derived from torch's."""
        found = []
        for scope, call in self.names.calls:
            kind = self.names.definition(call.func, scope)
            mine = kind is not None and self.names.derives(kind, LOADER)
            if mine or LOADER.match(self.names.resolve(call.func, scope)):
                found.append(Site(scope, call, "" if mine else "DataLoader"))
        return found

    def training_loader(self) -> Site:
        """The call that makes the loader which the training loop iterates. Raises CannotTell."""
        if not self.loaders:
            raise CannotTell("no DataLoader(...) was found in your files", self.backwards[:3])
        named = [site for site in self.loaders if site.scope.name in {"train_dataloader", "get_train_dataloader"}]
        which = self._feeding() or named or self.loaders
        if len(which) == 1:
            return which[0]
        raise CannotTell(
            f"{len(which)} DataLoaders are made, and the source does not show which one feeds the training loop",
            which,
        )

    def _feeding(self) -> list[Site]:
        """Loaders that reach the loop around a backward (in inference, around a call of the model), or an `iter()` in
        its function."""
        made: set[cst.CSTNode] = set()
        for site in self.root_calls if self.inference else self.backwards:
            for scope, iterated in self._iterated(site):
                made |= {at.node for at in self._unwrapped(iterated, scope, 6)}
        return [site for site in self.loaders if site.call in made]

    def _iterated(self, site: Site) -> Iterator[tuple[Scope, cst.BaseExpression]]:
        """What the loops around a backward go over, outwards, and on through the callers where none is a loader's."""
        scopes = [site.scope]
        waiting: list[tuple[Scope, cst.CSTNode]] = [(site.scope, site.call)]
        while waiting and len(scopes) < 16:
            scope, node = waiting.pop()
            for loop in scope.source.above(node):
                if isinstance(loop, cst.For) and scope.source.scope(loop) is scope:
                    yield scope, loop.iter
            for other, call in scope.source.walk.calls:
                value = argument(call, 0) if other is scope and dotted(call.func) in {"iter", "next"} else None
                if value is not None and (self.inference or not without_gradients(scope, call)):
                    yield scope, value
            for caller, call, _ in self.names.callers[scope]:
                if caller not in scopes:
                    scopes.append(caller)
                    waiting.append((caller, call))
            if scope.parent is not None and isinstance(scope.parent.node, cst.FunctionDef):
                waiting.append((scope.parent, scope.node))  # a closure, as LBFGS takes one

    def _unwrapped(self, node: cst.BaseExpression, scope: Scope, depth: int) -> Iterator[At]:
        """Origins of what is iterated, through `enumerate`, `tqdm` and the like, and the user's own generators."""
        for at in self.names.origins(node, scope):
            yield at
            if depth and isinstance(at.node, cst.Call) and all(site.call is not at.node for site in self.loaders):
                for arg in at.node.args:
                    if dotted(arg.value) or isinstance(arg.value, cst.Call):
                        yield from self._unwrapped(arg.value, at.source.scope(at.node), depth - 1)

    # where the model gets its final value

    def model_variable(self, site: Site) -> Var:
        """The variable that holds the model where it was last assigned on its way to a call. Raises CannotTell."""
        name, scope = dotted(site.call.func) or "", site.scope
        for _ in range(8):
            variable = self.names.variable(name, scope)
            if variable is None:
                raise CannotTell("the assignment of the model was not found", [site])
            parameters = [at for binding in variable.bindings if (at := binding.parameter) is not None]
            if not parameters:
                return variable
            if len(parameters) != len(variable.bindings):
                raise CannotTell(f"`{variable.name}` is a parameter and assigned again", [site])
            given = {
                (dotted(argument(call, parameters[0] - skipped, variable.name)) or "?", caller)
                for caller, call, skipped in self.names.callers[variable.scope]
            }
            if len(given) != 1:
                raise CannotTell(f"`{variable.name}` is given by {len(given) or 'no'} callers that were found", [site])
            name, scope = given.pop()
        raise CannotTell("the model goes through too many functions", [site])


def without_gradients(scope: Scope, node: cst.CSTNode) -> bool:
    """Whether a node stands under `no_grad` or `inference_mode`, or in a function that is decorated so."""
    within = takewhile(lambda above: above is not scope.node, scope.source.above(node))
    return _undifferentiated(scope) or any(
        isinstance(above, cst.With) and any(last_name(item.item) in NO_GRAD for item in above.items) for above in within
    )


def managers(site: Site, name: str) -> list[cst.Call]:
    """Calls of this name in the `with` statements that a call stands in, inner ones first."""
    blocks = [above for above in site.source.above(site.call) if isinstance(above, cst.With)]
    calls = [item.item for block in blocks for item in block.items if isinstance(item.item, cst.Call)]
    return [call for call in calls if (dotted(call.func) or "").endswith(name)]


def _undifferentiated(scope: Scope) -> bool:
    """Whether a function is decorated with `no_grad` or `inference_mode`."""
    node = scope.node
    return isinstance(node, cst.FunctionDef) and any(last_name(item.decorator) in NO_GRAD for item in node.decorators)
