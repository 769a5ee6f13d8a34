"""The connections that the kernel tracks, by the tool ``conntrack``."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from npc.dataplane.tools import ToolError
from npc.ruleset import Family

if TYPE_CHECKING:
    from collections.abc import Iterator

    from npc.dataplane.tools import Run

_FAMILIES = {Family.IPV4: "ipv4", Family.IPV6: "ipv6"}
_TUPLE = r"src=(\S+) dst=(\S+)(?: sport=(\d+) dport=(\d+))?"
_FLOW = re.compile(rf"^\S+ +(\d+) .*?\b{_TUPLE}.*?\b{_TUPLE}", re.MULTILINE)
_NONE = "0 flow entries have been deleted"
_LOCAL = re.compile(r"\|-- (\S+)\n\s+/32 host LOCAL")


@dataclass(frozen=True, slots=True)
class Tuple:
    """One direction of a connection; ports are 0 where the protocol has none."""

    source: str
    destination: str
    source_port: int
    port: int


@dataclass(frozen=True, slots=True)
class Flow:
    """A tracked connection: what its first packet was, and what an answer looks like.

    They differ by more than direction where addresses were translated. ``protocol`` is the number.
    """

    protocol: int
    original: Tuple
    reply: Tuple


@dataclass(frozen=True, slots=True)
class Selection:
    """Connections of one protocol from ``source`` to where they really lead."""

    protocol: int
    source: str
    destination: str
    port: int


def require_conntrack(run: Run) -> None:
    """See that connections can be listed here.

    :raises MissingToolError: if the tool is absent, or we may not do this
    """
    run(["conntrack", "-C"])


def read_flows(run: Run, family: Family) -> Iterator[Flow]:
    """All connections of a family."""
    listed = run(["conntrack", "-L", "-f", _FAMILIES[family]])
    for match in _FLOW.finditer(listed):
        protocol, *fields = match.groups()
        yield Flow(int(protocol), _tuple(family, *fields[:4]), _tuple(family, *fields[4:]))


def _tuple(
    family: Family, source: str, destination: str, source_port: str | None, port: str | None
) -> Tuple:
    if family is Family.IPV6:
        source, destination = (str(ipaddress.IPv6Address(a)) for a in (source, destination))
    return Tuple(source, destination, int(source_port or 0), int(port or 0))


def forget(run: Run, family: Family, selection: Selection) -> None:
    """Let the kernel forget connections: what comes of them next is judged as new."""
    argv = ["conntrack", "-D", "-f", _FAMILIES[family], "-p", str(selection.protocol)]
    argv += ["-s", selection.source, "-r", selection.destination]
    if selection.port:
        argv += ["--reply-port-src", str(selection.port)]
    try:
        run(argv)
    except ToolError as error:
        if _NONE not in error.stderr:  # they may have ended by themselves
            raise


def node_addresses(proc: Path = Path("/proc/self/net")) -> frozenset[str]:
    """The addresses of this node, of both families."""
    found = set(_LOCAL.findall((proc / "fib_trie").read_text()))
    inet6 = proc / "if_inet6"
    for line in inet6.read_text().splitlines() if inet6.exists() else ():
        found.add(str(ipaddress.IPv6Address(bytes.fromhex(line.split()[0]))))
    return frozenset(found)
