"""Calls a gateway with a vendor's own SDK, and prints how each call ended as a line of JSON.

    sdks.py VENDOR URL RETRIES...    a call for each RETRIES, the most times that the SDK may send it again by itself
"""

import importlib
import json
import sys
import time

vendor, url, *retries = sys.argv[1:]


def openai(retries):
    client = sdk.OpenAI(api_key="key", base_url=url, max_retries=retries)
    return lambda: client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hello"}])


def anthropic(retries):
    client = sdk.Anthropic(api_key="key", base_url=url, max_retries=retries)
    return lambda: client.messages.create(model="m", max_tokens=9, messages=[{"role": "user", "content": "hello"}])


def google(retries):
    options = sdk.types.HttpRetryOptions(attempts=retries + 1)
    client = sdk.Client(api_key="key", http_options=sdk.types.HttpOptions(base_url=url, retry_options=options))
    return lambda: client.models.generate_content(model="m", contents="hello")


def graphql(retries):
    from gql.transport.httpx import HTTPXTransport

    client = sdk.Client(transport=HTTPXTransport(url=f"{url}/graphql"))
    return lambda: client.execute(sdk.gql("{ a }"))


# An SDK takes seconds to load, which are no part of a call.
module = {"google": "google.genai", "graphql": "gql"}.get(vendor, vendor)
sdk = importlib.import_module(module)
client = {"openai": openai, "anthropic": anthropic, "google": google, "graphql": graphql}[vendor]
calls = [client(int(most)) for most in retries]
for call in calls:
    started = time.monotonic()
    ended = {"error": None}
    try:
        call()
    except Exception as error:
        kinds = [kind.__name__ for kind in type(error).__mro__]
        fields = ["message", "status_code", "code", "type", "status", "request_id", "details", "errors"]
        named = {name: getattr(error, name, None) for name in fields}
        ended = {"error": kinds[0], "kinds": kinds, **named}
    print(json.dumps({**ended, "seconds": time.monotonic() - started}, default=str), flush=True)
