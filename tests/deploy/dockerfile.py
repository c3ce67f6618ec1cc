"""The text of a Dockerfile in, its stages and instructions out.

Knows the instructions and flags that this project's Dockerfile uses and no others: what it does not know it
refuses, because a step that is skipped in silence would make every test of the result a lie.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

# Each instruction with the flags that are understood.
KNOWN: dict[str, frozenset[str]] = {
    "FROM": frozenset(),
    "ARG": frozenset(),
    "ENV": frozenset(),
    "LABEL": frozenset(),
    "WORKDIR": frozenset(),
    "COPY": frozenset({"from"}),
    "RUN": frozenset(),
    "USER": frozenset(),
    "EXPOSE": frozenset(),
    "STOPSIGNAL": frozenset(),
    "ENTRYPOINT": frozenset(),
}
_VARIABLE = re.compile(r"\$(?:\{(\w+)\}|(\w+))")
_PAIR = re.compile(r'([\w.-]+)=("(?:[^"\\]|\\.)*"|\S*)\s*')


class Unknown(Exception):  # noqa: N818 # what was met, not what went wrong
    """An instruction, flag or form that is not understood."""


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction: its name, flags, and the rest of its text with continuation lines joined."""

    name: str
    text: str
    line: int
    flags: Mapping[str, str] = field(default_factory=dict)

    def words(self) -> list[str]:
        """The text as words: a JSON list where it is one, else apart at spaces."""
        if self.text.startswith("["):
            found = json.loads(self.text)
            if not isinstance(found, list) or not all(isinstance(word, str) for word in found):
                raise Unknown(f"line {self.line}: {self.text} is no list of strings")
            return found
        return self.text.split()

    @property
    def is_exec(self) -> bool:
        """Whether it is in the exec form, without a shell."""
        return self.text.startswith("[")

    def pairs(self, known: Mapping[str, str]) -> dict[str, str]:
        """KEY=value pairs, quotes taken off and variables put in."""
        found: dict[str, str] = {}
        at = 0
        while at < len(self.text):
            match = _PAIR.match(self.text, at)
            if match is None:
                raise Unknown(f"line {self.line}: {self.text[at:]!r} is no KEY=value")
            value = match[2]
            found[match[1]] = expand(value[1:-1] if value.startswith('"') else value, known, self.line)
            at = match.end()
        return found


@dataclass(frozen=True, slots=True)
class Stage:
    """One FROM and what follows it."""

    name: str
    base: str
    steps: tuple[Instruction, ...]


def expand(text: str, known: Mapping[str, str], line: int) -> str:
    """`text` with $NAME and ${NAME} put in; a name that is not known is refused."""

    def value(match: re.Match[str]) -> str:
        name = match[1] or match[2]
        if name not in known:
            raise Unknown(f"line {line}: ${name} is not set")
        return known[name]

    expanded = _VARIABLE.sub(value, text)
    if "${" in expanded:
        raise Unknown(f"line {line}: {text!r} has a form of substitution that is not understood")
    return expanded


def stages(text: str) -> dict[str, Stage]:
    """The stages by name, in the order of the file."""
    found: dict[str, Stage] = {}
    steps: list[Instruction] = []
    for one in instructions(text):
        if one.name == "FROM":
            base, word, name = (*one.text.split(), "", "")[:3]
            if word.upper() != "AS" or not name or name in found:
                raise Unknown(f"line {one.line}: give each stage a name of its own (FROM image AS name)")
            steps = []
            found[name] = Stage(name, base, ())
        elif not found:
            raise Unknown(f"line {one.line}: {one.name} before the first FROM")
        else:
            steps.append(one)
        last = list(found)[-1]
        found[last] = Stage(last, found[last].base, tuple(steps))
    return found


def instructions(text: str) -> Iterator[Instruction]:
    """The instructions, comments left out and continuation lines joined."""
    joined, start = "", 0
    for number, line in enumerate(text.splitlines(), start=1):
        if line.lstrip().startswith("#") or (not joined and not line.strip()):
            continue
        start = start or number
        if line.endswith("\\"):
            joined += line[:-1].strip() + " "
            continue
        yield _instruction((joined + line.strip()).strip(), start)
        joined, start = "", 0
    if joined:
        raise Unknown(f"line {start}: the last line is continued")


def _instruction(text: str, line: int) -> Instruction:
    name, _, rest = text.partition(" ")
    flags: dict[str, str] = {}
    rest = rest.strip()
    if name not in KNOWN:
        raise Unknown(f"line {line}: {name} is not understood")
    if "<<" in rest:
        raise Unknown(f"line {line}: here-documents are not understood")
    while rest.startswith("--"):
        flag, _, rest = rest.partition(" ")
        key, equals, value = flag[2:].partition("=")
        if not equals or key not in KNOWN[name]:
            raise Unknown(f"line {line}: {flag} of {name} is not understood")
        flags[key] = value
        rest = rest.strip()
    return Instruction(name, rest, line, flags)
