-- Accept a job and publish its message, unless too many jobs are open, no worker serves its model, or its API key has
-- reached a limit or a budget.
-- ARGV: id, kind, model, most open jobs, most of its class, most of its API key, seconds until the reconciler's first
-- look, seconds since a worker last served the model (0: any), metering as JSON, the web process that waits for it or '',
-- seconds of that process's lease, the list of the Celery message without prefix or '', the message, field, value, ...
-- Metering: key, organization, seconds (until the deadline), limits (requests per minute, tokens per minute, places;
-- 0: none), lease (seconds after which its place is free at the latest; absent if it needs no place), tokens and cost
-- (that it can use at most), budgets (four per scope, see budgets.lua; negative: none).
-- Returns {verdict, requests left, tokens left, seconds until it fits}; the verdict is ok, full, crowded (with jobs of its
-- own API key), unserved, exists, requests, tokens or concurrency. Or {'budget', scope, budget, used}; the budget is
-- 'unseeded' if the scope's spending is unknown.
local id, kind, model, patience = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[8])
if redis.call('EXISTS', job_key(id)) == 1 then return {'exists'} end
local depth = prefix .. 'depth:' .. class_of(kind)
if redis.call('ZCARD', prefix .. 'open') >= tonumber(ARGV[4]) then return {'full'} end
if redis.call('SCARD', depth) >= tonumber(ARGV[5]) then return {'full'} end
local at = now()
if patience > 0 then
  local served = redis.call('ZSCORE', prefix .. 'served', model)
  if not served or at - tonumber(served) > patience then return {'unserved'} end
end
local metering = cjson.decode(ARGV[9])
local COUNTED = 120 -- seconds past its deadline that a job counts which never ended
local own = prefix .. 'queued:' .. metering.key
if kind ~= 'batch' then -- the feeder of batches bounds its own
  redis.call('ZREMRANGEBYSCORE', own, '-inf', at)
  if redis.call('ZCARD', own) >= tonumber(ARGV[6]) then return {'crowded'} end
end
local scopes = {'k' .. metering.key, 'o' .. metering.organization}
local scope, found, used = within_budgets(scopes, metering.budgets, metering.tokens, metering.cost, at)
if scope ~= 'ok' then return {'budget', scope, found, whole(used)} end
local limits = metering.limits
local verdict, requests_left, tokens_left, wait = admit(metering.key, id, limits, metering.tokens, metering.lease, at)
if verdict == 'ok' then
  local deadline = at + metering.seconds
  redis.call('HSET', job_key(id), 'state', 'queued', 'attempt', 0, 'losses', 0, 'seq', 1, 'created', tostring(at),
    'model', model, 'kind', kind, 'key', metering.key, 'organization', metering.organization, 'deadline', tostring(deadline),
    unpack(ARGV, 14))
  if limits[2] > 0 then redis.call('HSET', job_key(id), 'reserved', metering.tokens) end
  local held = hold(found, metering.tokens, metering.cost)
  if held then redis.call('HSET', job_key(id), 'held', held) end
  redis.call('ZADD', prefix .. 'open', at + tonumber(ARGV[7]), id)
  redis.call('SADD', depth, id)
  if kind ~= 'batch' then redis.call('ZADD', own, deadline + COUNTED, id) end
  local web = ARGV[10]
  if web ~= '' then
    -- It is alive, but its lease may have expired while it could not reach Redis.
    redis.call('SET', prefix .. 'web:' .. web, 1, 'NX', 'EX', ARGV[11])
    if kind == 'stream' then wake(web, '') end -- its reader does not know this stream yet
  end
  if ARGV[12] ~= '' then redis.call('LPUSH', prefix .. ARGV[12], ARGV[13]) end
end
return {verdict, tostring(requests_left), tostring(tokens_left), tostring(wait)}
