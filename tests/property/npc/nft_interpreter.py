"""Judges packets by the text of an nftables table, as the kernel would at its hook ``forward``."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence

from npc.dataplane.nft import layout
from npc.dataplane.nft.layout import Line, NftSet
from npc.ruleset import FamilyRules
from tests.property.npc.reference import Packet

FIELD = r"(?:ip6? [sd]addr|meta l4proto|th dport)"
LOOKUP = re.compile(rf"({FIELD}(?: \. {FIELD})*) (!= )?@(\S+) ?")
VERDICT_MAP = re.compile(r"(ip6? [sd]addr) vmap @(\S+)")
PROTOCOL = re.compile(r"meta l4proto (tcp|udp|sctp) ")
PORTS = re.compile(r"(tcp|udp|sctp) dport (\d+)(?:-(\d+))? ")
# A first packet of a connection between pods is none of these.
OTHER = re.compile(r"ct state \S+ |ct status dnat |icmpv6 type |fib saddr type local ")
COUNTER = re.compile(r"counter name \S+ ")
LOG = re.compile(r"limit rate \S+ burst \d+ packets log group \d+ prefix .*")
END = re.compile(r"accept|return|drop|reject with .*|goto (\S+)")


class Table:
    """What ``npc.dataplane.nft`` writes for some rules of one family."""

    def __init__(self, rules: FamilyRules) -> None:
        self.sets = {one.name: one for one in layout.nft_sets(rules, rules.sets.values())}
        self.maps = {
            layout.VERDICTS[rules.family, direction]: found
            for direction, found in layout.verdicts(rules).items()
        }
        self.chains = layout.fixed_chains({rules.family: rules.dispatch})
        self.chains |= layout.policy_chains(rules, rules.chains.values())

    def allows(self, packet: Packet) -> bool:
        """Whether nothing refuses the packet."""
        return self._run("forward", packet) != "refused"

    def _run(self, chain: str, packet: Packet) -> str:
        """``accept``, ``refused``, or ``return`` to where the chain was called from."""
        for line in self.chains[chain]:
            verdict = self._rule(line, packet)
            if verdict:
                return verdict
        return "return"

    def _rule(self, line: Line, packet: Packet) -> str | None:
        text = line.text
        while text:
            if match := VERDICT_MAP.fullmatch(text):
                chain = self.maps[match[2]].get(self._key([match[1]], packet))
                verdict = self._run(chain, packet) if chain else "return"
                return None if verdict == "return" else verdict
            if match := LOOKUP.match(text):
                key = self._key(match[1].split(" . "), packet)
                if _holds(self.sets[match[3]], key) is bool(match[2]):
                    return None
            elif match := PROTOCOL.match(text):
                if packet.protocol.lower() != match[1]:
                    return None
            elif match := PORTS.match(text):
                first, last = int(match[2]), int(match[3] or match[2])
                if packet.protocol.lower() != match[1] or not first <= packet.port <= last:
                    return None
            elif OTHER.match(text) or LOG.fullmatch(text):
                return None
            elif match := END.fullmatch(text):
                if match[1]:
                    return self._run(match[1], packet)
                return text if text in {"accept", "return"} else "refused"
            else:
                match = COUNTER.match(text)
                assert match, f"what does this mean: {text}"
            text = text[match.end() :]
        return None

    def _key(self, fields: Sequence[str], packet: Packet) -> str:
        version = "ip6" if ":" in packet.source else "ip"
        values = {
            f"{version} saddr": packet.source,
            f"{version} daddr": packet.destination,
            "meta l4proto": packet.protocol.lower(),
            "th dport": str(packet.port),
        }
        return " . ".join(values[field] for field in fields)


def _holds(found: NftSet, key: str) -> bool:
    if not found.interval:
        return key in found.elements
    address = ipaddress.ip_address(key)
    return any(address in ipaddress.ip_network(element) for element in found.elements)
