"""The one error of the rig: a part could not be built, and the message names what is missing.

A test never turns it into a skip: as root the rig must be buildable, so a RigError fails the test.
"""


class RigError(RuntimeError):
    """A part of the rig cannot be built or has broken; the text says which and what it needs."""
