"""Calls a vendor from a program that paces itself: each call asks Paceway first (docs/services/decisions.md).

    python3 examples/decisions/acquire.py http://127.0.0.1:8084 search 8

asks for 8 permits of the limiter `search`, one after the other, and makes a pretend call for each. Only the standard library
is needed. PACEWAY_TOKEN has the token, if the service has one.
"""

import json
import os
import sys
import urllib.request


class Paceway:
    def __init__(self, url, token=None):
        self.url = url
        self.headers = {"Content-Type": "application/json"}
        if token:
            self.headers["Paceway-Token"] = token

    def call(self, name, body, timeout):
        request = urllib.request.Request(
            f"{self.url}/v1/{name}", json.dumps(body).encode(), self.headers
        )
        with urllib.request.urlopen(request, timeout=timeout) as answer:
            return json.load(answer)

    def acquire(self, limiters, max_wait):
        """Waits for permits of all limiters. The connection stays open meanwhile: closing it gives everything back."""
        body = {"limiters": limiters, "wait": True, "max_wait_ms": int(max_wait * 1000)}
        return self.call("acquire", body, max_wait + 10)

    def refund(self, reservation):
        return self.call("refund", {"reservation": reservation}, 10)["refunded"]


def call_vendor(number):
    return f"answer {number}"


def main():
    url, limiter, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
    paceway = Paceway(url, os.environ.get("PACEWAY_TOKEN"))
    for number in range(count):
        decision = paceway.acquire([{"limiter": limiter}], max_wait=2)
        if decision["limited"]:
            print(f"refused; come back in {decision['retry_after_ms']:.0f} ms")
            continue
        try:
            answer = call_vendor(number)
        except OSError:
            # Nothing was sent, so that another call may have the permit.
            paceway.refund(decision["reservation"])
            raise
        print(f"{answer}, after {decision['waited_ms']:.0f} ms")


if __name__ == "__main__":
    main()
