-- Accept a job and publish its message, unless too many are open, nobody serves its model or its API key has reached a
-- limit or a budget.
-- ARGV: id, kind, model, most open jobs, most of its class, most of its API key, check time offset, seconds without a
-- worker (0 = never mind), metering as JSON, the web process that waits for it or '', seconds of its lease, the list of
-- its Celery message without prefix or '', the message, field, value, ...
-- Metering: key, organization, seconds (until its deadline: the web host's clock may be wrong, its seconds are not),
-- limits (requests/min, tokens/min, places; 0 = none), lease (seconds until its place is free at the latest; absent: it
-- needs none), tokens and cost that it can use at most, budgets (per scope four, see budgets.lua; negative = none).
-- Returns {verdict, requests left, tokens left, seconds until it fits}; the verdict is ok, full, crowded (by its own API
-- key), unserved, exists, requests, tokens or concurrency. Or {'budget', scope, which, used}, with `unseeded` for which
-- where nobody knows.
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
local asked = cjson.decode(ARGV[9])
local OVERTIME = 120 -- seconds past its deadline after which even a job that nobody saw end is not counted
local own = prefix .. 'queued:' .. asked.key
if kind ~= 'batch' then -- their feeder sends few at a time
  redis.call('ZREMRANGEBYSCORE', own, '-inf', at)
  if redis.call('ZCARD', own) >= tonumber(ARGV[6]) then return {'crowded'} end
end
local scopes = {'k' .. asked.key, 'o' .. asked.organization}
local scope, found, used = within_budgets(scopes, asked.budgets, asked.tokens, asked.cost, at)
if scope ~= 'ok' then return {'budget', scope, found, whole(used)} end
local limits = asked.limits
local verdict, requests_left, tokens_left, wait = admit(asked.key, id, limits, asked.tokens, asked.lease, at)
if verdict == 'ok' then
  local deadline = at + asked.seconds
  redis.call('HSET', job_key(id), 'state', 'queued', 'attempt', 0, 'losses', 0, 'seq', 1, 'created', tostring(at),
    'model', model, 'kind', kind, 'key', asked.key, 'organization', asked.organization, 'deadline', tostring(deadline),
    unpack(ARGV, 14))
  if limits[2] > 0 then redis.call('HSET', job_key(id), 'reserved', asked.tokens) end
  local held = hold(found, asked.tokens, asked.cost)
  if held then redis.call('HSET', job_key(id), 'held', held) end
  redis.call('ZADD', prefix .. 'open', at + tonumber(ARGV[7]), id)
  redis.call('SADD', depth, id)
  if kind ~= 'batch' then redis.call('ZADD', own, deadline + OVERTIME, id) end
  local web = ARGV[10]
  if web ~= '' then
    -- It lives, though its lease may have run out while it could not reach Redis.
    redis.call('SET', prefix .. 'web:' .. web, 1, 'NX', 'EX', ARGV[11])
    if kind == 'stream' then wake(web, '') end -- its reader does not know this stream yet
  end
  if ARGV[12] ~= '' then redis.call('LPUSH', prefix .. ARGV[12], ARGV[13]) end
end
return {verdict, tostring(requests_left), tostring(tokens_left), tostring(wait)}
