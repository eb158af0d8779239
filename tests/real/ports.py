"""Ports on which tests have servers listen, some of them later, or again after an outage."""

import contextlib
import pathlib
import random
import socket

# The kernel does not assign these ports to processes that ask for any, so no other process gets one meanwhile.
EPHEMERAL = pathlib.Path("/proc/sys/net/ipv4/ip_local_port_range")
LOWEST = 10_000


def free_port():
    """A port on which nothing listens, and which is not assigned to processes that ask for any."""
    first = int(EPHEMERAL.read_text().split()[0]) if EPHEMERAL.exists() else 32_768
    for port in random.SystemRandom().sample(range(LOWEST, first), 1_000):
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise AssertionError(f"no free port of a thousand tried from {LOWEST} to {first}")
