"""Which metrics are served, and the groups of telemetry: settings, and what is refused."""

import pytest

from exporter.__main__ import policy
from exporter.catalog import FAMILIES, chosen
from exporter.settings import Settings, SettingsError, help_text, parse


def settings(*argv: str) -> Settings:
    return parse(argv, {}, "node-1")[1]


def refusal(*argv: str) -> str:
    with pytest.raises(SettingsError) as raised:
        settings(*argv)
    return str(raised.value)


def test_all_metrics_are_served_unless_told_otherwise() -> None:
    """No list is no restriction; an empty one, as a chart may write it, neither."""
    for given in (settings(), settings("--metrics.allow=", "--metrics.deny= , ")):
        assert (given.metrics.allow, given.metrics.deny) == ((), ())
        assert chosen(given.metrics.allow, given.metrics.deny) == FAMILIES


def test_names_and_globs_are_apart_by_commas() -> None:
    """With blanks or without, from the environment too."""
    given = settings("--metrics.allow=kubegpu_gpu_*, kubegpu_findings", "--metrics.deny=*_ratio")
    assert given.metrics.allow == ("kubegpu_gpu_*", "kubegpu_findings")
    assert given.metrics.deny == ("*_ratio",)
    env = {"KUBEGPU_METRICS_DENY": "kubegpu_process_*"}
    assert parse((), env, "node-1")[1].metrics.deny == ("kubegpu_process_*",)


@pytest.mark.parametrize("flag", ["--metrics.allow", "--metrics.deny"])
@pytest.mark.parametrize(
    ("pattern", "remedy"),
    [
        ("kubegpu_gpu_memory_used", "did you mean kubegpu_gpu_memory_used_bytes?"),
        ("gpu_info", "did you mean kubegpu_gpu_info?"),
        ("KUBEGPU_GPU_*", "give full names or globs such as kubegpu_gpu_*"),
        ("DCGM_FI_*", "give full names or globs such as kubegpu_gpu_*"),
        ("[", "give full names or globs such as kubegpu_gpu_*"),
    ],
)
def test_a_pattern_that_matches_nothing_is_refused(flag: str, pattern: str, remedy: str) -> None:
    """A slip would serve too much or too little without a word."""
    line = refusal(f"{flag}=kubegpu_findings,{pattern}")
    assert line == (
        f"{flag}: 'kubegpu_findings,{pattern}' has {pattern!r}, which matches no metric; {remedy}"
    )


@pytest.mark.parametrize("pattern", ["kubegpu_source_up", "kubegpu_exporter_*", "kubegpu_node_info"])
def test_what_is_always_served_cannot_be_denied(pattern: str) -> None:
    """A pattern that would do nothing is refused; one that also matches others is not."""
    line = refusal(f"--metrics.deny={pattern}")
    assert line.endswith("which matches only what is always served; leave it out")
    assert settings("--metrics.deny=kubegpu_source_*", f"--metrics.allow={pattern}").metrics.deny


def test_the_extended_group_is_off_and_apart() -> None:
    """Neither group switches the other."""
    assert not policy(settings()).telemetry_extended
    given = policy(settings("--collector.telemetry=off", "--collector.telemetry-extended=on"))
    assert (given.telemetry, given.telemetry_extended) == (False, True)
    assert "'maybe' is neither true nor false" in refusal("--collector.telemetry-extended=maybe")


def test_the_help_names_what_is_always_served() -> None:
    """And shows no default where there is none."""
    text = " ".join(help_text().split())
    assert "Always served: kubegpu_cycle_timestamp_seconds" in text
    assert "Default: ()" not in text
