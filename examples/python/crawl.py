#!/usr/bin/env python3
"""Submits a list of sites to a Landfall scheduler, watches the batch until it has ended, and prints
its assignment report as CSV.

Needs Python 3.11 and gRPC (README.md). The code for the calls is generated from `proto/` at each
start, into a temporary folder.
"""

import argparse
import csv
import importlib
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
import uuid
from pathlib import Path

import grpc

PROTO = Path(__file__).resolve().parents[2] / "proto"
# The name in the certificates of all schedulers.
TLS_NAME = "landfall-scheduler"
# The scheduler accepts at most this many sites in one message.
SITES_PER_MESSAGE = 10_000
# Seconds between two attempts to reach a scheduler that is away.
PAUSE = 1
# The same exit codes as in `landfall`.
FAILED, USAGE, SITES_FAILED = 1, 2, 3


class Refused(Exception):
    """An error that people can correct: a sentence, and the exit code."""

    def __init__(self, sentence, code=FAILED):
        super().__init__(sentence)
        self.code = code


def generate(folder):
    """Generates the code for the calls, and returns the modules of messages and of clients."""
    # Debian's packages have protoc and a plugin; PyPI's grpcio-tools has both as a module.
    if plugin := shutil.which("grpc_python_plugin"):
        protoc = ["protoc", f"--plugin=protoc-gen-grpc_python={plugin}"]
    else:
        protoc = [sys.executable, "-m", "grpc_tools.protoc"]
    files = sorted(str(file) for file in PROTO.glob("landfall/v1/*.proto"))
    command = [*protoc, f"-I{PROTO}", f"--python_out={folder}", f"--grpc_python_out={folder}", *files]
    try:
        subprocess.run(command, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        sentence = "the code for the calls was not generated: README.md names the packages that this needs"
        raise Refused(sentence) from error
    sys.path.insert(0, folder)
    names = ("sites_pb2", "reports_pb2", "sites_pb2_grpc", "reports_pb2_grpc")
    return [importlib.import_module(f"landfall.v1.{name}") for name in names]


class Scheduler:
    """A connection to the first scheduler of a client.toml."""

    def __init__(self, client_file, patience):
        try:
            client = tomllib.loads(client_file.read_text())
            url, self.token = client["scheduler"], client["token"]
            self.url = url if isinstance(url, str) else url[0]
            secure = self.url.startswith("https://")
            authority = (client_file.parent / client["ca"]).read_bytes() if secure else None
        except OSError as error:
            raise Refused(f"{error.filename}: {error.strerror}", USAGE) from error
        except (KeyError, ValueError, IndexError) as error:
            raise Refused(f"{client_file}: not a scheduler's client.toml: {error}", USAGE) from error
        self.patience = patience
        address = self.url.partition("://")[2]
        # Detects a broken connection while a watch is silent.
        options = [("grpc.keepalive_time_ms", 20_000), ("grpc.keepalive_timeout_ms", 10_000)]
        if authority:
            options.append(("grpc.ssl_target_name_override", TLS_NAME))
            self.channel = grpc.secure_channel(address, grpc.ssl_channel_credentials(authority), options)
        else:
            self.channel = grpc.insecure_channel(address, options)

    def ask(self, call, make_request, repeatable=False):
        """Yields the answers of a call. While the scheduler is away, sends the request again. After
        the first answer of a stream, sends it again only if the call is `repeatable`.
        """
        away_since = None
        answered = False
        while True:
            try:
                answer = call(make_request(), metadata=[("authorization", f"Bearer {self.token}")])
                for message in answer if isinstance(answer, grpc.Call) else [answer]:
                    away_since, answered = None, True
                    yield message
                return
            except grpc.RpcError as error:
                if error.code() != grpc.StatusCode.UNAVAILABLE or (answered and not repeatable):
                    raise self.refusal(error) from error
                away_since = away_since or time.monotonic()
                if time.monotonic() - away_since >= self.patience:
                    raise self.refusal(error) from error
                time.sleep(PAUSE)

    def refusal(self, error):
        if error.code() == grpc.StatusCode.UNAUTHENTICATED:
            return Refused(f"the scheduler at {self.url} does not accept this token: {error.details()}")
        if error.code() == grpc.StatusCode.UNAVAILABLE:
            return Refused(f"the scheduler at {self.url} does not answer: {error.details()}")
        code = USAGE if error.code() == grpc.StatusCode.INVALID_ARGUMENT else FAILED
        return Refused(error.details() or f"the scheduler at {self.url} refuses: {error.code().name}", code)


def sites_of(path):
    """The sites of a list: one host or URL per line; empty lines and comments are skipped."""
    try:
        lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
    except OSError as error:
        raise Refused(f"{path}: {error.strerror}", USAGE) from error
    except UnicodeDecodeError as error:
        raise Refused(f"{path}: not a text: {error}", USAGE) from error
    return [line for line in lines if line and not line.startswith("#")]


def submit(scheduler, client, messages, batch, strategy, sites):
    # With the same key, a request that is sent again changes nothing.
    key = str(uuid.uuid4())

    def parts():
        header = messages.SubmitHeader(batch=batch, strategy=strategy, idempotency_key=key)
        yield messages.SubmitRequest(header=header)
        for start in range(0, len(sites), SITES_PER_MESSAGE):
            chunk = messages.SubmitChunk(sites=sites[start : start + SITES_PER_MESSAGE])
            yield messages.SubmitRequest(chunk=chunk)

    (answer,) = scheduler.ask(client.Submit, parts)
    for warning in answer.warnings:
        say(f"warning: {warning}")
    say(f"batch {batch}: {answer.added} sites added, {answer.batch_total} in all")


def watch(scheduler, client, messages, batch):
    """Follows a batch to its end; returns its last progress."""
    states = ("submitted", "measuring", "located", "assigned", "leased")
    states += ("complete", "truncated", "failed", "cancelled")
    said = progress = None
    request = messages.WatchBatchRequest(batch=batch)
    for progress in scheduler.ask(client.WatchBatch, lambda: request, repeatable=True):
        counts = [(getattr(progress, state), state) for state in states]
        line = ", ".join(f"{count} {state}" for count, state in counts if count) or "no sites"
        if progress.waiting_for:
            line += f"; {progress.waiting_for}"
        if line != said:
            said = line
            say(f"batch {progress.batch}: {line}")
    return progress


def report(scheduler, client, messages, batch):
    """Prints a row for each site, as the rows arrive."""

    def milliseconds(row, field):
        return round(getattr(row, field).ToTimedelta().total_seconds() * 1e3, 3) if row.HasField(field) else ""

    table = csv.writer(sys.stdout, lineterminator="\n")
    columns = "site state agent predicted_ms crawled_ms outcome pages bytes reason"
    table.writerow(columns.split())
    request = messages.AssignmentsRequest(batch=batch)
    for row in scheduler.ask(client.Assignments, lambda: request):
        times = (milliseconds(row, "predicted"), milliseconds(row, "crawled"))
        table.writerow([row.site, row.state, row.agent, *times, row.outcome, row.pages, row.bytes, row.reason])


def say(line):
    print(line, file=sys.stderr, flush=True)


def arguments():
    parser = argparse.ArgumentParser(description="Submits sites, watches the batch, and prints its report.")
    parser.add_argument("batch", help="the batch's name")
    parser.add_argument("list", nargs="?", type=Path, help="a file of sites; without it, the batch exists")
    parser.add_argument("--client", type=Path, required=True, help="client.toml of the scheduler's data directory")
    parser.add_argument("--strategy", default="", help="of a new batch (default: gnp-top3)")
    patience = "seconds to wait for a scheduler that is away (default: %(default)s)"
    parser.add_argument("--patience", type=float, default=30, help=patience)
    return parser.parse_args()


def run(args):
    scheduler = Scheduler(args.client, args.patience)
    sites = sites_of(args.list) if args.list else []
    with tempfile.TemporaryDirectory() as folder:
        site_messages, report_messages, site_calls, report_calls = generate(folder)
        client = site_calls.SiteServiceStub(scheduler.channel)
        if args.list:
            submit(scheduler, client, site_messages, args.batch, args.strategy, sites)
        ended = watch(scheduler, client, site_messages, args.batch)
        report(scheduler, report_calls.ReportServiceStub(scheduler.channel), report_messages, ended.batch)
    return SITES_FAILED if ended.failed else 0


if __name__ == "__main__":
    try:
        sys.exit(run(arguments()))
    except Refused as refused:
        say(f"error: {refused}")
        sys.exit(refused.code)
    except KeyboardInterrupt:
        say("the batch continues on the scheduler")
        sys.exit(130)
