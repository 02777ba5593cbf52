"""Both stores pass the suite of all stores."""

from __future__ import annotations

from collections.abc import Iterator

import boto3
import pytest

from headwater.bucket.opening import open_store
from headwater.disk.disk import Clock, Disk
from tests.bucket.store_conformance import Contention, StoreConformance
from tests.servers import BUCKET, Seaweed


class TestStores(StoreConformance):
    @pytest.fixture
    def contention(self, store_url: str) -> Contention:
        return Contention(3, 40, 20, 3) if store_url.startswith("s3:") else Contention(8, 40, 1, 20)


def test_an_upload_that_fails_leaves_no_parts_to_be_paid_for(seaweed: Seaweed, s3_url: str) -> None:
    client = boto3.client("s3", endpoint_url=seaweed.endpoint)
    uploads = []

    def pieces() -> Iterator[bytes]:
        for _ in range(3):
            yield bytes(8 << 20)
        uploads.extend(client.list_multipart_uploads(Bucket=BUCKET).get("Uploads", []))
        raise OSError("the source has failed")

    with pytest.raises(OSError, match="the source has failed"):
        open_store(s3_url, clock=Clock(), disk=Disk()).put_pieces("large", pieces())
    prefix = s3_url.partition("?")[0].rpartition("/")[2]
    assert [each["Key"] for each in uploads if prefix in each["Key"]] == [f"{prefix}/large"]
    left = client.list_multipart_uploads(Bucket=BUCKET).get("Uploads", [])
    assert [each for each in left if prefix in each["Key"]] == []
