"""Foreign text made safe to show: what comes in is bytes or str that a container, a driver or a file tree
chose.

Process names, link texts and driver strings are hostile (truth rule 6): they may hold quotes, newlines,
escape sequences or bytes that are no text at all. This is the only place where they are tamed.
"""

from __future__ import annotations

COMM_LIMIT = 15  # TASK_COMM_LEN of the kernel less its NUL (include/linux/sched.h)
LABEL_LIMIT = 128
NAME_LIMIT = 253  # RFC 1123 subdomain: the longest name that Kubernetes gives a pod or a node


def printable(raw: bytes | str, limit: int = LABEL_LIMIT) -> str:
    """Return `raw` as one line of at most `limit` printable characters.

    Undecodable bytes become U+FFFD, control, format and surrogate characters become `?`: a terminal, a log
    line and the exposition format then all show the same harmless text.
    """
    text = raw.decode("utf-8", "replace") if isinstance(raw, bytes) else raw
    return "".join(c if c.isprintable() else "?" for c in text[:limit])
