"""What `--price` says: dollars an hour, or a file with those of each card."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final

import msgspec

from hotlap.records.diagnosis import Diagnosis
from hotlap.records.errors import RecordError, UsageError
from hotlap.records.files import MAX_RECIPE, read_bytes

HELP: Final = "What this machine costs: dollars an hour, or a TOML file of `card = dollars`. Adds what lost time costs."
Dollars = Annotated[float, msgspec.Meta(ge=0, le=1e6)]


class Price(msgspec.Struct, frozen=True):
    """an_hour: of the machine. cards: of each card, by a part of its name; source: the file that has them."""

    an_hour: float | None = None
    cards: dict[str, float] = {}
    source: str = ""

    def card(self, names: Sequence[str]) -> float | None:
        """Of the first of these that the file knows: by the longest of its names that is in it."""
        known = ([card for card in self.cards if card.casefold() in name.casefold()] for name in names)
        return next((self.cards[max(cards, key=len)] for cards in known if cards), None)

    def check(self, names: Sequence[str]) -> None:
        """Raises UsageError where there is a file, and it knows none of these."""
        if self.source and self.card(names) is None:
            raise UsageError(f"--price: {self.source} has no price of {' or '.join(names)}")

    def of(self, found: Diagnosis | None) -> float | None:
        """Of all cards that ran; None where nothing is known of them."""
        if found is None:
            return None
        each = self.card([found.device_name or found.device])
        return self.an_hour if each is None else each * (1 if found.device == "cpu" else found.ranks)


UNPRICED: Final = Price()


def price_of(text: str | None) -> Price:
    """A number of dollars, or the path of a file. Raises UsageError."""
    try:
        return UNPRICED if text is None else Price(msgspec.convert(float(text), Dollars))
    except msgspec.ValidationError as error:
        raise UsageError(f"--price {text} is not a price; give dollars an hour, as 2.49") from error
    except ValueError:  # no number
        pass
    try:
        cards = msgspec.toml.decode(read_bytes(Path(str(text)), MAX_RECIPE), type=dict[str, Dollars])
    except (RecordError, ValueError) as error:  # ValueError: not UTF-8, not TOML, not of that form
        raise UsageError(
            f"--price {text} is neither a number of dollars nor a file of `card = dollars`: {error}"
        ) from error
    return Price(cards=cards, source=str(text))
