-- How a job ends and how it goes back to the queue, for all scripts.

local function reset(id)
  local owner = redis.call('HGET', job_key(id), 'owner')
  if owner then take_from(owner, id) end
  redis.call('HSET', job_key(id), 'state', 'queued')
  redis.call('HDEL', job_key(id), 'owner')
end

-- Put a job back into the queue. The next attempt continues after the last published token.
local function give_back(id)
  reset(id)
  redis.call('ZADD', prefix .. 'open', now(), id)
  fair_requeue(id)
end

-- Note who cancels a job. The first one counts.
local function cancelled_by(id, who)
  redis.call('HSETNX', job_key(id), 'cancelled_by', who)
end

-- Tokens that a job used, and their cost in billionths at the prices in its record.
local function account(usage, prices)
  if usage == '' then return 0, 0 end
  local counts = cjson.decode(usage)
  local tokens, cost = counts.prompt_tokens + counts.completion_tokens, 0
  if prices then
    local price = cjson.decode(prices)
    cost = (counts.prompt_tokens - counts.cached_tokens) * price[1] + counts.cached_tokens * price[2]
      + counts.completion_tokens * price[3]
  end
  return tokens, math.floor(cost + 0.5)
end

-- All events of a job, or none if they are too many to send at once; then its web process reads them in pages.
local MAX_EVENTS, MAX_BYTES = 64, 16384
local function short_result(id)
  local events, bytes = {}, 0
  for i, entry in ipairs(redis.call('XRANGE', event_key(id), '-', '+', 'COUNT', MAX_EVENTS + 1)) do
    events[i] = entry[2][2]
    bytes = bytes + #events[i]
  end
  if #events > MAX_EVENTS or bytes > MAX_BYTES then return {} end
  return events
end

-- End a job: last event, usage entry, expiry. Every job ends here; the caller has checked the fence.
local function finalize(id, state, event, usage, error)
  local key = job_key(id)
  local at = now()
  local job = redis.call('HMGET', key, 'ttl', 'kind', 'model', REDIS.organization_id, REDIS.api_key_id, 'created', 'started',
    'reserved', REDIS.is_durable, 'prices', 'held', 'adapter', 'first', 'attempt', 'owner', 'parameters', 'stored', 'request',
    'request_id', 'web', 'bytes', 'cancelled_by', 'reader')
  local tokens, cost = account(usage, job[10])
  local entry_id = redis.call('XADD', event_key(id), '*', 'd', event)
  redis.call('HSET', key, 'state', state, 'finished', tostring(at), 'usage', usage, 'error', error,
    REDIS.last_owner, job[15] or '')
  redis.call('HDEL', key, 'request', 'owner')
  redis.call('ZREM', prefix .. 'open', id)
  redis.call('SREM', prefix .. 'depth:' .. class_of(job[2]), id)
  redis.call('ZREM', prefix .. 'queued:' .. job[5], id)
  if job[21] then free_bytes(byte_scopes(job[2], job[5], job[4]), job[21]) end
  settle(job[5], id, job[8], tokens)
  spend({'k' .. job[5], 'o' .. job[4]}, job[11], tokens, cost, at)
  if job[9] ~= '1' then
    redis.call('EXPIRE', key, job[1])
    redis.call('EXPIRE', event_key(id), job[1])
  end
  redis.call('XADD', prefix .. 'usage', '*', 'id', id, 'state', state, 'kind', job[2], 'model', job[3],
    REDIS.organization_id, job[4], REDIS.api_key_id, job[5], 'created', job[6], 'started', job[7] or '', 'finished',
    tostring(at), 'usage', usage, 'error', error, REDIS.is_durable, job[9] or '', 'cost', whole(cost), 'adapter',
    job[12] or '', 'first', job[13] or '', 'attempt', job[14], REDIS.last_owner, job[15] or '', 'parameters', job[16] or '',
    'request', job[17] == '1' and job[18] or '', 'request_id', job[19] or '', 'cancelled_by', job[22] or '')
  if job[2] == 'sync' and (job[20] or '') ~= '' then wake(job[20], id, short_result(id)) end
  if job[23] then
    show_lines(job[23], '["' .. id .. '",' .. job[14] .. ',0,0,0,' .. event .. ',"' .. entry_id .. '"]')
  end
end

-- End a job that no worker ends: cancelled while queued, expired or lost. `code` is the error's, or nil. The tokens of
-- earlier attempts count.
local function finalize_here(id, state, code)
  fair_remove(id)
  local owner = redis.call('HGET', job_key(id), 'owner')
  if owner then take_from(owner, id) end
  local error = code and '{"code":"' .. code .. '"}' or ''
  local job = redis.call('HMGET', job_key(id), REDIS.sequence_number, 'prompt_tokens', 'generated')
  local usage = ''
  if job[3] then
    usage = '{"prompt_tokens":' .. job[2] .. ',"completion_tokens":' .. job[3] .. ',"cached_tokens":0}'
  end
  local event = '{"s":' .. job[1] .. ',"end":"' .. state .. '","error":' .. (error ~= '' and error or 'null')
    .. ',"usage":' .. (usage ~= '' and usage or 'null') .. '}'
  finalize(id, state, event, usage, error)
end
