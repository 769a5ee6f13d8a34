"""What the kubelet makes of a container's environment and arguments."""

from __future__ import annotations

from typing import Any

# What it puts in for fields of the pod, on one node.
_FIELDS = {
    "spec.nodeName": "node-1",
    "metadata.name": "npc-abcde",
    "status.hostIP": "192.0.2.1",
}


def environment(container: dict[str, Any]) -> dict[str, str]:
    """The environment, each variable expanded by those before it."""
    known: dict[str, str] = {}
    for variable in container["env"]:
        if "valueFrom" in variable:
            value = _FIELDS[variable["valueFrom"]["fieldRef"]["fieldPath"]]
        else:
            value = _expand(variable["value"], known)
        known[variable["name"]] = value
    return known


def arguments(container: dict[str, Any], known: dict[str, str]) -> list[str]:
    """The arguments, expanded by this environment."""
    return [_expand(argument, known) for argument in container["args"]]


def _expand(text: str, known: dict[str, str]) -> str:
    for name, value in known.items():
        text = text.replace(f"$({name})", value)
    assert "$(" not in text, f"a variable that is not known: {text}"
    return text
