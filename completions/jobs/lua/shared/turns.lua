-- Whose turn it is. Queued jobs of a model wait by level (see NewJob.level), then organization, then API key, then age:
--
--   turns:<level>:<model>                        organizations, by when each had its last turn or began to wait
--   key_turns:<level>:<organization>:<model>     its API keys, in the same way
--   waiting:<level>:<organization>:<key>:<model> the key's jobs, by when they were submitted
--
-- So organizations take turns, and the keys of an organization take turns within its own, however many jobs each has sent.
-- A job leaves its line when a worker claims it and when it ends. Other versions may claim or end a job in between: what
-- a line holds is a hint, and claim() judges the job's record. Jobs of versions without levels stand in no line; workers
-- claim them by the ids in their messages.

local function line_keys(level, model, organization, key)
  return prefix .. 'turns:' .. level .. ':' .. model,
    prefix .. 'key_turns:' .. level .. ':' .. organization .. ':' .. model,
    prefix .. 'waiting:' .. level .. ':' .. organization .. ':' .. key .. ':' .. model
end

local function enter_line(id, level, model, organization, key, created, at)
  local turns, key_turns, waiting = line_keys(level, model, organization, key)
  redis.call('ZADD', waiting, created, id)
  redis.call('ZADD', key_turns, 'NX', at, key)
  redis.call('ZADD', turns, 'NX', at, organization)
end

-- Put a job back. By its age, it goes before what its key sent later.
local function line_up(id)
  local job = redis.call('HMGET', job_key(id), 'level', 'model', 'organization', 'key', 'created')
  if job[1] and job[2] and job[3] and job[4] and job[5] then
    enter_line(id, job[1], job[2], job[3], job[4], job[5], string.format('%.6f', now()))
  end
end

-- Forget a key, and its organization, if they have no job left in line.
local function close_line(turns, key_turns, waiting, organization, key)
  if redis.call('EXISTS', waiting) == 1 then return true end
  redis.call('ZREM', key_turns, key)
  if redis.call('EXISTS', key_turns) == 0 then redis.call('ZREM', turns, organization) end
  return false
end

local function leave_line(id)
  local job = redis.call('HMGET', job_key(id), 'level', 'model', 'organization', 'key')
  if not (job[1] and job[2] and job[3] and job[4]) then return end
  local turns, key_turns, waiting = line_keys(unpack(job))
  if redis.call('ZREM', waiting, id) == 1 then close_line(turns, key_turns, waiting, job[3], job[4]) end
end

-- Take the job whose turn it is from an organization's line; nil if it has none. Key and organization then wait for their
-- next turn, behind all that wait now: `at` must grow from turn to turn.
local function next_in_line(level, model, organization, at)
  local turns, key_turns = line_keys(level, model, organization, '')
  local key = redis.call('ZRANGE', key_turns, 0, 0)[1]
  if not key then
    redis.call('ZREM', turns, organization)
    return nil
  end
  local _, _, waiting = line_keys(level, model, organization, key)
  local id = redis.call('ZPOPMIN', waiting)[1]
  if close_line(turns, key_turns, waiting, organization, key) then redis.call('ZADD', key_turns, at, key) end
  redis.call('ZADD', turns, 'XX', at, organization)
  return id or next_in_line(level, model, organization, at)
end
