"""Carries out one request after the other until the agent closes the socket.

Requests and replies are lines of JSON on the socket that is standard input. Nothing is said on
standard output, since python-iptables plays with it. A failure ends the program, so that the next
request finds a new one.
"""

from __future__ import annotations

import contextlib
import json
import select
import signal
import socket
import sys
from typing import Any

from npc.dataplane.libiptc_worker import MissingError, RefusedError
from npc.ruleset import Family


def main() -> None:
    """Serve the agent."""
    # A service manager sends it to all processes of the agent, which then ends its sync first.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with contextlib.suppress(ConnectionError), socket.socket(fileno=sys.stdin.fileno()) as agent:
        for line in agent.makefile("r"):
            reply = _answer(agent, json.loads(line))
            agent.sendall(json.dumps(reply).encode() + b"\n")
            if "error" in reply:
                break


def _answer(agent: socket.socket, request: dict[str, Any]) -> dict[str, Any]:
    """Carry out one request and say what was counted, or what went wrong."""
    hangup = select.poll()
    hangup.register(agent, select.POLLRDHUP)
    family = Family(request.pop("family"))
    counted: dict[str, int] = {}
    try:
        table = _load()
        if "refused_in" in request:
            counted = table.count_refused(family, request["refused_in"])
        else:
            change = table.Change(family, **request)
            table.carry_out(change, is_wanted=lambda: not hangup.poll(0))
    except RefusedError as error:
        return {"error": str(error), "missing": isinstance(error, MissingError)}
    return {"counted": counted}


def _load() -> Any:
    """What needs python-iptables, which runs programs and loads libraries when it is imported."""
    try:
        from npc.dataplane.libiptc_worker import table
    except Exception as error:
        raise MissingError(
            f"python-iptables cannot be loaded: {error} [needs libip4tc, libip6tc and libxtables: "
            "install the package 'iptables']"
        ) from error
    return table


if __name__ == "__main__":
    main()
