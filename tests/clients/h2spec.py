"""What a server of HTTP/2 must do, section by section of RFC 9113, asked of the gateway in frames.

    h2spec.py ADDRESS    a line for each case; ends with 1 when one of them was not as it must be

Frames are written by hyperframe and hpack, so that what no client library sends can be sent.
"""

import socket
import struct
import sys
import traceback

from hpack import Decoder, Encoder
from hyperframe.frame import (
    ContinuationFrame,
    DataFrame,
    Frame,
    GoAwayFrame,
    HeadersFrame,
    PingFrame,
    PriorityFrame,
    RstStreamFrame,
    SettingsFrame,
    WindowUpdateFrame,
)

HOST, PORT = sys.argv[1].rsplit(":", 1)
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
NO_ERROR, PROTOCOL, FLOW_CONTROL, CLOSED, SIZE, REFUSED, COMPRESSION = 0, 1, 3, 5, 6, 7, 9
CALM = 11
# That it is an error matters to a client, not its number: the h2 crate calls many of them PROTOCOL_ERROR.
SIZE, FLOW_CONTROL, COMPRESSION = (SIZE, PROTOCOL), (FLOW_CONTROL, PROTOCOL), (COMPRESSION, PROTOCOL)
GET = [(":method", "GET"), (":scheme", "http"), (":authority", sys.argv[1]), (":path", "/x")]
POST = [(":method", "POST")] + GET[1:]
CASES = []


NEVER = [(n, "/never" if n == ":path" else v) for n, v in GET]


def flat(codes):
    return [code for some in codes for code in (some if isinstance(some, tuple) else (some,))]


def case(section):
    def add(test):
        CASES.append((section, test))
        return test

    return add


class Conn:
    """A connection whose frames are ours."""

    def __init__(self, settings=None, preface=PREFACE, greet=True):
        self.socket = socket.create_connection((HOST.strip("[]"), int(PORT)), timeout=30)
        self.buffer, self.encoder, self.decoder, self.settings = b"", Encoder(), Decoder(), {}
        self.window = None
        self.socket.sendall(preface)
        if greet:
            self.send(SettingsFrame(0, settings=settings or {}))
            while True:
                frame = self.next()
                assert frame is not None, "closed before its settings"
                if isinstance(frame, SettingsFrame) and "ACK" not in frame.flags:
                    self.settings = dict(frame.settings)
                    self.send(SettingsFrame(0, flags=["ACK"]))
                    return

    def send(self, *frames):
        self.raw(b"".join(frame.serialize() for frame in frames))

    def raw(self, data):
        try:
            self.socket.sendall(data)
        except OSError:
            pass  # It has been closed, which `next` will tell.

    def headers(self, stream, headers=GET, flags=("END_HEADERS", "END_STREAM")):
        block = self.encoder.encode(headers)
        self.send(HeadersFrame(stream, block, flags=list(flags)))

    def next(self):
        """The next frame; None at the end."""
        while True:
            if len(self.buffer) >= 9:
                frame, length = Frame.parse_frame_header(memoryview(self.buffer[:9]))
                if len(self.buffer) >= 9 + length:
                    frame.parse_body(memoryview(self.buffer[9 : 9 + length]))
                    self.buffer = self.buffer[9 + length :]
                    return frame
            try:
                more = self.socket.recv(65536)
            except ConnectionError:
                return None
            if not more:
                return None
            self.buffer += more

    def response(self, stream=1):
        """Status and body of a stream."""
        status, body = None, b""
        while True:
            frame = self.next()
            assert frame is not None, "closed before the response"
            assert not isinstance(frame, GoAwayFrame) or frame.error_code == NO_ERROR, f"ended: {frame}"
            if frame.stream_id != stream:
                continue
            assert not isinstance(frame, RstStreamFrame), f"reset: {frame}"
            if isinstance(frame, HeadersFrame) and status is None:
                status = dict(self.decoder.decode(frame.data)).get(":status")
            if isinstance(frame, DataFrame):
                body += frame.data
            if "END_STREAM" in frame.flags:
                return status, body

    def ok(self, stream=1):
        status, _ = self.response(stream)
        assert status == "200", status

    def ends(self, *codes):
        """The connection ends, with one of the codes if it says one."""
        codes = flat(codes)
        while (frame := self.next()) is not None:
            if isinstance(frame, GoAwayFrame):
                assert frame.error_code in codes, f"GOAWAY with {frame.error_code}, not one of {codes}"
                return

    def refuses(self, stream, *codes, statuses=("400",)):
        """The stream is reset with one of the codes, or answered with a refusal, or the connection ends so."""
        codes = flat(codes)
        while (frame := self.next()) is not None:
            if isinstance(frame, GoAwayFrame):
                assert frame.error_code in codes, f"GOAWAY with {frame.error_code}, not one of {codes}"
                return
            if frame.stream_id != stream:
                continue
            if isinstance(frame, RstStreamFrame):
                assert frame.error_code in codes, f"reset with {frame.error_code}, not one of {codes}"
                return
            if isinstance(frame, HeadersFrame):
                status = dict(self.decoder.decode(frame.data)).get(":status")
                assert status in statuses, f"answered {status}"
                return

    def pongs(self):
        """It is alive."""
        self.send(PingFrame(0, b"pingpong"))
        while True:
            frame = self.next()
            assert frame is not None, "closed"
            assert not isinstance(frame, GoAwayFrame), f"ended: {frame}"
            if isinstance(frame, PingFrame) and "ACK" in frame.flags and frame.opaque_data == b"pingpong":
                return


