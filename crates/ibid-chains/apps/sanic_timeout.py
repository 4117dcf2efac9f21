# Sanic with a short RESPONSE_TIMEOUT (its default is 60 s): the handler is already running when Sanic responds with
# 503.
import asyncio
import os

from sanic import Sanic, empty

app = Sanic("payments")
app.config.RESPONSE_TIMEOUT = 0.5


@app.post("/payments")
async def pay(request):
    with open(os.environ["EXECUTED"], "a") as file:
        file.write("x")
    await asyncio.sleep(1)
    return empty(status=201)


if __name__ == "__main__":
    app.run("127.0.0.1", int(os.environ["PORT"]), single_process=True, motd=False, access_log=False)
