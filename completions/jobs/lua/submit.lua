-- Accept a job and publish its message, unless too many jobs or bytes are open, no worker serves its model, or its API
-- key has reached a limit or a budget.
-- ARGV: the terms as JSON, the Celery message, then field, value, ... of the record. Terms:
--   id, kind, model, api_key_id, organization_id, level, sequences
--   max_open, max_of_class, max_of_key   jobs that may be open: in all, of its class, of its API key
--   size, max_bytes                        bytes of its request and context; bounds of its scopes, see shared/bytes.lua
--   check_after                             seconds until the reconciler's first look
--   patience                                seconds since a worker last served the model; 0: any
--   seconds                                 until its deadline
--   head_start                              seconds by which it goes before its turn
--   rates                                   name, limit and what it takes of each rate that is limited
--   places                                  how many jobs of its API key may run; 0: any
--   reserved                                tokens that it takes of a rate and that its end gives back; absent: none
--   is_admitted                             whether the limits were checked before: of them, it takes a place only
--   lease                                   seconds after which its place is free at the latest; absent if it needs none
--   tokens, cost                            the most that it can use
--   budgets                                 four per scope, see shared/budgets.lua; negative: none
--   web, web_lease                          the web process that waits for it or '', seconds of its lease
--   queue                                   the list of the message without prefix, or '' for no message
-- Returns {verdict, seconds until it fits, what is left of each rate}; the verdict is ok, full, crowded (with jobs of its
-- own API key), unserved, exists, a rate or concurrency. Or {'bytes', scope, bytes that it holds}. Or
-- {'budget', scope, budget, used}; the budget is 'unseeded' if the scope's spending is unknown.
local job = cjson.decode(ARGV[1])
local id, kind = job.id, job.kind
if redis.call('EXISTS', job_key(id)) == 1 then return {'exists'} end
local depth = prefix .. 'depth:' .. class_of(kind)
if redis.call('ZCARD', prefix .. 'open') >= job.max_open then return {'full'} end
if redis.call('SCARD', depth) >= job.max_of_class then return {'full'} end
local at = now()
if job.patience > 0 then
  local served = redis.call('ZSCORE', prefix .. 'served', job.model)
  if not served or at - tonumber(served) > job.patience then return {'unserved'} end
end
local COUNTED = 120 -- seconds past its deadline for which a job that never ended still counts
local own = prefix .. 'queued:' .. job.api_key_id
if kind ~= 'batch' then -- the feeder of batches limits its own jobs
  if redis.call('ZCARD', own) >= job.max_of_key then
    redis.call('ZREMRANGEBYSCORE', own, '-inf', at)
    if redis.call('ZCARD', own) >= job.max_of_key then return {'crowded'} end
  end
end
local sized = byte_scopes(kind, job.api_key_id, job.organization_id)
local sums = read_bytes(sized)
local heavy, bytes_held = full_scope(sized, sums, job.max_bytes, job.size)
if heavy then return {'bytes', heavy, whole(bytes_held)} end
local scopes = {'k' .. job.api_key_id, 'o' .. job.organization_id}
local scope, found, used = within_budgets(scopes, job.budgets, job.tokens, job.cost, at)
if scope ~= 'ok' then return {'budget', scope, found, whole(used)} end
local verdict, rest, wait = 'ok', {}, 0
if job.is_admitted then
  take_place_again(job.api_key_id, id, job.places, job.lease, at)
else
  verdict, rest, wait = admit(job.api_key_id, id, job.rates, job.places, job.lease, at)
end
if verdict == 'ok' then
  local deadline = at + job.seconds
  redis.call('HSET', job_key(id), 'state', 'queued', 'attempt', 0, REDIS.worker_failures, 0, REDIS.sequence_number, 1,
    'created', tostring(at), 'model', job.model, 'kind', kind, REDIS.api_key_id, job.api_key_id,
    REDIS.organization_id, job.organization_id, 'deadline', tostring(deadline), 'bytes', job.size, 'level', job.level,
    'sequences', job.sequences, unpack(ARGV, 3))
  add_bytes(sized, sums, job.size)
  if job.reserved then redis.call('HSET', job_key(id), 'reserved', job.reserved) end
  local held = hold(found, job.tokens, job.cost)
  if held then redis.call('HSET', job_key(id), 'held', held) end
  redis.call('ZADD', prefix .. 'open', at + job.check_after, id)
  fair_enqueue(id, job.level, job.model, job.organization_id, job.api_key_id, tostring(at - job.head_start), string.format('%.6f', at))
  redis.call('SADD', depth, id)
  if kind ~= 'batch' then redis.call('ZADD', own, deadline + COUNTED, id) end
  if job.web ~= '' then
    -- It is alive, but its lease may have expired while it could not reach Redis.
    redis.call('SET', prefix .. 'web:' .. job.web, 1, 'NX', 'EX', job.web_lease)
    if kind == 'stream' then wake(job.web, '') end -- its reader does not know this stream yet
  end
  if job.queue ~= '' then redis.call('LPUSH', prefix .. job.queue, ARGV[2]) end
end
return tell(verdict, rest, wait)
