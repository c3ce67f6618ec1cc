"""Records of `exporter.model` to plain data (what JSON and YAML can hold) and back, strictly.

Child processes, scenario files and recordings all speak this form: a record is a mapping from field name to
value with fields at their default left out, a tuple is a list, an enum member its value, a member of a union
of records carries its class name under `is`. `decode` refuses what it does not know and says where it stands.
Standard library only, no I/O.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable
from enum import Enum
from functools import cache
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

T = TypeVar("T")
Decoder = Callable[[Any], Any]
TAG = "is"


class CodecError(ValueError):
    """Plain data that is not the record it should be; `where` is the path to the offending value."""

    def __init__(self, where: str, problem: str) -> None:
        super().__init__(where, problem)
        self.where = where
        self.problem = problem

    def __str__(self) -> str:
        return f"{self.where or 'the document'}: {self.problem}"

    def below(self, where: str) -> CodecError:
        """The same, told from further up: paths are put together only where something is wrong."""
        return CodecError(where + self.where, self.problem)


_PLAIN = frozenset({str, int, float, bool, NoneType})


def encode(thing: Any) -> Any:
    """Return `thing` as plain data. Records carry their tag, which `decode` demands only in unions."""
    kind = type(thing)
    if kind in _PLAIN:
        return thing
    if kind is tuple or kind is list:
        return [encode(one) for one in thing]
    if isinstance(thing, Enum):
        return thing.value
    plain: dict[str, Any] = {TAG: kind.__name__}
    for name, default in _defaults(cast(Hashable, kind)):
        held = getattr(thing, name)
        if held is not default and held != default:
            plain[name] = held if type(held) in _PLAIN else encode(held)
    return plain


def decode(kind: type[T] | Any, plain: Any, where: str = "") -> T:
    """Build a `kind` from plain data. Raises CodecError naming the path, the value and what was expected."""
    try:
        return cast(T, _decoder(cast(Hashable, kind))(plain))
    except CodecError as error:
        raise error.below(where) from None


@cache
def _defaults(kind: Any) -> tuple[tuple[str, Any], ...]:
    """(field, default) of a record; a field without default gets an object that equals nothing."""
    return tuple(
        (f.name, f.default_factory() if callable(f.default_factory) else f.default)
        for f in dataclasses.fields(kind)
    )


@cache
def _decoder(kind: Any) -> Decoder:
    origin, args = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return _union(args)
    if origin is tuple:
        return _sequence(args[0]) if args[-1] is Ellipsis else _fixed(args)
    if origin is not None:  # a generic record such as Seen[Nvml]
        return _record(origin, dict(zip(origin.__parameters__, args, strict=True)))
    if dataclasses.is_dataclass(kind):
        return _record(kind, {})
    if isinstance(kind, type) and issubclass(kind, Enum):
        return _enum(kind)
    return _scalar(kind)


def _scalar(kind: Any) -> Decoder:
    accepted = (int, float) if kind is float else (kind,)

    def read(plain: Any) -> Any:
        if type(plain) is kind:
            return plain
        if not isinstance(plain, accepted) or (isinstance(plain, bool) and kind is not bool):
            raise CodecError("", f"{plain!r} is not of type {kind.__name__}")
        try:
            return float(cast(float, plain)) if kind is float else plain
        except OverflowError as error:
            raise CodecError("", "a number beyond any float") from error

    return read


def _enum(kind: type[Enum]) -> Decoder:
    members = {member.value: member for member in kind}

    def read(plain: Any) -> Any:
        if not isinstance(plain, str) or plain not in members:
            raise CodecError("", f"{plain!r} is none of {', '.join(map(str, members))}")
        return members[plain]

    return read


def _sequence(item: Any) -> Decoder:
    one = _decoder(item)

    def read(plain: Any) -> Any:
        if not isinstance(plain, (list, tuple)):
            raise CodecError("", f"{plain!r} is not a list")
        found = []
        try:
            for value in plain:
                found.append(one(value))  # noqa: PERF401 (its length says where an error is)
        except CodecError as error:
            raise error.below(f"[{len(found)}]") from None
        return tuple(found)

    return read


def _fixed(items: tuple[Any, ...]) -> Decoder:
    decoders = tuple(_decoder(item) for item in items)

    def read(plain: Any) -> Any:
        if not isinstance(plain, (list, tuple)) or len(plain) != len(decoders):
            raise CodecError("", f"{plain!r} is not a list of {len(decoders)}")
        found: list[Any] = []
        try:
            for decoder, value in zip(decoders, plain, strict=True):
                found.append(decoder(value))
        except CodecError as error:
            raise error.below(f"[{len(found)}]") from None
        return tuple(found)

    return read


def _union(args: tuple[Any, ...]) -> Decoder:
    records = {
        (get_origin(a) or a).__name__: _decoder(a)
        for a in args
        if dataclasses.is_dataclass(get_origin(a) or a)
    }
    scalars = [
        _decoder(a) for a in args if a is not NoneType and not dataclasses.is_dataclass(get_origin(a) or a)
    ]
    optional = NoneType in args
    only = next(iter(records.values())) if len(records) == 1 else None

    def read(plain: Any) -> Any:
        if plain is None and optional:
            return None
        if isinstance(plain, dict) and records:
            if TAG not in plain and only is not None:
                return only(plain)
            tag = plain.get(TAG)
            if not isinstance(tag, str) or tag not in records:
                raise CodecError(f".{TAG}", f"{tag!r} is none of {', '.join(records)}")
            return records[tag](plain)
        for scalar in scalars:
            try:
                return scalar(plain)
            except CodecError:
                if scalar is scalars[-1]:
                    raise
        raise CodecError("", f"{plain!r} is no record of {', '.join(records)}")

    return read


def _record(kind: Any, variables: dict[Any, Any]) -> Decoder:
    hints = get_type_hints(kind)
    decoders = {f.name: _lazy(variables.get(hints[f.name], hints[f.name])) for f in dataclasses.fields(kind)}
    # Most fields are texts and numbers, which need no call where they are what they should be.
    simple = {name: hint for name, hint in hints.items() if hint in (str, int, bool)}
    needed = {
        f.name
        for f in dataclasses.fields(kind)
        if f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
    }

    def read(plain: Any) -> Any:
        if not isinstance(plain, dict):
            raise CodecError("", f"{plain!r} is no mapping with the fields of {kind.__name__}")
        built = {}
        for name, value in plain.items():
            if simple.get(name) is type(value):
                built[name] = value
            elif name in decoders:
                try:
                    built[name] = decoders[name](value)
                except CodecError as error:
                    raise error.below(f".{name}") from None
            elif name != TAG:
                raise CodecError(f".{name}", f"unknown key; {kind.__name__} has {', '.join(decoders)}")
            elif value != kind.__name__:
                raise CodecError(f".{TAG}", f"{value!r} where a {kind.__name__} is wanted")
        if missing := needed - built.keys():
            raise CodecError("", f"{kind.__name__} lacks {', '.join(sorted(missing))}")
        return kind(**built)

    return read


def _lazy(kind: Any) -> Decoder:
    """Resolve a field's decoder at first use, so that building one record's does not build all others'."""
    found: list[Decoder] = []

    def read(plain: Any) -> Any:
        if not found:
            found.append(_decoder(kind))
        return found[0](plain)

    return read
