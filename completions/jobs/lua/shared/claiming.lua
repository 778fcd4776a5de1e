-- How a worker claims a job, for the scripts that do.
--
-- claim() returns {verdict, attempt, request, seconds left, sequence number, organization id, seconds since it was
-- submitted, request id, kind, trace, level, sequences, bytes, reader}; verdict is one of
--   run        the worker runs it; the attempt number fences every later write
--   elsewhere  a live worker runs it, or it waits to run alone        done  it has ended        gone  it is unknown
--   foreign    its record is not a job's; the job is removed from the open ones
-- A worker that claims a job again gets the same attempt: the first reply may have been lost.
-- A job whose client has gone, whose time is up or which has failed too many workers ends here as `done`.
local function claimed(key, attempt, deadline, at)
  local rest = redis.call('HMGET', key, 'request', REDIS.sequence_number, REDIS.organization_id, 'created', 'request_id',
    'kind', 'trace', 'level', 'sequences', 'bytes', 'reader')
  local age = at - tonumber(rest[4])
  return {'run', tonumber(attempt), rest[1], tostring(tonumber(deadline) - at), rest[2], rest[3], tostring(age),
    rest[5] or '', rest[6], rest[7] or '', rest[8] or '', rest[9] or '1', rest[10] or '0', rest[11] or ''}
end

local function claim(id, worker, max_worker_failures)
  local key = job_key(id)
  local job = redis.call('HMGET', key, 'state', 'owner', REDIS.cancelling, 'web', 'deadline', REDIS.worker_failures,
    'attempt', 'republished', 'started')
  local state, owner = job[1], job[2]
  if not state then return {'gone'} end
  if ended(state) then return {'done'} end
  if not is_job(key) then
    drop(id)
    return {'foreign'}
  end
  if state == 'running' and owner == worker then
    return claimed(key, job[7], job[5], now())
  end
  local worker_failures = tonumber(job[6] or 0) -- those that workers reported themselves
  if state == 'running' then
    if redis.call('EXISTS', prefix .. 'worker:' .. owner) == 1 then return {'elsewhere'} end
    take_from(owner, id)
    worker_failures = redis.call('HINCRBY', key, REDIS.worker_failures, 1)
  end
  if worker_failures >= tonumber(max_worker_failures) then
    finalize_here(id, 'failed', 'worker_error')
    return {'done'}
  end
  if job[3] then
    finalize_here(id, 'cancelled')
    return {'done'}
  end
  if job[4] ~= '' and redis.call('EXISTS', prefix .. 'web:' .. job[4]) == 0 then
    cancelled_by(id, 'web')
    finalize_here(id, 'cancelled')
    return {'done'}
  end
  local at = now()
  if at >= tonumber(job[5]) then
    finalize_here(id, 'failed', 'queue_timeout')
    return {'done'}
  end
  if worker_failures >= tonumber(max_worker_failures) - 1 then
    -- This job has one attempt left. To tell whether it crashes workers or only shared one with a job that does, run at
    -- most one such job per worker. The reconciler publishes the others again.
    local quarantined = prefix .. 'quarantined:' .. worker
    local held = redis.call('GET', quarantined)
    if held and held ~= id and redis.call('HGET', job_key(held), 'owner') == worker then
      if state == 'running' then reset(id) end -- or its next claim would count the same lost worker again
      redis.call('ZADD', prefix .. 'open', at + 1, id)
      return {'elsewhere'}
    end
    redis.call('SET', quarantined, id, 'EX', 3600)
  end
  local attempt = tonumber(job[7]) + 1
  redis.call('HSET', key, 'state', 'running', 'owner', worker, 'attempt', attempt, 'started', job[9] or tostring(at))
  if job[8] then
    redis.call('HDEL', key, 'republished')
    -- Otherwise the reconciler would not look at it until the next republication, and miss that its worker died.
    redis.call('ZADD', prefix .. 'open', at, id)
  end
  return claimed(key, attempt, job[5], at)
end
