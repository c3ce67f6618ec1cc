"""Ask every exporter behind a headless Service for its metrics: `reach.py SCHEME NAME PORT PATH`.

Prints a line for each address: answered, and which sources are missing. Ends with 1 where one does not
answer, or where there is none at all: then no node has one of the labels that the chart looks for.
"""

# ruff: noqa: INP001, S310, T201 - a script that a chart carries and a pod runs

import re
import socket
import ssl
import sys
import urllib.request


def main(scheme: str, name: str, port: str, path: str) -> int:
    """Ask all of them; returns the exit code."""
    try:
        found = socket.getaddrinfo(name, int(port), type=socket.SOCK_STREAM)
    except OSError as error:
        print(f"{name}: {error}: no exporter is ready. Has a node one of the labels of gpuNodes.labels?")
        return 1
    failed = 0
    for address in sorted({str(entry[4][0]) for entry in found}):
        host = f"[{address}]" if ":" in address else address
        url = f"{scheme}://{host}:{port}{path}"
        try:
            print(f"{url}: {look(url)}")
        except (OSError, ValueError) as error:
            failed += 1
            print(f"{url}: {error}")
    return 1 if failed else 0


def look(url: str) -> str:
    """What one of them says. Raises OSError or ValueError where it does not answer as an exporter."""
    context = ssl.create_default_context()
    context.check_hostname = False  # it is asked by its address
    context.verify_mode = ssl.CERT_NONE
    with urllib.request.urlopen(url, timeout=10, context=context) as response:
        text = response.read().decode()
    version = re.search(r'^kubegpu_exporter_build_info\{.*version="([^"]+)"', text, re.MULTILINE)
    if version is None:
        raise ValueError("answers, but is no kubegpu-exporter")
    missing = re.findall(r'^kubegpu_source_up\{.*source="([^"]+)".*\} 0(?:\.0)?$', text, re.MULTILINE)
    said = ", ".join(missing) if missing else "none"
    return f"kubegpu-exporter {version[1]} answers; sources missing: {said}"


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
