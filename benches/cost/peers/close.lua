-- wrk: each request comes on a connection of its own.
wrk.headers["Connection"] = "close"
