-- Cancel a job: at once while it is queued, by its worker's next step while it runs. ARGV: id, who cancels it.
-- Returns the state that it was in, or nil if it is unknown.
local id = ARGV[1]
local state = redis.call('HGET', job_key(id), 'state')
if state == 'queued' then
  cancelled_by(id, ARGV[2])
  finalize_here(id, 'cancelled')
elseif state == 'running' then
  cancelled_by(id, ARGV[2])
  redis.call('HSET', job_key(id), REDIS.cancelling, 1)
  local owner = redis.call('HGET', job_key(id), 'owner')
  if owner then call_attention(owner) end -- it asks with its next step
end
return state
