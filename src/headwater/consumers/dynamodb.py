"""Cursors, leases and members of consumers in a table of DynamoDB (docs/BUCKET.md, "Consumers").

The table has the key `consumer` and the sort key `part`, both strings. Items of a consumer: `cursor/<partition>`, which
is replaced only where its nonce and its fence are those that were seen, and whose offset grows under one fence; and
`member/<id>`, whose beat grows with each sign of life. Items `name/<name>` of the topic itself list its
consumers. `expires` is for people, and for DynamoDB's own deletion of members that died; it is never read here.

Credentials come by the usual chain of boto3. Safe from any thread.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from msgspec import structs

from headwater.bucket.opening import is_plain
from headwater.consumers.coordinator import CursorRecord, CursorVersion, Sign
from headwater.disk.disk import Clock
from headwater.errors import Denied, Invalid, NotFound, Unavailable, Unsupported
from headwater.event import UNIX_EPOCH_TICKS
from headwater.format.settings import TopicRecord

OPTIONS = ("allow_http", "create", "endpoint", "region")
CONNECT_S, READ_S, TRIES = 3, 5, 4  # a request that takes longer than a lease is of no use
DEAD_S = 24 * 3600  # after which DynamoDB may delete what is left of a member
CREATED_S = 60.0

_FIELDS = CursorRecord.__struct_fields__
_SET = ", ".join(f"#{field} = :{field}" for field in _FIELDS)
_NAMES = {f"#{field}": field for field in _FIELDS}  # as `owner` and `cursor` are words of its language


class DynamoCoordinator:
    """All consumers whose cursors are in one table."""

    def __init__(self, url: str, clock: Clock) -> None:
        """Raises NotFound if there is no such table, and `create=true` does not ask for one."""
        self.url = url
        self._clock = clock
        self._table, options = _parse(url)
        self._client = _client(options)
        with self._asking():
            try:
                self._client.describe_table(TableName=self._table)
            except self._client.exceptions.ResourceNotFoundException:
                if options.get("create") != "true":
                    raise _no_table(self._table) from None
                self._create()

    def names(self, topic: TopicRecord) -> list[str]:
        """Return the names of all consumers of a topic, sorted."""
        return sorted(item["part"]["S"].removeprefix("name/") for item in self.query(topic.uuid, "name/"))

    def consumer(self, topic: TopicRecord, name: str) -> DynamoCursors:
        """Return the cursors of a consumer."""
        return DynamoCursors(self, topic.uuid, name, self._clock)

    def close(self) -> None:
        """Release connections."""
        self._client.close()

    # For the cursors of one consumer

    def get(self, consumer: str, part: str) -> dict[str, Any] | None:
        """Return an item as it is now; None if there is none."""
        with self._asking():
            key = {"consumer": {"S": consumer}, "part": {"S": part}}
            found = self._client.get_item(TableName=self._table, Key=key, ConsistentRead=True)
        item: dict[str, Any] | None = found.get("Item")
        return item

    def query(self, consumer: str, prefix: str = "") -> Iterator[dict[str, Any]]:
        """Yield the items whose parts begin so, in their order."""
        condition, values = "consumer = :c", {":c": {"S": consumer}}
        if prefix:
            condition, values = f"{condition} AND begins_with(part, :p)", values | {":p": {"S": prefix}}
        pages = self._client.get_paginator("query").paginate(
            TableName=self._table,
            KeyConditionExpression=condition,
            ExpressionAttributeValues=values,
            ConsistentRead=True,
        )
        with self._asking():
            for page in pages:
                yield from page["Items"]

    def update(self, consumer: str, part: str, **request: Any) -> bool:
        """Change an item; False if its condition did not hold."""
        key = {"consumer": {"S": consumer}, "part": {"S": part}}
        with self._asking():
            try:
                self._client.update_item(TableName=self._table, Key=key, **request)
            except self._client.exceptions.ConditionalCheckFailedException:
                return False
        return True

    def delete(self, consumer: str, part: str) -> None:
        """Delete an item, if it is there."""
        with self._asking():
            self._client.delete_item(TableName=self._table, Key={"consumer": {"S": consumer}, "part": {"S": part}})

    def _create(self) -> None:
        with contextlib.suppress(self._client.exceptions.ResourceInUseException):  # another process does
            self._client.create_table(
                TableName=self._table,
                AttributeDefinitions=[{"AttributeName": name, "AttributeType": "S"} for name in ("consumer", "part")],
                KeySchema=[
                    {"AttributeName": "consumer", "KeyType": "HASH"},
                    {"AttributeName": "part", "KeyType": "RANGE"},
                ],
                BillingMode="PAY_PER_REQUEST",
            )
        waiter = self._client.get_waiter("table_exists")
        waiter.wait(TableName=self._table, WaiterConfig={"Delay": 1, "MaxAttempts": int(CREATED_S)})

    @contextlib.contextmanager
    def _asking(self) -> Iterator[None]:
        """Turn the errors of boto3 into ours."""
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            yield
        except ClientError as error:
            code = error.response.get("Error", {}).get("Code", "")
            if code == "ResourceNotFoundException":
                raise _no_table(self._table) from error
            if code in ("AccessDeniedException", "UnrecognizedClientException", "InvalidSignatureException"):
                raise Denied(
                    f"DynamoDB table {self._table!r}: {error}",
                    hint="docs/BUCKET.md lists the permissions that are needed",
                ) from error
            raise Unavailable(f"DynamoDB table {self._table!r}: {error}", code="store_unavailable") from error
        except BotoCoreError as error:
            raise Unavailable(
                f"DynamoDB table {self._table!r}: {error}",
                hint="are the region, the endpoint and the credentials right?",
                code="store_unavailable",
            ) from error


class DynamoCursors:
    """The cursors of one consumer of one topic."""

    def __init__(self, table: DynamoCoordinator, topic_uuid: str, name: str, clock: Clock) -> None:
        self._table = table
        self._topic = topic_uuid
        self._name = name
        self._consumer = f"{topic_uuid}/{name}"
        self._clock = clock

    @property
    def url(self) -> str:
        """Return where the items are."""
        return f"{self._table.url}#{self._consumer}"

    def partitions(self) -> set[int]:
        """Return those that have a record."""
        return {int(item["part"]["S"].removeprefix("cursor/")) for item in self._table.query(self._consumer, "cursor/")}

    def read(self, partition: int) -> CursorVersion | None:
        """Return the record; None if there is none."""
        item = self._table.get(self._consumer, f"cursor/{partition}")
        return None if item is None else CursorVersion(_record(item), item["nonce"]["S"])

    def create(self, partition: int, record: CursorRecord) -> None:
        """Put a record where none is; one that is there stays."""
        self._table.update(self._topic, f"name/{self._name}")
        self._write(partition, record, "attribute_not_exists(part)", {})

    def swap(self, partition: int, record: CursorRecord, version: str) -> str | None:
        """Replace a record that was found with this version; None if it has changed.

        Under one fence the offset only grows: that is checked beside the version.
        """
        condition = "nonce = :seen AND (#fence < :fence OR (#fence = :fence AND #cursor <= :cursor))"
        return self._write(partition, record, condition, {":seen": {"S": version}})

    def delete(self) -> None:
        """Delete all items of the consumer."""
        for item in list(self._table.query(self._consumer)):
            self._table.delete(self._consumer, item["part"]["S"])
        self._table.delete(self._topic, f"name/{self._name}")

    def sign(self, member: str, lease_ms: int) -> None:
        """Give a sign of life."""
        values = {":one": _number(1), ":lease_ms": _number(lease_ms), ":expires": _number(self._now() + DEAD_S)}
        expression = "ADD beat :one SET lease_ms = :lease_ms, expires = :expires"
        self._table.update(
            self._consumer, f"member/{member}", UpdateExpression=expression, ExpressionAttributeValues=values
        )

    def signs(self) -> dict[str, Sign]:
        """Return the last sign of each member."""
        return {
            item["part"]["S"].removeprefix("member/"): Sign(item["beat"]["N"], int(item["lease_ms"]["N"]))
            for item in self._table.query(self._consumer, "member/")
        }

    def leave(self, members: Iterable[str]) -> None:
        """Forget members."""
        for member in members:
            self._table.delete(self._consumer, f"member/{member}")

    def _write(self, partition: int, record: CursorRecord, condition: str, seen: dict[str, Any]) -> str | None:
        """Write a record if the condition holds: its nonce, also if that was written before and the answer got lost."""
        nonce = self._clock.random_bytes(16).hex()
        part = f"cursor/{partition}"
        values = {f":{name}": _attribute(value) for name, value in structs.asdict(record).items()}
        expires = _number(self._now() + record.lease_ms // 1000)
        values |= {":nonce": {"S": nonce}, ":expires": expires, **seen}
        written = self._table.update(
            self._consumer,
            part,
            UpdateExpression=f"SET {_SET}, nonce = :nonce, expires = :expires",
            ConditionExpression=condition,
            ExpressionAttributeNames=_NAMES,
            ExpressionAttributeValues=values,
        )
        if written:
            return nonce
        found = self._table.get(self._consumer, part)  # boto3 repeats a request whose answer was lost
        return nonce if found is not None and found["nonce"]["S"] == nonce else None

    def _now(self) -> int:
        return (self._clock.ticks() - UNIX_EPOCH_TICKS) // 10_000_000


def is_dynamodb(url: str) -> bool:
    """Return whether a coordinator's address is that of a table."""
    return url.startswith("dynamodb://")


