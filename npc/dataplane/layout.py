"""How a ruleset looks as chains of the filter table, and what such chains say when read back.

In the spelling of ``iptables-save``; docs/adr/0003-kernel-layout.md says why it looks so.

    INPUT, FORWARD, OUTPUT      rule 1 jumps to NPC-INPUT, NPC-FORWARD, NPC-OUTPUT
    NPC-INPUT, -FORWARD, -OUTPUT  what needs no verdict returns at once; then, by two set lookups,
                                a packet of an isolated pod goes to the dispatch of its direction
    NPC-EGRESS, NPC-INGRESS     the dispatch: go to the chain that the pod is bound to
    policy chains               a rule that allows returns; the end goes to the denial
    NPC-DENY-EGRESS, -INGRESS   a pod may always reach itself; all else is refused

A verdict of ours is "no objection" (return to where the dispatch was called, then to the rules of
others) or a refusal. Nothing is ever accepted, and no mark is set.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from npc.dataplane.table import FilterTable, Options, options_of
from npc.ruleset import (
    PREFIX,
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
    from collections.abc import Iterable, Mapping, Sequence

    from npc.ruleset import AddressSet, FamilyRules

JUMPS = {hook: f"{PREFIX}{hook}" for hook in ("INPUT", "FORWARD", "OUTPUT")}
"""Where each hook of the kernel leads to us."""

DISPATCH = {direction: f"{PREFIX}{direction.name}" for direction in Direction}
DENY = {direction: f"{PREFIX}DENY-{direction.name}" for direction in Direction}
FIXED = frozenset([*JUMPS.values(), *DISPATCH.values(), *DENY.values()])
"""The chains that are there whatever the policies say; all others of ours are policy chains."""

_SIDE = {Direction.INGRESS: "dst", Direction.EGRESS: "src"}
"""Where in a packet the isolated pod is. Its peer is on the other side."""
_PEER = {Direction.INGRESS: "src", Direction.EGRESS: "dst"}

_LENGTH = {Family.IPV4: 32, Family.IPV6: 128}
_REFUSAL = {Family.IPV4: "icmp-port-unreachable", Family.IPV6: "icmp6-port-unreachable"}

_SETTLED = "-m conntrack --ctstate RELATED,ESTABLISHED -j RETURN"
_FROM_NODE = "-m addrtype --src-type LOCAL -j RETURN"
# The group is the one that kube-router uses; `tcpdump -i nflog:100` shows what comes.
_LOG = "-m limit --limit 10/min --limit-burst 10 -j NFLOG --nflog-group 100"
# Without neighbour discovery (router and neighbour solicitation and advertisement, redirect) there
# is no IPv6; conntrack does not track it. Its hop limit of 255 keeps it on one link.
_LINK = {
    Family.IPV4: (),
    Family.IPV6: tuple(
        f"-p ipv6-icmp -m icmp6 --icmpv6-type {number} -j RETURN" for number in range(133, 138)
    ),
}

_LONGEST_COMMENT = 255
_NOT_PLAIN = re.compile(r"[^ !#-\[\]-~]")


def jump(hook: str) -> str:
    """The rule that must be first in ``hook``."""
    return f'-A {hook} -m comment --comment "npc: network policies" -j {JUMPS[hook]}'


def fixed_chains(rules: FamilyRules) -> dict[str, list[str]]:
    """The rules of every chain in ``FIXED``."""
    isolated = rules.dispatch.isolated
    members = {direction: rules.sets[name].entries for direction, name in isolated.items()}
    return _fixed_chains(rules.family, rules.dispatch, members)


def _fixed_chains(
    family: Family, dispatch: Dispatch, members: Mapping[Direction, Iterable[str]]
) -> dict[str, list[str]]:
    return {
        **_entries(family, dispatch),
        **{DISPATCH[d]: _dispatch(d, dispatch) for d in dispatch.bindings},
        **{DENY[d]: _deny(family, d, dispatch.denial, found) for d, found in members.items()},
    }


def _entries(family: Family, dispatch: Dispatch) -> dict[str, list[str]]:
    """The first chains, where most packets leave us.

    A packet of the node itself to a pod is seen in OUTPUT alone and always allowed. What else is
    seen there with a pod's address are packets that IPVS sends on.
    """
    egress, ingress = (
        [
            f"-m set --match-set {dispatch.isolated[d]} {_SIDE[d]} -j {DISPATCH[d]}",
            *_held(d, dispatch, f"-m set ! --match-set {dispatch.isolated[d]} {_SIDE[d]} "),
        ]
        for d in (Direction.EGRESS, Direction.INGRESS)
    )
    first = (_SETTLED, *_LINK[family], *_exempt(dispatch.exempt))
    # The node's own packets to itself pass INPUT too, with an address that may be in a held block.
    own = (_FROM_NODE,) if dispatch.guard else ()
    bodies = {
        "INPUT": (*first, *own, *egress),
        "FORWARD": (*first, *egress, *ingress),
        "OUTPUT": (_FROM_NODE, *first, *egress, *ingress),
    }
    return {
        JUMPS[hook]: [f"-A {JUMPS[hook]} {rule}" for rule in body] for hook, body in bodies.items()
    }


def _exempt(name: str | None) -> tuple[str, ...]:
    return tuple(f"-m set --match-set {name} {side} -j RETURN" for side in ("src", "dst") if name)


def _held(direction: Direction, dispatch: Dispatch, unless: str = "") -> list[str]:
    """Refuse what an address sends (or receives) that is held."""
    guard, side = dispatch.guard, _SIDE[direction]
    if guard is None:
        return []
    within, known = guard.blocks, guard.open[direction]
    match = f"-m set --match-set {within} {side} {unless}-m set ! --match-set {known} {side}"
    return [f"{match} -g {DENY[direction]}"]


def _dispatch(direction: Direction, dispatch: Dispatch) -> list[str]:
    """Goto, not jump: what a policy chain allows returns to the entry chain, which goes on.

    A pod is counted as isolated a moment before its chain is bound: it stays held until then.
    """
    bound = (
        f"-m set --match-set {binding.members} {_SIDE[direction]} -g {binding.chain}"
        for binding in dispatch.bindings[direction]
    )
    return [f"-A {DISPATCH[direction]} {rule}" for rule in (*bound, *_held(direction, dispatch))]


def _deny(
    family: Family, direction: Direction, denial: Denial, members: Iterable[str]
) -> list[str]:
    """Refuse what got here, except a pod's packets to itself.

    A packet that conntrack cannot place is dropped: the reset that answers it could end an allowed
    connection to which it does belong. Where the destination was translated (a service), TCP gets
    an ICMP error like all the rest, since the kernel sends a reset on a bridge without translating
    it back. Elsewhere a reset is better: the kernel limits the rate of ICMP errors.
    """
    length = _LENGTH[family]
    rules = [
        f"-s {address}/{length} -d {address}/{length} -j RETURN" for address in sorted(members)
    ]
    if denial.log:
        rules.append(f'{_LOG} --nflog-prefix "npc: denied {direction.value.lower()}"')
    if denial.action is DenyAction.DROP:
        rules.append("-j DROP")
    else:
        rules += (
            "-m conntrack --ctstate INVALID -j DROP",
            "-p tcp -m conntrack ! --ctstate DNAT -j REJECT --reject-with tcp-reset",
            f"-j REJECT --reject-with {_REFUSAL[family]}",
        )
    return [f"-A {DENY[direction]} {rule}" for rule in rules]


def chain_rules(chain: Chain) -> list[str]:
    """The rules of a policy chain."""
    return [
        *(_rule(chain.name, chain.direction, rule) for rule in chain.rules),
        f"-A {chain.name} -g {DENY[chain.direction]}",
    ]


def _rule(chain: str, direction: Direction, rule: Rule) -> str:
    parts = [f"-A {chain}"]
    if rule.ports:
        protocol = rule.ports.protocol.value.lower()
        parts.append(f"-p {protocol}")
    if rule.peer:
        endpoint = rule.peer.kind is SetKind.ENDPOINT
        sides = "dst,dst" if endpoint else _PEER[direction]
        parts.append(f"-m set --match-set {rule.peer.name} {sides}")
    if rule.ports and rule.ports.first is not None:
        parts.append(f"-m {protocol} --dport {_port_range(rule.ports.first, rule.ports.last)}")
    parts.append(f'-m comment --comment "{_comment(rule.origin)}" -j RETURN')
    return " ".join(parts)


def _port_range(first: int, last: int | None) -> str:
    return f"{first}" if last is None or last == first else f"{first}:{last}"


def _comment(text: str) -> str:
    """The text as far as a comment can hold it: printable ASCII without quotes, not too long."""
    return _NOT_PLAIN.sub("?", text)[:_LONGEST_COMMENT]


def as_read(chain: Chain) -> Chain | None:
    """What ``read_chain`` returns once ``chain`` has been written; a long origin is cut short."""
    kinds = {rule.peer.name: rule.peer.kind for rule in chain.rules if rule.peer}
    return read_chain(chain.name, chain_rules(chain), kinds)


def read_chain(name: str, rules: Iterable[str], kinds: Mapping[str, SetKind]) -> Chain | None:
    """Read a policy chain back; ``None`` if it is not one that we would write.

    ``kinds`` has the kind of every set of ours.
    """
    *allowed, end = [options_of(rule) for rule in rules] or [()]
    direction = _ENDS.get(end)
    if direction is None:
        return None
    found = [_read_rule(direction, options, kinds) for options in allowed]
    whole = tuple(rule for rule in found if rule is not None)
    return Chain(name, direction, whole) if len(whole) == len(found) else None


_ENDS: dict[Options, Direction] = {(("-g", chain),): direction for direction, chain in DENY.items()}


def _read_rule(direction: Direction, options: Options, kinds: Mapping[str, SetKind]) -> Rule | None:
    by_flag = {option[0]: option[1:] for option in options}
    try:
        peer = ports = None
        if found := by_flag.get("--match-set"):
            peer = SetRef(found[0], kinds[found[0]])
        if found := by_flag.get("-p"):
            first, _, last = by_flag.get("--dport", ("",))[0].partition(":")
            number = int(first) if first else None
            ports = Ports(Protocol(found[0].upper()), number, int(last) if last else number)
        rule = Rule(peer, ports, *by_flag.get("--comment", ("",)))
    except (KeyError, ValueError, IndexError, TypeError):
        return None
    # Whatever was not understood above makes a difference here.
    return rule if options_of(_rule("X", direction, rule)) == options else None


def read_dispatch(
    table: FilterTable, family: Family, sets: Mapping[str, AddressSet]
) -> Dispatch | None:
    """Read the dispatch back; ``None`` unless every fixed chain and every jump is as written."""
    found = _find_dispatch(table)
    if found is None or not jumps_in_place(table) or not _names(found) <= sets.keys():
        return None
    members = {d: sets[name].entries for d, name in found.isolated.items()}
    for name, rules in _fixed_chains(family, found, members).items():
        if _all_options(table.chains.get(name, ())) != _all_options(rules):
            return None
    return found


def _find_dispatch(table: FilterTable) -> Dispatch | None:
    """What the chains seem to be, by what tells them apart; the caller compares the rest."""
    isolated: dict[Direction, str] = {}
    blocks, exempt = "", None
    unheld: dict[Direction, str] = {}
    for rule in table.chains.get(JUMPS["FORWARD"], ()):
        options = options_of(rule)
        named = [option[1] for option in options if option[0] == "--match-set"]
        for direction in Direction:
            if ("-j", DISPATCH[direction]) in options:
                isolated[direction] = "".join(named)
        if ("-j", "RETURN") in options and named:
            exempt = named[0]
    for direction in Direction:
        for rule in table.chains.get(DISPATCH[direction], ())[-1:]:
            options = options_of(rule)
            if ("-g", DENY[direction]) in options:
                by_flag = {option[0]: option[1] for option in options if len(option) > 1}
                blocks = by_flag.get("--match-set", "")
                unheld[direction] = by_flag.get("!--match-set", "")
    if len(isolated) != len(Direction) or len(unheld) not in {0, len(Direction)}:
        return None
    held = Guard(blocks, unheld) if unheld else None
    bindings = {d: _read_bindings(table.chains.get(DISPATCH[d], ()), held) for d in Direction}
    return Dispatch(isolated, bindings, exempt, held, _read_denial(table))


def _read_bindings(rules: Sequence[str], held: Guard | None) -> tuple[Binding, ...]:
    found = []
    for rule in rules[:-1] if held else rules:
        by_flag = {option[0]: option[1:] for option in options_of(rule)}
        chain, members = by_flag.get("-g", ()), by_flag.get("--match-set", ())
        found.append(Binding("".join(chain[:1]), "".join(members[:1])))
    return tuple(found)


def _read_denial(table: FilterTable) -> Denial:
    targets = {
        option
        for rule in table.chains.get(DENY[Direction.INGRESS], ())
        for option in options_of(rule)
        if option[0] == "-j"
    }
    rejects = ("-j", "REJECT") in targets
    action = DenyAction.REJECT if rejects else DenyAction.DROP
    return Denial(action, log=("-j", "NFLOG") in targets)


def _names(dispatch: Dispatch) -> set[str]:
    """The sets that the fixed chains name, except those of the bindings."""
    named = {*dispatch.isolated.values(), dispatch.exempt or ""}
    if dispatch.guard:
        named |= {dispatch.guard.blocks, *dispatch.guard.open.values()}
    return named - {""}


def _all_options(rules: Iterable[str]) -> list[Options]:
    return [options_of(rule) for rule in rules]


def jumps_in_place(table: FilterTable) -> bool:
    """Whether each hook's first rule is our jump, and nothing else leads to us."""
    wanted = {(hook, 0): options_of(jump(hook)) for hook in JUMPS}
    found = {(chain, place): options_of(rule) for chain, place, rule in table.references()}
    return found == wanted
