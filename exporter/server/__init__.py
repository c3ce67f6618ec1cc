"""HTTP server: prepared bytes in, responses out.

It is given plain callables that must return at once, and knows nothing of GPUs, metrics or cycles.
Every client is untrusted: one that ends no TLS handshake, sends no complete request, or does not read its
response, is closed by a deadline, and a flood of connections closes the oldest ones, so that a probe is
always answered. It never renders, reads a file, or waits for a source.
"""

from exporter.server.guard import Limits, room_for
from exporter.server.pages import App, Body, accepts_gzip
from exporter.server.serving import BindError, Server

__all__ = ["App", "BindError", "Body", "Limits", "Server", "accepts_gzip", "room_for"]