def _parse(url: str) -> tuple[str, dict[str, str]]:
    """Return the table and the options of an address. Raises Invalid."""
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise Invalid(
            f"the address of the coordinator is not valid: {error}", hint="write dynamodb://table?region=…"
        ) from error
    given = parse_qsl(parts.query, keep_blank_values=True)
    options = dict(given)
    unknown = sorted(set(options) - set(OPTIONS))
    if parts.scheme != "dynamodb" or not parts.netloc or "@" in parts.netloc or parts.path.strip("/"):
        raise Invalid(
            "the address of a coordinator must be dynamodb://table?region=…",
            hint="credentials come from the environment",
        )
    if unknown or len(options) < len(given):
        raise Invalid(
            f"the address of a coordinator accepts each of {', '.join(OPTIONS)} once, not {', '.join(unknown)}"
        )
    if options.get("endpoint"):
        is_plain(options["endpoint"], "coordinator", allow_http=options.get("allow_http") == "true")
    return parts.netloc, options


def _client(options: dict[str, str]) -> Any:
    try:
        import boto3
        from botocore.config import Config
        from botocore.exceptions import BotoCoreError
    except ImportError as error:
        raise Unsupported(
            "a coordinator in DynamoDB needs the extra 'dynamodb'",
            hint="pip install headwater[dynamodb]",
            code="extra_missing",
        ) from error
    config = Config(
        connect_timeout=CONNECT_S, read_timeout=READ_S, retries={"total_max_attempts": TRIES, "mode": "standard"}
    )
    try:
        return boto3.session.Session().client(
            "dynamodb", region_name=options.get("region"), endpoint_url=options.get("endpoint"), config=config
        )
    except (BotoCoreError, ValueError) as error:
        raise Invalid(f"DynamoDB cannot be used: {error}", hint="write dynamodb://table?region=eu-central-1") from error


def _no_table(table: str) -> NotFound:
    attributes = "AttributeName=consumer,AttributeType=S AttributeName=part,AttributeType=S"
    keys = "AttributeName=consumer,KeyType=HASH AttributeName=part,KeyType=RANGE"
    return NotFound(
        f"there is no DynamoDB table {table!r}",
        hint=f"create it: aws dynamodb create-table --table-name {table} --attribute-definitions {attributes} "
        f"--key-schema {keys} --billing-mode PAY_PER_REQUEST, or add create=true to its address",
        code="table_not_found",
        table=table,
    )


def _record(item: dict[str, Any]) -> CursorRecord:
    values = {field: item[field] for field in _FIELDS if field in item}
    plain: dict[str, Any] = {name: value.get("S", int(value.get("N", 0))) for name, value in values.items()}
    return CursorRecord(**plain)


def _attribute(value: str | int) -> dict[str, str]:
    return {"S": value} if isinstance(value, str) else _number(value)


def _number(value: int) -> dict[str, str]:
    return {"N": str(value)}
