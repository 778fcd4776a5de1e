-- What every script of the job life cycle shares. Prepended to each of them, then limits.lua, budgets.lua and ending.lua.
--
-- KEYS[1] is the key prefix of the installation; all keys are built from it, so Redis Cluster is not supported.
-- <p>job:<id>     hash    one job; fields below
-- <p>ev:<id>      stream  its events, in order; the only path of results
-- <p>open         zset    ids of jobs that have not ended, by the time at which the reconciler looks again
-- <p>usage        stream  one entry per ended job, until flushed to SQL
-- <p>web:<id>     string  lease of a web process (expires)
-- <p>worker:<id>  string  heartbeat of an engine worker (expires)
-- <p>drain:<id>   string  the wish that this worker take no new jobs (expires some time after the worker)
-- <p>metrics:<id> string  an engine worker's Prometheus page (expires)
-- <p>suspect:<id> string  the job that this worker runs although it has lost many workers (expires)
-- <p>workers      set     ids of workers that may live
-- <p>served       zset    models by the time of their last heartbeat
-- <p>depth:<class> set    those among them of one class: interactive, background, batch
-- <p>queued:<key> zset    those of an API key that are no lines of batches, by when they have ended at the latest
-- <p>spent:<scope> hash   what a key or an organization with a budget has spent (budgets.lua)
-- <p>limits:<key>  hash    what an API key has left: requests, tokens, at (limits.lua)
-- <p>busy:<key>    zset    its jobs that somebody waits for, by the time their lease ends
-- <p>keys         stream  one entry per change of API keys
-- <p>ctl:<web>    stream  wakes the reader of a web process: the id of a call that has ended and its events if they are
--                         few, or nothing
--
-- Fields of job:<id>: state (queued, running, completed, failed, cancelled), kind (sync, stream, background, batch),
-- kept (1: SQL has it too, and it expires only once SQL has its result), model, organization, key, request (JSON for
-- the worker), view (JSON for responses), priority, created, deadline, ttl, web (lease holder, or empty), attempt,
-- losses, owner, worker (the last owner, once it has ended), started, finished, cancel, seq (next sequence number),
-- prompt_tokens, request_id (of the HTTP request, or empty), reserved (tokens taken from the key's bucket, where it
-- has one), prices (of a token in billionths: prompt, cached prompt, completion; JSON), held (JSON, see budgets.lua),
-- trace (W3C headers of its span, JSON; where it is traced), adapter, parameters (for the usage record), stored (1: the record keeps the request), generated (tokens published),
-- first (when the first of them was), republished (since the last claim), error, usage.

local prefix = KEYS[1]

local function job_key(id) return prefix .. 'job:' .. id end
local function event_key(id) return prefix .. 'ev:' .. id end

-- All times are by this clock. A submitter tells seconds from now on.
local function now()
  local t = redis.call('TIME')
  return tonumber(t[1]) + tonumber(t[2]) / 1e6
end

-- `told` are the events in fields e. Entries are kept for longer than passes between two reads.
local WAKES_KEPT = 10 -- seconds; results are among them
local function wake(web, id, told)
  local control, entry = prefix .. 'ctl:' .. web, {'d', id}
  for _, value in ipairs(told or {}) do
    entry[#entry + 1] = 'e'
    entry[#entry + 1] = value
  end
  local oldest = string.format('%.0f', (now() - WAKES_KEPT) * 1000)
  redis.call('XADD', control, 'MINID', '~', oldest, '*', unpack(entry))
  redis.call('EXPIRE', control, 60)
end

local CLASSES = {'interactive', 'background', 'batch'}

local function class_of(kind)
  return (kind == 'sync' or kind == 'stream') and 'interactive' or kind
end

-- The id of the newest entry that the usage stream ever had.
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

-- Whether a record that has not ended has all that every version wrote of such a job: a script that failed for want of one
-- would fail for all jobs that it looks at.
local function is_job(key)
  if redis.call('HEXISTS', key, 'request') == 0 then return false end
  local known = redis.call('HMGET', key, 'kind', 'model', 'organization', 'key', 'priority', 'created', 'deadline', 'ttl',
    'web', 'attempt', 'seq', 'prompt_tokens')
  for i = 1, 12 do
    if not known[i] then return false end
  end
  return true
end
