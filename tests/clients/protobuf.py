"""Writes and reads messages of protobuf by hand, as far as the clients of Envoy's services need it."""


def varint(number):
    out = b""
    while number > 127:
        out += bytes([number & 127 | 128])
        number >>= 7
    return out + bytes([number])


def field(tag, value):
    if isinstance(value, int):
        return varint(tag << 3) + varint(value)
    return varint(tag << 3 | 2) + varint(len(value)) + value


def fields(message):
    """The fields of a message, each as a tag and a value."""
    at, out = 0, []

    def number():
        nonlocal at
        result = shift = 0
        while True:
            byte = message[at]
            at += 1
            result |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return result

    while at < len(message):
        key = number()
        if key & 7 == 0:
            out.append((key >> 3, number()))
        else:
            assert key & 7 == 2, key
            length = number()
            out.append((key >> 3, message[at : at + length]))
            at += length
    return out
