"""A gRPC server of the official library, without generated code: messages are bytes.

    grpc_upstream.py    prints its port, serves until its standard input ends
"""

import sys
from concurrent import futures

import grpc


def unary(request, context):
    seen = dict(context.invocation_metadata())
    context.send_initial_metadata([("x-initial", "1"), ("x-authority", seen.get("x-asked", "-"))])
    context.set_trailing_metadata([("x-trailing", "2"), ("x-bin-bin", b"\x00\xff")])
    return request


def fails(request, context):
    context.set_trailing_metadata([("x-why", "because")])
    context.abort(grpc.StatusCode.FAILED_PRECONDITION, "not like this: \u00e4 100%")


def many(request, context):
    for i in range(int(request)):
        yield b"%d" % i


def gather(requests, context):
    return b"+".join(requests)


def talk(requests, context):
    # Each answer goes before the next question comes.
    for request in requests:
        yield b"re: " + request


def slow(request, context):
    # Until the caller has gone: nothing else ends it.
    gone = futures.Future()
    context.add_callback(lambda: gone.set_result(None))
    CALLS.append(gone)
    gone.result()
    return b""


def calls(request, context):
    return b"%d" % len(CALLS)


def gone(request, context):
    for call in CALLS:
        call.result(timeout=30)
    return b"%d" % len(CALLS)


CALLS = []


class Handlers(grpc.GenericRpcHandler):
    def service(self, details):
        return {
            "/test.Echo/Unary": grpc.unary_unary_rpc_method_handler(unary),
            "/test.Echo/Fails": grpc.unary_unary_rpc_method_handler(fails),
            "/test.Echo/Many": grpc.unary_stream_rpc_method_handler(many),
            "/test.Echo/Gather": grpc.stream_unary_rpc_method_handler(gather),
            "/test.Echo/Talk": grpc.stream_stream_rpc_method_handler(talk),
            "/test.Echo/Slow": grpc.unary_unary_rpc_method_handler(slow),
            "/test.Echo/Calls": grpc.unary_unary_rpc_method_handler(calls),
            "/test.Echo/Gone": grpc.unary_unary_rpc_method_handler(gone),
            "/test.Echo/Limited": grpc.unary_unary_rpc_method_handler(unary),
        }.get(details.method)


server = grpc.server(futures.ThreadPoolExecutor(max_workers=16), handlers=[Handlers()])
port = server.add_insecure_port("127.0.0.1:0")
server.start()
print(port, flush=True)
sys.stdin.read()
server.stop(None)
