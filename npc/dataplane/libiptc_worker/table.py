"""One transaction of a filter table, by libiptc: take a copy of the table, change it, swap it in.

The kernel refuses to swap only if the number of rules changed since the copy was made. All else
depends on the lock that every program of iptables takes, and that libiptc does not.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import functools
import os
import signal
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn, Self

from iptc import ip4tc, ip6tc, xtables

from npc.dataplane.libiptc_worker import MissingError, RefusedError
from npc.dataplane.libiptc_worker.rules import Builder
from npc.ruleset import PREFIX, Family

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from types import FrameType, TracebackType

LOCK_FILE = "/run/xtables.lock"
TRIES = 5
"""How often a table is changed anew that another program changed meanwhile, without the lock."""

_PREFIX = PREFIX.encode()
_LIBRARIES = {
    Family.IPV4: (ip4tc.iptc, ip4tc.ipt_entry),
    Family.IPV6: (ip6tc.ip6tc, ip6tc.ip6t_entry),
}
_NO_KERNEL = "this kernel has no legacy iptables"
_REASONS = {
    errno.EPERM: "needs root, or the capabilities CAP_NET_ADMIN and CAP_NET_RAW",
    errno.ENOENT: _NO_KERNEL,
    errno.ENOPROTOOPT: _NO_KERNEL,
    errno.EPROTONOSUPPORT: _NO_KERNEL,
}

_builder = functools.cache(Builder)
_errno_location = ctypes.CDLL(None).__errno_location
_errno_location.restype = ctypes.POINTER(ctypes.c_int)


@dataclass(frozen=True, slots=True)
class Change:
    """What to do in the table of one family; rules in the spelling of iptables.

    ``chains`` are created or replaced as a whole, ``jumps`` become the only rules of others that
    lead to us and the first of their chains (without any, all stay as they are), ``delete`` are
    chains that go. ``lock_seconds`` is how long to wait for another program to give the xtables
    lock back.
    """

    family: Family
    lock_seconds: int
    chains: Mapping[str, Sequence[str]] = field(default_factory=dict)
    jumps: Mapping[str, str] = field(default_factory=dict)
    delete: Sequence[str] = ()


def carry_out(change: Change, is_wanted: Callable[[], bool]) -> None:
    """Make the change, all of it or nothing, unless ``is_wanted`` says no just before the end.

    :raises MissingError: if the kernel cannot, or we may not
    :raises RefusedError: if it fails otherwise, or another program keeps the lock
    """
    builder = _builder(change.family)
    builder.begin(change.delete)
    chains = {name: builder.build_chain(name, rules) for name, rules in change.chains.items()}
    jumps = {hook: builder.build(rule) for hook, rule in change.jumps.items()}
    with xtables_lock(change.lock_seconds):
        for _ in range(TRIES):
            with Table(change.family) as table:
                table.edit(chains, jumps, change.delete)
                if not is_wanted():
                    # Another agent may be at work already, with newer rules.
                    raise RefusedError("the agent has ended")
                if table.commit():
                    return
    raise RefusedError(
        f"another program changed the filter table during each of {TRIES} tries, without the lock"
    )


def count_refused(family: Family, chains: Sequence[str]) -> dict[str, int]:
    """By chain, how many packets met a rule of it that refuses them.

    :raises MissingError: if the kernel cannot, or we may not
    :raises RefusedError: if it fails otherwise
    """
    with Table(family) as table:
        return {name: table.refused(name) for name in chains}


@contextlib.contextmanager
def xtables_lock(seconds: int) -> Iterator[None]:
    """Hold the lock of all programs that write by legacy iptables; wait for it that long."""
    path = os.environ.get("XTABLES_LOCKFILE", LOCK_FILE)
    try:
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except PermissionError:
        raise MissingError(f"cannot open the xtables lock {path} [needs root]") from None
    except OSError as error:
        raise RefusedError(f"cannot open the xtables lock {path}: {error.strerror}") from None
    before = signal.signal(signal.SIGALRM, _give_up)
    try:
        signal.alarm(seconds)
        fcntl.flock(lock, fcntl.LOCK_EX)
        signal.alarm(0)
        yield
    except TimeoutError:
        raise RefusedError(f"{path} was held by another program for {seconds} s") from None
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
        os.close(lock)


def _give_up(_number: int, _frame: FrameType | None) -> NoReturn:
    raise TimeoutError


class Table:
    """A copy of a filter table, to be changed and committed."""

    def __init__(self, family: Family) -> None:
        self._call, self._entry = _LIBRARIES[family]
        self._handle = self._call.iptc_init(b"filter")
        if not self._handle:
            number, said = self._error()
            failure = f"cannot read the IPv{family.value} filter table: {said}"
            if reason := _REASONS.get(number):
                raise MissingError(f"{failure} [{reason}]")
            raise RefusedError(failure)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._call.iptc_free(self._handle)

    def edit(
        self,
        chains: Mapping[str, Sequence[bytes]],
        jumps: Mapping[str, bytes],
        delete: Sequence[str],
    ) -> None:
        """Change the copy: replace chains, then, unless there are no jumps, see that exactly they
        lead to us, then delete chains.
        """
        present = set(self._chains())
        stale = [name for name in delete if name.encode() in present]
        # Stale chains may lead to each other: empty them all first.
        for name in (*chains, *stale):
            there = name.encode() in present
            self._do("flush_entries" if there else "create_chain", name)
        for name, entries in chains.items():
            for entry in entries:
                self._do("append_entry", name, entry)
        if jumps:
            self._lead(jumps)
        for name in stale:
            self._do("delete_chain", name)

    def refused(self, chain: str) -> int:
        """How many packets met a rule of that chain that refuses them."""
        return sum(
            entry[0].counters.pcnt
            for entry in self._entries(chain.encode())
            if self._call.iptc_get_target(entry, self._handle) in {b"DROP", b"REJECT"}
        )

    def commit(self) -> bool:
        """Swap the changed copy in; ``False`` if the table is another one by now."""
        if self._call.iptc_commit(self._handle):
            return True
        number, said = self._error()
        if number == errno.EAGAIN:
            return False
        raise RefusedError(f"the kernel refused the transaction: {said}")

    def _lead(self, jumps: Mapping[str, bytes]) -> None:
        wanted = {(hook.encode(), 0): self._meaning(jump) for hook, jump in jumps.items()}
        found = dict(self._references())
        if found == wanted:
            return
        for chain, place in sorted(found, reverse=True):
            self._do("delete_num_entry", chain.decode(), place)
        for hook, jump in jumps.items():
            self._do("insert_entry", hook, jump, 0)

    def _references(self) -> Iterator[tuple[tuple[bytes, int], object]]:
        """Where other programs' chains lead into one of ours, and by what rule."""
        for chain in list(self._chains()):
            if chain.startswith(_PREFIX):
                continue
            for place, entry in enumerate(self._entries(chain)):
                target = self._call.iptc_get_target(entry, self._handle)
                if target and target.startswith(_PREFIX):
                    yield (chain, place), self._meaning(_raw(entry), target)

    def _meaning(self, raw: bytes, target: bytes | None = None) -> object:
        """What a rule does, without its counters and what the kernel keeps in it.

        ``target`` is the chain that it leads to, where that is not in the rule itself.
        """
        kind = self._entry
        entry = kind.from_buffer_copy(raw)
        matches = []
        start = ctypes.sizeof(kind)
        while start < entry.target_offset:
            head = xtables.xt_entry_match.from_buffer_copy(raw, start)
            data = raw[start + ctypes.sizeof(head) : start + head.u.match_size]
            matches.append((head.u.user.name, head.u.user.revision, data))
            start += head.u.match_size
        if target is None:
            jump = xtables.xt_entry_target.from_buffer_copy(raw, entry.target_offset)
            target = jump.u.user.name
        return raw[: kind.nfcache.offset], matches, target

    def _chains(self) -> Iterator[bytes]:
        chain = self._call.iptc_first_chain(self._handle)
        while chain:
            yield chain
            chain = self._call.iptc_next_chain(self._handle)

    def _entries(self, chain: bytes) -> Iterator[Any]:
        entry = self._call.iptc_first_rule(chain, self._handle)
        while entry:
            yield entry
            entry = self._call.iptc_next_rule(entry, self._handle)

    def _do(self, verb: str, chain: str, *arguments: bytes | int) -> None:
        call = getattr(self._call, f"iptc_{verb}")
        if not call(chain.encode(), *arguments, self._handle):
            raise RefusedError(f"cannot {verb.replace('_', ' ')} {chain}: {self._error()[1]}")

    def _error(self) -> tuple[int, str]:
        number = _errno_location()[0]
        return number, self._call.iptc_strerror(number).decode()


def _raw(entry: Any) -> bytes:
    return ctypes.string_at(entry, entry[0].next_offset)
