-- A fair queue: which job is next. Queued jobs of a model wait by level (see NewJob.level), then organization, then API key,
-- then age and head start:
--
--   turns:<level>:<model>                        organizations, by when each had its last turn or began to wait
--   key_turns:<level>:<organization>:<model>     its API keys, in the same way
--   waiting:<level>:<organization>:<key>:<model> the key's jobs, by when they were submitted, less their head start
--
-- So organizations are served round robin, and the keys of an organization round robin within its turns, however many jobs
-- each has sent. A job leaves the queue when a worker claims it and when it ends. Other versions may claim or end a job in
-- between: what the queue holds is a hint, and claim() decides by the job's record. Jobs of versions without levels are not
-- in it; workers claim them by the ids in their messages.

local function queue_keys(level, model, organization_id, api_key_id)
  return prefix .. 'turns:' .. level .. ':' .. model,
    prefix .. 'key_turns:' .. level .. ':' .. organization_id .. ':' .. model,
    prefix .. 'waiting:' .. level .. ':' .. organization_id .. ':' .. api_key_id .. ':' .. model
end

local function fair_enqueue(id, level, model, organization_id, api_key_id, created, at)
  local turns, key_turns, waiting = queue_keys(level, model, organization_id, api_key_id)
  redis.call('ZADD', waiting, created, id)
  redis.call('ZADD', key_turns, 'NX', at, api_key_id)
  redis.call('ZADD', turns, 'NX', at, organization_id)
end

-- Put a job back, before what its key sent later.
local function fair_requeue(id)
  local job = redis.call('HMGET', job_key(id), 'level', 'model', REDIS.organization_id, REDIS.api_key_id, 'created', 'head_start')
  if job[1] and job[2] and job[3] and job[4] and job[5] then
    fair_enqueue(id, job[1], job[2], job[3], job[4], tostring(tonumber(job[5]) - tonumber(job[6] or 0)), string.format('%.6f', now()))
  end
end

-- Remove a key, and its organization, if they have no queued job left.
local function drop_if_empty(turns, key_turns, waiting, organization_id, api_key_id)
  if redis.call('EXISTS', waiting) == 1 then return true end
  redis.call('ZREM', key_turns, api_key_id)
  if redis.call('EXISTS', key_turns) == 0 then redis.call('ZREM', turns, organization_id) end
  return false
end

local function fair_remove(id)
  local job = redis.call('HMGET', job_key(id), 'level', 'model', REDIS.organization_id, REDIS.api_key_id)
  if not (job[1] and job[2] and job[3] and job[4]) then return end
  local turns, key_turns, waiting = queue_keys(unpack(job))
  if redis.call('ZREM', waiting, id) == 1 then drop_if_empty(turns, key_turns, waiting, job[3], job[4]) end
end

-- Pop the next job of an organization; nil if it has none. Key and organization then go behind all that wait now: `at` must
-- grow from call to call.
local function fair_pop(level, model, organization_id, at)
  local turns, key_turns = queue_keys(level, model, organization_id, '')
  local api_key_id = redis.call('ZRANGE', key_turns, 0, 0)[1]
  if not api_key_id then
    redis.call('ZREM', turns, organization_id)
    return nil
  end
  local _, _, waiting = queue_keys(level, model, organization_id, api_key_id)
  local id = redis.call('ZPOPMIN', waiting)[1]
  if drop_if_empty(turns, key_turns, waiting, organization_id, api_key_id) then
    redis.call('ZADD', key_turns, at, api_key_id)
  end
  redis.call('ZADD', turns, 'XX', at, organization_id)
  return id or fair_pop(level, model, organization_id, at)
end
