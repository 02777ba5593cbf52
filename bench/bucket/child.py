"""A process that writes to a bucket: `python -m bench.bucket.child ADDRESS ENDPOINT`.

It prints `ready`, then does what each line that it reads asks for, and prints the seconds that it took:
`append COUNT EVENTS BYTES` appends so many times; `keep` does the same while it compacts in the background, as
programs do by default; `put COUNT BYTES` puts objects of that size with bare requests.
"""

from __future__ import annotations

import itertools
import random
import sys
import time
import uuid

import obstore

import headwater
from bench.bucket.server import bare
from bench.work import TOPIC
from headwater.limits import DEFAULTS, Limits

SOURCE = random.Random(7)
UNCOMPACTED = Limits(compact_objects=0)


def append(address: str, limits: Limits, count: int, size: int, event_bytes: int) -> float:
    """Closed at the end, so that nothing goes on in the background while others have their turn."""
    events = [SOURCE.randbytes(event_bytes) for _ in range(size)]
    with headwater.open(address, mode="existing", limits=limits) as log:
        log.append_many(TOPIC, events[:1])
        began = time.perf_counter()
        for _ in range(count):
            log.append_many(TOPIC, events)
        return time.perf_counter() - began


def main(address: str, endpoint: str) -> None:
    client = bare(endpoint, f"bare/{uuid.uuid4().hex}")
    numbers = itertools.count()
    print("ready", flush=True)
    for line in sys.stdin:
        verb, *given = line.split()
        amounts = [int(each) for each in given]
        if verb == "put":
            count, size = amounts
            data = SOURCE.randbytes(size)
            began = time.perf_counter()
            for _ in range(count):
                obstore.put(client, f"{next(numbers):020d}", data, mode="create", use_multipart=False)
            took = time.perf_counter() - began
        else:
            took = append(address, DEFAULTS if verb == "keep" else UNCOMPACTED, *amounts)
        print(took, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