def raw_frame(kind, flags, stream, payload=b""):
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


# --- 3 Starting ------------------------------------------------------------------------------------------------------


@case("3.4")
def a_client_that_begins_with_its_preface_is_served():
    conn = Conn()
    conn.headers(1)
    conn.ok()


@case("3.4")
def a_wrong_preface_is_no_http_2():
    conn = Conn(preface=b"PRI * HTTP/2.0\r\n\r\nSM\r\n\rX", greet=False)
    while (more := conn.socket.recv(65536)) and b"HTTP/1.1 200" not in more:
        pass


@case("3.4")
def a_preface_in_pieces_is_one():
    conn = Conn(preface=PREFACE[:5], greet=False)
    conn.raw(PREFACE[5:])
    conn.send(SettingsFrame(0))
    conn.headers(1)
    conn.ok()


# --- 4 Frames --------------------------------------------------------------------------------------------------------


@case("4.1")
def an_unknown_frame_is_ignored():
    conn = Conn()
    conn.raw(raw_frame(0x77, 0xFF, 0, b"12345"))
    conn.pongs()


@case("4.1")
def undefined_flags_are_ignored():
    conn = Conn()
    conn.raw(raw_frame(6, 0x16, 0, b"12345678"))
    frame = conn.next()
    while not isinstance(frame, PingFrame):
        frame = conn.next()
    assert "ACK" in frame.flags


@case("4.1")
def the_reserved_bit_is_ignored():
    conn = Conn()
    conn.raw(raw_frame(6, 0, 0x80000000, b"12345678"))
    conn.pongs()


@case("4.2")
def a_frame_above_the_size_is_refused():
    conn = Conn()
    conn.headers(1, POST, ["END_HEADERS"])
    size = conn.settings.get(SettingsFrame.MAX_FRAME_SIZE, 16384)
    conn.raw(raw_frame(0, 1, 1, bytes(size + 1)))
    conn.refuses(1, SIZE)


@case("4.3")
def a_broken_header_block_ends_the_connection():
    conn = Conn()
    conn.raw(raw_frame(1, 5, 1, b"\x40\xff\xff\xff\xff\xff"))
    conn.ends(COMPRESSION)


