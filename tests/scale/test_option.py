"""Options of a command: how they may be written, and what is refused."""

import pytest

from hotlap.records.errors import UsageError
from hotlap.scale.option import option_of, options_of, values_of


@pytest.mark.parametrize(
    ("words", "name", "then"),
    [
        ("python t.py --batch-size 32", "--batch-size", "python t.py --batch-size 64"),
        ("python t.py --batch-size 32", "batch_size", "python t.py --batch-size 64"),
        ("python t.py --batch_size=32 --lr 1", "batch-size", "python t.py --batch_size=64 --lr 1"),
        ("python t.py batch_size=32", "batch_size", "python t.py batch_size=64"),
        ("python t.py +data.batch_size=32", "data.batch_size", "python t.py +data.batch_size=64"),
        ("python t.py -b 32", "-b", "python t.py -b 64"),
        ("python t.py -b32", "b", "python t.py -b64"),
        ("torchrun --nproc-per-node 2 t.py --bs 32", "bs", "torchrun --nproc-per-node 2 t.py --bs 64"),
        ("python t.py --bs 8 --bs 32", "bs", "python t.py --bs 8 --bs 64"),
        ("python t.py --batch-size 8 --batch_size 32", "--batch_size", "python t.py --batch-size 8 --batch_size 64"),
    ],
)
def test_an_option_is_found_as_it_is_written(words: str, name: str, then: str) -> None:
    command = tuple(words.split())
    found = option_of(command, name)
    assert found.value == 32 and found.put(command, 32) == command
    assert " ".join(found.put(command, 64)) == then


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("python t.py --lr 3 --width=7", "options with a whole number in it: --lr, --width"),
        ("python t.py", "in it: none"),
        ("python t.py --batch-size auto", "no whole number"),
        ("python t.py --batch-size=0.5", "no whole number"),
        ("python t.py --batch-size 0", "no whole number above 0"),
        ("python t.py --batch-size", "no whole number"),
        ("", "in it: none"),
    ],
)
def test_an_option_that_is_not_there_is_told_with_those_that_are(words: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        option_of(words.split(), "--batch-size")


def test_only_whole_numbers_after_a_name_are_options() -> None:
    words = [
        "python",
        "t.py",
        "7",
        "--a",
        "-1",
        "--b",
        "1.5",
        "-x",
        "٣",
        "--c=3e4",
        "--d",
        "12345678901234567890",
        "k=v",
    ]
    assert list(options_of(words)) == []


@pytest.mark.parametrize("text", ["0", "a", "1,-2", "1.5", "9" * 13, "1,,x"])
def test_values_are_whole_numbers_above_0(text: str) -> None:
    with pytest.raises(UsageError, match="--values"):
        values_of(text, "--values")


def test_values_come_in_order_and_once() -> None:
    assert values_of("64, 32,64,", "--values") == (32, 64) and values_of("", "--values") == ()
