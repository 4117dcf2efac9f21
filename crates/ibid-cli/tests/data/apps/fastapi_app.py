# The application around the page's middleware: a limiter that refuses the first request to a path, and handlers that count.
from fastapi import FastAPI
from fastapi.responses import PlainTextResponse
from ibid_outcome import Begins, Refuses

executed = 0
refused = set()


class Limiter:
    def __init__(self, app):
        self.app = app

    async def __call__(self, scope, receive, send):
        path = scope.get("path", "")
        if not path.startswith("/limited") or path in refused:
            return await self.app(scope, receive, send)
        refused.add(path)
        await PlainTextResponse("too busy", 503)(scope, receive, send)


app = FastAPI()
app.add_middleware(Begins)
app.add_middleware(Limiter)
app.add_middleware(Refuses)


@app.post("/limited")
async def limited():
    global executed
    executed += 1
    return PlainTextResponse("paid", 201)


@app.post("/fails")
async def fails():
    global executed
    executed += 1
    return PlainTextResponse("after the work", 503)


@app.get("/executed")
async def count():
    return PlainTextResponse(str(executed))
