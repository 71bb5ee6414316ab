#!/usr/bin/env python3
"""Asks budgetd for one attempt, does the work, and reports how it went.

    pip install -r examples/python/requirements.txt
    python examples/python/reserve.py --endpoint 127.0.0.1:7411 payments

With TLS and roles: --tls-ca ca.crt --token-file token.

Nothing of ours is needed but the .proto files: the stubs are generated into a temporary directory. In a service, generate
them when you build.
"""

import argparse
import contextlib
import pathlib
import sys
import tempfile
import uuid

import grpc
from grpc_tools import protoc

PROTO = pathlib.Path(__file__).resolve().parents[2] / "proto" / "proto"
CALL_SECONDS = 1.0


@contextlib.contextmanager
def generated_stubs():
    """Yields the modules (messages, services) that grpcio-tools makes of our protocol."""
    with tempfile.TemporaryDirectory() as out:
        code = protoc.main(
            [
                "protoc",
                f"--proto_path={PROTO}",
                f"--python_out={out}",
                f"--grpc_python_out={out}",
                "retrybudget/v1/budget.proto",
                "retrybudget/v1/lease.proto",
            ]
        )
        if code != 0:
            sys.exit(f"protoc ended with {code}")
        sys.path.insert(0, out)
        from retrybudget.v1 import budget_pb2, budget_pb2_grpc

        yield budget_pb2, budget_pb2_grpc


def channel_to(arguments):
    """Speaks TLS if there is a CA, and then shows the token of the file, if there is one."""
    if not arguments.tls_ca:
        return grpc.insecure_channel(arguments.endpoint)
    credentials = grpc.ssl_channel_credentials(pathlib.Path(arguments.tls_ca).read_bytes())
    if arguments.token_file:
        token = pathlib.Path(arguments.token_file).read_text().strip()
        credentials = grpc.composite_channel_credentials(credentials, grpc.access_token_call_credentials(token))
    return grpc.secure_channel(arguments.endpoint, credentials)


def call_dependency():
    """The work that the budget protects; here it always succeeds."""


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--endpoint", default="127.0.0.1:7411", help="host:port of budgetd")
    arguments.add_argument("--tls-ca", help="PEM file of the authority that signed budgetd's certificate; without: no TLS")
    arguments.add_argument("--token-file", help="file with a bearer token; it is sent by TLS only")
    arguments.add_argument("dependency", nargs="?", default="payments")
    arguments = arguments.parse_args()

    with generated_stubs() as (pb, services), channel_to(arguments) as channel:
        budget = services.RetryBudgetStub(channel)

        # 16 random bytes, the same on every re-send of this ask: if the answer is lost, ask again with them.
        reservation_id = uuid.uuid4().bytes
        reserved = budget.Reserve(
            pb.ReserveRequest(
                dependency=arguments.dependency,
                reservation_id=reservation_id,
                attempt=pb.Attempt(number=1),
                time_left_ms=2_000,
            ),
            timeout=CALL_SECONDS,
        )
        # A denial is an answer, not an error: do without the call, or come back after `retry_after_ms`.
        if reserved.WhichOneof("decision") == "denied":
            denied = reserved.denied
            wait = f", retry after {denied.retry_after_ms} ms" if denied.HasField("retry_after_ms") else ""
            sys.exit(f"denied: {pb.DenyReason.Name(denied.reason)}{wait}")
        print(f"admitted: start after {reserved.admitted.start_after_ms} ms, {pb.Mode.Name(reserved.mode)}")

        call_dependency()

        released = budget.Release(
            pb.ReleaseRequest(
                dependency=arguments.dependency,
                reservation_id=reservation_id,
                sent=pb.Sent(outcome=pb.OUTCOME_SUCCESS),
            ),
            timeout=CALL_SECONDS,
        )
        print(f"released: {pb.ReleaseResult.Name(released.result)}")


if __name__ == "__main__":
    main()
