# FastAPI on uvicorn: one handler that fails after its work, and one that is slow.
import asyncio
import os

from fastapi import FastAPI

app = FastAPI()


def execute():
    with open(os.environ["EXECUTED"], "a") as file:
        file.write("x")


@app.post("/payments")
async def pay():
    execute()
    raise RuntimeError("after the work")


@app.post("/slow")
async def slow():
    await asyncio.sleep(float(os.environ.get("SLOW", "1")))


@app.post("/full")
async def full():
    execute()
