"""The program that owns libiptc: a child of the agent, which itself never loads python-iptables.

That library redirects standard output, keeps global state without locks and may crash, so nothing
else runs here. ``npc.dataplane.libiptc`` starts it and says what to write.
"""

from __future__ import annotations


class RefusedError(Exception):
    """The kernel, the library or an extension of iptables refused; the table is as it was."""


class MissingError(RefusedError):
    """Something is not on this machine, or we may not use it; retrying will not help."""
