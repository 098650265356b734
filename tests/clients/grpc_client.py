"""Calls of the official gRPC library through a gateway.

    grpc_client.py ADDRESS [CA_FILE]    with a file of authorities over TLS, as localhost

`/test.Echo/Limited` must be limited to one call. Prints a line for each thing seen.
"""

import queue
import sys

import grpc

ADDRESS = sys.argv[1]
if len(sys.argv) > 2:
    port = ADDRESS.rsplit(":", 1)[1]
    with open(sys.argv[2], "rb") as file:
        credentials = grpc.ssl_channel_credentials(file.read())
    channel = grpc.secure_channel(f"localhost:{port}", credentials)
else:
    channel = grpc.insecure_channel(ADDRESS)
PATIENCE = 30


def seen(what):
    print("seen:", what, flush=True)


unary = channel.unary_unary("/test.Echo/Unary")
answer, call = unary.with_call(b"hello", timeout=PATIENCE, metadata=[("x-asked", "me")])
assert answer == b"hello"
initial, trailing = dict(call.initial_metadata()), dict(call.trailing_metadata())
assert initial["x-initial"] == "1" and initial["x-authority"] == "me", initial
assert trailing["x-trailing"] == "2" and trailing["x-bin-bin"] == b"\x00\xff", trailing
seen("a unary call with both kinds of metadata")

large = bytes(range(256)) * 4096 * 3
assert unary(large, timeout=PATIENCE) == large
seen("a message of 3 MiB there and back")

try:
    channel.unary_unary("/test.Echo/Fails")(b"", timeout=PATIENCE)
    raise SystemExit("the server's error is lost")
except grpc.RpcError as error:
    assert error.code() == grpc.StatusCode.FAILED_PRECONDITION, error
    assert error.details() == "not like this: \u00e4 100%", error.details()
    assert dict(error.trailing_metadata())["x-why"] == "because"
seen("an error of the server with its details")

answers = list(channel.unary_stream("/test.Echo/Many")(b"500", timeout=PATIENCE))
assert answers == [b"%d" % i for i in range(500)]
seen("a stream of answers")

assert channel.stream_unary("/test.Echo/Gather")(iter([b"a", b"b", b"c"]), timeout=PATIENCE) == b"a+b+c"
seen("a stream of requests")

asked = queue.Queue()
answers = channel.stream_stream("/test.Echo/Talk")(iter(asked.get, None), timeout=PATIENCE)
for i in range(20):
    asked.put(b"%d" % i)
    assert next(answers) == b"re: %d" % i
asked.put(None)
assert list(answers) == []
seen("a talk both ways, each answer before the next question")

assert [call.result() for call in [unary.future(b"%d" % i, timeout=PATIENCE) for i in range(200)]] == [
    b"%d" % i for i in range(200)
]
seen("200 calls at once on one connection")

slow = channel.unary_unary("/test.Echo/Slow").future(b"", timeout=PATIENCE)
calls = channel.unary_unary("/test.Echo/Calls")
while calls(b"", timeout=PATIENCE) == b"0":
    pass
slow.cancel()
# Answered when every slow call has ended at the server.
assert channel.unary_unary("/test.Echo/Gone")(b"", timeout=PATIENCE) == b"1"
seen("a cancelled call ends at the server")

limited = channel.unary_unary("/test.Echo/Limited")
assert limited(b"first", timeout=PATIENCE) == b"first"
try:
    limited(b"second", timeout=PATIENCE)
    raise SystemExit("the second call of a limit of one passed")
except grpc.RpcError as error:
    assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED, error
    trailers = dict(error.trailing_metadata())
    assert trailers.get("paceway-origin") == "gateway", trailers
    assert int(trailers["retry-after"]) >= 1, trailers
    assert "limited" in error.details(), error.details()
seen("a refusal as RESOURCE_EXHAUSTED with its time")

try:
    channel.unary_unary("/nowhere/Nothing")(b"", timeout=PATIENCE)
    raise SystemExit("a call without a route passed")
except grpc.RpcError as error:
    assert error.code() == grpc.StatusCode.UNIMPLEMENTED, error
seen("a call without a route as UNIMPLEMENTED")
channel.close()
