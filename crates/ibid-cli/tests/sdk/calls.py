"""Makes one call of an SDK for each line on stdin, and prints what its caller gets."""

import sys


def serve(call):
    for number, _ in enumerate(sys.stdin, start=1):
        try:
            outcome = f"ok {call(number)}"
        except Exception as error:  # whatever the SDK raises is what the caller gets
            outcome = f"error {type(error).__name__}: {' '.join(str(error).split())}"
        print(outcome, flush=True)