@case("4.3")
def a_header_block_is_not_interrupted_by_another_frame():
    conn = Conn()
    conn.headers(1, flags=["END_STREAM"])
    conn.send(PriorityFrame(1, depends_on=0, stream_weight=10))
    conn.ends(PROTOCOL)


@case("4.3")
def a_header_block_is_not_interrupted_by_another_stream():
    conn = Conn()
    conn.headers(1, flags=["END_STREAM"])
    conn.headers(3)
    conn.ends(PROTOCOL)


@case("4.3")
def a_header_block_is_not_interrupted_by_an_unknown_frame():
    conn = Conn()
    conn.headers(1, flags=["END_STREAM"])
    conn.raw(raw_frame(0x77, 0, 0, b""))
    conn.ends(PROTOCOL)


# --- 5 Streams -------------------------------------------------------------------------------------------------------


@case("5.1")
def data_on_an_idle_stream_is_an_error():
    conn = Conn()
    conn.send(DataFrame(1, b"x", flags=["END_STREAM"]))
    conn.ends(PROTOCOL, CLOSED)


@case("5.1")
def a_reset_of_an_idle_stream_is_an_error():
    conn = Conn()
    conn.send(RstStreamFrame(1, 8))
    conn.ends(PROTOCOL)


@case("5.1")
def a_window_for_an_idle_stream_is_an_error():
    conn = Conn()
    conn.send(WindowUpdateFrame(1, 100))
    conn.ends(PROTOCOL)


@case("5.1")
def a_continuation_of_nothing_is_an_error():
    conn = Conn()
    conn.send(ContinuationFrame(1, conn.encoder.encode(GET), flags=["END_HEADERS"]))
    conn.ends(PROTOCOL)


@case("5.1")
def data_behind_the_end_of_a_stream_is_an_error():
    conn = Conn()
    conn.headers(1, NEVER)
    conn.send(DataFrame(1, b"x", flags=["END_STREAM"]))
    conn.refuses(1, CLOSED, PROTOCOL, statuses=())


@case("5.1")
def headers_behind_the_end_of_a_stream_are_an_error():
    conn = Conn()
    conn.headers(1, NEVER)
    conn.headers(1, NEVER)
    conn.refuses(1, CLOSED, PROTOCOL, statuses=())


@case("5.1")
def data_behind_a_reset_does_not_end_others():
    conn = Conn()
    conn.headers(1, POST, ["END_HEADERS"])
    conn.send(RstStreamFrame(1, 8))
    conn.send(DataFrame(1, b"x"))
    conn.headers(3)
    conn.ok(3)


@case("5.1.1")
def a_stream_of_a_client_has_an_odd_number():
    conn = Conn()
    conn.headers(2)
    conn.ends(PROTOCOL)


@case("5.1.1")
def numbers_of_streams_grow():
    conn = Conn()
    conn.headers(5)
    conn.ok(5)
    conn.headers(3)
    conn.refuses(3, PROTOCOL, CLOSED, statuses=())


@case("5.1.2")
def more_streams_than_allowed_are_refused_and_the_others_served():
    conn = Conn()
    most = conn.settings[SettingsFrame.MAX_CONCURRENT_STREAMS]
    assert 1 <= most <= 1000, most
    for i in range(most + 1):
        conn.headers(2 * i + 1, POST, ["END_HEADERS"])
    conn.refuses(2 * most + 1, REFUSED, PROTOCOL)
    conn.send(DataFrame(1, b"", flags=["END_STREAM"]))
    conn.ok(1)


# --- 6 Definitions ---------------------------------------------------------------------------------------------------


def error(section, name, bytes_or_frame, *codes, opens=False):
    def test():
        conn = Conn()
        if opens:
            conn.headers(1, POST, ["END_HEADERS"])
        data = bytes_or_frame if isinstance(bytes_or_frame, bytes) else bytes_or_frame.serialize()
        conn.raw(data)
        conn.refuses(1, *codes) if opens else conn.ends(*codes)

    test.__name__ = name.replace(" ", "_")
    CASES.append((section, test))


