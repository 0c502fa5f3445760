"""Runs four threads that map 64 KiB, use it, and unmap it, repeatedly."""

import mmap
import threading


def work():
    for _ in range(500):
        area = mmap.mmap(-1, 65536)
        for offset in range(0, 65536, 4096):
            area[offset] = 1
        area.close()


threads = [threading.Thread(target=work) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
