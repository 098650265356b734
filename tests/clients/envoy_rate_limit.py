"""A client of Envoy's rate limit service, by the official gRPC library. The messages are written by hand.

    envoy_rate_limit.py ADDRESS TIMEOUT COUNT [HITS] KEY=VALUE ...

Sends COUNT calls at once, each with one descriptor of these pairs (with an override of LIMIT requests a minute; NEGATIVE: to give the hits back), and prints a line of JSON for each answer.
"""

import json
import os
import sys
import time

import grpc
from protobuf import field, fields

ADDRESS, TIMEOUT, COUNT = sys.argv[1], float(sys.argv[2]), int(sys.argv[3])
HITS = int(sys.argv[4])
PAIRS = [pair.split("=", 1) for pair in sys.argv[5:]]
LIMIT = os.environ.get("LIMIT")
METHOD = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"


def question():
    entries = b"".join(field(1, field(1, k.encode()) + field(2, v.encode())) for k, v in PAIRS)
    limit = b"" if LIMIT is None else field(2, field(1, int(LIMIT)) + field(2, 2))
    negative = field(4, 1) if "NEGATIVE" in os.environ else b""
    return field(1, b"domain") + field(2, entries + limit + negative) + field(3, HITS)


channel = grpc.insecure_channel(ADDRESS)
call = channel.unary_unary(METHOD)
started = time.monotonic()
ended = {}
calls = []
for i in range(COUNT):
    future = call.future(question(), timeout=TIMEOUT)
    future.add_done_callback(lambda _, i=i: ended.setdefault(i, time.monotonic()))
    calls.append(future)
for i, future in enumerate(calls):
    try:
        answer = fields(future.result())
    except grpc.RpcError as error:
        print(json.dumps({"error": error.code().name, "details": error.details()}), flush=True)
        continue
    status = dict(fields(next(value for tag, value in answer if tag == 2)))
    reset = dict(fields(status.get(4, b"")))
    limit = dict(fields(status.get(2, b"")))
    added = [dict(fields(value)) for tag, value in answer if tag == 3]
    while i not in ended:
        time.sleep(0.001)
    seen = {
        "code": next(value for tag, value in answer if tag == 1),
        "reset": reset.get(1, 0) + reset.get(2, 0) / 1e9,
        "limit": [limit.get(1, 0), limit.get(2, 0), limit.get(3, b"").decode()],
        "remaining": status.get(3, 0),
        "headers": {header[1].decode(): header[2].decode() for header in added},
        "after": ended[i] - started,
    }
    print(json.dumps(seen), flush=True)
