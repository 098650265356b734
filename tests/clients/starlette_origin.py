"""An origin of Starlette on uvicorn: it answers `limited` for /search and /v2/search, `other` for the rest.

    starlette_origin.py PORT
"""

import sys

import uvicorn
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route


async def limited(request):
    return PlainTextResponse("limited")


async def other(request, exc):
    return PlainTextResponse("other")


app = Starlette(
    routes=[Route("/search", limited), Route("/v2/search", limited)],
    exception_handlers={404: other},
)
uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="error")
