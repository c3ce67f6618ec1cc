"""kubegpu-exporter: who uses each GPU, which pod that is, and whether the GPU was given to it."""

__version__ = "0.1.0"
