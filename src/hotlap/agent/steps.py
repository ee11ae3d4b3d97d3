"""What a step is: decides from forwards, backwards and optimizer steps where one turn of the loop ends.

* One optimizer: a step ends when `Optimizer.step` returns (the outermost call; a subclass calling super counts once).
* Several that alternate: a step is one cycle. The cycle is learned from the order they step in: it has ended when the
  first comes round again, or what follows the first repeats. An optimizer that steps PATIENCE times on end has no cycle
  with others (they are unused, or their turn is over, as in folds); until that is known its steps are held back. One
  that steps in between belongs to the cycle that comes next.
* Optimizers that step inside a backward (one for each parameter, in its hook) are as one that steps where it ends.
* A GradScaler that skips its update ends the step too (`skipped`).
* No `Optimizer` in the process, or none that steps: after 64 backwards without one, where updates are seen to be made
  by hand (`updates`), or after IDLE_OPTIMIZER_BACKWARDS (an attack in an evaluation makes hundreds). Then a forward and
  its backward make a step, which ends where the next data, transfer or forward begins (manual updates then belong to
  the step they finish). Where none of these is ever seen, as the forward is plain functions of what is there already,
  it ends where the next backward begins.
* No backward at all and no optimizer: inference; a step is one outermost forward.
* A replay of a CUDA graph of the script's own ends a step where it holds an update, as `Optimizer.step` does.

Most of this runs in every step: what is rare is asked for by a look at one attribute, and called only then.
"""

import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from hotlap.records.phases import BACKWARD, DATA, FORWARD, H2D, OPTIMIZER, OTHER

from .prefetch_depth import PrefetchDepth
from .timeline import MOST_CUTS, Segment, Timeline
from .updates import Updates

UNUSED_OPTIMIZER_BACKWARDS: Final = 64
IDLE_OPTIMIZER_BACKWARDS: Final = 4096
PATIENCE: Final = 10
REPEATED: Final = 3
"""Times that what follows a first update has to be the same, to be a cycle."""
MOST_HELD: Final = 64
"""Updates, after which no cycle is expected any more."""
INFERENCE: Final = -1
"""In place of an optimizer's key: the steps are forwards."""
BY_HAND: Final = -2
"""In place of an optimizer's key: there is none, and what begins after a backward ends the step."""


