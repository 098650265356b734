"""A WebSocket server and its clients, of the `websockets` library, with a gateway between them.

    websocket.py serve                      prints its port, serves until its standard input ends
    websocket.py call ADDRESS [CA_FILE]     talks through the gateway, a line for each thing seen
    websocket.py hold ADDRESS COUNT         opens COUNT sockets on /held one after the other, says what came of each
                                            ("open" or a status), and holds them until a line comes on standard input
"""

import asyncio
import ssl
import sys

import websockets
from websockets.asyncio.client import connect
from websockets.asyncio.server import serve


async def echo(socket):
    path = socket.request.path
    if path == "/close":
        await socket.close(4001, "as you like it")
        return
    if path == "/greet":
        # The server speaks first, in the packet of its handshake if the system likes.
        await socket.send("hello")
    async for message in socket:
        await socket.send(message)


def choose(connection, offered):
    return "chat.v1" if "chat.v1" in offered else None


def refuse(connection, request):
    if request.path == "/refuse":
        return connection.respond(403, "not you\n")


async def server():
    options = {"process_request": refuse, "select_subprotocol": choose, "max_size": None}
    async with serve(echo, "127.0.0.1", 0, **options) as running:
        print(running.sockets[0].getsockname()[1], flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


def seen(what):
    print("seen:", what, flush=True)


async def call(address, ca=None):
    options = {"max_size": None, "open_timeout": 30}
    url = f"ws://{address}"
    if ca:
        options["ssl"] = ssl.create_default_context(cafile=ca)
        url = f"wss://localhost:{address.rsplit(':', 1)[1]}"

    async with connect(f"{url}/chat?x=1", subprotocols=["chat.v2", "chat.v1"], **options) as socket:
        assert socket.subprotocol == "chat.v1"
        assert socket.response.headers.get("Sec-WebSocket-Extensions", "").startswith("permessage-deflate")
        for message in ["text \u00e4", b"\x00\xff", "", "x" * 1_000_000, bytes(range(256)) * 4096 * 4]:
            await socket.send(message)
            assert await socket.recv() == message
        await (await socket.ping(b"there?"))
    seen("messages of every kind, a ping, a subprotocol and compression")

    async with connect(f"{url}/greet", **options) as socket:
        assert await socket.recv() == "hello"
    seen("a server that speaks first")

    async with connect(f"{url}/close", **options) as socket:
        try:
            await socket.recv()
            raise SystemExit("the socket is open")
        except websockets.ConnectionClosed as closed:
            assert (closed.rcvd.code, closed.rcvd.reason) == (4001, "as you like it"), closed
    seen("a close with its code and reason")

    try:
        async with connect(f"{url}/refuse", **options):
            raise SystemExit("a refused handshake made a socket")
    except websockets.InvalidStatus as refused:
        assert refused.response.status_code == 403 and refused.response.body == b"not you\n"
    seen("a handshake that the server refuses, with its body")

    async def one(i):
        async with connect(f"{url}/many", **options) as socket:
            for k in range(20):
                await socket.send(f"{i} {k}")
                assert await socket.recv() == f"{i} {k}"

    await asyncio.gather(*(one(i) for i in range(50)))
    seen("50 sockets at once, none of which hears another")


async def hold(address, count):
    held = []
    for _ in range(count):
        try:
            held.append(await connect(f"ws://{address}/held", open_timeout=30))
            print("open", flush=True)
        except websockets.InvalidStatus as refused:
            print(refused.response.status_code, flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
    for socket in held:
        await socket.send("still there")
        assert await socket.recv() == "still there"
        await socket.close()
    print("closed", flush=True)


match sys.argv[1:]:
    case ["serve"]:
        asyncio.run(server())
    case ["call", *rest]:
        asyncio.run(call(*rest))
    case ["hold", address, count]:
        asyncio.run(hold(address, int(count)))
