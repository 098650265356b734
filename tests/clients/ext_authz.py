"""A client of Envoy's external authorization, by the official gRPC library. The messages are written by hand.

    ext_authz.py ADDRESS TIMEOUT COUNT METHOD PATH HOST SOURCE [NAME:VALUE ...]

A SOURCE that begins with a slash is a pipe. The pair ":body:TEXT" is the body.

Sends COUNT calls at once about one request, with the token "hunter2", and prints a line of JSON for each answer.
"""

import json
import sys

import grpc
from protobuf import field, fields

ADDRESS, TIMEOUT, COUNT = sys.argv[1], float(sys.argv[2]), int(sys.argv[3])
VERB, PATH, HOST, SOURCE = sys.argv[4:8]
HEADERS = [(pair[: pair.index(":", 1)], pair[pair.index(":", 1) + 1 :]) for pair in sys.argv[8:]]
METHOD = "/envoy.service.auth.v3.Authorization/Check"


def question():
    http = field(2, VERB.encode()) + field(4, PATH.encode()) + field(5, HOST.encode())
    for name, value in HEADERS:
        if name == ":body":
            http += field(11, value.encode())
            continue
        http += field(3, field(1, name.encode()) + field(2, value.encode()))
    address = field(2, SOURCE.encode())
    if SOURCE.startswith("/"):
        address = field(2, field(1, SOURCE.encode()))
    else:
        address = field(1, address)
    source = field(1, address)
    return field(1, field(1, source) + field(4, field(2, http)))


def headers(options):
    pairs = [dict(fields(dict(fields(option))[1])) for option in options]
    return {pair[1].decode(): pair[2].decode() for pair in pairs}


channel = grpc.insecure_channel(ADDRESS)
call = channel.unary_unary(METHOD)
calls = [
    call.future(question(), timeout=TIMEOUT, metadata=[("paceway-token", "hunter2")])
    for _ in range(COUNT)
]
for future in calls:
    try:
        answer = dict(fields(future.result()))
    except grpc.RpcError as error:
        print(json.dumps({"error": error.code().name, "details": error.details()}), flush=True)
        continue
    seen = {"code": dict(fields(answer[1])).get(1, 0)}
    if 2 in answer:
        denied = fields(answer[2])
        status = next(value for tag, value in denied if tag == 1)
        seen["status"] = dict(fields(status))[1]
        seen["headers"] = headers(value for tag, value in denied if tag == 2)
        seen["body"] = next(value for tag, value in denied if tag == 3).decode()
    else:
        ok = fields(answer[3])
        seen["status"] = 200
        seen["to_application"] = headers(value for tag, value in ok if tag == 2)
        seen["headers"] = headers(value for tag, value in ok if tag == 6)
    print(json.dumps(seen), flush=True)
