"""A process that writes to a bucket: `python -m bench.bucket.child ADDRESS ENDPOINT`.

It prints `ready`, then does what each line that it reads asks for, and prints when it is done:
`append COUNT EVENTS BYTES` appends so many times; `put COUNT BYTES` puts objects of that size with bare requests.
"""

from __future__ import annotations

import itertools
import random
import sys
import uuid

import obstore

import headwater
from bench.bucket.server import bare
from bench.work import TOPIC


def main(address: str, endpoint: str) -> None:
    source = random.Random(7)
    client = bare(endpoint, f"bare/{uuid.uuid4().hex}")
    numbers = itertools.count()
    with headwater.open(address, mode="existing") as log:
        print("ready", flush=True)
        for line in sys.stdin:
            verb, *given = line.split()
            amounts = [int(each) for each in given]
            if verb == "append":
                count, size, event_bytes = amounts
                events = [source.randbytes(event_bytes) for _ in range(size)]
                for _ in range(count):
                    log.append_many(TOPIC, events)
            else:
                count, size = amounts
                data = source.randbytes(size)
                for _ in range(count):
                    obstore.put(client, f"{next(numbers):020d}", data, mode="create", use_multipart=False)
            print("done", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
