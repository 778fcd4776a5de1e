-- Accept a job unless too many are open, nobody serves its model or its API key has reached a limit.
-- ARGV: id, model, most open jobs, check time offset, seconds without a worker (0 = never mind), API key,
-- its limits (requests/min, tokens/min, places; 0 = none), tokens the job can use, when its place is free at the latest
-- (0 = it needs none), field, value, ...
-- Returns {verdict, requests left, tokens left, seconds until it fits}; the verdict is ok, full, unserved, exists,
-- requests, tokens or concurrency.
local id, patience, api_key = ARGV[1], tonumber(ARGV[5]), ARGV[6]
local limits = {tonumber(ARGV[7]), tonumber(ARGV[8]), tonumber(ARGV[9])}
if redis.call('EXISTS', job_key(id)) == 1 then return {'exists'} end
if redis.call('ZCARD', prefix .. 'open') >= tonumber(ARGV[3]) then return {'full'} end
local at = now()
if patience > 0 then
  local served = redis.call('ZSCORE', prefix .. 'served', ARGV[2])
  if not served or at - tonumber(served) > patience then return {'unserved'} end
end
local verdict, requests_left, tokens_left, wait = admit(api_key, id, limits, tonumber(ARGV[10]), tonumber(ARGV[11]), at)
if verdict == 'ok' then
  redis.call('HSET', job_key(id), 'state', 'queued', 'attempt', 0, 'losses', 0, 'seq', 1, 'created', tostring(at),
    'model', ARGV[2], 'key', api_key, unpack(ARGV, 12))
  if limits[2] > 0 then redis.call('HSET', job_key(id), 'reserved', ARGV[10]) end
  redis.call('ZADD', prefix .. 'open', at + tonumber(ARGV[4]), id)
end
return {verdict, tostring(requests_left), tostring(tokens_left), tostring(wait)}
