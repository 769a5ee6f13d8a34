"""From a table's text back to a ruleset.

What is read is ours or it is not: a policy chain that says anything else than we would write is
unknown, and where any other part is not as written, the whole table is foreign.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from npc.dataplane.nft import layout
from npc.dataplane.nft.layout import EXCEPT, Line
from npc.dataplane.nft.listing import ForeignError, Table
from npc.ruleset import (
    AddressSet,
    Binding,
    Chain,
    Denial,
    DenyAction,
    Direction,
    Dispatch,
    Family,
    Guard,
    Ports,
    Protocol,
    Rule,
    SetKind,
    SetRef,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


@dataclass(frozen=True, slots=True)
class Found:
    """What the table holds of one family. A chain that is not one of ours is ``None``."""

    sets: Mapping[str, AddressSet]
    chains: Mapping[str, Chain | None]
    dispatch: Dispatch
    verdicts: Mapping[Direction, Mapping[str, str]]
    lines: Mapping[str, list[Line]]
    """What is written in each policy chain."""


def read_families(table: Table, families: Iterable[Family]) -> dict[Family, Found]:
    """What the table holds of each family, where it is a table for just these families.

    :raises ForeignError: if its fixed parts are not as written for these families
    """
    fixed = {family: _find_dispatch(table, family) for family in families}
    chains = layout.fixed_chains(fixed)
    for name, lines in chains.items():
        if table.chains.get(name) != lines:
            raise ForeignError(f"the chain {name} says something else")
    if table.maps.keys() != {layout.VERDICTS[family, d] for family in fixed for d in Direction}:
        raise ForeignError("a map is there that should not be, or the other way round")
    owners = _owners(table)
    if lost := table.chains.keys() - chains.keys() - owners.keys():
        raise ForeignError(f"it holds a chain {min(lost)} that leads nowhere")
    found = {family: _found(table, family, one, owners) for family, one in fixed.items()}
    known = [layout.nft_names(one.sets.values(), one.dispatch) for one in found.values()]
    if lost := table.sets.keys() - frozenset[str]().union(*known):
        raise ForeignError(f"it holds a set {min(lost)} that is not of ours")
    return found


# -- fixed chains ----------------------------------------------------------------------------------


def _find_dispatch(table: Table, family: Family) -> Dispatch:
    """What the fixed chains seem to say, but for the bindings; the caller compares the rest."""
    ip = layout.IP[family]
    isolated, unheld = {}, {}
    blocks = ""
    exempt = _search(table, "forward", rf"{ip} saddr @(\S+) accept")
    for direction in Direction:
        deny = layout.DENY[family, direction]
        pairs = _search(table, deny, rf"{ip} saddr \. \S+ daddr @(\S+) return")
        if pairs is None:
            raise ForeignError(f"the chain {deny} says something else")
        isolated[direction] = pairs[1]
        if held := _search(table, "forward", rf"{ip} \S+ @(\S+) \S+ \S+ != @(\S+) .*goto {deny}"):
            blocks, unheld[direction] = held.groups()
    if unheld and len(unheld) != len(Direction):
        raise ForeignError("the chain forward says something else")
    guard = Guard(blocks, unheld) if unheld else None
    denial = Denial(
        DenyAction.REJECT if _search(table, deny, r".* reject .*") else DenyAction.DROP,
        log=_search(table, deny, r".* log .*") is not None,
    )
    return Dispatch(
        isolated, dict.fromkeys(Direction, ()), exempt[1] if exempt else None, guard, denial
    )


def _search(table: Table, chain: str, pattern: str) -> re.Match[str] | None:
    found = (re.fullmatch(pattern, line.text) for line in table.chains.get(chain, ()))
    return next(filter(None, found), None)


# -- policy chains ---------------------------------------------------------------------------------


def _owners(table: Table) -> dict[str, Family]:
    """By policy chain, the family whose it is: by the map that leads there, or where it leads."""
    found: dict[str, Family] = {}
    for (family, _), name in layout.VERDICTS.items():
        found |= dict.fromkeys(table.maps.get(name, {}).values(), family)
    for chain, lines in table.chains.items():
        for line in lines:
            if line.text in _ENDS and chain not in layout.HOOKS:
                found.setdefault(chain, _ENDS[line.text][0])
    return found


_ENDS = {f"goto {chain}": place for place, chain in layout.DENY.items()}


def _found(table: Table, family: Family, fixed: Dispatch, owners: Mapping[str, Family]) -> Found:
    verdicts = {d: table.maps[layout.VERDICTS[family, d]] for d in Direction}
    lines = {name: table.chains[name] for name, owner in owners.items() if owner is family}
    sets = _sets(table, family, fixed)
    chains = {name: _chain(family, name, body, sets) for name, body in lines.items()}
    bindings: dict[Direction, tuple[Binding, ...]] = {}
    for direction in Direction:
        bound: dict[str, set[str]] = {}
        for address, chain in verdicts[direction].items():
            bound.setdefault(chain, set()).add(address)
        end = f"goto {layout.DENY[family, direction]}"
        members = {
            name: line.comment
            for name, body in lines.items()
            for line in body
            if line.text == end and line.comment
        }
        bindings[direction] = tuple(Binding(*item) for item in sorted(members.items()))
        for chain, name in members.items():
            sets[name] = AddressSet(name, SetKind.ADDRESS, frozenset(bound.get(chain, ())))
    return Found(sets, chains, replace(fixed, bindings=bindings), verdicts, lines)


def _chain(
    family: Family, name: str, lines: list[Line], sets: Mapping[str, AddressSet]
) -> Chain | None:
    end = lines[-1] if lines else Line("")
    owner, direction = _ENDS.get(end.text, (None, Direction.INGRESS))
    if owner is not family:
        return None
    try:
        chain = Chain(name, direction, tuple(_read_rule(line, sets) for line in lines[:-1]))
        same = layout.chain_lines(family, chain, end.comment, sets) == lines
    except (KeyError, ValueError):
        return None
    return chain if same else None


_SET_NAME = re.compile(r"@(\S+)")
_PORTS = re.compile(r"(?:meta l4proto (tcp|udp|sctp)|(tcp|udp|sctp) dport (\d+)(?:-(\d+))?) return")


def _read_rule(line: Line, sets: Mapping[str, AddressSet]) -> Rule:
    """The rule, if it is one; whatever was not understood makes a difference to what we write."""
    peer = ports = None
    if match := _SET_NAME.search(line.text):
        peer = SetRef(match[1], sets[match[1]].kind)
    if match := _PORTS.search(line.text):
        whole, protocol, first, last = match.groups()
        number = int(first) if first else None
        ports = Ports(Protocol((whole or protocol).upper()), number, int(last) if last else number)
    return Rule(peer, ports, line.comment)


# -- sets ------------------------------------------------------------------------------------------


def _sets(table: Table, family: Family, fixed: Dispatch) -> dict[str, AddressSet]:
    found: dict[str, AddressSet] = {}
    isolated = set(fixed.isolated.values())
    for one in table.sets.values():
        whole = one.name.removesuffix(EXCEPT)
        if whole != one.name and whole in table.sets:
            continue
        if (kind := _KINDS.get((one.type, one.interval))) is None or kind[0] is not family:
            continue
        entries, excluded = one.elements, frozenset[str]()
        if kind[1] is None:
            if one.name not in isolated:
                raise ForeignError(f"it holds a set {one.name}")
            entries = frozenset(_single(element) for element in entries)
        elif kind[1] is SetKind.NETWORK:
            entries = frozenset(_block(element, family) for element in entries)
            if exceptions := table.sets.get(f"{one.name}{EXCEPT}"):
                excluded = frozenset(_block(e, family) for e in exceptions.elements)
        elif kind[1] is SetKind.ENDPOINT:
            entries = frozenset(map(_endpoint, entries))
        found[one.name] = AddressSet(one.name, kind[1] or SetKind.ADDRESS, entries, excluded)
    if missing := isolated - found.keys():
        raise ForeignError(f"the set {min(missing)} is of another type")
    return found


_KINDS: dict[tuple[str, bool], tuple[Family, SetKind | None]] = {
    kind: (family, meaning)
    for family, address in layout.ADDRESS_TYPE.items()
    for kind, meaning in (
        ((address, False), SetKind.ADDRESS),
        ((address, True), SetKind.NETWORK),
        ((f"{address} . inet_proto . inet_service", False), SetKind.ENDPOINT),
        ((f"{address} . {address}", False), None),
    )
}
"""By type and whether it holds intervals, what a set is for; ``None``: pairs of isolated pods."""


def _single(element: str) -> str:
    address, _, again = element.partition(" . ")
    if address != again:
        raise ForeignError(f"it lets {address} speak to {again}")
    return address


def _block(element: str, family: Family) -> str:
    length = 32 if family is Family.IPV4 else 128
    return element if "/" in element else f"{element}/{length}"


def _endpoint(element: str) -> str:
    address, protocol, port = element.split(" . ")
    return f"{address},{protocol}:{port}"
