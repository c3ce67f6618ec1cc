"""The composition root: reads the command line, builds the parts, and runs them until told to stop.

The only place that knows every part. Whatever is wrong with the settings, the address or the scenario is said
here, before anything starts: exit code 2, and the last line names field, value and remedy.
"""

from __future__ import annotations

import gc
import io
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from exporter import __version__, describe, logs, web_config
from exporter.catalog import chosen
from exporter.cycle import Cycle
from exporter.exposition import Body, Rendered, Renderer, before_first_cycle
from exporter.gather import Gatherer, Sources
from exporter.model import Policy, Report, Snapshot
from exporter.server import App, BindError, Limits, Server, room_for
from exporter.settings import PROGRAM, Command, LogFormat, Output, Settings, SettingsError, help_text, parse
from exporter.sources.host import HostSource
from exporter.sources.kubelet import KubeletSource
from exporter.sources.node import NodeSource
from exporter.sources.nvml import NvmlSource
from exporter.sources.pod_names import PodNamesSource
from exporter.sources.pods import PodsSource, connect
from exporter.status_page import page

# A cycle computes in Python beside the server's loop, which waits for so long each time that it comes back
# from the network: the interpreter is told to hand over more often than each 5 ms.
SWITCH_SECONDS = 0.0001

log = logging.getLogger("exporter")


def main() -> None:
    """Entry point of the command `kubegpu-exporter`."""
    sys.exit(run(sys.argv[1:]))


def run(argv: list[str]) -> int:
    """Run until SIGTERM; returns the exit code: 0 when told to stop, 2 when it could not start. `describe`
    ends by itself, with a `Verdict`.
    """
    try:
        command, settings = parse(argv, os.environ, socket.gethostname())
        if command in (Command.HELP, Command.VERSION):
            print(help_text() if command is Command.HELP else f"{PROGRAM} {__version__}\n", end="")
            return 0
        if command is Command.DESCRIBE:
            return _describe(settings)
        if command is Command.RECORD:
            return _record(settings)
        tls = _tls(settings)
        with ExitStack() as stack:
            cycle = Cycle(*_parts(command, settings, stack), _renderer(settings, tls))
            server = _server(settings, cycle, tls)
            server.bind()
            if tls:
                tls.start()
            return _serve(command, settings, cycle, server)
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except describe.FetchError as error:
        print(f"{PROGRAM}: {error}", file=sys.stderr)
        return describe.Verdict.NOT_SEEN
    except (SettingsError, web_config.WebConfigError, BindError) as error:
        print(f"{PROGRAM}: {error}", file=sys.stderr)
        return 2


def _parts(
    command: Command, settings: Settings, stack: ExitStack
) -> tuple[Policy, Callable[[Report | None], Snapshot]]:
    """By what is judged, and how the node is looked at; what must be closed at the end goes on the stack."""
    if command is Command.DEMO:
        from exporter.scenario import Player, ScenarioError, load  # noqa: PLC0415 - as in _record

        try:
            return policy(settings, simulated=True), Player(load(settings.demo.scenario))
        except ScenarioError as error:
            raise SettingsError(str(error)) from error
    gather = Gatherer(sources(settings, stack.callback), settings.interval, settings.node_name)
    return policy(settings), gather


def _describe(settings: Settings) -> int:
    """Print what one look shows, or what a running exporter says; returns the verdict as exit code."""
    if settings.url:
        text = describe.fetch(settings.url, settings.web.telemetry_path)
        view = describe.of_metrics(text, f"the exporter at {settings.url}")
    else:
        with ExitStack() as stack:
            parts = sources(settings, stack.callback)
            gather = Gatherer(parts, describe.LONGEST_WAIT, settings.node_name)
            view = describe.of_report(describe.look(policy(settings), gather))
    if settings.output is Output.JSON:
        printed = describe.as_json(view)
    else:
        printed = describe.as_text(view, colour=_wants_colour())
    _print(printed)
    return view.verdict


def _record(settings: Settings) -> int:
    """Write a recording of this node to the file of --output."""
    from exporter import recording  # noqa: PLC0415 - the agent on a node is to have no memory of it

    path = Path(settings.output)
    places = (settings.path.procfs, settings.kubelet.socket, settings.path.pod_logs)
    try:
        with ExitStack() as stack:
            parts = sources(settings, stack.callback)
            api = connect(settings.kubernetes.kubeconfig) if settings.kubernetes.enabled else None
            document = recording.record(policy(settings), parts, settings.node_name, places, api)
        recording.save(path, recording.masked(document) if settings.mask else document)
    except recording.RecordingError as error:
        raise SettingsError(str(error)) from error
    masks = "names and UUIDs are pseudonyms" if settings.mask else "it holds names and UUIDs; see --mask"
    _print(f"{path}: {len(document['looks'])} looks at node {settings.node_name}; {masks}\n")
    return 0


