-- Find jobs that the broker or a worker lost, and end those whose time is up. One that no live worker has ends too if it
-- was cancelled or its client has gone. ARGV: most jobs to look at, seconds until a queued job is looked at again,
-- seconds until a running one is, seconds past its deadline after which a job fails even if a live worker has it.
-- Returns {id, model, priority, request id} per job whose message must be published again. A redundant message is
-- harmless, since claims are fenced, but takes up memory: the time between two messages of a job doubles.
local at = now()
local due = redis.call('ZRANGEBYSCORE', prefix .. 'open', '-inf', at, 'LIMIT', 0, ARGV[1])
local again = {}

local function look(id)
  local key = job_key(id)
  local job = redis.call('HMGET', key, 'state', 'owner', 'deadline', 'web', 'model', 'priority', 'request_id',
    REDIS.cancelling)
  local state = job[1]
  if not state or ended(state) or not is_job(key) then return drop(id) end
  local late = at - tonumber(job[3])
  local lost = state == 'running' and redis.call('EXISTS', prefix .. 'worker:' .. job[2]) == 0
  if late >= 0 and (state == 'queued' or lost) then
    return finalize_here(id, 'failed', 'queue_timeout')
  end
  if late >= tonumber(ARGV[4]) then
    return finalize_here(id, 'failed', 'generation_timeout')
  end
  local gone = job[4] ~= '' and redis.call('EXISTS', prefix .. 'web:' .. job[4]) == 0
  if (gone or job[8]) and (state == 'queued' or lost) then
    cancelled_by(id, 'web')
    return finalize_here(id, 'cancelled')
  end
  local pause = tonumber(state == 'queued' and ARGV[2] or ARGV[3])
  if state == 'queued' or lost then
    fair_requeue(id)
    again[#again + 1] = {id, job[5], job[6], job[7] or ''}
    pause = pause * 2 ^ math.min(redis.call('HINCRBY', key, 'republished', 1) - 1, 7)
  end
  return redis.call('ZADD', prefix .. 'open', at + pause, id)
end

for _, id in ipairs(due) do look(id) end
return again
