"""The expressions of docs/joins.md, each taken from the page and evaluated by promtool on series as the three
exporters write them. What comes out was worked out by hand.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.alerts.promtool import Series, Trial, rules, run

PAGE = Path(__file__).parents[2] / "docs" / "joins.md"
GIB = 2**30

DCGM_4_8 = (
    'gpu="0",UUID="GPU-a",pci_bus_id="00000000:07:00.0",device="nvidia0",modelName="NVIDIA L4",'
    'hostname="gpu-1",DCGM_FI_DRIVER_VERSION="580.1"'
)
DCGM_4_9 = (
    'gpu="1",UUID="GPU-b",pci_bus_id="00000000:0a:00.0",device="nvidia1",modelName="NVIDIA L4",'
    'hostname="gpu-2",DCGM_FI_SYSTEM_DRIVER_VERSION="595.2"'
)
OWNER = 'namespace="ml",pod="train-0",container="main"'
_POWER_A = f'{{{DCGM_4_8},uuid="GPU-a",{OWNER}}}'
# By the first line of the expression: the samples that come out.
EXPECTED: dict[str, list[tuple[str, float]]] = {
    "power of each GPU with its owner": [(_POWER_A, 71.5)],
    "power of each GPU with its owner if it has one": [
        (_POWER_A, 71.5),
        (f'{{{DCGM_4_9},uuid="GPU-b"}}', 34),
    ],
    "utilisation by UUID": [('{uuid="GPU-a"}', 0.42), ('{uuid="GPU-b"}', 0.25)],
    "memory that the two do not agree on": [('{uuid="GPU-b"}', GIB)],
    "idle MIG devices": [('{uuid="GPU-c",gi="1"}', 0.001)],
    "stuck GPUs and their last Xid": [(f'DCGM_FI_DEV_XID_ERROR{{{DCGM_4_9},uuid="GPU-b"}}', 79)],
    "GPU memory by who made the pod": [
        ('{namespace="ml",created_by_kind="Job",created_by_name="train"}', 2 * GIB),
        ('{namespace="ml",created_by_kind="StatefulSet",created_by_name="web"}', 2 * GIB),
    ],
    "asked for a GPU, and not seen to have one": [
        ('{node="gpu-1",namespace="ml",pod="lost-0",container="main"}', 1)
    ],
    "share of the quota that was given": [('{namespace="ml"}', 0.25)],
    "GPU nodes that nobody watches": [('{node="gpu-3"}', 8), ('{node="gpu-4"}', 8)],
}


def _snippets() -> dict[str, str]:
    blocks = re.findall(r"```promql\n# ([^\n]+)\n(.*?)```", PAGE.read_text(), re.DOTALL)
    return dict(blocks)


def _series() -> list[Series]:
    made = []
    lines = (Path(__file__).parent / "joins.metrics").read_text().splitlines()
    for line in lines:
        if line.startswith("#"):
            continue
        name, labels, value = re.fullmatch(r"([\w:]+)\{(.*)\} (\S+)", line).groups()  # type: ignore[union-attr]
        made.append(Series(name, dict(re.findall(r'(\w+)="([^"]*)"', labels)), [float(value)] * 3))
    return made


def test_every_expression_is_tried() -> None:
    """The page has no expression without an expectation here, and no block without a name."""
    assert set(_snippets()) == set(EXPECTED)
    assert PAGE.read_text().count("```promql") == len(EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
def test_joins(name: str, tmp_path: Path) -> None:
    """The expression as it stands on the page gives what it promises, on both generations of names."""
    trial = Trial(name, _series(), samples={(_snippets()[name], 2): EXPECTED[name]})
    run([trial], rules(tmp_path, only="none"), tmp_path)


def test_no_label_for_the_node_accuses_no_node(tmp_path: Path) -> None:
    """Where targets have no label for the node, no node is said to be unwatched."""
    bare = []
    for one in _series():
        dropped = "node" if one.name == "up" else ""
        bare.append(Series(one.name, {k: v for k, v in one.labels.items() if k != dropped}, one.minutes))
    trial = Trial("bare", bare, samples={(_snippets()["GPU nodes that nobody watches"], 2): []})
    run([trial], rules(tmp_path, only="none"), tmp_path)
