"""The filter table as ``iptables-save`` prints it, and what a printed rule says.

Versions of iptables differ in how they spell and order the same rule, so rules are compared by
their options: flag with arguments, in no order, without the ``-m`` that merely loads a match.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from npc.dataplane import DataplaneError
from npc.ruleset import PREFIX

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

Options = tuple[tuple[str, ...], ...]
"""Each flag with its arguments, sorted."""

_TOKEN = re.compile(r'"((?:[^"\\]|\\.)*)"|(\S+)')
_ESCAPED = re.compile(r"\\(.)")


@dataclass(frozen=True, slots=True)
class FilterTable:
    """One family's filter table: by chain, its rules as printed (``-A CHAIN ...``), in order."""

    chains: Mapping[str, tuple[str, ...]]

    @property
    def ours(self) -> list[str]:
        """The names of all chains with our prefix, sorted."""
        return sorted(name for name in self.chains if name.startswith(PREFIX))

    def references(self) -> Iterable[tuple[str, int, str]]:
        """Every rule in a chain of other programs that leads into one of ours.

        Yields the chain, the rule's place in it from 0, and the rule.
        """
        for chain, rules in self.chains.items():
            if chain.startswith(PREFIX):
                continue
            for place, rule in enumerate(rules):
                if PREFIX in rule and _leads_to_us(options_of(rule)):
                    yield chain, place, rule

    def strays(self, hooks: Collection[str]) -> dict[str, tuple[str, ...]]:
        """By chain, the rules that lead to us from anywhere but the hooks."""
        found: dict[str, tuple[str, ...]] = {}
        for chain, _, rule in self.references():
            if chain not in hooks:
                found[chain] = (*found.get(chain, ()), rule)
        return found


def _leads_to_us(options: Options) -> bool:
    return any(
        option[0] in {"-j", "-g"} and option[1].startswith(PREFIX)
        for option in options
        if len(option) > 1
    )


def rules_of(listed: str) -> tuple[str, ...]:
    """The rules in what ``iptables -S CHAIN`` printed, in order."""
    return tuple(line for line in listed.splitlines() if line.startswith("-A "))


def refused(rules: Iterable[str]) -> int:
    """How many packets met a rule that refuses them, in what ``iptables -v -S CHAIN`` printed."""
    total = 0
    for rule in rules:
        by_flag = {option[0]: option[1:] for option in options_of(rule)}
        if by_flag.get("-j") in {("DROP",), ("REJECT",)}:
            total += int(by_flag["-c"][0])
    return total


def parse_save(saved: str) -> FilterTable:
    """Read the filter table from what iptables-save printed; a table that is not there is empty.

    :raises DataplaneError: if iptables could not read the table
    """
    chains: dict[str, list[str]] = {}
    inside = False
    for line in saved.splitlines():
        if line.startswith("*"):
            inside = line == "*filter"
        elif not inside:
            if "Table `filter' is incompatible" in line:
                raise DataplaneError(
                    "the table `filter' holds rules that iptables cannot read, so that we cannot "
                    "see where ours are: another program wrote them with nft; it should use a "
                    "table of its own (`nft list table ip filter` shows them, or ip6)"
                )
        elif line.startswith(":"):
            chains.setdefault(line[1:].split(" ", 1)[0], [])
        elif line.startswith("-A "):
            chains.setdefault(line.split(" ", 2)[1], []).append(line)
    return FilterTable({name: tuple(rules) for name, rules in chains.items()})


def options_of(rule: str) -> Options:
    """The options of a rule printed as ``-A CHAIN ...``; a negated one begins with ``!``."""
    return tuple(sorted(option for option in spelled_options(rule) if option[0] != "-m"))


def spelled_options(rule: str) -> list[tuple[str, ...]]:
    """The options of a rule as they stand there, those that load a match included."""
    found: list[list[str]] = []
    negated = ""
    for match in list(_TOKEN.finditer(rule))[2:]:
        quoted, bare = match.groups()
        if bare == "!":
            negated = bare
        elif bare is not None and (bare.startswith("-") or not found):
            found.append([negated + bare])
            negated = ""
        else:
            found[-1].append(bare if bare is not None else _ESCAPED.sub(r"\1", quoted))
    return [tuple(option) for option in found]
