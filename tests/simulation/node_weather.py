"""Troubles of hardware, driver, Kubernetes and sources, and the calendar by which everything happens.

What is in `INNOCENT_WEATHER` is never an incident by itself: it only takes sight away. The rest changes the
hardware or the counts; whether that is an incident is read off the state.
"""

from collections.abc import Callable, Iterator

from exporter.model import Snapshot
from tests.simulation.node_build import build, cut
from tests.simulation.node_life import Life
from tests.simulation.node_sources import Senses
from tests.simulation.node_state import EPOCH, Card, Node
from tests.simulation.node_stories import STORIES
from tests.simulation.node_truth import Truth, truths

INTERVAL = 15.0
BETWEEN_STORIES = 300.0  # seconds, on average
BETWEEN_WEATHERS = 500.0

Weather = Callable[[Node, Life, Senses], bool]


def during(node: Node, name: str, lasts: float, end: Callable[[], None]) -> None:
    """Note something innocent that goes on, and end it in time."""
    if name in node.innocent:
        return
    node.innocent[name] = node.now
    node.say(f"{name} for {lasts:.0f} s")

    def over() -> None:
        node.innocent.pop(name, None)
        end()

    node.after(lasts, over)


# --- sources ------------------------------------------------------------------------------------------------


def nvml_fault(node: Node, life: Life, senses: Senses) -> bool:
    if senses.nvml_fault:
        return False
    senses.nvml_fault = node.rng.choice(("hang", "missed", "partial"))
    lasts = node.rng.choice((5.0, 20.0, 100.0, 1000.0))
    during(node, f"nvml {senses.nvml_fault}", lasts, lambda: setattr(senses, "nvml_fault", ""))
    return True


def scan_fault(node: Node, life: Life, senses: Senses) -> bool:
    if senses.scan_fault:
        return False
    senses.scan_fault = node.rng.choice(("missed", "incomplete"))
    lasts = node.rng.choice((5.0, 20.0, 100.0, 400.0))
    during(node, f"scan {senses.scan_fault}", lasts, lambda: setattr(senses, "scan_fault", ""))
    return True


def rows_lag(node: Node, life: Life, senses: Senses) -> bool:
    senses.lagging = True
    during(node, "rows lag", node.rng.uniform(60, 900), lambda: setattr(senses, "lagging", False))
    return True


def kubelet_restart(node: Node, life: Life, senses: Senses) -> bool:
    """Refused, then OK with no pods, then some, then all; without the API server its pods stay away."""
    if senses.kubelet_state != "full":
        return False
    senses.kubelet_state, life.kubelet_up = "refused", False
    without_api = node.rng.random() < 0.4 and life.api_up
    if without_api:
        api_outage(node, life, senses)
    node.say(f"the kubelet restarts{' without the API server' if without_api else ''}")
    node.innocent["kubelet restart"] = node.now
    down = node.rng.choice((1.0, 10.0, 60.0, 200.0))
    # Shorter than a cycle, mostly: what is seen of it is a matter of luck.
    steps = (("empty", down), ("partial", down + 0.1 + node.rng.choice((0.0, 0.0, 14.0))))
    for state, when in steps:
        node.after(when, lambda state=state: _become(life, senses, state))  # type: ignore[misc]
    node.after(steps[-1][1] + 1.0, lambda: _fill(node, life, senses))
    return True


def _become(life: Life, senses: Senses, state: str) -> None:
    senses.kubelet_state = state
    senses.kubelet_doubt = True
    life.kubelet_up = state == "full"


def _fill(node: Node, life: Life, senses: Senses) -> None:
    """API pods are listed some time after the API server is back."""
    if life.api_up:
        senses.kubelet_state, life.kubelet_up = "full", True
        node.innocent.pop("kubelet restart", None)
        return
    senses.kubelet_state = "no_api"
    node.after(5.0, lambda: _fill(node, life, senses))


def kubelet_mute(node: Node, life: Life, senses: Senses) -> bool:
    if senses.kubelet_state != "full":
        return False
    senses.kubelet_state = "mute"
    lasts = node.rng.choice((10.0, 50.0, 100.0, 400.0))
    during(node, "kubelet mute", lasts, lambda: setattr(senses, "kubelet_state", "full"))
    return True


def api_outage(node: Node, life: Life, senses: Senses) -> bool:
    if not life.api_up:
        return False
    life.api_up = False
    lasts = node.rng.choice((20.0, 45.0, 100.0, 160.0))
    during(node, "API server down", lasts, lambda: setattr(life, "api_up", True))
    return True


# --- hardware and counts ------------------------------------------------------------------------------------


def a_card(node: Node) -> Card | None:
    cards = [card for card in node.cards if not card.dark and not card.unhealthy]
    return node.rng.choice(cards) if cards else None


def card_lost(node: Node, life: Life, senses: Senses) -> bool:
    """A GPU stops answering, or is not even counted any more; some come back."""
    card = a_card(node)
    if card is None or len([c for c in node.cards if not c.dark]) < 2:
        return False
    card.lost = node.rng.random() < 0.5
    card.fallen = not card.lost
    node.say(f"{card.uuid} is {'lost' if card.lost else 'off NVML'}")

    def back() -> None:
        card.lost = card.fallen = False
        node.say(f"{card.uuid} is back")

    node.after(node.rng.uniform(20, 1500), back)
    return True


def unhealthy(node: Node, life: Life, senses: Senses) -> bool:
    card = a_card(node)
    if card is None:
        return False
    card.unhealthy = True
    node.say(f"{card.uuid} is unhealthy")
    node.after(node.rng.uniform(60, 1500), lambda: setattr(card, "unhealthy", False))
    return True


