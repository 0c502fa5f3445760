"""A program with a known cause of shootdowns, for `cargo xtask soak culprits`.

It allocates a large buffer for each request and drops it afterwards, beside a thread that computes
on another CPU. With the argument `changed`, it uses one buffer for all requests.
"""

import hashlib
import os
import sys
import threading

REQUESTS = 2000
# More than any threshold from which the C library maps memory.
BUFFER_BYTES = 64 << 20


def compute(started, stop):
    os.sched_setaffinity(0, {1})
    started.set()
    while not stop.is_set():
        # Runs without the lock of the interpreter.
        hashlib.pbkdf2_hmac("sha256", b"word", b"salt", 20_000)


def release(buffers):
    buffers.clear()


def serve(changed):
    buffers = []
    for _ in range(REQUESTS):
        if not buffers:
            buffers.append(bytes(BUFFER_BYTES))
        if not changed:
            release(buffers)


def main():
    started, stop = threading.Event(), threading.Event()
    other = threading.Thread(target=compute, args=(started, stop))
    other.start()
    os.sched_setaffinity(0, {0})
    started.wait()
    serve(sys.argv[2:] == ["changed"])
    stop.set()
    other.join()


main()
