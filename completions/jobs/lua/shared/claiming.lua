-- How a worker claims a job, for the scripts that do.
--
-- claim() returns {verdict, attempt, request, seconds left, seq, organization, seconds since it was submitted, request id,
-- kind, trace, level, sequences, bytes}; verdict is one of
--   run        the worker runs it; the attempt number fences every later write
--   elsewhere  a live worker runs it, or it waits to run alone        done  it has ended        gone  it is unknown
--   foreign    its record is not a job's; the job is removed from the open ones
-- A worker that claims a job again gets the same attempt: the first reply may have been lost.
-- A job whose client has gone, whose time is up or which has lost too many workers ends here as `done`.
local function claimed(key, attempt, deadline)
  local at = now()
  local rest = redis.call('HMGET', key, 'request', 'seq', 'organization', 'created', 'request_id', 'kind', 'trace', 'level',
    'sequences', 'bytes')
  local age = at - tonumber(rest[4])
  return {'run', tonumber(attempt), rest[1], tostring(tonumber(deadline) - at), rest[2], rest[3], tostring(age),
    rest[5] or '', rest[6], rest[7] or '', rest[8] or '', rest[9] or '1', rest[10] or '0'}
end

local function claim(id, worker, most_losses)
  local key = job_key(id)
  local job = redis.call('HMGET', key, 'state', 'owner', 'cancel', 'web', 'deadline', 'losses')
  local state, owner = job[1], job[2]
  if not state then return {'gone'} end
  if ended(state) then return {'done'} end
  if not is_job(key) then
    drop(id)
    return {'foreign'}
  end
  if state == 'running' and owner == worker then
    return claimed(key, redis.call('HGET', key, 'attempt'), job[5])
  end
  local losses = tonumber(job[6] or 0) -- those that workers reported themselves
  if state == 'running' then
    if redis.call('EXISTS', prefix .. 'worker:' .. owner) == 1 then return {'elsewhere'} end
    losses = redis.call('HINCRBY', key, 'losses', 1)
  end
  if losses >= tonumber(most_losses) then
    finalize_here(id, 'failed', 'worker_error')
    return {'done'}
  end
  if job[3] then
    finalize_here(id, 'cancelled')
    return {'done'}
  end
  if job[4] ~= '' and redis.call('EXISTS', prefix .. 'web:' .. job[4]) == 0 then
    finalize_here(id, 'cancelled')
    return {'done'}
  end
  local at = now()
  if at >= tonumber(job[5]) then
    finalize_here(id, 'failed', 'queue_timeout')
    return {'done'}
  end
  if losses >= tonumber(most_losses) - 1 then
    -- One more loss fails it. Either it breaks workers, or it ran beside a job that does. No other suspect runs on the
    -- same worker, so that its next attempt shows which; the reconciler publishes this one again.
    local suspect = prefix .. 'suspect:' .. worker
    local held = redis.call('GET', suspect)
    if held and held ~= id and redis.call('HGET', job_key(held), 'owner') == worker then
      if state == 'running' then reset(id) end -- or its next claim would count the same lost worker again
      redis.call('ZADD', prefix .. 'open', at + 1, id)
      return {'elsewhere'}
    end
    redis.call('SET', suspect, id, 'EX', 3600)
  end
  local attempt = redis.call('HINCRBY', key, 'attempt', 1)
  redis.call('HSET', key, 'state', 'running', 'owner', worker)
  if redis.call('HDEL', key, 'republished') == 1 then
    redis.call('ZADD', prefix .. 'open', at, id) -- or its worker's death would go unnoticed for the pause of its messages
  end
  redis.call('HSETNX', key, 'started', tostring(at))
  return claimed(key, attempt, job[5])
end
