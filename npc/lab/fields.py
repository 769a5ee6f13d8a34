"""Reading the fields of a scenario: a value of the right kind, or an error with file and line."""

from __future__ import annotations

import ipaddress
from typing import Any, NoReturn

from npc.lab.located import LocatedDict, LocatedList, ScenarioError
from npc.ruleset import Protocol


class Fields:
    """Readers for the plain values of one file; all raise ``ScenarioError``."""

    def __init__(self, path: str) -> None:
        self.path = path

    def fail(self, line: int, message: str) -> NoReturn:
        """Say what is wrong, and where."""
        raise ScenarioError(f"{self.path}:{line}: {message}")

    def mapping(self, value: Any, what: str, known: set[str] | None, line: int) -> LocatedDict:
        """A mapping whose keys are all known; ``None`` for known takes any."""
        if not isinstance(value, dict):
            self.fail(line, f"{what} must be a mapping, not {value!r}")
        found = value if isinstance(value, LocatedDict) else LocatedDict.at(line, **value)
        for key in found:
            if known is not None and key not in known:
                fields = ", ".join(sorted(known))
                self.fail(found.line, f"{what} has no field {key!r} (it has {fields})")
        return found

    def items(self, mapping: LocatedDict, field: str) -> LocatedList:
        """A list, empty where the field is missing."""
        value = mapping.get(field)
        if value is None:
            return LocatedList()
        if not isinstance(value, LocatedList):
            self.fail(mapping.line, f"{field} must be a list, not {value!r}")
        return value

    def mappings(
        self, mapping: LocatedDict, field: str, what: str, known: set[str] | None
    ) -> list[LocatedDict]:
        """A list of mappings."""
        items = self.items(mapping, field)
        return [self.mapping(item, what, known, items.line) for item in items]

    def names(self, mapping: LocatedDict, field: str) -> tuple[str, ...]:
        """A list of texts, none of them empty."""
        items = self.items(mapping, field)
        for item in items:
            if not isinstance(item, str) or not item:
                self.fail(items.line, f"{field}: {item!r} is not a name")
        return tuple(items)

    def text(self, mapping: LocatedDict, field: str) -> str:
        """A text that is not empty."""
        value = mapping.get(field)
        if not isinstance(value, str) or not value:
            self.fail(mapping.line, f"{field} must be a text, not {value!r}")
        return value

    def choice(self, mapping: LocatedDict, field: str, known: tuple[str, ...]) -> str:
        """One of the words that are known, the first of them where the field is missing."""
        value = mapping.get(field, known[0])
        if value not in known:
            self.fail(mapping.line, f"{field}: {value!r} is none of {', '.join(known)}")
        return str(value)

    def labels(self, mapping: LocatedDict) -> dict[str, str]:
        """Labels by name, none where the field is missing."""
        labels = mapping.get("labels", {})
        if not isinstance(labels, dict) or not all(isinstance(v, str) for v in labels.values()):
            self.fail(mapping.line, f"labels must be texts by name, not {labels!r}")
        return labels

    def number(self, mapping: LocatedDict, field: str, least: int, most: int) -> int:
        """A whole number within bounds."""
        value = mapping.get(field)
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            self.fail(mapping.line, f"{field}: {value!r} is not a number from {least} to {most}")
        return value

    def port(self, mapping: LocatedDict, field: str = "port") -> int:
        """A port number."""
        return self.number(mapping, field, 1, 65535)

    def protocol(self, mapping: LocatedDict) -> Protocol:
        """A transport protocol, TCP where the field is missing."""
        name = mapping.get("protocol", "TCP")
        try:
            return Protocol(name)
        except ValueError:
            self.fail(mapping.line, f"protocol: {name!r} is none of TCP, UDP, SCTP")

    def address(self, mapping: LocatedDict, text: Any) -> str:
        """An address in its usual spelling."""
        try:
            return str(ipaddress.ip_address(text))
        except ValueError:
            self.fail(mapping.line, f"{text!r} is not an address")

    def addresses(self, mapping: LocatedDict) -> tuple[str, ...]:
        """The addresses of the field ``ips``, or the one of ``ip``; none where both are missing."""
        texts = [mapping["ip"]] if "ip" in mapping else self.items(mapping, "ips")
        return tuple(self.address(mapping, text) for text in texts)
