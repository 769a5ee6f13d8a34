"""A rule in the spelling of iptables-save as the structure that libiptc takes.

Extensions of iptables parse the options of their match or target; everything else is put together
here. The library's own way to add a rule prints each match to a redirected standard output and
parses it once more, which takes most of its time; no step of ours prints.
"""

from __future__ import annotations

import ctypes
import ipaddress
import socket
from typing import TYPE_CHECKING, Any

from iptc import ip4tc, ip6tc, xtables

from npc.dataplane.libiptc_worker import MissingError, RefusedError
from npc.dataplane.table import spelled_options
from npc.ruleset import PREFIX, Family

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

# An extension ends a failed parse by a jump out of it. The library makes that jump from Python code
# that C calls, which leaves the interpreter's frames behind; C alone can make it as well.
xtables._xt_globals.exit_err = xtables._EXIT_FN(("throw_exception", xtables._lib_xtwrapper))

# Before it makes a target the library asks every table for a chain of that name, which would create
# tables in the kernel. Jumps to chains are made without it.
for _table in (ip4tc.Table, ip6tc.Table6):
    _table.existing_table_names = dict.fromkeys(_table.ALL, False)

_RULES = {Family.IPV4: ip4tc.Rule, Family.IPV6: ip6tc.Rule6}
_GOTO = {
    Family.IPV4: ip4tc.ipt_ip.IPT_F_GOTO,
    Family.IPV6: ip6tc.ip6t_ip6.IP6T_F_GOTO,
}
_PROTOCOLS = {
    "icmp": socket.IPPROTO_ICMP,
    "tcp": socket.IPPROTO_TCP,
    "udp": socket.IPPROTO_UDP,
    "ipv6-icmp": socket.IPPROTO_ICMPV6,
    "sctp": socket.IPPROTO_SCTP,
}
_VERDICTS = frozenset({"ACCEPT", "DROP", "RETURN"})

_Option = tuple[str, ...]


class _StandardTarget(ctypes.Structure):
    _fields_ = (("target", xtables.xt_entry_target), ("verdict", ctypes.c_int))


class Builder:
    """Makes the rules of one family's chains, each but once as far as that can be told."""

    def __init__(self, family: Family) -> None:
        self._family = family
        self._parts: dict[tuple[object, ...], bytes] = {}
        self._last: dict[str, dict[str, bytes]] = {}

    def begin(self, deleted: Iterable[str]) -> None:
        """Start a transaction, in which these chains go.

        Sets have numbers in the kernel, and one that was made again has another. So what refers to
        one is kept for a transaction alone, what does not for as long as its chain.
        """
        self._parts.clear()
        for name in deleted:
            self._last.pop(name, None)

    def build_chain(self, name: str, rules: Sequence[str]) -> list[bytes]:
        """The entries of a whole chain; errors as in ``build``."""
        last = self._last.get(name, {})
        entries = {rule: last.get(rule) or self.build(rule) for rule in rules}
        self._last[name] = {r: entry for r, entry in entries.items() if "--match-set" not in r}
        return [entries[rule] for rule in rules]

    def build(self, rule: str) -> bytes:
        """The entry for a rule of the form ``-A CHAIN ...``; the chain's name is not in it.

        :raises RefusedError: if an option is not known here or refused by its extension
        :raises MissingError: if there is no such extension, or the kernel lacks it
        """
        made = _RULES[self._family]()
        matches: list[tuple[str, list[_Option]]] = []
        target: tuple[str, list[_Option]] = ("", [])
        options: list[_Option] | None = None
        try:
            for flag, *arguments in spelled_options(rule):
                if flag == "-m":
                    options = []
                    matches.append((arguments[0], options))
                elif flag in {"-j", "-g"}:
                    options = []
                    target = (arguments[0], options)
                    if flag == "-g":
                        made.get_ip().flags |= _GOTO[self._family]
                elif flag.lstrip("!").startswith("--") and options is not None:
                    options.append((flag, *arguments))
                else:
                    _set_field(made, flag, *arguments)
            parts = [self._match(made, *match) for match in matches]
            return _joined(made, parts, self._target(made, *target))
        except (AttributeError, TypeError, ValueError, xtables.XTablesError) as error:
            raise RefusedError(f"{error} [rule: {rule}]") from None

    def _match(self, rule: Any, name: str, options: Sequence[_Option]) -> bytes:
        key = (name, rule.get_ip().proto, *options)
        if key not in self._parts:
            if not xtables.xtables(rule.nfproto).find_match(name):
                raise MissingError(f"iptables or this kernel has no match {name!r}")
            match = ip4tc.Match(rule, name=name)
            _parse(rule, match, name, options)
            self._parts[key] = bytes(match.match_buf)
        return self._parts[key]

    def _target(self, rule: Any, name: str, options: Sequence[_Option]) -> bytes:
        key = ("-j", name, *options)
        if key not in self._parts:
            if name in _VERDICTS or name.startswith(PREFIX):
                self._parts[key] = _jump(name)
            else:
                if not xtables.xtables(rule.nfproto).find_target(name):
                    raise MissingError(f"iptables or this kernel has no target {name!r}")
                goto = bool(rule.get_ip().flags & _GOTO[self._family])
                target = ip4tc.Target(rule, name=name, goto=goto)
                _parse(rule, target, name, options)
                self._parts[key] = ctypes.string_at(target._ptr, target.size)
        return self._parts[key]


def _set_field(rule: Any, flag: str, *arguments: str) -> None:
    """Set what every rule has: addresses and protocol."""
    (value,) = arguments
    if ":" in value and not value.endswith("/128"):
        # The library keeps bits of the host beside a shorter prefix; nothing would match.
        value = str(ipaddress.IPv6Network(value, strict=False))
    if flag == "-s":
        rule.src = value
    elif flag == "-d":
        rule.dst = value
    elif flag == "-p" and value in _PROTOCOLS:
        rule.protocol = _PROTOCOLS[value]
    else:
        raise ValueError(f"{flag} {value} is not known here")


def _parse(rule: Any, extension: Any, name: str, options: Sequence[_Option]) -> None:
    """Let an extension read its options.

    Not by the library's ``set_parameter``, which takes a value that begins with ``!`` for negated.
    The room that an extension gets for its own use is ours too; the library's has been freed.
    """
    module = extension._module
    room = (ctypes.c_ubyte * module.udata_size)()
    module.udata = ctypes.cast(room, ctypes.c_void_p)
    for flag, *arguments in options:
        if (name, arguments) == ("comment", [""]):
            # The library cannot pass an empty text on, and a new comment is empty already.
            continue
        texts = [flag.lstrip("!").removeprefix("--"), *arguments]
        argv = (ctypes.c_char_p * len(texts))(*(text.encode() for text in texts))
        try:
            extension._parse(argv, ctypes.c_int(flag.startswith("!")), ctypes.pointer(rule.entry))
        except (AttributeError, ValueError, xtables.XTablesError):
            said = " ".join((flag, *arguments))
            raise ValueError(f"the extension {name!r} of iptables refuses `{said}'") from None
    extension._final_check()


def _jump(name: str) -> bytes:
    made = _StandardTarget()
    made.target.u.target_size = xtables.xt_align(ctypes.sizeof(made))
    made.target.u.user.name = name.encode()
    return bytes(made).ljust(made.target.u.target_size, b"\0")


def _joined(rule: Any, matches: Sequence[bytes], target: bytes) -> bytes:
    entry = rule.entry
    entry.target_offset = ctypes.sizeof(entry) + sum(map(len, matches))
    entry.next_offset = entry.target_offset + len(target)
    return b"".join((bytes(entry), *matches, target))
