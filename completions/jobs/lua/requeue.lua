-- Take a job from its worker, or mark a queued job so that the reconciler publishes its message again. The next attempt
-- continues after the last published token. ARGV: id.
-- Returns the state that it was in, or nil if it is unknown.
local id = ARGV[1]
local key = job_key(id)
local state = redis.call('HGET', key, 'state')
if state == 'queued' or state == 'running' then
  redis.call('HDEL', key, 'republished')
  give_back(id)
end
return state
