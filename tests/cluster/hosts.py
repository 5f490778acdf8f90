# SPDX-License-Identifier: Apache-2.0
"""A cluster on hosts of a network (tests/tools/netns.py). Who asks it has to be on one of them: `Host.entered()`."""
from harness import Cluster


class HostsCluster(Cluster):
    """On hosts of a network: scheduler and workers on the first, a store on each other."""

    def __init__(self, network, *args, **more):
        super().__init__(*args, **more)
        self.network, self.next_store = network, 1

    def launch(self, program, arguments):
        number = self.next_store if program == "assay-kvstore" else 0
        host = self.network.hosts[number]
        self.run_in = host.run_in
        if number:
            arguments = arguments + [f"--{port}-address={host.address}:0" for port in ("data", "rpc", "http")]
            self.next_store = number % (self.network.count - 1) + 1
        return super().launch(program, arguments)

    def start_scheduler(self, listen=None):
        return super().start_scheduler(listen or f"{self.network.hosts[0].address}:0")