def period(order: list[int]) -> int:
    """How long a cycle of several optimizers is of which the last updates are REPEATED turns; 0 where of none."""
    for size in range(2, len(order) // REPEATED + 1):
        last = order[-size:]
        if len(set(last)) > 1 and last * REPEATED == order[-REPEATED * size :]:
            return size
    return 0


@dataclass(slots=True, eq=False)
class Recorded:
    """What is in a CUDA graph: phases of which there is something, how many backwards, and the optimizers that step in
    it, in order. evaluation: a forward without gradients of a module in eval mode."""

    phases: set[int] = field(default_factory=set)
    backwards: int = 0
    updates: list[int] = field(default_factory=list)
    evaluation: bool = False

    @property
    def several(self) -> bool:
        """Whether more than one optimizer steps in it."""
        return len(set(self.updates)) > 1

    @property
    def key(self) -> int:
        """In place of an optimizer's: that of the one that steps in it, or one of all those."""
        return abs(hash(frozenset(self.updates))) + 1 if self.several else next(iter(self.updates), 0)

    def forward(self, evaluation: bool) -> None:
        """A forward was recorded."""
        self.phases.add(FORWARD)
        self.evaluation |= evaluation

    def backward(self) -> None:
        """A backward was."""
        self.phases.add(BACKWARD)
        self.backwards += 1

    def update(self, optimizer: int) -> None:
        """A step of this optimizer (by id) was."""
        self.phases.add(OPTIMIZER)
        self.updates.append(optimizer)


@dataclass(slots=True, eq=False, kw_only=True)
class Hot:
    """What the hooks look at in every step, in few cache lines: slots of a base class lie before those of its own."""

    forwards: int = 0
    backwards: int = 0
    backwards_since_step: int = 0
    optimizer_steps: int = 0
    in_data: int = 0
    in_forward: int = 0
    in_backward: int = 0
    inside: list[int] = field(default_factory=list)
    """Optimizers that have stepped inside the running backward."""
    manual_open: int = 0
    """Backwards that no step ends with yet."""
    begins: bool = False
    """Whether more than backwards is seen of the loop: something has ended a step, or a forward had gradients."""
    recording: Recorded | None = None
    """What is in the CUDA graph that is recorded now."""
    unsampled: int = 0
    """Where the running step is not looked at (`step_sampling.py`): the optimizer that steps next, INFERENCE or
    BY_HAND."""
    unsampled_most: int = 0
    unsampled_until: int = 0
    """After so many unsampled steps, or from then on, ns, there is more to do at the end of one than to note it."""


@dataclass(slots=True, eq=False)
class Steps(Hot):
    """The state machine behind the hooks. `emit(segment, kind)` is called once for each finished step.

    on_stack: how many optimizer steps are on the Python stack; one that raised is there no longer.
    """

    timeline: Timeline
    emit: Callable[[Segment, str], None]
    on_stack: Callable[[], int] = lambda: 2
    optimizers_built: int = 0
    optimizers: weakref.WeakSet[Any] = field(default_factory=weakref.WeakSet)
    updates: Updates = field(init=False)
    step_depth: int = 0
    stepping: int | None = None
    nested: bool = False
    """A step ran inside `Optimizer.step`."""
    by_hand: int = 0
    """Steps on end that no optimizer ended, of one backward each."""
    functional: bool = False
    forward_seen: bool = False
    cycle: list[int] = field(default_factory=list)
    pending: list[tuple[int, Segment]] = field(default_factory=list)
    together: dict[int, int] = field(default_factory=dict)
    """Of each optimizer that ever stepped inside a backward, one that stands for all of its backward: in some steps
    some have no gradient."""
    rows: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Of batches that came since the last backward, and how many, by loader."""
    loader_rows: bool = False
    evaluates: bool = False
    """An evaluation may be going on, whose memory is looked at (`peaks`)."""
    evaluated: bool = False
    """A module in eval mode has seen some of these batches."""
    passed: int = 0
    """A loader that came to its end with nothing learned from them."""
    learned_at: int = 0
    """Forwards before the last backward."""
    prefetch: PrefetchDepth = field(default_factory=PrefetchDepth)
    rows_evaluated: bool = False
    outside_rows: bool = False
    row_root: int | None = None
    last_row_root: int | None = None
    samples_from: str = "none"
    replayed: set[int] = field(default_factory=set)
    """Of what phases there was something in graphs that were replayed and hold more than one."""

    def __post_init__(self) -> None:
        self.updates = Updates(self.optimizers)

    @property
    def infers(self) -> bool:
        """Whether nothing says so far that this process trains."""
        return not self.optimizers_built and not self.backwards

    # data and transfers

    def data_begin(self) -> None:
        """A batch is asked for."""
        if not self.in_data:
            if self.step_depth:
                self._drop_failed_step()
            if self.manual_open and self._event():
                return
            self.timeline.enter(DATA)
        self.in_data += 1

    def data_end(self, rows: int | None, training: bool, loader: int = 0, over: bool = False) -> None:
        """loader: a number of its iterator's; over: there is no batch any more."""
        self.in_data -= 1
        if self.in_data:
            return
        if over and loader in self.rows:
            forwards = self.forwards - self.learned_at
            if self.evaluated or forwards >= max(2, self.rows[loader][1]):  # what is fetched ahead has had no forward
                self.passed = loader
        if over:
            self.prefetch.ended(loader)
        self.timeline.leave()
        if len(self.timeline.cuts) > MOST_CUTS:
            self.timeline.fold()
        if rows is not None and training:
            if self.passed:
                self._not_learned()
            before, batches = self.rows.get(loader, (0, 0))
            self.rows[loader] = before + rows, batches + 1
            if not self.loader_rows:
                self.loader_rows = True
                self.samples_from = "loader"
        elif not training and (self.backwards or self.optimizers_built):
            self.timeline.segment.evaluation = True
        if self.functional:
            self._functional_gap()

    def transfer_begin(self) -> None:
        """A tensor is about to move to the device."""
        if self.manual_open and self._event():
            return
        if self.functional and not self.forward_seen:
            self.timeline.close_gap()
        self.timeline.enter(H2D)

    def transfer_end(self) -> None:
        """It has moved, or the copy is queued."""
        self.timeline.leave()
        if self.functional:
            self._functional_gap()

    # forward and backward

    def forward_begin(self, root: int, training: bool, evaluating: bool, rows: int | None) -> None:
        """A forward of an outermost module begins. root: its id; training: gradients are enabled; evaluating: it is in
        eval mode; rows: of its first tensor, None where that is not told."""
        if self.step_depth:
            self._drop_failed_step()
        if training:
            if self.manual_open and self._event():
                return
            self.begins = True
            if self.passed:
                self._not_learned()
        self.forwards += 1
        self.in_forward = 1
        if evaluating and (self.backwards or self.optimizers_built):
            self._evaluates(training)
        self.forward_seen = True
        self.outside_rows = False
        if training and rows is not None and not self.loader_rows:
            if self.row_root is None:
                self.row_root = root
            elif root == self.last_row_root != self.row_root and len(self.cycle) == 1 and not self.pending:
                self.row_root, self.timeline.segment.samples = root, 0  # what came before is of a rollout, say
                self.timeline.segment.tokens = 0
            if self.row_root == root and self._counts(evaluating):
                self.timeline.segment.samples += rows
                self.samples_from = "forward"
        if len(self.timeline.cuts) > MOST_CUTS:
            self.timeline.fold()
        if training or not self.backwards:
            self.timeline.enter(FORWARD)
        else:
            self.timeline.enter(OTHER)

    def _counts(self, evaluating: bool) -> bool:
        """Whether a forward is of the step's rows. In eval mode it is none where the same module is also called in
        training mode in the step: an evaluation that keeps gradients, or an attack."""
        segment = self.timeline.segment
        if not segment.samples:
            self.rows_evaluated = evaluating
        elif self.rows_evaluated and not evaluating:
            segment.samples = segment.tokens = 0
            self.rows_evaluated = False
            segment.evaluation |= not self.backwards_since_step  # an attack learns from them
        self.outside_rows = evaluating and not self.rows_evaluated
        return not self.outside_rows

    def forward_end(self, training: bool, rows: int | None) -> None:
        """It ends; in a loop that only infers, that is a step. rows: of its first tensor, None where that is not
        told."""
        self.in_forward = 0
        self.timeline.leave(gap=training)
        if not training and not self.backwards and not self.optimizers_built:
            segment = self.timeline.take()
            if not self.loader_rows:
                segment.samples = rows or 0
                self.samples_from = "forward" if rows else "none"
            segment.starved = self.prefetch.count()
            self.emit(segment, "inference")

    def evaluating(self) -> None:
        """A forward of an evaluation begins, which is not seen to end."""
        self.timeline.close_gap()
        self.timeline.segment.evaluation = True

    def backward_begin(self, learns: bool = True) -> None:
        """learns: it adds to gradients, and does not only return them."""
        if self.in_backward:
            self.in_backward += 1
            return
        if learns:
            self._learned()
        if self.step_depth:
            self._drop_failed_step()
        self.updates.before_backward(learns, self.optimizer_steps > 0)
        known = self.begins or self.optimizer_steps or self.loader_rows or self.step_depth
        if self.manual_open and not known and self._is_manual():
            self.timeline.cut()
            self._close_by_hand(gap=False)
            if self.unsampled:  # from here on
                return
        if not self.forward_seen:
            self.functional = True
        self.in_backward = 1
        self.timeline.enter(BACKWARD)

    def backward_end(self) -> None:
        """A backward ends."""
        self.in_backward -= 1
        if self.in_backward:
            return
        self.timeline.leave()
        self.backwards += 1
        self.backwards_since_step += 1
        self.manual_open += 1
        if self.backwards_since_step + 1 >= UNUSED_OPTIMIZER_BACKWARDS and self.optimizers_built:
            self.updates.after_backward(self.optimizer_steps > 0)
        if self.inside:
            self.updated_inside()

    # optimizers

    def optimizer_built(self, optimizer: Any) -> None:
        """An optimizer was made."""
        self.optimizers_built += 1
        self.optimizers.add(optimizer)

    def optimizer_begin(self, optimizer: int) -> bool:
        """Returns whether this is an outermost step."""
        if self.step_depth:
            self._drop_failed_step(beginning=1)
        self.step_depth += 1
        if self.step_depth > 1:
            return False
        self.stepping = optimizer
        self.timeline.enter(OPTIMIZER)
        return True

    def optimizer_end(self, optimizer: int) -> bool:
        """Returns whether the outermost step ended."""
        if self.stepping != optimizer or self.step_depth > 1:
            if self.stepping is not None:
                self.step_depth -= 1
            return False
        self.step_depth, self.stepping = 0, None
        self.timeline.leave()
        self.optimizer_steps += 1
        return True

    def optimizer_boundary(self, optimizer: int) -> None:
        """An optimizer's outermost step ended (or was skipped): close what is now known to be a step."""
        if self.in_backward:
            self.inside.append(optimizer)
            return
        self.updates.forget()
        self.backwards_since_step = self.manual_open = 0
        if len(self.cycle) == 1 and self.cycle[0] == optimizer and not self.pending:
            self._close(self._take())
            return
        self.pending.append((optimizer, self._take()))
        order = [known for known, _ in self.pending]
        if len(order) > 2 and optimizer == order[0] != order[-2]:
            self.cycle = order[:-1]
            self._close_pending(len(order) - 1)
            order = [optimizer]
        if order == self.cycle:
            self._close_pending(len(order))
            return
        on_end = next((at for at, known in enumerate(reversed(order)) if known != optimizer), len(order))
        if on_end > PATIENCE or (on_end == len(order) and len(self.optimizers) < 2):
            self.cycle = [optimizer]
            self._close_all()
        else:
            self._apart_from_the_cycle(order)

    def key_inside(self) -> int:
        """What stands for those that stepped inside the backward."""
        return next((self.together[one] for one in self.inside if one in self.together), self.inside[0])

    def updated_inside(self) -> None:
        """The end of a backward in which optimizers stepped."""
        key = self.key_inside()
        self.together.update(dict.fromkeys(self.inside, key))
        if len(self.together) >= len(self.optimizers) and not self.pending and not self.cycle:
            self.cycle = [key]  # it is a turn of all of them
        self.inside.clear()
        self.optimizer_boundary(key)

    def _apart_from_the_cycle(self, order: list[int]) -> None:
        """What stepped does not begin with a turn of the cycle: an optimizer stepped once before it, or in between."""
        size = len(self.cycle)
        if size and len(order) > size and order[-size:] == self.cycle:
            self.cycle = order
            self._close_pending(len(order))
        elif size := period(order):
            self.cycle = order[-size:]
            self._close_pending(len(order) - REPEATED * size)
            for _ in range(REPEATED):
                self._close_pending(size)
        elif len(order) >= MOST_HELD:
            self._close_all()

    def skipped_step(self, optimizer: int) -> None:
        """A GradScaler found infinities and did not step."""
        self.timeline.cut()
        self.timeline.segment.skipped = True
        self.optimizer_boundary(optimizer)

    # CUDA graphs of the script's own

    def replay_ends_step(self, recorded: Recorded) -> bool:
        """Whether the replay of a graph is the end of a step, or a step."""
        return bool(recorded.updates) or (FORWARD in recorded.phases and self.infers)

    def replay_begin(self, recorded: Recorded) -> None:
        """What holds several phases is one piece, and none of them."""
        if self.step_depth:
            self._drop_failed_step()
        self.by_hand = 0  # it may hold a backward: all is looked at
        if self.manual_open:
            self._event()
        self.forward_seen = True
        if recorded.evaluation and not self.infers:
            self.timeline.segment.evaluation = True
        self.timeline.enter(min(recorded.phases) if len(recorded.phases) == 1 else OTHER)

    def replay_end(self, recorded: Recorded) -> None:
        """The replay of a CUDA graph ends, and with it a step where it holds an update or the loop infers."""
        infers = self.infers
        self.timeline.leave()
        if recorded.backwards:
            self._learned()
            self.backwards += recorded.backwards
            self.backwards_since_step += recorded.backwards
            self.manual_open += recorded.backwards
        if len(recorded.phases) > 1:
            self.replayed |= recorded.phases
        if not self.replay_ends_step(recorded):
            return
        if infers and not recorded.updates:
            self.timeline.segment.starved |= self.prefetch.count()
            self.emit(self.timeline.take(), "inference")
        else:
            self.optimizer_steps += len(recorded.updates)
            if recorded.several and not self.pending:
                self.cycle = [recorded.key]  # one replay is a turn of all of them
            self.optimizer_boundary(recorded.key)

    def replayed_unsampled(self, recorded: Recorded) -> None:
        """The same of a replay in a step that is not looked at; its end is noted apart."""
        self.backwards += recorded.backwards
        self.backwards_since_step += recorded.backwards
        self.optimizer_steps += max(0, len(recorded.updates) - 1)

    # interruptions

    def taken_over(self) -> None:
        """Another thread turned out to be the one that trains: what the first had open is none of the loop's."""
        self.in_data = self.in_forward = 0
        self.timeline.unwind()
        self.timeline.segment.samples = self.timeline.segment.tokens = 0
        self.rows.clear()
        self.prefetch.forget()
        self.loader_rows, self.row_root, self.samples_from = False, None, "none"

    def look_again(self, ended: list[Segment], beginning: int) -> None:
        """All is looked at from here on, in the midst of an unsampled step. ended: its parts that other optimizers of
        the cycle ended. beginning: how many optimizer steps begin at this moment."""
        expected, self.unsampled = self.unsampled, 0
        self.pending = list(zip(self.cycle, ended, strict=False))
        self.forward_seen = not self.functional  # it may have been there
        inside = self.on_stack() - beginning
        if expected > 0 and inside > 0:
            self.step_depth, self.stepping = inside, expected
            self.timeline.enter(OPTIMIZER)

    def finish(self) -> None:
        """The process ends: close what waited to be told apart. A part of a known cycle is no step."""
        if self.manual_open and self._is_manual():
            self._close_by_hand()
        order = [known for known, _ in self.pending]
        if len(self.cycle) > 1 and order == self.cycle[: len(order)]:
            return
        several = len(set(order)) > 1
        while self.pending:
            self._close_pending(len(self.pending) if several else 1)

    def _drop_failed_step(self, beginning: int = 0) -> None:
        """An exception inside `Optimizer.step`, caught by the script, leaves no trace but an open step."""
        if self.on_stack() <= beginning:
            self.step_depth, self.stepping = 0, None
            self.timeline.unwind()
        elif beginning:
            self.nested = True

    def expected(self) -> int:
        """Who steps next, where that is known: the first optimizer of the cycle, INFERENCE or BY_HAND. 0 where it is
        not, or where no step has just ended."""
        if self.in_data or self.in_forward or self.in_backward or self.step_depth or self.pending:
            return 0
        if self.timeline.busy:
            return 0
        if self.infers:
            return INFERENCE
        if not self.optimizers_built and not self.optimizer_steps:
            return BY_HAND if self.by_hand >= REPEATED else 0
        return self.cycle[0] if self.cycle and not self._is_manual() else 0

    # inside

    def _close_all(self) -> None:
        """Close what is pending, each update a step."""
        while self.pending:
            self._close_pending(1)

    def _close_pending(self, count: int) -> None:
        """Close the first `count` pending segments, as one step."""
        if not count:
            return
        (_, segment), *others = self.pending[:count]
        del self.pending[:count]
        for _, other in others:
            segment.absorb(other)
        self._close(segment)

    def _close(self, segment: Segment, gap: bool = True) -> None:
        self.forward_seen = False
        self.last_row_root, self.row_root = self.row_root or self.last_row_root, None
        self.emit(segment, "train")
        if self.functional and gap:
            self._functional_gap()

    def _evaluates(self, graded: bool) -> None:
        """A module in eval mode. With gradients it may be learned from after all."""
        if graded:
            self.evaluated = bool(self.rows)
        else:
            self.timeline.segment.evaluation = True

    def _learned(self) -> None:
        """The step is made of the batches that came."""
        if self.rows:
            self.timeline.segment.samples += sum(rows for rows, _ in self.rows.values())
            self.rows.clear()
        if self.prefetch.by_loader:
            self.timeline.segment.starved |= self.prefetch.count()
        self.evaluated = False
        self.passed, self.learned_at = 0, self.forwards

    def _not_learned(self) -> None:
        """The batches of a loader were an evaluation with gradients: more comes, and there was no backward."""
        self.rows.pop(self.passed, None)
        self.evaluated = False
        self.passed, self.learned_at = 0, self.forwards
        self.timeline.segment.evaluation = True

    def _take(self) -> Segment:
        """The running segment."""
        if not self.timeline.segment.samples:
            self._learned()  # there was no backward that adds to gradients
        return self.timeline.take()

    # loops that no optimizer object ends

    def _event(self) -> bool:
        """Data, a transfer or a forward: it ends the step of a backward before. Whether the next is not looked at."""
        if self.in_backward or self.in_forward or self.step_depth:
            return False
        if self.manual_open and self._is_manual():
            self.begins = True
            self.timeline.cut()
            self._close_by_hand()
        return self.unsampled != 0

    def _close_by_hand(self, gap: bool = True) -> None:
        """gap: what follows may turn out to be the forward."""
        self.by_hand = self.by_hand + 1 if self.manual_open == 1 else 0
        self.manual_open = 0
        self._close(self._take(), gap)

    def _is_manual(self) -> bool:
        """Whether no optimizer object ends the steps."""
        if not (self.optimizers_built or self.optimizer_steps):
            return True
        since = self.backwards_since_step
        return (since >= UNUSED_OPTIMIZER_BACKWARDS and self.updates.by_hand) or since >= IDLE_OPTIMIZER_BACKWARDS

    def _functional_gap(self) -> None:
        """In a loop whose forward is plain functions, what follows may turn out to be the forward."""
        if not self.forward_seen and not self.in_forward and len(self.timeline.stack) == 1:
            self.timeline.open_gap()
