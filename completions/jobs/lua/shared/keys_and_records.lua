-- Names of keys, the clock, control streams, and what a job's record says. The files of this folder precede every
-- script, in the order of completions/jobs/store.py.
--
-- KEYS[1] is the key prefix of the shard; all keys are built from it. In a cluster it has a hash tag, so they lie in one slot.
-- store.py has the keys, record.py the fields of job:<id>. REDIS (REDIS_NAMES in record.py) has the names in Redis of fields
-- that this version calls otherwise.

local prefix = KEYS[1]

local function job_key(id) return prefix .. 'job:' .. id end
local function event_key(id) return prefix .. 'ev:' .. id end

-- All times are by Redis's clock. Web hosts send durations, because their clocks may be wrong.
local function now()
  local t = redis.call('TIME')
  return tonumber(t[1]) + tonumber(t[2]) / 1e6
end

-- Append an entry to the control stream of a web process, which wakes its reader.
local CONTROL_KEPT = 10 -- seconds, more than the time between two reads; entries can hold whole results
local CONTROL_TTL = 60 -- seconds; it is renewed at its half, since a write costs more than a look
local oldest -- asked for once, since a script may append to many streams
local function append_control(web, entry)
  local control = prefix .. 'ctl:' .. web
  oldest = oldest or string.format('%.0f', (now() - CONTROL_KEPT) * 1000)
  redis.call('XADD', control, 'MINID', '~', oldest, '*', unpack(entry))
  if redis.call('TTL', control) < CONTROL_TTL / 2 then redis.call('EXPIRE', control, CONTROL_TTL) end
end

-- Give lines to a web process: on its channel, or in its control stream while it does not listen. A message costs less: it
-- is not kept, and no command reads it. A script must have written before: a write is what Redis refuses where memory is
-- short or another server is the master now, and a message cannot be taken back.
local function show_lines(web, lines)
  local listeners = redis.pcall('SPUBLISH', prefix .. 'ctl:' .. web, lines) -- an error before Redis 7.0, or without a right
  if type(listeners) ~= 'number' or listeners == 0 then append_control(web, {'s', lines}) end
end

-- Tell a web process the id of a blocking request's job that has ended, with its events in fields e; or '' to wake it only.
local function wake(web, id, events)
  local entry = {'d', id}
  for _, value in ipairs(events or {}) do
    entry[#entry + 1] = 'e'
    entry[#entry + 1] = value
  end
  append_control(web, entry)
end

local CLASSES = {'interactive', 'background', 'batch'}

local function class_of(kind)
  return (kind == 'sync' or kind == 'stream') and 'interactive' or kind
end

-- The id of the newest entry ever added to the usage stream.
local function last_ended()
  local info = redis.pcall('XINFO', 'STREAM', prefix .. 'usage')
  if info.err then return '0-0' end
  for i = 1, #info, 2 do
    if info[i] == 'last-generated-id' then return info[i + 1] end
  end
end

local function ended(state)
  return state == 'completed' or state == 'failed' or state == 'cancelled'
end

-- Whether an open job's record has every field that the scripts need, and numbers where they compute. A script that
-- failed because of one record would fail for all jobs that it looks at.
local function is_job(key)
  if redis.call('HEXISTS', key, 'request') == 0 then return false end
  local fields = redis.call('HMGET', key, 'kind', 'model', REDIS.organization_id, REDIS.api_key_id, 'web', 'priority',
    'created', 'deadline', 'ttl', 'attempt', REDIS.sequence_number, 'prompt_tokens')
  for i = 1, 12 do
    if not fields[i] or (i > 5 and not tonumber(fields[i])) then return false end
  end
  return true
end

-- Stop counting as open a record that is not an open job's.
local function drop(id)
  for _, class in ipairs(CLASSES) do redis.call('SREM', prefix .. 'depth:' .. class, id) end
  redis.call('ZREM', prefix .. 'open', id)
end
