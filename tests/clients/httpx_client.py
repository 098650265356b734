"""Calls of httpx through a gateway before an origin that tells what it got as JSON.

    httpx_client.py URL [CA_FILE]    over https with HTTP/2 as well
"""

import sys

import httpx

URL = sys.argv[1]
CA = sys.argv[2] if len(sys.argv) > 2 else None


def seen(what):
    print("seen:", what, flush=True)


def pieces(count):
    for i in range(count):
        yield b"piece %d;" % i


def calls(http2):
    import ssl

    verify = ssl.create_default_context(cafile=CA) if CA else True
    with httpx.Client(http2=http2, verify=verify, timeout=30, base_url=URL) as client:
        version = "HTTP/2" if http2 else "HTTP/1.1"
        for i in range(20):
            answer = client.get("/a b", params={"q": "ä&", "n": i}, headers={"X-Many": "ü".encode()})
            assert answer.status_code == 200 and answer.http_version == version, answer
            got = answer.json()
            assert got["method"] == "GET" and got["target"] == f"/a%20b?q=%C3%A4%26&n={i}", got
        seen(f"{version}: 20 requests on one connection, paths and queries as sent")

        got = client.post("/form", data={"a": "1"}).json()
        assert got["body"] == "a=1" and got["fields"]["content-length"] == "3", got
        got = client.post("/stream", content=pieces(1000)).json()
        assert got["body"] == "".join(f"piece {i};" for i in range(1000)), got
        seen(f"{version}: a form, and an upload whose length nobody knows")

        client.cookies.update({"a": "1", "b": "2"})
        got = client.get("/cookies").json()
        assert got["fields"]["cookie"] == "a=1; b=2", got
        seen(f"{version}: cookies in one field")

        head = client.head("/head")
        assert head.status_code == 200 and head.content == b"" and int(head.headers["content-length"]) > 0, head
        assert client.get("/status/204").status_code == 204
        moved = client.get("/status/302")
        assert moved.status_code == 302 and moved.headers["location"] == "/elsewhere"
        assert client.request("PURGE", "/x").json()["method"] == "PURGE"
        seen(f"{version}: HEAD, 204, a redirect that nobody follows, a method of its own")

        with client.stream("GET", "/events") as answer:
            lines = answer.iter_lines()
            for i in range(5):
                assert next(lines) == f"data: {i}", "an event"
                assert next(lines) == ""
                # The origin sends the next event when it is told that this one has come.
                assert client.get(f"/saw/{i}").status_code == 200
        seen(f"{version}: server-sent events, each before the next")


calls(False)
if CA:
    calls(True)
