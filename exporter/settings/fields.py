"""The settings: one field each.

A setting's flag, environment variable, file key, help text and line in the reference all follow from it.
"""

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from exporter.catalog import ALWAYS
from exporter.settings import values
from exporter.settings.values import KUBELET_ROOTS, ListenAddress


class LogLevel(StrEnum):
    """The least level that is logged."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class LogFormat(StrEnum):
    """The form of a log line."""

    TEXT = "text"
    JSON = "json"


class Output(StrEnum):
    """The form of what `describe` prints."""

    TEXT = "text"
    JSON = "json"


class Metavar(str):
    """What a flag's value is called in the help text."""

    __slots__ = ()


_Bool = Annotated[bool, BeforeValidator(values.boolean), Metavar("true|false")]
_Switch = Annotated[bool, BeforeValidator(values.boolean), Metavar("on|off")]
_Path = Annotated[Path, BeforeValidator(values.path), Metavar("PATH")]
_OptionalPath = Annotated[Path | None, BeforeValidator(values.optional_path), Metavar("PATH")]
_ReadableFile = Annotated[Path | None, BeforeValidator(values.readable_file), Metavar("FILE")]
_Count = Annotated[int, BeforeValidator(values.count), Metavar("COUNT")]
_Size = Annotated[int, BeforeValidator(values.size), Metavar("SIZE")]
_Share = Annotated[float, BeforeValidator(values.share), Metavar("SHARE")]
_OptionalCount = Annotated[int | None, BeforeValidator(values.optional_count), Metavar("COUNT")]


_ALWAYS = ", ".join(sorted(ALWAYS))


