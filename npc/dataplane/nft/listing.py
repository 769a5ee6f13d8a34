"""What ``nft -j list table`` prints, as text in the words of ``layout``.

Versions of nft differ in how they print for people; its JSON is a format that others rely on. It is
not always the same either: version 1.1.4 prints a single flag without the list around it.
"""

from __future__ import annotations

import ipaddress
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from npc.dataplane.nft import layout
from npc.dataplane.nft.layout import Line, NftSet

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


class ForeignError(Exception):
    """The table is not one that we would write; the text says why."""


@dataclass(frozen=True, slots=True)
class Table:
    """What is in the table."""

    sets: dict[str, NftSet] = field(default_factory=dict)
    maps: dict[str, dict[str, str]] = field(default_factory=dict)
    """By verdict map, the entries: by address the chain to jump to."""
    chains: dict[str, list[Line]] = field(default_factory=dict)


def read_table(listed: str) -> Table:
    """Read what ``nft -j list table`` printed.

    :raises ForeignError: if there is anything in the table that we never write
    """
    table = Table()
    for item in json.loads(listed)["nftables"]:
        ((kind, content),) = item.items()
        match kind:
            case "metainfo" | "counter":
                pass
            case "table":
                _expect(content, {"family", "name", "handle"})
            case "set":
                table.sets[content["name"]] = _set(content)
            case "map":
                table.maps[content["name"]] = _map(content)
            case "chain":
                _check_hook(content)
                table.chains[content["name"]] = []
            case "rule":
                line = Line(_rule(content["expr"]), content.get("comment", ""))
                table.chains[content["chain"]].append(line)
            case _:
                raise ForeignError(f"it holds a {kind} {content.get('name', '')}".rstrip())
    return table


def read_counters(listed: str) -> dict[str, int]:
    """By name, how many packets each counter has seen, from ``nft -j list counters``."""
    found = [item["counter"] for item in json.loads(listed)["nftables"] if "counter" in item]
    return {one["name"]: one["packets"] for one in found}


def _expect(content: Mapping[str, Any], keys: set[str]) -> None:
    """Whoever has other properties than ours is not ours: a dormant table, a set with timeouts."""
    if more := sorted(content.keys() - keys):
        raise ForeignError(f"{content['name']} has {', '.join(more)}")


_HOOK_KEYS = {"type", "hook", "prio", "policy"}


def _check_hook(chain: Mapping[str, Any]) -> None:
    name = chain["name"]
    _expect(chain, {"family", "table", "name", "handle", *_HOOK_KEYS})
    found = {key: chain[key] for key in _HOOK_KEYS & chain.keys()}
    wanted: dict[str, Any] = {}
    if name in layout.HOOKS:
        wanted = {"type": "filter", "hook": name, "prio": layout.PRIORITY, "policy": "accept"}
    if found != wanted:
        raise ForeignError(f"the chain {name} is hooked in otherwise")


_SET_KEYS = {"family", "name", "table", "type", "handle", "flags", "elem"}


def _set(content: Mapping[str, Any]) -> NftSet:
    _expect(content, _SET_KEYS)
    flags = content.get("flags", [])
    if flags not in ([], ["interval"], "interval"):
        raise ForeignError(f"the set {content['name']} is of another type")
    return NftSet(
        content["name"],
        _type(content["type"]),
        bool(flags),
        frozenset(map(_element, content.get("elem", ()))),
    )


def _type(found: str | list[str]) -> str:
    return found if isinstance(found, str) else " . ".join(found)


def _map(content: Mapping[str, Any]) -> dict[str, str]:
    _expect(content, {*_SET_KEYS, "map"} - {"flags"})
    name, entries = content["name"], {}
    wanted = {name: layout.ADDRESS_TYPE[family] for (family, _), name in layout.VERDICTS.items()}
    if content["map"] != "verdict" or wanted.get(name) != content["type"]:
        raise ForeignError(f"the map {name} is of another type")
    for key, verdict in content.get("elem", ()):
        match verdict:
            case {"jump": {"target": str(chain)}}:
                entries[_element(key)] = chain
            case _:
                raise ForeignError(f"the map {name} leads somewhere else")
    return entries


def _element(found: Any) -> str:
    match found:
        case str() | int():
            text = str(found)
            return str(ipaddress.IPv6Address(text)) if ":" in text else text
        case {"prefix": {"addr": address, "len": length}}:
            return f"{_element(address)}/{length}"
        case {"concat": list(parts)}:
            return " . ".join(map(_element, parts))
        case {"elem": {"val": value}}:
            return _element(value)
        case _:
            return json.dumps(found)


def _rule(expressions: Iterable[Mapping[str, Any]]) -> str:
    return " ".join(map(_statement, expressions))


def _statement(found: Mapping[str, Any]) -> str:
    match found:
        case {"match": {"op": "==" | "in", "left": left, "right": right}}:
            return f"{_left(left)} {_right(right)}"
        case {"match": {"op": op, "left": left, "right": right}}:
            return f"{_left(left)} {op} {_right(right)}"
        case {"vmap": {"key": key, "data": data}}:
            return f"{_left(key)} vmap {_right(data)}"
        case {"jump": {"target": chain}}:
            return f"jump {chain}"
        case {"goto": {"target": chain}}:
            return f"goto {chain}"
        case {"counter": str(name)}:
            return f"counter name {name}"
        case {"limit": {"rate": rate, "burst": burst, "per": per, **rest}} if not rest:
            return f"limit rate {rate}/{per} burst {burst} packets"
        case {"log": {"prefix": prefix, "group": group, **rest}} if not rest:
            return f'log group {group} prefix "{prefix}"'
        case {"reject": {"type": "icmpx", "expr": reason}}:
            return f"reject with icmpx {reason}"
        case {"reject": {"type": "tcp reset"}}:
            return "reject with tcp reset"
    ((word, content),) = found.items()
    return word if content is None else json.dumps(found)


def _left(found: Any) -> str:
    match found:
        case {"payload": {"protocol": protocol, "field": name}}:
            return f"{protocol} {name}"
        case {"meta": {"key": key, **rest}} if not rest:
            return f"meta {key}"
        case {"ct": {"key": key, **rest}} if not rest:
            return f"ct {key}"
        case {"fib": {"result": result, "flags": [str(flag)] | str(flag)}}:
            return f"fib {flag} {result}"
        case {"concat": list(parts)}:
            return " . ".join(map(_left, parts))
    return json.dumps(found)


def _right(found: Any) -> str:
    match found:
        case str() | int():
            return str(found)
        case list():
            return ",".join(sorted(map(str, found)))
        case {"range": [first, last]}:
            return f"{first}-{last}"
        case {"set": list(members)}:
            return f"{{ {', '.join(sorted(map(str, members)))} }}"
    return json.dumps(found)