def miscount(node: Node, life: Life, senses: Senses) -> bool:
    if node.advertised is not None:
        return False
    node.advertised = node.rng.choice((1, -1))
    node.say(f"the node object is off by {node.advertised}")
    node.after(node.rng.uniform(60, 1500), lambda: setattr(node, "advertised", None))
    return True


def plugin_restart(node: Node, life: Life, senses: Senses) -> bool:
    node.plugin_ready = False
    lasts = node.rng.choice((10.0, 40.0, 120.0))
    during(node, "device plugin restart", lasts, lambda: setattr(node, "plugin_ready", True))
    return True


def stale_list(node: Node, life: Life, senses: Senses) -> bool:
    """The kubelet will go on listing a pod when it has ended."""
    pods = [p for p in node.pods if p.active and p.owner == "job" and p.given and not p.sticks]
    if not pods:
        return False
    pod = node.rng.choice(pods)
    pod.sticks = True

    def let_go() -> None:
        pod.sticks = False
        if not pod.api or pod.ended_at is not None:
            life.unlist(pod)

    node.after(node.rng.uniform(300, 3000), let_go)
    return True


def no_figures(node: Node, life: Life, senses: Senses) -> bool:
    card = a_card(node)
    if card is None or card.no_figures:
        return False
    card.no_figures = True
    lasts = node.rng.uniform(60, 900)
    during(node, f"rows of {card.uuid} without figures", lasts, lambda: setattr(card, "no_figures", False))
    return True


def repartition(node: Node, life: Life, senses: Senses) -> bool:
    """A free card is cut anew: other MIG UUIDs under the same numbers."""
    for card in node.cards:
        used = any(key.uuid == card.uuid for p in node.procs.values() for key in p.memory)
        given = any(g.device.uuid == card.uuid for p in node.pods if p.active or p.listed for g in p.given)
        leaks = any(leak.device.uuid == card.uuid for leak in node.leaks)
        leaks = leaks or any(record.device.uuid == card.uuid for record in node.records)
        if not (used or given or leaks or card.replicas or card.dark):
            cut(node, card)
            node.say(f"{card.uuid} is cut anew")
            return True
    return False


def reload_driver(node: Node, life: Life, senses: Senses) -> bool:
    """The node is drained, the driver is replaced, and everything starts again."""
    if any(proc.trouble for proc in node.procs.values()) or not life.api_up or not life.kubelet_up:
        return False
    node.say("the driver is replaced")
    for pod in [pod for pod in node.pods if pod.active and pod.owner != "infra"]:
        life.delete(pod, "force")
    for proc in list(node.procs.values()):
        if not proc.infra:
            node.bury(proc)
    node.leaks.clear()
    node.records.clear()
    node.driver = "570.172.08" if node.driver.endswith("148.08") else "570.148.08"
    node.thread_rows = False
    return True


WEATHERS: tuple[tuple[float, Weather], ...] = (
    (3, nvml_fault), (2, scan_fault), (2, rows_lag), (3, kubelet_restart), (2, kubelet_mute), (2, api_outage),
    (1.5, card_lost), (0.7, unhealthy), (0.5, miscount), (1, plugin_restart), (0.5, stale_list),
    (0.5, no_figures), (1, repartition), (0.3, reload_driver),
)  # fmt: skip


# --- calendar -----------------------------------------------------------------------------------------------


class History:
    """A node's history, as frames with the truth beside each."""

    def __init__(self, seed: int) -> None:
        self.node, self.life = build(seed)
        self.senses = Senses(self.node, self.life)
        self._plan_story()
        self._plan_weather()
        self._plan_change()

    def frames(self, hours: float) -> Iterator[tuple[Snapshot, tuple[Truth, ...], tuple[str, ...]]]:
        """Snapshot, what is wrong, and what innocent things go on, once per interval."""
        node = self.node
        for number in range(1, int(hours * 3600 / INTERVAL) + 1):
            # Reads come up to a second late, so that no event keeps step with them.
            node.run_until(EPOCH + number * INTERVAL + node.rng.random())
            snapshot = self.senses.snapshot()
            yield snapshot, truths(node), tuple(node.innocent)
            if number % 40 == 0:
                self._forget()

    def _forget(self) -> None:
        node = self.node
        owners = {proc.pod for proc in node.procs.values()}
        node.pods = [
            pod for pod in node.pods if pod in owners or pod.gone_at is None or node.now - pod.gone_at < 600.0
        ]

    def _plan_story(self) -> None:
        rng = self.node.rng
        weights = [weight for weight, _ in STORIES]

        def tell() -> None:
            for _, story in rng.choices(STORIES, weights, k=4):
                if story(self.node, self.life):
                    break
            self._plan_story()

        self.node.after(rng.expovariate(1 / BETWEEN_STORIES), tell)

    def _plan_weather(self) -> None:
        rng = self.node.rng
        weights = [weight for weight, _ in WEATHERS]

        def turn() -> None:
            for _, weather in rng.choices(WEATHERS, weights, k=3):
                if weather(self.node, self.life, self.senses):
                    break
            self._plan_weather()

        self.node.after(rng.expovariate(1 / BETWEEN_WEATHERS), turn)

    def _plan_change(self) -> None:
        """People deploy: pods are deleted, created, and crash."""
        node, life, rng = self.node, self.life, self.node.rng

        def change() -> None:
            idle = [p for p in node.pods if p.active and p.owner not in ("infra", "oneoff") and not p.busy]
            if idle and life.api_up and life.kubelet_up:
                pod = rng.choice(idle)
                run = pod.run
                if rng.random() < 0.3 and run is not None and pod.deletion is None:
                    life.crash(pod, run)
                else:
                    life.delete(pod)
            if rng.random() < 0.5:
                life.place()
            self._plan_change()

        node.after(rng.expovariate(1 / 400.0), change)
