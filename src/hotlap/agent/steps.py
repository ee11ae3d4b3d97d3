"""What a step is: decides from forwards, backwards and optimizer steps where one turn of the loop ends.

* One optimizer: a step ends when `Optimizer.step` returns (the outermost call; a subclass calling super counts once).
* Several that alternate: a step is one cycle. The cycle is learned from the order they step in; until it is known, a
  cycle ends when the first optimizer is about to begin again.
* A GradScaler that skips its update ends the step too (`skipped`).
* No `Optimizer` in the process, or 64 backwards without one stepping: a forward and its backward make a step, which
  ends where the next data, transfer or forward begins (manual updates then belong to the step they finish).
* No backward at all and no optimizer: inference; a step is one outermost forward.
"""

from collections.abc import Callable
from typing import Final

from .timeline import BACKWARD, DATA, FORWARD, H2D, OPTIMIZER, OTHER, Segment, Timeline

UNUSED_OPTIMIZER_BACKWARDS: Final = 64


class Steps:
    """The state machine behind the hooks. `emit(segment, kind)` is called once for each finished step."""

    def __init__(self, timeline: Timeline, emit: Callable[[Segment, str], None]) -> None:
        self.timeline = timeline
        self.emit = emit
        self.optimizers_built = 0
        self.forwards = self.backwards = self.optimizer_steps = 0
        self.backwards_since_step = 0
        self.begun = False
        self.in_data = self.in_forward = self.in_backward = 0
        self.stepping: int | None = None
        self.step_depth = 0
        self.manual_open = False
        self.functional = False
        self.forward_seen = False
        self.cycle: list[int] = []
        self.last_cycle: list[int] = []
        self.leader: int | None = None
        self.several = False
        self.held: Segment | None = None
        self.loader_rows = False
        self.row_root: int | None = None
        self.samples_from = "none"

    # data and transfers

    def data_begin(self) -> None:
        self.in_data += 1
        if self.in_data > 1:
            return
        if self.step_depth:  # an exception left a step open: loaders are not read inside one
            self.step_depth, self.stepping = 0, None
            self.timeline.unwind()
        self._manual_boundary()
        self.timeline.enter(DATA)

    def data_end(self, rows: int | None, training: bool) -> None:
        self.in_data -= 1
        if self.in_data:
            return
        self.timeline.leave()
        if rows is not None and training:
            self.timeline.segment.samples += rows
            self.loader_rows = True
            self.samples_from = "loader"
        elif not training and self.backwards:
            self.timeline.segment.evaluation = True
        self._functional_gap()

    def transfer_begin(self) -> None:
        self._manual_boundary()
        self.timeline.enter(H2D)

    def transfer_end(self) -> None:
        self.timeline.leave()
        self._functional_gap()

    # forward and backward

    def forward_begin(self, root: int, training: bool, evaluating: bool, rows: int | None) -> None:
        self.forwards += 1
        self.in_forward = 1
        if training:
            self._manual_boundary()
        if evaluating and self.backwards:
            self.timeline.segment.evaluation = True
        self.forward_seen = True
        if training and rows is not None and not self.loader_rows:
            if self.row_root is None:
                self.row_root = root
            if self.row_root == root:
                self.timeline.segment.samples += rows
                self.samples_from = "forward"
        if training or not self.backwards:
            self.timeline.enter(FORWARD)
        else:
            self.timeline.enter(OTHER)

    def forward_end(self, training: bool, rows: int | None) -> None:
        self.in_forward = 0
        self.timeline.leave(gap=training)
        if not training and not self.backwards and not self.optimizers_built:
            segment = self.timeline.take()
            if not self.loader_rows:
                segment.samples = rows or 0
                self.samples_from = "forward" if rows else "none"
            self.emit(segment, "inference")

    def backward_begin(self) -> None:
        self.in_backward += 1
        if self.in_backward > 1:
            return
        if not self.forward_seen:
            self.functional = True
        self.timeline.enter(BACKWARD)

    def backward_end(self) -> None:
        self.in_backward -= 1
        if self.in_backward:
            return
        self.timeline.leave()
        self.backwards += 1
        self.backwards_since_step += 1
        self.manual_open = True

    # optimizers

    def optimizer_begin(self, optimizer: int) -> bool:
        """Returns whether this is an outermost step."""
        self.step_depth += 1
        if self.step_depth > 1:
            return False
        self.stepping = optimizer
        self.timeline.enter(OPTIMIZER)
        return True

    def optimizer_end(self, optimizer: int) -> bool:
        """Returns whether the outermost step ended."""
        if self.stepping is None:
            return False
        if self.step_depth > 1 and self.stepping == optimizer:
            self.step_depth -= 1
            return False
        if self.stepping != optimizer:
            self.step_depth -= 1
            return False
        self.step_depth, self.stepping = 0, None
        self.timeline.leave()
        self.optimizer_steps += 1
        return True

    def optimizer_boundary(self, optimizer: int) -> None:
        """An optimizer's outermost step ended (or was skipped): close the step where its cycle is complete."""
        self.backwards_since_step = 0
        self.manual_open = False
        segment = self.timeline.take()
        if self.leader is None:
            self.leader = optimizer
        if optimizer != self.leader:
            self.several = True
        if not self.several:
            self._close(segment)
            return
        if self.held is not None and optimizer == self.leader and any(o != optimizer for o in self.cycle):
            self.last_cycle, self.cycle = self.cycle, []
            held, self.held = self.held, None
            self._close(held)
        self.cycle.append(optimizer)
        if self.held is None:
            self.held = segment
        else:
            self.held.absorb(segment)
        if self.cycle == self.last_cycle:
            self.cycle = []
            held, self.held = self.held, None
            self._close(held)

    def skipped_step(self, optimizer: int) -> None:
        """A GradScaler found infinities and did not step."""
        self.timeline.cut()
        self.timeline.segment.skipped = True
        self.optimizer_boundary(optimizer)

    # inside

    def _close(self, segment: Segment) -> None:
        self.forward_seen = False
        self.row_root = None
        self.emit(segment, "train")
        self._functional_gap()

    def _manual_boundary(self) -> None:
        """Close a step of a loop that no optimizer object ends."""
        if not self.manual_open or self.in_backward or self.in_forward:
            return
        if self.optimizers_built and self.backwards_since_step < UNUSED_OPTIMIZER_BACKWARDS:
            return
        if self.optimizer_steps and self.backwards_since_step < UNUSED_OPTIMIZER_BACKWARDS:
            return
        self.manual_open = False
        self.timeline.cut()
        self._close(self.timeline.take())

    def _functional_gap(self) -> None:
        """In a loop whose forward is plain functions, what follows may turn out to be the forward."""
        if self.functional and not self.forward_seen and not self.in_forward and len(self.timeline.stack) == 1:
            self.timeline.open_gap()
