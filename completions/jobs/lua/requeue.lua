-- The operator takes a job from its worker, or has the message of a queued one published again: the reconciler does so
-- with its next look. What was published stays, and the next worker goes on from it. ARGV: id.
-- Returns the state that it was in, or nil when nobody knows it.
local id = ARGV[1]
local key = job_key(id)
local state = redis.call('HGET', key, 'state')
if state == 'queued' or state == 'running' then
  redis.call('HSET', key, 'state', 'queued')
  redis.call('HDEL', key, 'owner', 'republished')
  redis.call('ZADD', prefix .. 'open', now(), id)
end
return state
