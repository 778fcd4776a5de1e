-- Accept a job unless too many are open, nobody serves its model or its API key has reached a limit or a budget.
-- ARGV: id, kind, model, most open jobs, most of its class, check time offset, seconds without a worker (0 = never mind),
-- metering as JSON, field, value, ...
-- Metering: key, organization, limits (requests/min, tokens/min, places; 0 = none), lease (when its place is free at the
-- latest; 0 = it needs none), tokens and cost that it can use at most, budgets (per scope four, see budgets.lua; negative
-- = none).
-- Returns {verdict, requests left, tokens left, seconds until it fits}; the verdict is ok, full, unserved, exists,
-- requests, tokens or concurrency. Or {'budget', scope, which, used}, with `unseeded` for which where nobody knows.
local id, kind, model, patience = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[7])
if redis.call('EXISTS', job_key(id)) == 1 then return {'exists'} end
local depth = prefix .. 'depth:' .. class_of(kind)
if redis.call('ZCARD', prefix .. 'open') >= tonumber(ARGV[4]) then return {'full'} end
if redis.call('SCARD', depth) >= tonumber(ARGV[5]) then return {'full'} end
local at = now()
if patience > 0 then
  local served = redis.call('ZSCORE', prefix .. 'served', model)
  if not served or at - tonumber(served) > patience then return {'unserved'} end
end
local asked = cjson.decode(ARGV[8])
local scopes = {'k' .. asked.key, 'o' .. asked.organization}
local scope, found, used = within_budgets(scopes, asked.budgets, asked.tokens, asked.cost, at)
if scope ~= 'ok' then return {'budget', scope, found, whole(used)} end
local limits = asked.limits
local verdict, requests_left, tokens_left, wait = admit(asked.key, id, limits, asked.tokens, asked.lease, at)
if verdict == 'ok' then
  redis.call('HSET', job_key(id), 'state', 'queued', 'attempt', 0, 'losses', 0, 'seq', 1, 'created', tostring(at),
    'model', model, 'kind', kind, 'key', asked.key, 'organization', asked.organization, unpack(ARGV, 9))
  -- The web host's clock may be wrong; the seconds that it grants are not.
  local times = redis.call('HMGET', job_key(id), 'deadline', 'sent')
  redis.call('HSET', job_key(id), 'deadline', tostring(at + tonumber(times[1]) - tonumber(times[2])))
  if limits[2] > 0 then redis.call('HSET', job_key(id), 'reserved', asked.tokens) end
  local held = hold(found, asked.tokens, asked.cost)
  if held then redis.call('HSET', job_key(id), 'held', held) end
  redis.call('ZADD', prefix .. 'open', at + tonumber(ARGV[6]), id)
  redis.call('SADD', depth, id)
end
return {verdict, tostring(requests_left), tostring(tokens_left), tostring(wait)}
