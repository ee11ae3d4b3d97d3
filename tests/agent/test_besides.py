"""Forwards beside the training, by a clock of the test's own."""

import itertools

import torch

from hotlap.agent.besides import FIRST, Besides


def test_a_model_at_the_address_of_one_that_is_gone_is_another() -> None:
    clock = itertools.count(0, 1_000_000)
    besides = Besides(lambda: next(clock), lambda: True)
    models = torch.nn.Linear(2, 2), torch.nn.Tanh()
    for model, steps in zip(models, (1, 3), strict=True):
        for step in range(steps):
            besides.begin(7, model)
            besides.end(7)
            besides.step_done(FIRST + 1 + step)
    (row,) = besides.facts(())
    assert (row["name"], row["calls"], row["steps"], row["took_ms"]) == ("Tanh", 3, 3, 3.0)


def test_of_several_lines_that_call_a_model_the_one_with_most_time_is_told() -> None:
    """Rainbow acts four times and learns once: the line that was told was the last one's, 20% of the time."""
    times = iter([1, 5, 6, 10, 11, 13] * 4)
    besides, model = Besides(lambda: next(times), lambda: True), torch.nn.Linear(2, 2)

    def acts() -> None:
        besides.end(7)

    for step in range(4):
        for call in (acts, acts, lambda: besides.end(7)):
            besides.begin(7, model)
            call()
        besides.step_done(FIRST + 1 + step)
    (row,) = besides.facts(())
    assert row["place"][2].endswith("acts") and (row["lines"], row["part"]) == (2, 0.8)


def test_a_model_that_is_gone_at_the_end_is_told_of() -> None:
    """Facts are written when `main()` has returned: a teacher in it was taken for an evaluation in each step."""
    besides = Besides(lambda: 0, lambda: True)
    parameters = []
    for key, layer in enumerate([torch.nn.Linear(2, 2), torch.nn.Linear(2, 3)]):
        besides.begin(key, layer)
        besides._begun = 1
        besides.end(key)
        parameters.append(id(layer.weight))
    besides.step_done(FIRST + 1)
    del layer
    assert [row["trained"] for row in besides.facts({parameters[1]})] == [False, True]
