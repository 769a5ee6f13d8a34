"""Writing a plan to the kernel: one protocol, one module for each way to do it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from npc.plan import KernelState, Plan
    from npc.ruleset import Direction
    from reconciler.manager import Runnable


class DataplaneError(Exception):
    """The kernel or one of its tools refused; the message says which, why, and at which line."""


class MissingToolError(DataplaneError):
    """Something that enforcement needs is not on this machine; retrying will not help."""


class Dataplane(Protocol):
    """One way to read and write the kernel's rules. Used by one thread at a time.

    All of them raise ``DataplaneError``. After a failed ``apply`` the kernel enforces the previous
    rules or the new ones, and the caller observes before it plans again.

    ``name`` says how rules are written: a backend, and where it has a choice, its mode.
    """

    name: str

    def observe(self) -> KernelState:
        """Read what the kernel holds of ours, repairing nothing."""
        ...

    def apply(self, plan: Plan) -> None:
        """Carry out every step of the plan, in its order."""
        ...

    def denied_packets(self) -> Mapping[Direction, int]:
        """Count the packets refused since this object was made, by the kernel's own counters.

        What was refused in the moment in which the counters are written anew may be missing.
        """
        ...

    def watch(self, changed: Callable[[], None]) -> Runnable | None:
        """A part that calls ``changed`` whenever another program has changed what is ours.

        ``None`` where the kernel cannot tell.
        """
        ...

    def cleanup(self) -> None:
        """Remove everything of ours and nothing else; fine when there is nothing."""
        ...
