"""Whole batches of a TensorDataset: a sampler of index lists, one indexing of each tensor, and no collating."""

from collections.abc import Mapping

import libcst as cst

from ..edits import Replacement, expression, replace
from ..places import Places, Site
from ..scopes import dotted
from ._base import NO_TORCH, CannotWrite, Edit, Outcome, Rule, Settings, already, constant, touched, with_torch

TENSORS = ("torch.utils.data.TensorDataset", "torch.utils.data.dataset.TensorDataset")
ORDER = ("dataset", "batch_size", "shuffle", "sampler", "batch_sampler", "num_workers", "collate_fn", "pin_memory",
         "drop_last")  # fmt: skip
"""DataLoader's positional arguments."""
GONE = ("batch_size", "shuffle", "sampler", "drop_last")
OTHERWISE = {
    "batch_size": "would be None", "batch_sampler": "would be None", "drop_last": "would be False",
    "sampler": "would give lists",
}  # fmt: skip
"""Attributes of the loader, and what a line that reads them would find."""
ITS_OWN = (
    "the samples are made by a dataset that is not torch's TensorDataset: whether all of a batch can be taken at once "
    "is proved by the lever in each run"
)


def edit(places: Places, settings: Settings, recipe: Mapping[str, Settings]) -> Outcome:
    """Refuses other datasets, arguments that are not known, and loaders of which something is read that would be
    otherwise."""
    site = places.training_loader()
    if isinstance(site, CannotWrite):
        return site
    if not site.kind:
        return CannotWrite("the loader is of a class of your own, whose arguments are not known", (site.place,))
    if any(arg.star for arg in site.call.args):
        return CannotWrite("its arguments come from a `*` list or a `**` dictionary", (site.place,))
    given = _given(site.call)
    if (
        "sampler" in given
        and _name(given["sampler"]).endswith("BatchSampler")
        and _text(given.get("batch_size")) == "None"
    ):
        return already(places, [site.place])
    why = _why_not(places, site, given)
    if why is not None:
        return why
    torch = with_torch(site.scope)
    return CannotWrite(NO_TORCH, (site.place,)) if torch is None else _write(places, site, given, torch)


def _given(call: cst.Call) -> dict[str, cst.BaseExpression]:
    """The arguments by name."""
    return {ORDER[at] if arg.keyword is None else arg.keyword.value: arg.value for at, arg in enumerate(call.args)}


def _why_not(places: Places, site: Site, given: Mapping[str, cst.BaseExpression]) -> CannotWrite | None:
    dataset = given.get("dataset")
    origins = places.names.origins(dataset, site.scope) if dataset is not None else []
    if not origins or not all(
        isinstance(at.node, cst.Call)
        and places.names.resolve(at.node.func, places.names.scope(at.source, at.node)) in TENSORS
        for at in origins
    ):
        return CannotWrite(ITS_OWN, (site.place, *(at.source.place(at.node) for at in origins)))
    if dotted(dataset) is None:
        return CannotWrite("the dataset is made in the call of the loader; give it a line of its own", (site.place,))
    if "batch_sampler" in given or "collate_fn" in given or _text(given.get("batch_size")) == "None":
        return CannotWrite("the script makes its batches itself", (site.place,))
    if any(name in given and not isinstance(constant(given[name]), bool) for name in ("shuffle", "drop_last")):
        return CannotWrite("whether it shuffles, or drops the last batch, is not written out", (site.place,))
    for name, becomes in OTHERWISE.items():
        reads = [
            source.place(node)
            for source in places.project.sources.values()
            for node in source.walk.uses.get(name, ())
            if isinstance(parent := source.parent(node), cst.Attribute)
            and parent.attr is node
            and _of(places, parent, site)
        ]
        if reads:
            return CannotWrite(f"the loader's {name} is read here, and {becomes}", tuple(reads))
    return None


def _of(places: Places, node: cst.Attribute, site: Site) -> bool:
    """Whether an attribute may be of the loader."""
    for source in places.project.sources.values():
        if node in source.walk.parents:
            origins = places.names.origins(node.value, places.names.scope(source, node))
            return any(at.node is site.call for at in origins)
    return False


def _write(places: Places, site: Site, given: Mapping[str, cst.BaseExpression], torch: str) -> Edit:
    data = f"{torch}.utils.data"
    dataset = _text(given["dataset"])
    sampler = _text(given.get("sampler"))
    if not sampler and constant(given.get("shuffle", cst.Name("False"))) is True:
        generator = f", generator={_text(given['generator'])}" if "generator" in given else ""
        sampler = f"{data}.RandomSampler({dataset}{generator})"
    sampler = sampler or f"{data}.SequentialSampler({dataset})"
    size = _text(given.get("batch_size")) or "1"
    drop = _text(given.get("drop_last")) or "False"
    batches = f"{data}.BatchSampler({sampler}, {size}, {drop})"
    kept = [f"{name}={_text(value)}" for name, value in given.items() if name not in {*GONE, "dataset"}]
    arguments = ", ".join([dataset, f"sampler={batches}", "batch_size=None", *kept])
    text = f"{site.source.tree.code_for_node(site.call.func)}({arguments})"
    changes: dict[cst.CSTNode, Replacement] = {site.call: lambda _: expression(site.source, text)}
    project = places.project.with_sources(replace(site.source, changes))
    return Edit(project, (site.place,), touched(site.source, site.scope))


def _text(node: cst.BaseExpression | None) -> str:
    return "" if node is None else cst.Module([]).code_for_node(node)


def _name(node: cst.BaseExpression) -> str:
    return dotted(node.func) or "" if isinstance(node, cst.Call) else ""


RULE = Rule("batch-fetch", edit, order=36)
