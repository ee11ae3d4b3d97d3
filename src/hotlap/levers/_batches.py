"""Not a lever: DataLoaders whose batches are made larger or smaller from outside."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hotlap.records.run import LoaderFacts


def standard(loader: "LoaderFacts | None") -> str | None:
    """Why a loader can't be resized; None if it can, as far as the facts tell."""
    if loader is None:
        return "no DataLoader feeds the training loop"
    if loader.batch_size is None:
        return "the script makes its batches itself"
    return None


def resize(loader: Any, times: int = 1, parts: int = 1) -> bool:
    """Give a loader batches of `times` as many samples, or of one part of them; once for each loader. Whether it has.

    Raises Refused, the first time, where the script makes its batches itself, or where they do not divide.
    """
    import torch

    from hotlap.agent.seams import Refused

    if hasattr(loader, "_hotlap_resized"):
        return bool(loader._hotlap_resized)
    loader._hotlap_resized = False
    sampler = loader.batch_sampler
    if type(sampler) is not torch.utils.data.BatchSampler or loader.batch_size is None:
        raise Refused("the script makes its batches itself")
    if loader.batch_size % parts:
        raise Refused(f"a batch of {loader.batch_size} samples can't be split into {parts} equal parts")
    size = loader.batch_size * times // parts
    object.__setattr__(loader, "batch_size", size)  # DataLoader's own forbids it, for loaders that are being iterated
    sampler.batch_size = size  # last: this is not taken back where something fails
    loader._hotlap_resized = True
    return True
