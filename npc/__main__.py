"""What ``npc`` and ``python -m npc`` run."""

import signal
import sys


def main() -> int:
    """Run the command line. SIGTERM ends it at any moment, by default with exit code 143.

    The first process of a container gets no signal that it does not handle, and loading the program
    takes a while.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    from npc import cli

    return cli.main()


if __name__ == "__main__":
    sys.exit(main())
