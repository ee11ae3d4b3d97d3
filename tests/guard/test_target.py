"""A value that a command has to print."""

import pytest

from hotlap.guard.target import last_value, target_of
from hotlap.records.errors import UsageError


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("accuracy 0.97", 0.97),
        ("Accuracy: 97.5%", 97.5),
        ('{"accuracy": 9.1e-1, "loss": 2}', 0.91),
        ("accuracy=.5", 0.5),
        ("accuracy is -3", -3.0),
        ("val_accuracy 0.2", None),
        ("accuracy unknown", None),
        ("accuracy 0.1 then accuracy 0.2", 0.2),
    ],
)
def test_the_last_number_behind_the_word(line: str, value: float | None) -> None:
    assert last_value(["accuracy" if value is None else "accuracy 0.01", line], "accuracy") == value or value is None
    if value is None:
        assert last_value([line], "accuracy") is None


def test_a_word_with_special_characters_is_taken_as_it_is() -> None:
    assert last_value(["top1(%) = 71.2"], "top1(%)") == 71.2


@pytest.mark.parametrize("text", ["accuracy", "accuracy>0.9", ">=0.9", "accuracy>=much", "accuracy>=nan", "a>=1.2.3"])
def test_what_is_no_target(text: str) -> None:
    with pytest.raises(UsageError, match="is no target"):
        target_of(text)


def test_whether_it_is_met() -> None:
    target = target_of(" val loss <= 1.2")
    assert (target.metric, target.compare, target.wanted, target.met) == ("val loss", "<=", 1.2, False)