class _Group(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class WebConfigSettings(_Group):
    """`--web.config.*`."""

    file: _ReadableFile = Field(None, description="File with the TLS settings (web configuration file).")


class WebSettings(_Group):
    """`--web.*`."""

    listen_address: Annotated[ListenAddress, BeforeValidator(values.listen_address), Metavar("ADDRESS")] = (
        Field(
            ListenAddress("", 9836),
            description="Address to listen on: :PORT for every address, host:PORT or [IPv6 address]:PORT.",
        )
    )
    telemetry_path: Annotated[str, BeforeValidator(values.telemetry_path), Metavar("PATH")] = Field(
        "/metrics", description="URL path that serves the metrics."
    )
    config: WebConfigSettings = WebConfigSettings()


class PathSettings(_Group):
    """`--path.*`."""

    procfs: _Path = Field(Path("/proc"), description="Where the host's procfs is mounted.")
    sysfs: _Path = Field(Path("/sys"), description="Where the host's sysfs is mounted.")
    pod_logs: _Path = Field(
        Path("/var/log/pods"),
        description="Directory of the pods' logs, whose names give a pod's name when the API does not.",
    )


class KubeletSettings(_Group):
    """`--kubelet.*`."""

    root_dir: Annotated[Path, BeforeValidator(values.kubelet_root), Metavar("PATH|PRESET")] = Field(
        KUBELET_ROOTS["default"],
        description="The kubelet's root directory, with the pod-resources socket below it: "
        f"a path, or one of {', '.join(KUBELET_ROOTS)}.",
    )

    @property
    def socket(self) -> Path:
        """The kubelet's pod-resources socket."""
        return self.root_dir / "pod-resources" / "kubelet.sock"


class NvmlSettings(_Group):
    """`--nvml.*`."""

    library: Annotated[str | None, BeforeValidator(values.optional_text), Metavar("LIBRARY")] = Field(
        None, description="NVML library to load: a path or a name. Unset: the usual places are searched."
    )


class KubernetesSettings(_Group):
    """`--kubernetes.*`."""

    enabled: _Bool = Field(True, description="Read this node's pods and node object from the Kubernetes API.")
    kubeconfig: _ReadableFile = Field(
        None, description="Kubeconfig file for the Kubernetes API. Unset: the pod's service account."
    )


class CollectorSettings(_Group):
    """`--collector.*`."""

    telemetry: _Switch = Field(
        True,
        description="Export temperature, power, energy and clocks. Turn off where DCGM exports them.",
    )
    telemetry_extended: _Switch = Field(
        False, description="Export ECC errors, remapped rows and the reasons for low clocks."
    )
    process_series: _Switch = Field(True, description="Export a series for each process on a GPU.")


class MetricsSettings(_Group):
    """`--metrics.*`."""

    allow: Annotated[tuple[str, ...], BeforeValidator(values.families), Metavar("GLOB,...")] = Field(
        (),
        description="Metrics to serve, full names or globs apart by commas; unset: all. Always served: "
        f"{_ALWAYS}.",
    )
    deny: Annotated[tuple[str, ...], BeforeValidator(values.denied_families), Metavar("GLOB,...")] = Field(
        (),
        description="Metrics not to serve, even if allowed. Alerts and dashboards on them stay silent.",
    )


class LimitsSettings(_Group):
    """`--limits.*`."""

    process_series: _Count = Field(
        512, description="Greatest number of process rows exported; the rest are counted as dropped."
    )


class OrphanedMemorySettings(_Group):
    """`--rules.orphaned_memory.*`: memory that no process accounts for counts above the larger of the two."""

    bytes: _Size = Field(
        512 * 2**20, description="Memory of a GPU that no process accounts for counts above this size."
    )
    share: _Share = Field(0.02, description="And above this share of the GPU's memory.")
    mig_bytes: _Size = Field(
        256 * 2**20,
        description="Memory of a GPU instance (MIG) that no process accounts for counts above this size.",
    )
    mig_share: _Share = Field(0.05, description="And above this share of the GPU instance's memory.")


class RulesSettings(_Group):
    """`--rules.*`. `ages` has those that were given: "<finding>.<kind>" → seconds."""

    orphaned_memory: OrphanedMemorySettings = OrphanedMemorySettings()
    ages: Annotated[Mapping[str, Annotated[float, BeforeValidator(values.age)]], Metavar("DURATION")] = Field(
        {}, description="How long a kind of finding must hold before it counts."
    )


class DemoSettings(_Group):
    """`--demo.*`."""

    scenario: Annotated[str | None, BeforeValidator(values.optional_text), Metavar("NAME|PATH")] = Field(
        None, description="Scenario that the demo command replays: a shipped one by name, or a directory."
    )


class ConfigSettings(_Group):
    """`--config.*`."""

    file: _ReadableFile = Field(
        None, description="YAML file with these settings, keys nested or dotted, such as web.listen-address."
    )


class LogSettings(_Group):
    """`--log.*`."""

    level: Annotated[LogLevel, BeforeValidator(values.one_of(LogLevel)), Metavar("|".join(LogLevel))] = Field(
        LogLevel.INFO, description="Least level that is logged."
    )
    format: Annotated[LogFormat, BeforeValidator(values.one_of(LogFormat)), Metavar("|".join(LogFormat))] = (
        Field(LogFormat.TEXT, description="Form of a log line.")
    )


class Settings(BaseSettings):
    """Every setting of one run. `Settings()` is the defaults; `parse` adds file, environment and flags."""

    model_config = SettingsConfigDict(frozen=True, extra="forbid")

    web: WebSettings = WebSettings()
    node_name: Annotated[str, BeforeValidator(values.node_name), Metavar("NAME")] = Field(
        "localhost", description="This node's name in Kubernetes. Default: NODE_NAME, else the host name."
    )
    interval: Annotated[float, BeforeValidator(values.interval), Metavar("DURATION")] = Field(
        15.0, description="Time between two cycles, at least 1s."
    )
    kubernetes: KubernetesSettings = KubernetesSettings()
    kubelet: KubeletSettings = KubeletSettings()
    nvml: NvmlSettings = NvmlSettings()
    path: PathSettings = PathSettings()
    collector: CollectorSettings = CollectorSettings()
    metrics: MetricsSettings = MetricsSettings()
    limits: LimitsSettings = LimitsSettings()
    rules: RulesSettings = RulesSettings()
    pause_file: _OptionalPath = Field(
        None,
        description="While this file exists every NVML handle is released: for GPU resets and MIG changes.",
    )
    expected_gpus: _OptionalCount = Field(
        None, description="Number of GPUs that the node should have. Unset: what the PCI bus shows."
    )
    log: LogSettings = LogSettings()
    demo: DemoSettings = DemoSettings()
    url: Annotated[str | None, BeforeValidator(values.url), Metavar("URL")] = Field(
        None,
        description="Running exporter that the describe command asks, such as http://node-1:9836. Unset: it "
        "looks at this node itself.",
    )
    output: Annotated[
        Output | Path, BeforeValidator(values.output(Output)), Metavar(f"{'|'.join(Output)}|FILE")
    ] = Field(
        Output.TEXT,
        description="Form of what the describe command prints; for the record command the file to write, "
        "NAME.json.gz.",
    )
    mask: _Bool = Field(
        False, description="Let the record command put pseudonyms in the place of names and UUIDs."
    )
    config: ConfigSettings = ConfigSettings()

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Nothing is read from the process: `parse` is given its argv, environment and host name."""
        del settings_cls, env_settings, dotenv_settings, file_secret_settings
        return (init_settings,)