error("6.1", "data on stream 0", raw_frame(0, 1, 0, b"x"), PROTOCOL)
error("6.1", "data with more padding than payload", raw_frame(0, 9, 1, b"\x06xxx"), PROTOCOL, opens=True)
error("6.2", "headers on stream 0", raw_frame(1, 5, 0, b"\x82"), PROTOCOL)
error("6.2", "headers with more padding than payload", raw_frame(1, 0xD, 1, b"\xff\x82"), PROTOCOL)
error("6.3", "a priority of stream 0", raw_frame(2, 0, 0, bytes(5)), PROTOCOL)
error("6.3", "a priority of the wrong size", raw_frame(2, 0, 1, bytes(4)), SIZE, opens=True)
error("6.4", "a reset of stream 0", raw_frame(3, 0, 0, bytes(4)), PROTOCOL)
error("6.4", "a reset of the wrong size", raw_frame(3, 0, 1, bytes(3)), SIZE, opens=True)
error("6.5", "an acknowledgement of settings with settings", raw_frame(4, 1, 0, bytes(6)), SIZE)
error("6.5", "settings of a stream", raw_frame(4, 0, 1, bytes(6)), PROTOCOL)
error("6.5", "settings of the wrong size", raw_frame(4, 0, 0, bytes(3)), SIZE)
error("6.5.2", "a push setting of 2", raw_frame(4, 0, 0, struct.pack(">HI", 2, 2)), PROTOCOL)
error("6.5.2", "a window of 2^31", raw_frame(4, 0, 0, struct.pack(">HI", 4, 1 << 31)), FLOW_CONTROL)
error("6.5.2", "a frame size below the least", raw_frame(4, 0, 0, struct.pack(">HI", 5, 16383)), PROTOCOL)
error("6.5.2", "a frame size above the most", raw_frame(4, 0, 0, struct.pack(">HI", 5, 1 << 24)), PROTOCOL)
error("6.6", "a push of a client", raw_frame(5, 4, 1, struct.pack(">I", 2) + b"\x82"), PROTOCOL)
error("6.7", "a ping on a stream", raw_frame(6, 0, 1, bytes(8)), PROTOCOL)
error("6.7", "a ping of the wrong size", raw_frame(6, 0, 0, bytes(6)), SIZE)
error("6.8", "a goaway on a stream", raw_frame(7, 0, 1, bytes(8)), PROTOCOL)
error("6.9", "a window increment of 0", raw_frame(8, 0, 0, bytes(4)), PROTOCOL)
error("6.9", "a window increment of 0 on a stream", raw_frame(8, 0, 1, bytes(4)), PROTOCOL, opens=True)
error("6.9", "a window increment of the wrong size", raw_frame(8, 0, 0, bytes(3)), SIZE)
error("6.9.1", "a window above the most", raw_frame(8, 0, 0, struct.pack(">I", 0x7FFFFFFF)), FLOW_CONTROL)
error(
    "6.9.1", "a window of a stream above the most", raw_frame(8, 0, 1, struct.pack(">I", 0x7FFFFFFF)), FLOW_CONTROL,
    opens=True,
)


@case("6.5.2")
def an_unknown_setting_is_ignored():
    conn = Conn()
    conn.raw(raw_frame(4, 0, 0, struct.pack(">HI", 0xFF, 1)))
    conn.pongs()


@case("6.5.3")
def settings_are_acknowledged():
    conn = Conn()
    conn.send(SettingsFrame(0, settings={SettingsFrame.INITIAL_WINDOW_SIZE: 70000}))
    acks = 0
    while acks < 2:
        frame = conn.next()
        assert frame is not None, "closed"
        acks += isinstance(frame, SettingsFrame) and "ACK" in frame.flags


@case("6.7")
def a_ping_is_answered():
    Conn().pongs()


@case("6.7")
def the_answer_to_no_ping_is_ignored():
    conn = Conn()
    conn.send(PingFrame(0, b"whatever", flags=["ACK"]))
    conn.pongs()


