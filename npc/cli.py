"""The command line: ``npc run`` (the agent), ``npc cleanup``, ``npc lab``.

Exit codes: 0 done, 1 the work failed, 2 the command, its configuration or this machine is unusable.
"""

from __future__ import annotations

import argparse
import ipaddress
import os
import re
import signal
import sys
from contextlib import contextmanager
from importlib.metadata import version
from typing import TYPE_CHECKING

from npc import logs
from npc.compile import Settings
from npc.dataplane import DataplaneError, MissingToolError
from npc.dataplane.choose import BACKENDS, FAMILIES, named_families
from npc.ruleset import Denial, DenyAction
from reconciler.manager import stop_signals

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from npc.policy import Network

UNUSABLE = 2

_DURATION = re.compile(r"(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    args = _parser().parse_args(argv)
    # Those of the command line were checked; a default, which may be a variable's, was not.
    for name, given, choices in (
        ("NPC_LOG_LEVEL", args.log_level, logs.LEVELS),
        ("NPC_LOG_FORMAT", args.log_format, logs.FORMATS),
    ):
        if given not in choices:
            return _unusable(f"cannot use {name}={given}: write one of {', '.join(choices)}")
    logs.configure(args.log_level, args.log_format)
    try:
        code: int = args.command(args)
    except MissingToolError as error:
        print(f"npc: {error}", file=sys.stderr)
        return UNUSABLE
    except DataplaneError as error:
        print(f"npc: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="npc", description="A node agent that enforces Kubernetes NetworkPolicies."
    )
    parser.add_argument("--version", action="version", version=f"npc {version('fullsync')}")
    parser.add_argument(
        "--log-level",
        choices=logs.LEVELS,
        default=os.environ.get("NPC_LOG_LEVEL") or "info",
        help="least severe log line that is written to stderr (default: %(default)s)",
    )
    parser.add_argument(
        "--log-format",
        choices=logs.FORMATS,
        default=os.environ.get("NPC_LOG_FORMAT") or "text",
        help="how the lines are written (default: %(default)s)",
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_run(commands)
    _add_cleanup(commands)
    from npc.lab.cli import add_parser as add_lab

    add_lab(commands)
    return parser


def _add_run(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "run",
        help="run the agent of this node",
        description="Watch pods, namespaces and policies, and keep this node's rules what they "
        "say. Rules stay in place when the agent ends; `npc cleanup` removes them.",
    )
    parser.add_argument(
        "--node-name",
        default=os.environ.get("NODE_NAME"),
        help="the node whose pods are enforced, as in their spec.nodeName (default: $NODE_NAME)",
    )
    parser.add_argument(
        "--kubeconfig",
        metavar="FILE",
        default=os.environ.get("KUBECONFIG"),
        help="how to reach the API server (default: $KUBECONFIG, else the pod's service account)",
    )
    parser.add_argument(
        "--backend",
        choices=BACKENDS,
        default="auto",
        help="how rules are written; auto is iptables-restore and ipset (default: auto)",
    )
    parser.add_argument(
        "--families",
        choices=FAMILIES,
        default="auto",
        help="the address families to enforce; auto is all that the kernel speaks (default: auto)",
    )
    _add_mode(parser)
    _add_settings(parser)
    parser.add_argument(
        "--sync-period",
        type=duration,
        default="5m",
        metavar="DURATION",
        help="how often to compare the kernel with the policies though nothing changed, "
        "such as 90s, 5m, 1h (default: %(default)s)",
    )
    parser.add_argument(
        "--health-address",
        type=address,
        default="127.0.0.1:20245",
        metavar="HOST:PORT",
        help="where /metrics, /healthz, /readyz and /debug/* are served (default: %(default)s)",
    )
    parser.set_defaults(command=_run)


def _add_settings(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--deny-action",
        choices=[action.value for action in DenyAction],
        default=DenyAction.REJECT.value,
        help="what becomes of denied packets: answered at once, or dropped (default: %(default)s)",
    )
    parser.add_argument(
        "--log-denied",
        action="store_true",
        help="hand up to 10 denied packets a minute and direction to NFLOG group 100",
    )
    parser.add_argument(
        "--exempt-cidr",
        type=block,
        action="append",
        default=[],
        metavar="CIDR",
        help="never judge traffic from or to these addresses; may be given several times",
    )
    parser.add_argument(
        "--strict-startup",
        action="store_true",
        help="hold addresses of this node's pods until the API server has said whose they are",
    )
    parser.add_argument(
        "--pod-cidr",
        type=block,
        action="append",
        default=[],
        metavar="CIDR",
        help="where the addresses of this node's pods are, with --strict-startup; once per family "
        "(default: as in the Node object)",
    )
    parser.add_argument(
        "--terminate-established",
        action="store_true",
        help="end connections that a new policy forbids (needs the tool conntrack)",
    )


def _settings(args: argparse.Namespace) -> Settings:
    """
    :raises ValueError: saying which options do not go together
    """
    if args.pod_cidr and not args.strict_startup:
        raise ValueError("--pod-cidr means nothing without --strict-startup")
    guarded = {network.version for network in args.pod_cidr}
    for family in named_families(args.families) if args.pod_cidr else ():
        if family.value not in guarded:
            name = family.name.lower()
            raise ValueError(
                f"--strict-startup needs a --pod-cidr of {name} too, or --families without it"
            )
    return Settings(
        denial=Denial(DenyAction(args.deny_action), args.log_denied),
        exempt=tuple(args.exempt_cidr),
        guarded=tuple(args.pod_cidr),
    )


def _add_cleanup(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "cleanup",
        help="remove every rule, chain and set of ours from this node",
        description="Remove every rule, chain and set whose name begins with NPC-, in both "
        "iptables modes, and our nftables table, and nothing else. Needs no API server.",
    )
    parser.add_argument(
        "--kube-router",
        action="store_true",
        help="instead, remove what kube-router's network policy controller left; stop it first",
    )
    parser.set_defaults(command=_cleanup)


def _add_mode(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--iptables-mode",
        choices=["auto", "nft", "legacy"],
        default="auto",
        help="which iptables the node uses; auto looks for the kubelet's chains (default: auto)",
    )


def _run(args: argparse.Namespace) -> int:
    if not args.node_name:
        return _unusable("run: --node-name or $NODE_NAME must name this node")
    with _stoppable():
        return _start(args)


@contextmanager
def _stoppable() -> Iterator[None]:
    """Within the block, a signal to stop ends the process in order, as it later does the agent."""
    before = {number: signal.signal(number, lambda *_: sys.exit(0)) for number in stop_signals()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _start(args: argparse.Namespace) -> int:
    from npc.agent import ConfigurationError, Options, run

    try:
        settings = _settings(args)
    except ValueError as error:
        return _unusable(f"run: {error}")
    try:
        return run(
            Options(
                node=args.node_name,
                kubeconfig=args.kubeconfig,
                backend=args.backend,
                families=args.families,
                iptables_mode=args.iptables_mode,
                settings=settings,
                strict_startup=args.strict_startup,
                terminate_established=args.terminate_established,
                sync_period=args.sync_period,
                health_address=args.health_address,
            )
        )
    except ConfigurationError as error:
        return _unusable(f"run: {error}")


def _cleanup(args: argparse.Namespace) -> int:
    from npc.dataplane.kube_router import cleanup_kube_router
    from npc.dataplane.others import cleanup_all

    if args.kube_router:
        cleanup_kube_router()
    else:
        cleanup_all()
    return 0


def _unusable(message: str) -> int:
    print(f"npc {message}", file=sys.stderr)
    return UNUSABLE


def duration(text: str) -> float:
    """Read a duration such as ``90s``, ``5m`` or ``1h30m``; seconds.

    :raises argparse.ArgumentTypeError: if it is no duration, or zero
    """
    match = _DURATION.fullmatch(text)
    hours, minutes, seconds = (int(part or 0) for part in match.groups()) if match else (0, 0, 0)
    total = hours * 3600 + minutes * 60 + seconds
    if not total:
        raise argparse.ArgumentTypeError(f"{text!r} is no duration above zero; write 90s, 5m, 1h")
    return float(total)


def block(text: str) -> Network:
    """Read a CIDR block, or an address that stands for the block of itself.

    :raises argparse.ArgumentTypeError: if it is none, has host bits, or is everything
    """
    if "%" in text:  # Python takes fe80::%ANYTHING/64, the kernel does not
        raise argparse.ArgumentTypeError(f"{text!r} has a zone; write 10.0.0.0/8 or fd00::/8")
    try:
        network = ipaddress.ip_network(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{error}; write 10.0.0.0/8 or fd00::/8") from None
    if network.prefixlen == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is every address there is")
    return network


def address(text: str) -> tuple[str, int]:
    """Read ``HOST:PORT``; an IPv6 host stands in brackets.

    :raises argparse.ArgumentTypeError: if it is not of that form
    """
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdigit() or int(port) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not HOST:PORT")
    return host.removeprefix("[").removesuffix("]"), int(port)
