-- What an API key may use: two buckets and a set of leases. Nothing is stored for a key without limits.
--
-- A bucket holds at most a minute's worth and refills evenly. A job takes one request and the most tokens it can use
-- when it is admitted, and gives back at its end the tokens that it did not use.

local BUCKETS_KEPT = 300 -- seconds; they are full again after 60

local function left(stored, limit, elapsed)
  if not stored then return limit end
  return math.min(limit, tonumber(stored) + elapsed * limit / 60)
end

-- Take what job `id` needs, all or nothing. A limit of 0 is none; `lease` is when the job's place is free at the latest,
-- 0 for a job that needs none.
-- Returns verdict, requests left, tokens left, seconds until it can fit; the verdict is 'ok' or the limit that is reached.
local function admit(api_key, id, limits, tokens, lease, at)
  local rpm, tpm, places = limits[1], limits[2], limits[3]
  if rpm + tpm + places == 0 then return 'ok', 0, 0, 0 end
  local bucket, busy = prefix .. 'limits:' .. api_key, prefix .. 'busy:' .. api_key
  local stored = redis.call('HMGET', bucket, 'requests', 'tokens', 'at')
  local elapsed = stored[3] and math.max(0, at - tonumber(stored[3])) or 0
  local requests_left, tokens_left = left(stored[1], rpm, elapsed), left(stored[2], tpm, elapsed)
  if rpm > 0 and requests_left < 1 then
    return 'requests', requests_left, tokens_left, (1 - requests_left) * 60 / rpm
  end
  if tpm > 0 and tokens_left < tokens then
    return 'tokens', requests_left, tokens_left, (tokens - tokens_left) * 60 / tpm
  end
  if places > 0 and lease > 0 then
    redis.call('ZREMRANGEBYSCORE', busy, '-inf', at)
    if redis.call('ZCARD', busy) >= places then return 'concurrency', requests_left, tokens_left, 1 end
    redis.call('ZADD', busy, lease, id)
    redis.call('EXPIREAT', busy, math.ceil(lease) + BUCKETS_KEPT, 'GT')
    redis.call('EXPIREAT', busy, math.ceil(lease) + BUCKETS_KEPT, 'NX')
  end
  redis.call('DEL', bucket) -- a limit that was lifted and set again starts full
  redis.call('HSET', bucket, 'at', tostring(at))
  if rpm > 0 then
    requests_left = requests_left - 1
    redis.call('HSET', bucket, 'requests', tostring(requests_left))
  end
  if tpm > 0 then
    tokens_left = tokens_left - tokens
    redis.call('HSET', bucket, 'tokens', tostring(tokens_left))
  end
  redis.call('EXPIRE', bucket, BUCKETS_KEPT)
  return 'ok', requests_left, tokens_left, 0
end

-- A job has ended: free its place, give back what it reserved and did not use.
local function settle(api_key, id, reserved, used)
  redis.call('ZREM', prefix .. 'busy:' .. api_key, id)
  local bucket = prefix .. 'limits:' .. api_key
  if not reserved or redis.call('HEXISTS', bucket, 'tokens') == 0 then return end
  redis.call('HINCRBYFLOAT', bucket, 'tokens', tostring(tonumber(reserved) - used))
end
