"""A record as one line of JSON and back: typed, strict, the same in a file and on the wire.

ASCII, so that any text survives any transport. It knows nothing of what a log demands.
"""

import base64
import binascii
import json
import math
import operator
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, fields
from functools import cache

from viz_engine.run.events import KINDS, MAX_INT, Event, RunSettings
from viz_engine.text import UserError


def to_line(event: Event) -> str:
    """The record as one line of ASCII JSON, without a line break."""
    return _ENCODER.encode({"kind": event.kind, **_fields(event)})


def from_line(line: str | bytes, kinds: Mapping[str, type] = KINDS) -> Event:
    """The record that a line holds, of the kinds that its log takes. Raises UserError on anything
    that is not one, naming the field."""
    try:
        data = json.loads(line, parse_constant=_no_number)
    except (ValueError, RecursionError):
        raise UserError("error.file_line") from None
    if not isinstance(data, dict):
        raise UserError("error.file_line")
    cls = kinds.get(data.get("kind")) if isinstance(data.get("kind"), str) else None
    if cls is None:
        raise UserError("error.file_kind", name=str(data.get("kind"))[:40])
    return _read(cls, data, cls.kind)


def _no_number(name: str) -> None:
    raise ValueError(f"{name} is no JSON number")


Settings = typing.TypeVar("Settings")


def settings_to_dict(settings: object) -> dict[str, object]:
    """RunSettings (or those of a race) as plain JSON types, for a command or a permalink."""
    return json.loads(_ENCODER.encode(_fields(settings)))


def settings_from_dict(data: Mapping[str, object], kind: type[Settings] = RunSettings) -> Settings:
    """The inverse of `settings_to_dict`. Raises UserError that names the field."""
    return _read(kind, data, "settings")


def _fields(record: object) -> dict[str, object]:
    names, values_of = _getter(type(record))
    return dict(zip(names, values_of(record), strict=True))


@cache
def _getter(cls: type) -> tuple[tuple[str, ...], Callable[[object], Sequence[object]]]:
    """The names of a record's fields, and what gives their values in one call."""
    names = tuple(_field_types(cls))
    if len(names) > 1:
        return names, operator.attrgetter(*names)
    return names, lambda record: [getattr(record, name) for name in names]


def _plain(value: object) -> object:
    """What JSON has no form of."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    return dict(value) if isinstance(value, Mapping) else _fields(value)


# Made once: after a step its code is cold, and the fewer lines of Python run the better.
_ENCODER = json.JSONEncoder(separators=(",", ":"), default=_plain)


@cache
def _field_types(cls: type) -> dict[str, object]:
    hints = typing.get_type_hints(cls)
    return {f.name: hints[f.name] for f in fields(cls)}


def _read(cls: type, data: Mapping[str, object], where: str) -> typing.Any:
    values = {}
    for f in fields(cls):
        if f.name in data:
            values[f.name] = _value(_field_types(cls)[f.name], data[f.name], f"{where}.{f.name}")
        elif f.default is MISSING and f.default_factory is MISSING:
            raise UserError("error.file_field", field=f"{where}.{f.name}")
    return cls(**values)


def _value(hint: object, value: object, where: str) -> object:
    """`value` as the annotated type, checked: files and pipes are data from elsewhere."""
    origin = typing.get_origin(hint)
    if origin in (types.UnionType, typing.Union):
        options = [arg for arg in typing.get_args(hint) if arg is not types.NoneType]
        return None if value is None else _value(options[0], value, where)
    if origin is tuple:
        args = typing.get_args(hint)
        if isinstance(value, list):
            if args[-1] is Ellipsis:
                return tuple(_value(args[0], item, where) for item in value)
            if len(args) == len(value):
                return tuple(
                    _value(arg, item, where) for arg, item in zip(args, value, strict=True)
                )
    elif origin is Mapping:
        numbers_only = typing.get_args(hint)[1] is float
        if isinstance(value, dict) and all(
            _finite(item) or (isinstance(item, str) and not numbers_only) for item in value.values()
        ):
            return value
    elif hasattr(hint, "__dataclass_fields__"):
        if isinstance(value, dict):
            return _read(hint, value, where)
    elif hint is bytes:
        if isinstance(value, str):
            try:
                return base64.b64decode(value, validate=True)
            except (binascii.Error, ValueError):
                pass
    elif hint is float:
        if _finite(value):
            return float(value)
    elif hint is int:
        if type(value) is int and 0 <= value <= MAX_INT:  # no record has a negative count
            return value
    elif hint in (str, bool) and type(value) is hint:
        return value
    raise UserError("error.file_field", field=where)


def _finite(value: object) -> bool:
    """Whether a value is a number that a JSON reader elsewhere can keep."""
    if type(value) is int:
        return abs(value) <= MAX_INT
    return type(value) is float and math.isfinite(value)
