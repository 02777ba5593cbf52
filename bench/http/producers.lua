-- What the Python client sends: a key, a producer with its next seq, and JSON of about 100 bytes.
-- wrk does not tell its connections apart, so there are more producers than connections, and they take turns: none of
-- them has two requests under way. Their ids are new in each run.

local producers = 1024
local count = 0
local run = ""
for byte in io.open("/dev/urandom", "rb"):read(4):gmatch(".") do
  run = run .. ("%02x"):format(byte:byte())
end
local head = "POST %s?type=order.placed&key=customer-%d HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
  .. "Headwater-Producer: %s-%d\r\nHeadwater-Epoch: 1\r\nHeadwater-Seq: %d\r\nContent-Length: %d\r\n\r\n%s"
local data = '{"order":%d,"customer":"customer-%d","total":12.5,"items":[{"sku":"0123456789abcdef","count":1}]}'

function request()
  count = count + 1
  local customer = count * 7919 % 10007
  local body = data:format(count % 9000 + 1000, customer)
  local producer, seq = count % producers, math.floor(count / producers)
  return head:format(wrk.path, customer, run, producer, seq, #body, body)
end
