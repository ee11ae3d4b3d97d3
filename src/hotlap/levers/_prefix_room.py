"""Not a lever: how long a sequence the last token's work has room for (`_prefix_cache`).

As far as a model does what is known of it, which calls of its own show, with more tokens: as many as there would be
room for, and some between.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

from ._autocast import without_autocast
from ._call_inputs import Unfit, put
from ._forward_graph import tried, without_cached_casts
from ._prefix_build import Builder, Looks, TooLong
from ._prefix_tape import Tape, alike, taped
from ._prefix_work import Ahead, Form, Plan, Work

LEAST_ROOM: Final = 64
MOST_TRIES: Final = 6
Does = Callable[[int], bool]


class Unlike(Unfit):
    """It does other ops than those that were written down."""


def work_for(forward: Callable[..., Any], form: Form, plan: Plan, tokens: Any, args: Any, kwargs: Any) -> Work:
    """What has room for a sequence and for more than it. Raises Unfit."""
    import torch

    length = tokens.shape[1]
    most = max(LEAST_ROOM, 1 << length.bit_length())
    for _ in range(MOST_TRIES):
        try:
            with torch.inference_mode(False), torch.no_grad(), without_autocast(tokens.device):
                builder = Builder(plan.ops, plan.outputs, tokens.shape[0], length, most, tokens.device)
                work = Work(builder, most, builder.module())
            known = _known(_does(forward, plan, builder.looks, tokens, args, kwargs), length, most)
            if known == most:
                break
            form.limit = most = known
        except TooLong as error:
            form.limit = most = min(error.limit, most - 1)
            if most < length:
                raise Unfit(str(error)) from error
        except RuntimeError as error:
            raise Unfit(f"what its last token takes could not be made: {str(error).splitlines()[0][:200]}") from error
    else:
        raise Unfit("it is not known how long a sequence it takes")
    work.token = tokens[:, -1:].clone()
    work.place = torch.zeros(1, dtype=torch.int64, device=tokens.device)
    return work


def _known(does: Does, least: int, most: int) -> int:
    """Up to how many tokens it does what is known of it. least: as many as there are. Raises Unfit where it does
    something else."""
    # Never more than `most`: beyond a table of positions a device would end the process.
    lengths = (most * 7 // 8, most * 3 // 4, most // 2, (least + most) // 2 | 1)
    between = [length for length in lengths if least < length < most]
    try:
        if all(map(does, [most, *between])):
            return most
    except Unlike:
        if most - 1 > least and all(map(does, [most - 1, *between])):
            return most - 1  # of a table that ends there no part is taken
        raise
    while most - least > 1:  # the script's own limit is between them
        middle = (least + most) // 2
        if does(middle):
            least = middle
        else:
            most = middle
    return least


def _does(forward: Callable[..., Any], plan: Plan, looks: Sequence[Looks], tokens: Any, args: Any, kwargs: Any) -> Does:
    """Whether a longer sequence is taken at all. Raises Unfit where that is by other ops, or is not causal."""

    def does(length: int) -> bool:
        longer = tokens.repeat(1, -(-length // tokens.shape[1]))[:, :length].contiguous()
        tape, ahead = Tape(longer), Ahead(looks)
        own_args, own_kwargs = put((args, kwargs), iter([longer]))
        with without_cached_casts(), taped(tape, ahead.see):
            _, failed = tried(lambda: forward(*own_args, **own_kwargs))
        if not failed and not alike(plan.ops, tape, length):
            raise Unlike("it does something else from some length on")
        if not failed and ahead.any():
            raise Unfit("tokens look at later ones")
        return not failed

    return does
