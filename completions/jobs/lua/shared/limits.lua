-- Limits of API keys: two buckets and a set of leases per key. Nothing is stored for a key without limits.
--
-- A bucket holds one minute's worth and refills evenly. At its admission a job takes one request and the most tokens that
-- it can use; at its end it gives back the tokens that it did not use.

local BUCKETS_KEPT = 300 -- seconds; buckets are full after 60

local function left(stored, limit, elapsed)
  if not stored then return limit end
  return math.min(limit, tonumber(stored) + elapsed * limit / 60)
end

local function take_place(busy, id, lease, at)
  redis.call('ZADD', busy, tostring(at + lease), id)
  local until_at = math.ceil(at + lease) + BUCKETS_KEPT
  if redis.call('TTL', busy) < 0 then redis.call('EXPIREAT', busy, until_at) else redis.call('EXPIREAT', busy, until_at, 'GT') end
end

-- Take a place for a job that was admitted before Redis lost it, even if no place is free.
local function take_place_again(api_key, id, places, lease, at)
  if places > 0 and lease then take_place(prefix .. 'busy:' .. api_key, id, lease, at) end
end

-- Take what job `id` needs, all or nothing: `requests` (1, or 0 if the request is counted already) and `tokens`. A limit
-- of 0 means no limit. Its place is free after `lease` seconds at the latest; nil for a job that needs no place. Returns
-- verdict, requests left, tokens left, seconds until it fits; the verdict is 'ok' or the limit that is reached.
local function admit(api_key, id, limits, requests, tokens, lease, at)
  local rpm, tpm, places = limits[1], limits[2], limits[3]
  if rpm + tpm + places == 0 then return 'ok', 0, 0, 0 end
  local bucket, busy = prefix .. 'limits:' .. api_key, prefix .. 'busy:' .. api_key
  local stored = redis.call('HMGET', bucket, 'requests', 'tokens', 'at')
  local elapsed = stored[3] and math.max(0, at - tonumber(stored[3])) or 0
  local requests_left, tokens_left = left(stored[1], rpm, elapsed), left(stored[2], tpm, elapsed)
  if rpm > 0 and requests_left < requests then
    return 'requests', requests_left, tokens_left, (requests - requests_left) * 60 / rpm
  end
  if tpm > 0 and tokens > 0 and tokens_left < tokens then
    return 'tokens', requests_left, tokens_left, (tokens - tokens_left) * 60 / tpm
  end
  if places > 0 and lease then
    redis.call('ZREMRANGEBYSCORE', busy, '-inf', at)
    local taken = redis.call('ZCARD', busy)
    if taken >= places then return 'concurrency', requests_left, tokens_left, 1 end
    take_place(busy, id, lease, at)
  end
  local fields = {'at', tostring(at)}
  if rpm > 0 then
    requests_left = requests_left - requests
    fields[#fields + 1] = 'requests'
    fields[#fields + 1] = tostring(requests_left)
  end
  if tpm > 0 then
    tokens_left = tokens_left - tokens
    fields[#fields + 1] = 'tokens'
    fields[#fields + 1] = tostring(tokens_left)
  end
  if (rpm == 0 and stored[1]) or (tpm == 0 and stored[2]) then
    redis.call('DEL', bucket) -- a limit that was lifted and is set again starts full
  end
  redis.call('HSET', bucket, unpack(fields))
  redis.call('EXPIRE', bucket, BUCKETS_KEPT)
  return 'ok', requests_left, tokens_left, 0
end

-- End a job: free its place, and give back the tokens that it reserved and did not use.
local function settle(api_key, id, reserved, used)
  redis.call('ZREM', prefix .. 'busy:' .. api_key, id)
  local bucket = prefix .. 'limits:' .. api_key
  if not reserved or redis.call('HEXISTS', bucket, 'tokens') == 0 then return end
  redis.call('HINCRBYFLOAT', bucket, 'tokens', tostring(tonumber(reserved) - used))
end
