-- Limits of API keys: two buckets and a set of leases per key. Nothing is stored for a key without limits.
--
-- A bucket holds one minute's worth and refills evenly. At its admission a job takes what it can use at most; at its end
-- it gives back the tokens that it did not use. contract/limits.py lists the rates.

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

-- Take what job `id` needs, all or nothing. `rates` has {name, limit, what the job takes of it} for each rate that is
-- limited; `places` is 0 for no limit. Its place is free after `lease` seconds at the latest; nil for a job that needs no
-- place. Returns verdict, what is left of each rate, seconds until it fits; the verdict is 'ok' or the limit that is
-- reached.
local function admit(api_key, id, rates, places, lease, at)
  if #rates == 0 and places == 0 then return 'ok', {}, 0 end
  local bucket, busy = prefix .. 'limits:' .. api_key, prefix .. 'busy:' .. api_key
  local stored, old = {}, redis.call('HGETALL', bucket)
  for i = 1, #old, 2 do stored[old[i]] = old[i + 1] end
  local elapsed = stored.at and math.max(0, at - tonumber(stored.at)) or 0
  local rest, fields = {}, {'at', tostring(at)}
  for i, rate in ipairs(rates) do rest[i] = left(stored[rate[1]], rate[2], elapsed) end
  for i, rate in ipairs(rates) do
    local name, limit, asked = rate[1], rate[2], rate[3]
    if asked > 0 and rest[i] < asked then return name, rest, (asked - rest[i]) * 60 / limit end
  end
  if places > 0 and lease then
    redis.call('ZREMRANGEBYSCORE', busy, '-inf', at)
    local taken = redis.call('ZCARD', busy)
    if taken >= places then return 'concurrency', rest, 1 end
    take_place(busy, id, lease, at)
  end
  for i, rate in ipairs(rates) do
    rest[i] = rest[i] - rate[3]
    fields[#fields + 1] = rate[1]
    fields[#fields + 1] = tostring(rest[i])
    stored[rate[1]] = nil
  end
  stored.at = nil
  if next(stored) then redis.call('DEL', bucket) end -- a limit that was lifted and is set again starts full
  redis.call('HSET', bucket, unpack(fields))
  redis.call('EXPIRE', bucket, BUCKETS_KEPT)
  return 'ok', rest, 0
end

-- What a script returns of `admit`: verdict, seconds until it fits, what is left of each rate.
local function tell(verdict, rest, wait)
  local reply = {verdict, tostring(wait)}
  for i, each in ipairs(rest) do reply[i + 2] = tostring(each) end
  return reply
end

-- End a job: free its place, and give back the tokens that it reserved and did not use.
local function settle(api_key, id, reserved, used)
  redis.call('ZREM', prefix .. 'busy:' .. api_key, id)
  local bucket = prefix .. 'limits:' .. api_key
  if not reserved or redis.call('HEXISTS', bucket, 'tokens') == 0 then return end
  redis.call('HINCRBYFLOAT', bucket, 'tokens', tostring(tonumber(reserved) - used))
end
