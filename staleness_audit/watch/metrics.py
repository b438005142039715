"""The state as OpenMetrics text, served on a loopback port for Prometheus and its like."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from staleness_audit.errors import AuditError
from staleness_audit.watch.state import State

CONTENT_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"
IDLE = 30.0
"""Seconds after which a client that asks for nothing is given up."""
VERDICTS = ("pass", "fail", "inconclusive", "no-bound")

Sample = tuple[Mapping[str, str], float]


def open_metrics(state: State) -> str:
    """Return a state as OpenMetrics 1.0 text: gauges, as a restart rolls counts back; open ends are left out."""
    lines = []
    for name, kind, text, samples in _metrics(state):
        lines += [f"# TYPE {name} {kind}", f"# HELP {name} {text}"]
        suffix = "_info" if kind == "info" else ""
        lines += [f"{name}{suffix}{_labels(labels)} {value!r}" for labels, value in samples]
    return "\n".join([*lines, "# EOF"]) + "\n"


def _metrics(state: State) -> Iterator[tuple[str, str, str, list[Sample]]]:
    data = state.data
    run = {name: str(data["run"][name]) for name in ("path", "framework")}
    yield "staleness_audit_run", "info", "The run that is watched.", [(run, 1)]
    verdicts: list[Sample] = [({"staleness_audit_verdict": word}, int(data["verdict"] == word)) for word in VERDICTS]
    yield "staleness_audit_verdict", "stateset", "Verdict on what was written so far.", verdicts
    if data["bound"]["value"] is not None:
        bound = data["bound"]["value"]
        yield "staleness_audit_bound", "gauge", "Largest allowed v_train - v_gen.", [({}, bound)]
        units = ("tokens", "trajectories", "groups")
        found = [sample for unit in units for sample in _ends(data["violations"][unit], unit=unit)]
        yield "staleness_audit_violations", "gauge", "Violations, proven (lo) and possible (hi).", found
    largest = _ends(data["staleness"]["max"])
    yield "staleness_audit_staleness_max", "gauge", "Largest staleness of a trained token.", largest
    tokens = [sample for name in ("generated", "trained") for sample in _ends(data["tokens"][name], state=name)]
    yield "staleness_audit_tokens", "gauge", "Tokens generated, and trained per use.", tokens
    yield "staleness_audit_steps", "gauge", "Completed training steps.", _ends(data["run"]["steps"])
    yield "staleness_audit_waste_ratio", "gauge", "Share of tokens never trained.", _ends(data["waste"]["ratio"])
    under_way: list[Sample] = [({"where": "in_flight"}, state.in_flight), ({"where": "queued"}, state.queued)]
    yield "staleness_audit_trajectories", "gauge", "Trajectories generated now, and waiting.", under_way
    rates = (("generated", state.generated_per_s), ("trained", state.trained_per_s))
    speed: list[Sample] = [({"state": name}, rate) for name, rate in rates if rate is not None]
    yield "staleness_audit_tokens_per_second", "gauge", "Tokens per second of the last minute.", speed
    yield "staleness_audit_refresh_seconds", "gauge", "What the last refresh cost.", [({}, state.took)]
    yield "staleness_audit_refreshed_seconds", "gauge", "When that was, since 1970.", [({}, state.at)]
    readable: list[Sample] = [({}, int(state.trouble is None))]
    yield "staleness_audit_readable", "gauge", "Whether the run could be read.", readable


def _ends(interval: Mapping[str, Any], **labels: str) -> list[Sample]:
    return [({**labels, "end": end}, interval[end]) for end in ("lo", "hi") if interval[end] is not None]


def _labels(labels: Mapping[str, str]) -> str:
    pairs = ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items())
    return f"{{{pairs}}}" if pairs else ""


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of a client that went away before its answer: the terminal belongs to the dashboard."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


class MetricsServer:
    """Serves the latest state on ``http://127.0.0.1:<port>/metrics`` (port 0: any free one, see ``port``)."""

    def __init__(self, port: int) -> None:
        body = {"text": "# EOF\n"}

        class Handler(BaseHTTPRequestHandler):
            timeout = IDLE

            def do_GET(self) -> None:
                if self.path.partition("?")[0] not in ("/", "/metrics"):
                    self.send_error(404)
                    return
                data = body["text"].encode("utf-8", "replace")
                self.send_response(200)
                self.send_header("Content-Type", CONTENT_TYPE)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, format: str, *arguments: object) -> None:
                """Say nothing: the terminal belongs to the dashboard."""

        self._body = body
        try:
            self._server = _Server(("127.0.0.1", port), Handler)
        except OSError as error:
            raise AuditError(
                f"--metrics-port {port}: cannot be served on ({error.strerror}); choose another."
            ) from error
        self._server.daemon_threads = True
        self.port: int = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, name="staleness-metrics", daemon=True).start()

    def __call__(self, state: State) -> None:
        """Serve this state from now on."""
        self._body["text"] = open_metrics(state)

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