def _wants_colour() -> bool:
    """Colour is for people: on a terminal, and where NO_COLOR is empty (no-color.org)."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _print(text: str) -> None:
    """Any text on any terminal; a reader that has gone away is no error."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    try:
        print(text, end="", flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def policy(settings: Settings, *, simulated: bool = False) -> Policy:
    """The numbers of the settings that judge, as the pure modules know them."""
    memory = settings.rules.orphaned_memory
    return Policy(
        interval=settings.interval,
        orphaned_bytes=memory.bytes,
        orphaned_share=memory.share,
        orphaned_mig_bytes=memory.mig_bytes,
        orphaned_mig_share=memory.mig_share,
        expected_gpus=settings.expected_gpus,
        ages=tuple(sorted(settings.rules.ages.items())),
        process_series=settings.collector.process_series,
        process_series_limit=settings.limits.process_series,
        telemetry=settings.collector.telemetry,
        telemetry_extended=settings.collector.telemetry_extended,
        version=__version__,
        simulated=simulated,
    )


def sources(settings: Settings, closing: Callable[[Callable[[], None]], object]) -> Sources:
    """The sources of a real node. A new source is a line here."""
    nvml = NvmlSource(
        settings.nvml.library,
        telemetry=settings.collector.telemetry,
        pause_file=settings.pause_file,
        extended=settings.collector.telemetry_extended,
    )
    host = HostSource(settings.path.procfs, settings.path.sysfs)
    closing(lambda: _at_once(nvml.close, host.close))
    api = connect(settings.kubernetes.kubeconfig) if settings.kubernetes.enabled else None
    pods = PodsSource(api, settings.node_name) if api else None
    node = NodeSource(api, settings.node_name) if api else None
    return Sources(
        nvml=nvml,
        processes=host.read_processes,
        container_dev=host.read_views,
        kubelet=KubeletSource(settings.kubelet.socket).read,
        pods=pods.read if pods else None,
        node=node.read if node else None,
        pod_names=PodNamesSource(settings.path.pod_logs).read,
        pci=host.read_pci,
    )


def _at_once(*actions: Callable[[], None]) -> None:
    """Side by side: each child may take its seconds to end, and all of the agent has five."""
    threads = [threading.Thread(target=action, daemon=True) for action in actions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _tls(settings: Settings) -> web_config.Watch | None:
    file = settings.web.config.file
    tls = web_config.read(file) if file else None
    return web_config.Watch(file, tls) if file and tls else None


def _renderer(settings: Settings, tls: web_config.Watch | None) -> Renderer:
    families = chosen(settings.metrics.allow, settings.metrics.deny)
    return Renderer(families=families, web_reload=lambda: tls.reload if tls else None)


def _server(settings: Settings, cycle: Cycle, tls: web_config.Watch | None) -> Server:
    path = settings.web.telemetry_path

    def metrics(accept: str, _wants_gzip: bool) -> Body:
        published = cycle.published
        return published.body(accept) if published else before_first_cycle(accept)

    drawn: tuple[Rendered | None, bool, bytes] | None = None

    def status_page() -> bytes:
        """Drawn once per cycle, and only where somebody looks."""
        nonlocal drawn
        published = cycle.published
        is_stale = published is not None and published.stale
        if drawn is None or drawn[:2] != (published, is_stale):
            html = page(published.report if published else None, path, __version__, stale=is_stale)
            drawn = (published, is_stale, html)
        return drawn[2]

    address = settings.web.listen_address
    app = App(path, metrics, cycle.ready, cycle.healthy, status_page)
    context = (lambda: tls.context) if tls else None
    return Server(app, address.host, address.port, context, room_for(Limits()))


def _serve(command: Command, settings: Settings, cycle: Cycle, server: Server) -> int:
    logs.configure(settings.log.level, as_json=settings.log.format is LogFormat.JSON)
    what = "SIMULATED data of a scenario" if command is Command.DEMO else f"node {settings.node_name}"
    host = settings.web.listen_address.host or "every address"
    log.info("%s %s serves %s at port %d of %s", PROGRAM, __version__, what, server.port, host)
    sys.setswitchinterval(SWITCH_SECONDS)
    gc.collect()
    gc.freeze()  # what start-up made lives for ever: later collections need not look at it
    threading.Thread(target=cycle.run, name="cycle", daemon=True).start()
    try:
        server.run()
    finally:
        cycle.stop()
    log.info("stopped")
    return 0


if __name__ == "__main__":
    main()
