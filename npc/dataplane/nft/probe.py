"""Finds out whether this nft and this kernel can do all that rules may need."""

from __future__ import annotations

from typing import TYPE_CHECKING

from npc.dataplane import MissingToolError
from npc.dataplane.nft.script import rebuild
from npc.dataplane.tools import ToolError
from npc.ruleset import (
    AddressSet,
    Binding,
    Chain,
    Denial,
    Direction,
    Dispatch,
    Family,
    FamilyRules,
    Guard,
    Ports,
    Protocol,
    Rule,
    SetKind,
    SetRef,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from npc.dataplane.tools import Run

_PODS = {Family.IPV4: "192.0.2.1", Family.IPV6: "2001:db8::1"}
_HOSTS = {Family.IPV4: "192.0.2.2/32", Family.IPV6: "2001:db8::2/128"}
_WHOLE = {Family.IPV4: "0.0.0.0/0", Family.IPV6: "::/0"}


def probe(run: Run, families: Iterable[Family]) -> None:
    """Have the kernel check a table with every kind of set and rule, and keep nothing of it.

    :raises MissingToolError: if nft is absent or too old, the kernel lacks a part, or we are not
        root
    """
    text = "\n".join(rebuild(everything(family) for family in families)) + "\n"
    try:
        run(["nft", "--check", "-f", "-"], text)
    except ToolError as error:
        if not error.stderr:
            raise
        raise MissingToolError(f"{error} [this nft or this kernel lacks what it needs]") from None


def everything(family: Family) -> FamilyRules:
    """Every kind of set and rule, for one pod."""
    pod = frozenset([_PODS[family]])
    names = {what: f"PROBE{family.value}-{what}" for what in ("PODS", "BLOCKS", "ENDS", "OPEN")}
    sets = [
        AddressSet(names["PODS"], SetKind.ADDRESS, pod),
        AddressSet(names["OPEN"], SetKind.ADDRESS, pod),
        AddressSet(names["ENDS"], SetKind.ENDPOINT, frozenset([f"{_PODS[family]},sctp:80"])),
        AddressSet(
            names["BLOCKS"],
            SetKind.NETWORK,
            frozenset([_WHOLE[family]]),
            frozenset([_HOSTS[family]]),
        ),
    ]
    rules = [Rule(SetRef(one.name, one.kind), None, "a peer") for one in sets]
    for protocol in Protocol:
        for first, last in ((None, None), (80, 80), (1, 65535)):
            rules.append(Rule(None, Ports(protocol, first, last), "a port"))
    chains: dict[str, Chain] = {}
    bindings: dict[Direction, tuple[Binding, ...]] = {}
    isolated: dict[Direction, str] = {}
    for d in Direction:
        name = f"PROBE{family.value}-{d.name}"
        bindings[d] = (Binding(name, f"{name}-MEMBERS"),)
        chains[name] = Chain(name, d, tuple(rules))
        isolated[d] = f"{name}-ISOLATED"
        sets += (AddressSet(one, SetKind.ADDRESS, pod) for one in (f"{name}-MEMBERS", isolated[d]))
    guard = Guard(names["BLOCKS"], dict.fromkeys(Direction, names["OPEN"]))
    dispatch = Dispatch(isolated, bindings, names["BLOCKS"], guard, Denial(log=True))
    return FamilyRules(family, {one.name: one for one in sets}, chains, dispatch)
