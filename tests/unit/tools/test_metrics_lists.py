"""Who lists metrics: docs/operations.md, the dashboard, the autoscaler. They name those that there are."""

from __future__ import annotations

import json
import re

from prometheus_client import Metric
from voice_clone_gateway.http.metrics import Metrics

from tools.fields import SERIES
from voice_clone_server.triton_server import ROOT

OURS = {f"voice_clone_{part}_{name}" for part, forms in SERIES.items() for name in forms}
NAME = re.compile(r"\bvoice_clone_(?:talker|code2wav|speaker_cache|gateway)_[a-z0-9_]*[a-z]\b")
MONITORING = ROOT / "tools" / "monitoring"
# They matter to who looks for the cause of something; the panels show that there is something.
WITHOUT_A_PANEL = {
    *("talker_frames_total", "talker_prefill_ms", "talker_frame_ms", "talker_short_streams", "talker_text_wait_ms"),
    *("code2wav_streams", "code2wav_streams_ended_total", "code2wav_marks_total", "code2wav_primed_total"),
    *("speaker_cache_uploads_total", "speaker_cache_deletes_total", "speaker_cache_oversize_skips_total"),
    *("speaker_cache_entries", "speaker_cache_store_write_failures_total", "speaker_cache_store_quarantined_total"),
    *("speaker_cache_store_age_seconds", "speaker_cache_store_unreadable", "speaker_cache_store_look_failures_total"),
    *("speaker_cache_store_resets_total", "speaker_cache_store_claims_refused_total"),
    "model_wakes_total",
    *("gateway_live_speeches", "gateway_audio_seconds_total", "gateway_refused_speeches_total", "gateway_marks_total"),
}


def of_gateway() -> set[str]:
    def name(metric: Metric) -> str:
        return f"{metric.name}_total" if metric.type == "counter" else metric.name

    return {name(metric) for metric in Metrics().registry.collect()}


def shown() -> set[str]:
    dashboard = json.loads((MONITORING / "grafana" / "voice_clone.json").read_text(encoding="utf-8"))
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", [])]
    return {name.removesuffix("_bucket") for query in queries for name in NAME.findall(query)}


def test_each_metric_has_a_panel_or_is_known_to_have_none() -> None:
    known = {f"voice_clone_{name}" for name in WITHOUT_A_PANEL}
    lacking = (OURS | of_gateway()) - shown() - known
    assert not lacking, f"add a panel to {MONITORING}/grafana/voice_clone.json, or a name to WITHOUT_A_PANEL here"
    assert not shown() - OURS - of_gateway(), "the dashboard asks for metrics that nothing makes"
    assert not known & shown() and known <= OURS | of_gateway()


def test_other_files_name_metrics_that_there_are() -> None:
    made = OURS | of_gateway()
    files = [*(ROOT / "docs").glob("*.md"), *(ROOT / "tools" / "kubernetes").rglob("*.yaml"), ROOT / "README.md"]
    for file in files:
        named = {name.removesuffix("_bucket") for name in NAME.findall(file.read_text(encoding="utf-8"))}
        assert named - made - {"voice_clone_speaker_cache", "voice_clone_gateway_options"} == set(), file


def test_the_documents_name_all_metrics_of_the_gateway() -> None:
    text = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    assert {name for name in of_gateway() if f"`{name}`" not in text} == set(), "add a row to docs/operations.md"
