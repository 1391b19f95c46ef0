"""As much of grpcurl as the pages of docs/ use, over the checked-in stubs, so that their commands run in every test.

python -m tests.support.calls.grpcurl -plaintext [-d JSON | -d @] HOST:PORT package.Service/Method
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from typing import Any

import grpc
from google.protobuf import descriptor_pool, json_format, message_factory

from stepwell.v1 import clock_pb2, namespaces_pb2, server_pb2, workers_pb2, workflows_pb2

KNOWN = (clock_pb2, namespaces_pb2, server_pb2, workers_pb2, workflows_pb2)  # imported to be in the pool
TIMEOUT = 30


def main() -> int:
    """Make the call, print its answer as grpcurl does, or the refusal."""
    parser = ArgumentParser()
    parser.add_argument("-plaintext", action="store_true", required=True)
    parser.add_argument("-d", dest="data", default="{}")
    parser.add_argument("address")
    parser.add_argument("method")
    given = parser.parse_args()
    body = sys.stdin.read() if given.data == "@" else given.data
    try:
        answer = call(given.address, given.method, body)
    except grpc.RpcError as error:
        sys.stderr.write(f"ERROR:\n  Code: {error.code().name}\n  Message: {error.details()}\n")
        return 64 + int(error.code().value[0])
    sys.stdout.write(f"{json_format.MessageToJson(answer)}\n")
    return 0


def call(address: str, method: str, body: str) -> Any:
    """The answer to a unary call; a field that the contract does not have is an error."""
    service, _, name = method.partition("/")
    description = descriptor_pool.Default().FindServiceByName(service).methods_by_name[name]
    request = message_factory.GetMessageClass(description.input_type)()
    answer = message_factory.GetMessageClass(description.output_type)
    with grpc.insecure_channel(address) as channel:
        unary = channel.unary_unary(f"/{method}", type(request).SerializeToString, answer.FromString)
        return unary(json_format.Parse(body, request), timeout=TIMEOUT)


if __name__ == "__main__":
    sys.exit(main())