@case("6.8")
def a_goaway_lets_streams_finish():
    conn = Conn()
    conn.headers(1)
    conn.send(GoAwayFrame(0, last_stream_id=0, error_code=NO_ERROR))
    conn.ok()


@case("6.9.1")
def a_window_is_kept_to_the_byte():
    conn = Conn({SettingsFrame.INITIAL_WINDOW_SIZE: 3})
    conn.headers(1)
    got = b""
    while True:
        frame = conn.next()
        assert frame is not None, "closed"
        if isinstance(frame, DataFrame):
            assert len(frame.data) <= 3, len(frame.data)
            got += frame.data
            if "END_STREAM" in frame.flags:
                break
            if frame.data:
                conn.send(WindowUpdateFrame(1, len(frame.data)))
    assert got.startswith(b"{") and got.endswith(b"}"), got


@case("6.9.2")
def a_window_may_become_negative():
    conn = Conn({SettingsFrame.INITIAL_WINDOW_SIZE: 5})
    conn.headers(1)
    frame = conn.next()
    while not isinstance(frame, DataFrame):
        frame = conn.next()
    conn.send(SettingsFrame(0, settings={SettingsFrame.INITIAL_WINDOW_SIZE: 2}))
    conn.send(WindowUpdateFrame(1, 4))
    frame = conn.next()
    while not isinstance(frame, DataFrame):
        frame = conn.next()
    assert len(frame.data) == 1, frame


# --- 8 Messages ------------------------------------------------------------------------------------------------------


@case("8.1")
def a_second_head_must_end_the_stream():
    conn = Conn()
    conn.headers(1, POST, ["END_HEADERS"])
    conn.headers(1, [("x-trailer", "1")], ["END_HEADERS"])
    conn.refuses(1, PROTOCOL)


@case("8.1")
def trailers_are_taken():
    conn = Conn()
    conn.headers(1, POST, ["END_HEADERS"])
    conn.send(DataFrame(1, b"body"))
    conn.headers(1, [("x-trailer", "1")])
    conn.ok()


def malformed(section, name, headers, body=None, trailers=None, statuses=("400",)):
    def test():
        conn = Conn()
        if body is None and trailers is None:
            conn.headers(1, headers)
        else:
            conn.headers(1, headers, ["END_HEADERS"])
            if body is not None:
                conn.send(DataFrame(1, body, flags=[] if trailers else ["END_STREAM"]))
            if trailers:
                conn.headers(1, trailers)
        conn.refuses(1, PROTOCOL, statuses=statuses)
        alive = Conn()
        alive.headers(1)
        alive.ok()

    test.__name__ = name.replace(" ", "_").replace(":", "")
    CASES.append((section, test))


def without(name):
    return [(n, v) for n, v in GET if n != name]


malformed("8.2", "a name with a capital", GET + [("X-Test", "1")])
malformed("8.2.1", "a name with a space", GET + [("x test", "1")])
malformed("8.2.1", "a value with a line feed", GET + [("x-test", "a\nb")])
malformed("8.2.1", "a value with a NUL", GET + [("x-test", "a\0b")])
malformed("8.2.2", "a connection field", GET + [("connection", "keep-alive")])
malformed("8.2.2", "a transfer coding", GET + [("transfer-encoding", "chunked")])
malformed("8.2.2", "a te of gzip", GET + [("te", "gzip")])
malformed("8.2.2", "an upgrade", GET + [("upgrade", "websocket")])
malformed("8.3", "an unknown pseudo field", GET + [(":test", "1")])
malformed("8.3", "a pseudo field of responses", GET + [(":status", "200")])
malformed("8.3", "a pseudo field behind others", [("x-test", "1")] + GET)
# The h2 crate drops it, so that it goes no further.
malformed("8.3", "a pseudo field in trailers", POST, b"x", [(":method", "GET")], statuses=("400", "200"))
malformed("8.3.1", "no method", without(":method"))
malformed("8.3.1", "no scheme", without(":scheme"))
malformed("8.3.1", "no path", without(":path"))
malformed("8.3.1", "an empty path", without(":path") + [(":path", "")])
malformed("8.3.1", "two methods", [(":method", "GET")] + GET)
malformed("8.3.1", "two paths", GET + [(":path", "/y")])
malformed("8.3.1", "a host beside another authority", GET + [("host", "other.example")])
malformed("8.1.1", "a length above the body", POST + [("content-length", "5")], b"x")
malformed("8.1.1", "a length below the body", POST + [("content-length", "1")], b"xxxxx")
malformed("8.1.1", "a length and no body", POST + [("content-length", "5")])


