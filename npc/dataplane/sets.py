"""Address sets as the kernel's ipsets: what ``ipset save`` prints, what ``ipset restore`` reads.

``hash:net`` knows no prefix of length 0, so such a block is written as its two halves and read back
as one. Where a block is both an entry and excluded, it is excluded: the kernel keeps one of them.
"""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING

from npc.dataplane.tools import ToolError
from npc.ruleset import PREFIX, AddressSet, Family, SetKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from npc.dataplane.tools import Run
    from npc.plan import SetChange

MAX_ELEMENTS = 1_048_576
"""A bound, not a size: the kernel's table grows with what is in it."""

_RESTORE = ("ipset", "restore", "-exist")
_IN_USE = "in use by a kernel component"

_TYPES = {
    SetKind.ADDRESS: "hash:ip",
    SetKind.NETWORK: "hash:net",
    SetKind.ENDPOINT: "hash:ip,port",
}
_KINDS = {word: kind for kind, word in _TYPES.items()}
_FAMILIES = {Family.IPV4: "inet", Family.IPV6: "inet6"}
_LENGTHS = {Family.IPV4: 32, Family.IPV6: 128}
_HALVES = {
    "0.0.0.0/0": ("0.0.0.0/1", "128.0.0.0/1"),
    "::/0": ("::/1", "8000::/1"),
}


def read_sets(run: Run) -> dict[Family, dict[str, AddressSet | None]]:
    """Read all sets of ours from the kernel, by family.

    One of a type that we never write is ``None``.
    """
    found: dict[Family, dict[str, AddressSet | None]] = {family: {} for family in Family}
    for name, (header, elements) in _by_name(run(["ipset", "save"])).items():
        family = Family.IPV6 if " family inet6 " in f" {header} " else Family.IPV4
        kind = _KINDS.get(header.partition(" ")[0])
        known = None if kind is None else _from_elements(name, kind, family, elements)
        found[family][name] = known
    return found


def _by_name(saved: str) -> dict[str, tuple[str, list[str]]]:
    sets: dict[str, tuple[str, list[str]]] = {}
    for line in saved.splitlines():
        verb, _, rest = line.partition(" ")
        name, _, rest = rest.partition(" ")
        if not name.startswith(PREFIX):
            continue
        if verb == "create":
            sets[name] = (rest, [])
        elif verb == "add":
            sets[name][1].append(rest)
    return sets


def _from_elements(name: str, kind: SetKind, family: Family, elements: Iterable[str]) -> AddressSet:
    entries: set[str] = set()
    excluded: set[str] = set()
    for element in elements:
        text, _, option = element.partition(" ")
        side = excluded if option == "nomatch" else entries
        side.add(_normal(text, kind, family))
    return AddressSet(name, kind, _joined(entries), _joined(excluded))


def _normal(text: str, kind: SetKind, family: Family) -> str:
    """An entry in our spelling: Python's for IPv6, and a block always with its prefix length."""
    address, mark, rest = text.partition("," if kind is SetKind.ENDPOINT else "/")
    if family is Family.IPV6:
        address = str(ipaddress.IPv6Address(address))
    if kind is SetKind.NETWORK and not mark:
        return f"{address}/{_LENGTHS[family]}"
    return address + mark + rest


def _joined(blocks: set[str]) -> frozenset[str]:
    for whole, halves in _HALVES.items():
        if blocks.issuperset(halves):
            blocks = blocks.difference(halves) | {whole}
    return frozenset(blocks)


def as_read(wanted: AddressSet, family: Family) -> AddressSet:
    """What ``read_sets`` returns once ``wanted`` has been written.

    It enforces the same but may be spelled otherwise; see the module's text.
    """
    return _from_elements(wanted.name, wanted.kind, family, _elements(wanted))


def _elements(wanted: AddressSet) -> Iterator[str]:
    """What to add, exceptions first: at no moment is a wide block there without its holes."""
    excluded = frozenset(_split(wanted.excluded))
    for block in sorted(excluded):
        yield f"{block} nomatch"
    yield from sorted(frozenset(_split(wanted.entries)) - excluded)


def _split(blocks: Iterable[str]) -> Iterator[str]:
    for block in blocks:
        yield from _HALVES.get(block, (block,))


def extend_sets(
    run: Run,
    family: Family,
    create: Sequence[AddressSet] = (),
    replace: Sequence[AddressSet] = (),
    add: Sequence[SetChange] = (),
) -> None:
    """Create and fill sets, swap in rebuilt ones, and add entries; in that order, in one call.

    :raises DataplaneError: if it fails; then any number of these steps has been done
    """
    lines: list[str] = []
    for new in create:
        lines.append(_create(new.name, new.kind, family))
        lines += (f"add {new.name} {element}" for element in _elements(new))
    spare = spare_name(family)
    for new in replace:
        # The spare set may be there, and full, after a crash.
        lines += (_create(spare, new.kind, family), f"flush {spare}")
        lines += (f"add {spare} {element}" for element in _elements(new))
        lines += (f"swap {new.name} {spare}", f"destroy {spare}")
    for change in add:
        lines += (f"add {change.name} {entry}" for entry in _split(change.entries))
    _restore(run, lines)


def spare_name(family: Family) -> str:
    """The set in which another is rebuilt before the two are swapped."""
    return f"{PREFIX}REBUILD-{family.value}"


def remove_entries(run: Run, changes: Sequence[SetChange]) -> None:
    """Remove entries from sets, in one call; those that are gone already are no error."""
    _restore(
        run,
        [f"del {change.name} {entry}" for change in changes for entry in _split(change.entries)],
    )


def destroy_sets(run: Run, names: Iterable[str]) -> list[str]:
    """Destroy sets and return those that could not be, since something still refers to them.

    A set that is gone already is no error.
    """
    left, in_use = list(names), []
    while left:
        try:
            _restore(run, [f"destroy {name}" for name in left])
        except ToolError as error:
            if _IN_USE not in error.stderr or error.line is None:
                raise
            in_use.append(left[error.line - 1])
            left = left[error.line :]
        else:
            break
    return in_use


def probe_sets(run: Run, family: Family) -> None:
    """See that the kernel has every type of set that we use, by making one of each.

    :raises MissingToolError: if ipset is absent, a type is, or we may not do this
    """
    names = {kind: f"{PREFIX}PROBE-{family.value}-{kind.name[0]}" for kind in SetKind}
    _restore(run, [_create(name, kind, family) for kind, name in names.items()])
    destroy_sets(run, names.values())


def all_names(sets: Mapping[Family, Mapping[str, object]]) -> list[str]:
    """The names of all sets that ``read_sets`` found, in order."""
    return sorted(name for found in sets.values() for name in found)


def _create(name: str, kind: SetKind, family: Family) -> str:
    return f"create {name} {_TYPES[kind]} family {_FAMILIES[family]} maxelem {MAX_ELEMENTS}"


def _restore(run: Run, lines: list[str]) -> None:
    if lines:
        run(_RESTORE, "\n".join(lines) + "\n")
