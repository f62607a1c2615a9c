"""A record as one line of JSON and back: typed, strict, the same in a file and on the wire.

ASCII, so that any text survives any transport. It knows nothing of what a log demands.
"""

import base64
import json
import operator
import re
import sys
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, fields, is_dataclass
from functools import cache

import msgspec

from viz_engine.model.config import weights_of_schema_1
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


# ---- reading: files and pipes are data from elsewhere --------------------------------------------

# No record has a negative count; what JSON readers elsewhere cannot keep is no number.
COUNT = typing.Annotated[int, msgspec.Meta(ge=0, le=MAX_INT)]
NUMBER = (
    typing.Annotated[int, msgspec.Meta(ge=-MAX_INT, le=MAX_INT)]
    | typing.Annotated[float, msgspec.Meta(ge=-sys.float_info.max, le=sys.float_info.max)]
)
_AT = re.compile(r" - at `(?:key in )?\$(.*)`$")
_MISSING = re.compile(r"^Object missing required field `(\w+)`")


def _read(cls: type, data: object, where: str) -> typing.Any:
    spec = data.get("spec") if isinstance(data, dict) and "spec" in _field_types(cls) else None
    if isinstance(spec, dict):
        data = data | {"spec": _with_weights(spec, f"{where}.spec")}
    error = ""
    try:
        return _build(cls, msgspec.convert(data, _shape(cls)))
    except UnicodeEncodeError:  # half a character where no text belongs: a whole one says where
        with suppress(RecursionError):
            whole = json.dumps(data, ensure_ascii=False).encode("utf-8", "replace")
            _read(cls, json.loads(whole), where)
    except (msgspec.ValidationError, RecursionError) as caught:
        error = str(caught)
    raise UserError("error.file_field", field=where + _path(error))


def _with_weights(spec: Mapping[str, object], where: str) -> Mapping[str, object]:
    """A spec of schema 1 says sizes and biases where later ones list the weights."""
    if "weights" in spec or spec.get("counted_parameters") is not None:
        return spec
    try:
        found = weights_of_schema_1(spec)
    except (UserError, KeyError, IndexError, TypeError):
        raise UserError("error.file_field", field=f"{where}.weights") from None
    return {**spec, "weights": json.loads(_ENCODER.encode(found))}


def _path(error: str) -> str:
    """The field of which msgspec speaks, `.parts.numbers`."""
    at, missing = _AT.search(error), _MISSING.search(error)
    path = re.sub(r"\[[^]]*\]", "", at[1]) if at else ""
    return f"{path}.{missing[1]}" if missing else path


@cache
def _shape(cls: type) -> type:
    """A record as msgspec checks it: its fields with the bounds that their numbers have. Not the
    record's own type, so that records carry plain annotations and nobody can forget a bound."""
    needed = {f.name: f.default is MISSING and f.default_factory is MISSING for f in fields(cls)}
    shapes = {name: _checked(hint) for name, hint in _field_types(cls).items()}
    return typing.TypedDict(
        cls.__name__,
        {name: of if needed[name] else typing.NotRequired[of] for name, of in shapes.items()},
    )


def _checked(hint: object) -> object:
    """An annotation with bounds."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        args = tuple(arg for arg in args if arg is not int or float not in args)
        return typing.Union[tuple(_checked(arg) for arg in args)]  # noqa: UP007
    if origin is tuple:
        return tuple[tuple(arg if arg is Ellipsis else _checked(arg) for arg in args)]
    if origin is Mapping:
        if args[1] in (str, float, object) or is_dataclass(args[1]):
            return dict[str, _checked(args[1])]
        return dict[str, str | NUMBER | bool | None]
    if is_dataclass(hint):
        return _shape(hint)
    return {int: COUNT, float: NUMBER}.get(hint, hint)


def _build(cls: type, values: dict[str, object]) -> typing.Any:
    for name, build in _builders(cls):
        if name in values:
            values[name] = build(values[name])
    return cls(**values)


@cache
def _builders(cls: type) -> tuple[tuple[str, Callable[[typing.Any], object]], ...]:
    """What fields that hold records, or numbers written without a point, are made with."""
    found = ((name, _builder(hint)) for name, hint in _field_types(cls).items())
    return tuple((name, build) for name, build in found if build is not None)


def _builder(hint: object) -> Callable[[typing.Any], object] | None:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if hint is float:
        return float
    if is_dataclass(hint):
        return lambda values: _build(hint, values)
    if origin is Mapping and is_dataclass(args[1]):
        return lambda values: {name: _build(args[1], one) for name, one in values.items()}
    inner = _builder(args[0]) if origin in (types.UnionType, typing.Union, tuple) else None
    if inner is None:
        return None
    if origin is tuple:
        return lambda items: tuple(map(inner, items))
    return lambda value: None if value is None else inner(value)
