"""`--price`: dollars an hour, or a file of them by card; and what of them a finding costs."""

from pathlib import Path

import msgspec
import pytest

from hotlap.cli._price import price_of
from hotlap.records.diagnosis import Finding
from hotlap.records.errors import UsageError
from hotlap.report.rates import money_parts
from made_runs import diagnosis_of

ON_GPUS = diagnosis_of(
    bound="compute",
    step_ms=10.0,
    ranks=2,
    device="cuda",
    device_name="NVIDIA H100 NVL",
    findings=(Finding(id="idle-rows", bound="compute", share=0.2, named=True),),
)
ON_CPU = msgspec.structs.replace(ON_GPUS, device="cpu", device_name=None)


def test_a_number_is_of_the_machine() -> None:
    assert price_of("2.5").of(ON_GPUS) == 2.5
    assert price_of(None).of(ON_GPUS) is None
    price_of("2.5").check(["anything"])


def test_a_file_has_prices_by_card(tmp_path: Path) -> None:
    file = tmp_path / "prices.toml"
    file.write_text('H100 = 2\n"h100 nvl" = 3.5\ncpu = 0.4\n')
    priced = price_of(str(file))
    assert (priced.of(ON_GPUS), priced.of(ON_CPU)) == (7.0, 0.4)
    priced.check(["NVIDIA A100", "cpu"])
    with pytest.raises(UsageError, match=r"prices.toml has no price of NVIDIA A100"):
        priced.check(["NVIDIA A100"])


@pytest.mark.parametrize("text", ["-1", "nan", "inf", "none.toml", 'H100 = "two"', "H100 = -1", "[H100]\na = 1", "="])
def test_what_is_no_price(tmp_path: Path, text: str) -> None:
    if "=" in text:
        (tmp_path / "p.toml").write_text(text)
        text = str(tmp_path / "p.toml")
    with pytest.raises(UsageError, match="--price"):
        price_of(text)


EVALUATIONS = Finding(id="evaluation", bound="unknown", share=0.4)
"""As the verdict has it, beside which all shares are of the loop's time."""


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, ["20% of it, $12.00, goes to the first finding"]),
        (
            {"evaluating": 0.75, "compiling": 0.05},
            ["75% of it, $45.00, goes to evaluations", "4% of it, $2.40, goes to the first finding"],
        ),
        (
            {
                "evaluating": 0.75,
                "findings": (
                    Finding(id="launch", bound="launch", share=0.1),
                    Finding(id="evaluation", bound="unknown", share=0.75),
                ),
            },
            ["75% of it, $45.00, goes to evaluations", "10% of it, $6.00, goes to the first finding"],
        ),
        (
            {"evaluating": 0.4, "findings": (EVALUATIONS,)},
            ["40% of it, $24.00, goes to evaluations", "40% of it, $24.00, goes to the first finding"],
        ),
        (
            {"evaluating": 0.4, "findings": (Finding(id="compute", bound="compute", share=0.5), EVALUATIONS)},
            ["40% of it, $24.00, goes to evaluations", "50% of it, $30.00, goes to the first finding"],
        ),
    ],
)
def test_costs_are_of_the_whole_time(changes: dict[str, object], said: list[str]) -> None:
    """A finding's share is of the steps, which may be a small part of it."""
    found = list(money_parts(msgspec.structs.replace(ON_GPUS, **changes), 2.5))
    assert found == ["$60.00 a day at $2.50 an hour", *said]
