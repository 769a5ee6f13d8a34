"""What the OTEL_* variables make of the settings, and what is said of those that are wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
from opentelemetry.sdk.trace import sampling

from npc.telemetry.settings import Otlp, Settings, read


def _read(**environment: str) -> Settings:
    """Settings of variables without mistakes."""
    settings = read(environment)
    assert settings.problems == ()
    return settings


def _problem(**environment: str) -> tuple[Settings, str]:
    """Settings of variables with one mistake, and what is said of it."""
    settings = read(environment)
    [problem] = settings.problems
    return settings, problem


def test_nothing_set_exports_nothing() -> None:
    settings = _read()
    assert settings.traces_otlp is settings.metrics_otlp is None
    assert not settings.traces_console
    assert not settings.metrics_console
    assert not settings.disabled
    assert settings.sampler is sampling.DEFAULT_ON
    assert settings.resource == {}


def test_an_endpoint_exports_both_signals_to_its_paths() -> None:
    settings = _read(OTEL_EXPORTER_OTLP_ENDPOINT="http://collector:4318/")
    assert settings.traces_otlp == Otlp("http://collector:4318/v1/traces", 10.0, "none")
    assert settings.metrics_otlp == Otlp("http://collector:4318/v1/metrics", 10.0, "none")


def test_an_endpoint_of_one_signal_is_taken_as_it_is_and_exports_that_one() -> None:
    settings = _read(OTEL_EXPORTER_OTLP_TRACES_ENDPOINT="https://[::1]:9/x")
    assert settings.traces_otlp is not None
    assert settings.traces_otlp.endpoint == "https://[::1]:9/x"
    assert settings.metrics_otlp is None


def test_otlp_by_name_needs_no_endpoint() -> None:
    settings = _read(OTEL_TRACES_EXPORTER="otlp")
    assert settings.traces_otlp is not None
    assert settings.traces_otlp.endpoint == "http://localhost:4318/v1/traces"
    assert settings.metrics_otlp is None


@pytest.mark.parametrize("exporter", ["none", "prometheus"])
def test_metrics_can_be_kept_from_the_endpoint(exporter: str) -> None:
    settings = _read(OTEL_EXPORTER_OTLP_ENDPOINT="http://c:1", OTEL_METRICS_EXPORTER=exporter)
    assert settings.traces_otlp is not None
    assert settings.metrics_otlp is None


def test_several_exporters_may_be_named() -> None:
    settings = _read(OTEL_TRACES_EXPORTER=" OTLP, console", OTEL_METRICS_EXPORTER="console")
    assert settings.traces_otlp is not None
    assert settings.traces_console
    assert settings.metrics_otlp is None
    assert settings.metrics_console


def test_a_signals_own_variable_wins_and_an_empty_one_is_not_set() -> None:
    settings = _read(
        OTEL_EXPORTER_OTLP_ENDPOINT="http://c:1",
        OTEL_EXPORTER_OTLP_COMPRESSION="gzip",
        OTEL_EXPORTER_OTLP_METRICS_COMPRESSION="deflate",
        OTEL_EXPORTER_OTLP_TIMEOUT="2500",
        OTEL_EXPORTER_OTLP_TRACES_TIMEOUT="",
        OTEL_EXPORTER_OTLP_PROTOCOL="grpc",
        OTEL_EXPORTER_OTLP_TRACES_PROTOCOL="http/protobuf",
        OTEL_EXPORTER_OTLP_METRICS_PROTOCOL="http/protobuf",
    )
    assert settings.traces_otlp == Otlp("http://c:1/v1/traces", 2.5, "gzip")
    assert settings.metrics_otlp == Otlp("http://c:1/v1/metrics", 2.5, "deflate")


def test_times_are_milliseconds() -> None:
    settings = _read(
        OTEL_BSP_SCHEDULE_DELAY="250",
        OTEL_BSP_MAX_QUEUE_SIZE="100",
        OTEL_METRIC_EXPORT_INTERVAL="1500",
        OTEL_METRIC_EXPORT_TIMEOUT="500",
    )
    assert (settings.queue.size, settings.queue.batch, settings.queue.delay) == (100, 100, 0.25)
    assert (settings.metric_interval, settings.metric_timeout) == (1.5, 0.5)


def test_resource_attributes_are_unquoted_and_the_service_name_wins() -> None:
    settings = _read(
        OTEL_RESOURCE_ATTRIBUTES="service.name=a, k8s.pod.name=npc%2Dx ,empty=,",
        OTEL_SERVICE_NAME="b",
    )
    assert settings.resource == {"service.name": "b", "k8s.pod.name": "npc-x", "empty": ""}


@pytest.mark.parametrize(
    ("name", "sampler"),
    [
        ("always_off", "AlwaysOffSampler"),
        ("traceidratio", "TraceIdRatioBased{0.25}"),
        ("parentbased_traceidratio", "ParentBased{root:TraceIdRatioBased{0.25}"),
    ],
)
def test_samplers_by_their_names(name: str, sampler: str) -> None:
    settings = _read(OTEL_TRACES_SAMPLER=name, OTEL_TRACES_SAMPLER_ARG="0.25")
    assert settings.sampler.get_description().startswith(sampler)


def test_an_unknown_exporter_is_left_out_and_the_others_stay() -> None:
    settings, problem = _problem(OTEL_TRACES_EXPORTER="console,zipkin")
    assert settings.traces_console
    assert problem.startswith("OTEL_TRACES_EXPORTER=console,zipkin: zipkin unknown")
    assert problem.endswith("(there is otlp, console, none); left out")


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "collector:4318", "no URL like http://HOST:4318"),
        ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://c:99999", "no URL like http://HOST:4318"),
        ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "grpc", "only http/protobuf is spoken"),
        ("OTEL_EXPORTER_OTLP_CERTIFICATE", "/no/such/file", "No such file or directory"),
        ("OTEL_EXPORTER_OTLP_TRACES_CLIENT_KEY", "/proc", "Is a directory"),
    ],
)
def test_what_cannot_be_sent_is_not_exported(variable: str, value: str, said: str) -> None:
    settings, problem = _problem(
        OTEL_TRACES_EXPORTER="otlp", OTEL_METRICS_EXPORTER="none", **{variable: value}
    )
    assert settings.traces_otlp is None
    assert problem.startswith(f"{variable}={value}")
    assert problem.endswith(f"{said}; no traces are exported")


def test_files_that_can_be_read_are_no_problem(tmp_path: Path) -> None:
    certificate = tmp_path / "ca.crt"
    certificate.write_text("")
    settings = _read(
        OTEL_EXPORTER_OTLP_ENDPOINT="https://c", OTEL_EXPORTER_OTLP_CERTIFICATE=str(certificate)
    )
    assert settings.metrics_otlp is not None


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("OTEL_SDK_DISABLED", "yes", "neither true nor false; taken for false"),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "10", "not a number from 100; 10000 is used"),
        ("OTEL_EXPORTER_OTLP_COMPRESSION", "zstd", "none, gzip, deflate); none is used"),
        ("OTEL_BSP_SCHEDULE_DELAY", "soon", "not a number from 1; 5000 is used"),
        ("OTEL_BSP_MAX_QUEUE_SIZE", "0", "not a number from 1; 4096 is used"),
        ("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "5000", "not a number from 1 to 4096; 128 is used"),
        ("OTEL_METRIC_EXPORT_INTERVAL", "-1", "not a number from 1; 60000 is used"),
        ("OTEL_METRIC_EXPORT_TIMEOUT", "nan", "not a number from 1; 30000 is used"),
        ("OTEL_METRIC_EXPORT_TIMEOUT", "inf", "not a number from 1; 30000 is used"),
        ("OTEL_TRACES_SAMPLER", "sometimes", "parentbased_always_on is used"),
        ("OTEL_METRICS_EXEMPLAR_FILTER", "all", "trace_based is used"),
        ("OTEL_RESOURCE_ATTRIBUTES", "a=b,zone", "'zone' is not KEY=VALUE; left out"),
    ],
)
def test_a_mistake_is_named_with_what_is_done_instead(variable: str, value: str, said: str) -> None:
    settings, problem = _problem(OTEL_TRACES_EXPORTER="otlp", **{variable: value})
    assert problem.startswith(f"{variable}={value}: ")
    assert problem.endswith(said)
    assert settings.traces_otlp == Otlp("http://localhost:4318/v1/traces", 10.0, "none")
    assert settings.queue == read({}).queue


def test_a_header_that_cannot_be_read_is_named_and_not_shown() -> None:
    headers = "authorization=x,secret"
    settings, problem = _problem(
        OTEL_EXPORTER_OTLP_TRACES_ENDPOINT="http://c", OTEL_EXPORTER_OTLP_HEADERS=headers
    )
    assert problem.startswith("OTEL_EXPORTER_OTLP_HEADERS: not KEY=VALUE")
    assert "secret" not in problem
    assert settings.traces_otlp is not None


def test_a_samplers_argument_is_a_share() -> None:
    settings, problem = _problem(OTEL_TRACES_SAMPLER="traceidratio", OTEL_TRACES_SAMPLER_ARG="50")
    assert problem == "OTEL_TRACES_SAMPLER_ARG=50: not a number from 0 to 1; 1 is used"
    assert settings.sampler.get_description() == "TraceIdRatioBased{1}"


def test_a_bad_limit_of_spans_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_SPAN_LINK_COUNT_LIMIT", "many")
    settings, problem = _problem()
    assert "OTEL_SPAN_LINK_COUNT_LIMIT" in problem
    assert settings.span_limits.max_links == 128
