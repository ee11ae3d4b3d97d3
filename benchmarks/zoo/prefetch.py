"""Copy batches to the device one ahead of the step that uses them; shared by the hand-tuned scripts."""

import torch


def loader_options(device, workers):
    """Arguments of DataLoader for a CUDA device; the plain ones elsewhere."""
    if device.type != "cuda":
        return {}
    return {"num_workers": workers, "pin_memory": True, "persistent_workers": True, "prefetch_factor": 4}


def prefetch(loader, device):
    """Yield the loader's batches on the device; the copy of the next one runs on a stream of its own."""
    if device.type != "cuda":
        for batch in loader:
            yield [tensor.to(device) for tensor in batch]
        return
    side = torch.cuda.Stream(device)
    ahead = None
    for batch in loader:
        with torch.cuda.stream(side):
            moved = [tensor.to(device, non_blocking=True) for tensor in batch]
            copied = side.record_event()
        if ahead is not None:
            yield hand_over(*ahead)
        ahead = moved, copied
    if ahead is not None:
        yield hand_over(*ahead)


def hand_over(batch, copied):
    """Make the current stream wait for the copy, and keep the memory until that stream is done with it."""
    current = torch.cuda.current_stream()
    current.wait_event(copied)
    for tensor in batch:
        tensor.record_stream(current)
    return batch