@case("8.2.2")
def te_of_trailers_is_taken():
    conn = Conn()
    conn.headers(1, GET + [("te", "trailers")])
    conn.ok()


@case("8.2.3")
def cookies_in_crumbs_are_taken():
    conn = Conn()
    conn.headers(1, GET + [("cookie", "a=1"), ("cookie", "b=2")])
    status, body = conn.response()
    assert status == "200" and b"a=1; b=2" in body, body


# --- Abuse -----------------------------------------------------------------------------------------------------------


def withstands(name, flood):
    """The connection ends or goes on; others are served at all times."""

    def test():
        conn = Conn()
        flood(conn)
        other = Conn()
        other.headers(1)
        other.ok()

    test.__name__ = name.replace(" ", "_")
    CASES.append(("10.5", test))


def rapid_reset(conn):
    for i in range(3000):
        conn.headers(2 * i + 1)
        conn.send(RstStreamFrame(2 * i + 1, 8))
    conn.ends(CALM, PROTOCOL, NO_ERROR)


def continuations(conn):
    conn.headers(1, flags=["END_STREAM"])
    for _ in range(2000):
        conn.send(ContinuationFrame(1, conn.encoder.encode([("x-more", "y" * 500)])))
    conn.ends(CALM, PROTOCOL, COMPRESSION, SIZE)


def empty_continuations(conn):
    conn.headers(1, flags=["END_STREAM"])
    for _ in range(20000):
        conn.send(ContinuationFrame(1, b""))
    conn.ends(CALM, PROTOCOL, COMPRESSION, SIZE)


def pings(conn):
    for _ in range(100):
        conn.raw(raw_frame(6, 0, 0, b"12345678") * 100)


def settings(conn):
    for _ in range(100):
        conn.raw(raw_frame(4, 0, 0, struct.pack(">HI", 4, 65535)) * 100)


def empty_data(conn):
    conn.headers(1, POST, ["END_HEADERS"])
    for _ in range(200):
        conn.raw(raw_frame(0, 0, 1) * 100)


withstands("rapid reset", rapid_reset)
withstands("continuations without end", continuations)
withstands("empty continuations without end", empty_continuations)
withstands("ten thousand pings", pings)
withstands("ten thousand settings", settings)
withstands("twenty thousand empty data frames", empty_data)


@case("10.5.1")
def a_header_list_above_the_limit_is_refused():
    conn = Conn()
    conn.headers(1, GET + [("x-large", "y" * 14000)] * 1, ["END_STREAM"])
    for i in range(4):
        last = ["END_HEADERS"] if i == 3 else []
        conn.send(ContinuationFrame(1, conn.encoder.encode([("x-large-%d" % i, "y" * 14000)]), flags=last))
    conn.refuses(1, CALM, PROTOCOL, COMPRESSION, statuses=("431",))


failed = 0
for section, test in CASES:
    try:
        test()
        print("seen:", section, test.__name__.replace("_", " "), flush=True)
    except Exception as why:
        failed += 1
        print("FAILED:", section, test.__name__.replace("_", " "), "-", repr(why), flush=True)
        if "-v" in sys.argv:
            traceback.print_exc()
print(f"{len(CASES) - failed} as they must be, {failed} not")
sys.exit(failed > 0)
