"""Runs the digits model on three workers, embedded and on a cluster of processes, and receives the traces.

Each run is one trace from the command through the client library, the coordinator and every worker; no span lacks its
parent; calls and steps carry the step key; a step that fails says so. Usage: otlp.py CONVOKE
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
from concurrent import futures

import grpc
from inputs import out_of_range
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as service
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as rpc

MODEL = ["fixtures/digits/model.onnx", "--inputs", "fixtures/digits/test.npz"]
BOUND = 60  # seconds for anything


def plain(attributes):
    """Attributes as a dict."""
    return {a.key: getattr(a.value, a.value.WhichOneof("value")) for a in attributes}


class Collector(rpc.TraceServiceServicer):
    """Keeps all spans as dicts. Appending to a list is atomic."""

    def __init__(self):
        self.spans = []
        self.server = grpc.server(futures.ThreadPoolExecutor(max_workers=4))
        rpc.add_TraceServiceServicer_to_server(self, self.server)
        self.endpoint = f"http://127.0.0.1:{self.server.add_insecure_port('127.0.0.1:0')}"
        self.server.start()

    def Export(self, request, context):
        for resource in request.resource_spans:
            process = plain(resource.resource.attributes)
            for span in (s for scope in resource.scope_spans for s in scope.spans):
                self.spans.append({
                    "service": process["service.name"],
                    "host": process["host.name"],
                    "instance": process["service.instance.id"],
                    "status": span.status.code,
                    "description": span.status.message,
                    "name": span.name,
                    "trace": span.trace_id,
                    "id": span.span_id,
                    "parent": span.parent_span_id,
                    "kind": span.kind,
                    **plain(span.attributes),
                })
        return service.ExportTraceServiceResponse()


def named(spans, **fields):
    return [s for s in spans if all(s.get(k) == v for k, v in fields.items())]


def check(what, truth, spans):
    if not truth:
        for s in spans:
            print({k: v.hex() if isinstance(v, bytes) else v for k, v in s.items()}, file=sys.stderr)
        sys.exit(f"otlp: not so: {what}")


def one_trace(spans, coordinator, worker, processes):
    """The run's trace, whose other parts come from the services of these names."""
    roots = named(spans, name="run", parent=b"")
    check("the command has one span", len(roots) == 1, spans)
    root = roots[0]
    trace = named(spans, trace=root["trace"])
    ids = {s["id"] for s in trace}
    check("the command's span comes from its own service", root["service"] == "convoke-run", trace)
    check("every other span has its parent", all(s is root or s["parent"] in ids for s in trace), trace)

    served = [s for s in named(trace, service=coordinator) if s["kind"] == 2]
    check("the coordinator serves calls of the trace", served, trace)
    by_id = {s["id"]: s for s in trace}
    callers = [by_id[s["parent"]] for s in served]
    check("which the client makes", any(s["service"] == "convoke-run" for s in callers), trace)
    installs = [s for s in named(trace, service=worker) if s["kind"] == 2 and by_id[s["parent"]]["service"] == coordinator]
    check("the coordinator's calls reach every worker", len(installs) >= 3, trace)

    calls = named(trace, name="call", service="convoke-run")
    check("the client has one call, with its key", len(calls) == 1 and "key" in calls[0], trace)
    steps = named(trace, name="step", service=worker, key=calls[0]["key"], parent=calls[0]["id"])
    workers = {s["worker"] for s in steps}
    check("it has a step on each of three workers", len(steps) == len(workers) == 3, trace)
    hosts, instances = {s["host"] for s in trace}, {s["instance"] for s in trace}
    check("all processes of this machine say its name", len(hosts) == 1, trace)
    check("each process has an instance", len(instances) == processes, trace)
    check("calls are named SERVICE.METHOD", all("." in s["name"] for s in trace if s["kind"] in (2, 3)), trace)
    print(f"{len(trace)} spans in one trace, step {calls[0]['key']} on {', '.join(sorted(workers))}")


def failed_step(spans):
    """The step that found the error says so, and why."""
    failed = named(spans, name="step", status=2)
    check("a failed step is marked as one", failed, spans)
    check("it says why", all("out of range" in s["description"] for s in failed), failed)
    print(f"a failed step: {failed[0]['description'][:100]}")


def main(convoke):
    def run(*args, model=MODEL, rc=0):
        done = subprocess.run([convoke, "run", *model, *args], env=env, stdout=subprocess.DEVNULL, timeout=BOUND)
        if done.returncode != rc:
            sys.exit(f"otlp: convoke run ended with {done.returncode}")

    collector = Collector()
    env = dict(os.environ, OTEL_EXPORTER_OTLP_ENDPOINT=collector.endpoint)
    run("--local", "3")
    one_trace(collector.spans, "convoke-run", "convoke-run", 1)

    collector = Collector()
    env["OTEL_EXPORTER_OTLP_ENDPOINT"] = collector.endpoint
    with tempfile.TemporaryDirectory() as folder:
        run("--local", "2", model=["fixtures/mini_transformer/model.onnx", "--inputs", out_of_range(folder)], rc=1)
    failed_step(collector.spans)

    collector = Collector()
    env["OTEL_EXPORTER_OTLP_ENDPOINT"] = collector.endpoint
    up = subprocess.Popen([convoke, "up", "--workers", "3", "--json", "--log", "warn"], env=env, stdout=subprocess.PIPE)
    try:
        cluster = json.loads(up.stdout.readline())
        run("--workers", "3", "--connect", cluster["connect"], "--token-file", cluster["client_token_file"])
    finally:
        # What they have not exported yet they export before they end.
        up.send_signal(signal.SIGINT)
        up.wait(BOUND)
    one_trace(collector.spans, "convoke-coordinator", "convoke-worker", 5)


main(sys.argv[1])
