"""A record of any kind with something in every field, also in those of the records in it."""

import re
from typing import Any

from msgspec import inspect

TEXT = 'ein «Text» "x"\n\x1b[2J\u202e'
PATTERNED = "5.1.0", "name"
"""For fields that ask for a form."""


def sample(kind: type) -> Any:
    """Made by the types of its fields."""
    return _of(inspect.type_info(kind))


def _of(kind: inspect.Type) -> Any:
    match kind:
        case inspect.StructType():
            return kind.cls(**{field.name: _of(field.type) for field in kind.fields})
        case inspect.UnionType():
            return _of(next(one for one in kind.types if not isinstance(one, inspect.NoneType)))
        case inspect.LiteralType():
            return kind.values[0]
        case inspect.VarTupleType():
            return (_of(kind.item_type),)
        case inspect.TupleType():
            return tuple(map(_of, kind.item_types))
        case inspect.DictType():
            return {_of(kind.key_type): _of(kind.value_type)}
        case inspect.Metadata():
            return _of(kind.type)
        case inspect.IntType(ge=least) if least is not None:
            return max(3, least)
        case inspect.StrType(pattern=pattern) if pattern is not None:
            return next(text for text in PATTERNED if re.search(pattern, text))
    plain = {inspect.IntType: 3, inspect.FloatType: 0.25, inspect.BoolType: True, inspect.StrType: TEXT}
    return plain.get(type(kind), {"nested": [1, {"a": 0.5}]})
