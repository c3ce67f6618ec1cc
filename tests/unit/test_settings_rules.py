"""Ages and thresholds of the findings: their names, ranges and refusals, and that they reach the policy."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from exporter.__main__ import policy
from exporter.diagnosis import RULES
from exporter.model import Policy
from exporter.settings import Settings, SettingsError, ages, help_text, parse, reference

KINDS = [(rule.finding.value, kind.name) for rule in RULES for kind in rule.kinds]
MIB = 2**20


def settings(*argv: str, env: Mapping[str, str] | None = None) -> Settings:
    return parse(argv, env or {}, "node-1")[1]


def refusal(*argv: str, env: Mapping[str, str] | None = None) -> str:
    with pytest.raises(SettingsError) as raised:
        parse(argv, env or {}, "node-1")
    assert "\n" not in str(raised.value)
    return str(raised.value)


def test_nothing_given_is_the_rules_own_ages_and_the_policys_thresholds() -> None:
    """The defaults of the settings and of the pure modules are one."""
    found, default = policy(settings()), Policy()
    assert found.ages == ()
    for name in (
        "orphaned_bytes",
        "orphaned_share",
        "orphaned_mig_bytes",
        "orphaned_mig_share",
        "expected_gpus",
    ):
        assert getattr(found, name) == getattr(default, name)


@pytest.mark.parametrize(("finding", "kind"), KINDS)
def test_every_kind_has_an_age_by_flag_variable_and_file(finding: str, kind: str, tmp_path: Path) -> None:
    """Findings and kinds are spelled as the metrics spell them."""
    key, variable = f"rules.{finding}.{kind}.age", f"KUBEGPU_RULES_{finding}_{kind}_AGE".upper()
    dotted, nested = tmp_path / "dotted.yaml", tmp_path / "nested.yaml"
    dotted.write_text(f"{key}: 7m\n")
    nested.write_text(f"rules: {{{finding}: {{{kind}: {{age: 7m}}}}}}\n")
    for found in (
        settings(f"--{key}=7m"),
        settings(f"--{key}", "420"),
        settings(env={variable: "7m"}),
        settings(f"--config.file={dotted}"),
        settings(f"--config.file={nested}"),
    ):
        assert policy(found).ages == ((f"{finding}.{kind}", 420.0),)


def test_ages_of_all_layers_come_together_and_the_flag_outranks(tmp_path: Path) -> None:
    """Each layer keeps what the layers above it leave open."""
    file = tmp_path / "config.yaml"
    file.write_text("rules:\n  phantom_process: {held: {age: 3m}, unheld: {age: 3m}, aliased: {age: 3m}}\n")
    env = {"KUBEGPU_RULES_PHANTOM_PROCESS_HELD_AGE": "4m", "KUBEGPU_RULES_PHANTOM_PROCESS_UNHELD_AGE": "4m"}
    found = settings("--rules.phantom_process.held.age=5m", f"--config.file={file}", env=env)
    expected = {"held": 300.0, "unheld": 240.0, "aliased": 180.0}
    assert dict(policy(found).ages) == {f"phantom_process.{kind}": age for kind, age in expected.items()}


@pytest.mark.parametrize(
    ("flag", "name", "text", "expected"),
    [
        ("bytes", "orphaned_bytes", "1GiB", 1024 * MIB),
        ("bytes", "orphaned_bytes", "1.5GiB", 1536 * MIB),
        ("bytes", "orphaned_bytes", "1048576", MIB),
        ("bytes", "orphaned_bytes", "1TiB", MIB * MIB),
        ("share", "orphaned_share", "0.05", 0.05),
        ("share", "orphaned_share", "5%", 0.05),
        ("share", "orphaned_share", "0", 0.0),
        ("share", "orphaned_share", "1", 1.0),
        ("mig-bytes", "orphaned_mig_bytes", "64MiB", 64 * MIB),
        ("mig-share", "orphaned_mig_share", "100%", 1.0),
    ],
)
def test_thresholds_reach_the_policy(flag: str, name: str, text: str, expected: float) -> None:
    """Sizes with binary units or in bytes, shares as ratio or percentage."""
    variable = f"KUBEGPU_RULES_ORPHANED_MEMORY_{flag}".replace("-", "_").upper()
    assert getattr(policy(settings(f"--rules.orphaned_memory.{flag}={text}")), name) == expected
    assert getattr(policy(settings(env={variable: text})), name) == expected


def test_the_expected_number_of_gpus_reaches_the_policy() -> None:
    """Unset it is not known, and not 0."""
    assert policy(settings("--expected-gpus=8")).expected_gpus == 8


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        (
            "--rules.phantom_process.held.age=14s",
            "--rules.phantom_process.held.age: '14s' is under the interval of 15s; give 15s or more, or 0",
        ),
        ("--rules.phantom_process.held.age=31d", "'31d' is over the greatest age of 30d; give 30d or less"),
        ("--rules.phantom_process.held.age=long", "'long' is not a duration; give seconds"),
        ("--rules.orphaned_memory.bytes=1", "'1' is outside the range of sizes; give 1MiB to 1TiB"),
        ("--rules.orphaned_memory.bytes=2TiB", "is outside the range of sizes"),
        ("--rules.orphaned_memory.mig-bytes=1GB", "'1GB' is not a size; give bytes, or a number with KiB"),
        ("--rules.orphaned_memory.share=1.1", "'1.1' is over 1; give a share from 0 to 1"),
        ("--rules.orphaned_memory.share=-1", "'-1' is not a share; give a number from 0 to 1"),
        ("--rules.orphaned_memory.mig-share=101%", "'101%' is over 1"),
        (
            "--rules.phantom.held.age=5m",
            "--rules.phantom.held.age: unknown flag; give one of the findings phantom_process, stuck_process",
        ),
        (
            "--rules.phantom_process.hold.age=5m",
            "unknown flag; give --rules.phantom_process.<kind>.age with one of held, unheld, aliased",
        ),
        ("--rules.phantom-process.held.age=5m", "unknown flag; give --rules.phantom_process.held.age"),
        ("--rules.stuck_process.zombie=5m", "unknown flag; give --rules.stuck_process.zombie.age"),
        ("--rules.orphaned_memory.size=1GiB", "or a threshold: bytes, share, mig-bytes, mig-share"),
        ("--rules.=1", "unknown flag; give one of the findings"),
    ],
)
def test_a_bad_rule_is_refused_with_field_value_and_remedy(argument: str, message: str) -> None:
    """The refusal names what there is to choose from."""
    assert message in refusal(argument)


def test_an_age_is_compared_with_the_interval_that_is_set() -> None:
    """Wherever each of the two was written; 0 is as soon as there were enough cycles."""
    env = {"KUBEGPU_RULES_PHANTOM_PROCESS_HELD_AGE": "30s"}
    assert refusal("--interval=1m", env=env).startswith(
        "KUBEGPU_RULES_PHANTOM_PROCESS_HELD_AGE: '30s' is under the interval of 1m"
    )
    assert dict(settings("--interval=30s", env=env).rules.ages) == {"phantom_process.held": 30.0}
    assert policy(settings("--rules.phantom_process.held.age=0")).ages == (("phantom_process.held", 0.0),)


def test_a_bad_rule_in_a_file_is_refused_naming_file_and_key(tmp_path: Path) -> None:
    """A misspelled kind is no silent default."""
    file = tmp_path / "config.yaml"
    file.write_text("rules: {stuck_process: {zombi: {age: 5m}}}\n")
    expected = f"{file}: rules.stuck_process.zombi.age: unknown key; give rules.stuck_process.<kind>.age"
    assert refusal(f"--config.file={file}").startswith(expected)


def test_a_bad_variable_of_a_rule_is_refused() -> None:
    """The nearest name is offered."""
    text = refusal(env={"KUBEGPU_RULES_STUCK_PROCESS_ZOMBI_AGE": "5m"})
    assert text.endswith("did you mean KUBEGPU_RULES_STUCK_PROCESS_ZOMBIE_AGE?")


def test_a_printed_age_is_one_that_can_be_given() -> None:
    """Each kind is described once, with its rule's age, and stands in the help text."""
    described = list(ages())
    assert [doc.flag for doc in described] == [f"--rules.{finding}.{kind}.age" for finding, kind in KINDS]
    for doc, (finding, kind) in zip(described, KINDS, strict=True):
        rule = next(rule for rule in RULES if rule.finding == finding)
        found = settings(f"{doc.flag}={doc.default}")
        assert found.rules.ages[f"{finding}.{kind}"] == rule.kind(kind).age
        assert f"{kind} {doc.default}" in " ".join(help_text().split())
    assert not {doc.env for doc in described} & {doc.env for doc in reference()}
