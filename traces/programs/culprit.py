"""A program with a known cause of shootdowns, for `cargo xtask soak culprits`.

It allocates a large buffer for each request and drops it afterwards, beside a thread that computes
on another CPU. A setting of the C library keeps the buffer.
"""

import hashlib
import os
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


def serve():
    for _ in range(REQUESTS):
        buffers = [bytes(BUFFER_BYTES)]
        release(buffers)


def main():
    started, stop = threading.Event(), threading.Event()
    other = threading.Thread(target=compute, args=(started, stop))
    other.start()
    os.sched_setaffinity(0, {0})
    started.wait()
    serve()
    stop.set()
    other.join()


main()
