"""What following a kind costs, beside the official client's ``SharedInformer``."""

from __future__ import annotations

import tempfile
from pathlib import Path

from rig.child import Child

KINDS = ("ours", "ours-unstructured", "official")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, Child("rig.memory_server") as server:
        kubeconfig = Path(folder) / "kubeconfig"
        server.call("start", kubeconfig=str(kubeconfig))
        print("bytes", server.call("fill", pods=10_000))
        for kind in KINDS:
            with Child("rig.contestant", kind, str(kubeconfig)) as contestant:
                print(kind, contestant.call("sync", pods=10_000), contestant.call("stop"))


if __name__ == "__main__":
    main()
