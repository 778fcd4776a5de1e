-- How a job ends, whoever ends it, and how it goes back to the queue.

-- Its worker has lost it, or it has lost its last events: the next claim goes on from what was published.
local function give_back(id)
  local key = job_key(id)
  redis.call('HSET', key, 'state', 'queued')
  redis.call('HDEL', key, 'owner')
  redis.call('ZADD', prefix .. 'open', now(), id)
end

-- What a job used and what that costs in billionths, by the prices of a token of each kind that its record holds.
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

-- All events of a job, or none where they are many: those are read by and by.
local MOST_TOLD, MOST_BYTES_TOLD = 64, 16384
local function result_to_tell(id)
  local told, bytes = {}, 0
  for i, entry in ipairs(redis.call('XRANGE', event_key(id), '-', '+', 'COUNT', MOST_TOLD + 1)) do
    told[i] = entry[2][2]
    bytes = bytes + #told[i]
  end
  if #told > MOST_TOLD or bytes > MOST_BYTES_TOLD then return {} end
  return told
end

-- The one way in which a job ends: terminal event, usage entry, expiry. The caller has checked the fence.
local function finalize(id, state, event, usage, error)
  local key = job_key(id)
  local at = now()
  local job = redis.call('HMGET', key, 'ttl', 'kind', 'model', 'organization', 'key', 'created', 'started', 'reserved',
    'kept', 'prices', 'held', 'adapter', 'first', 'attempt', 'owner', 'parameters', 'stored', 'request', 'request_id',
    'web')
  local tokens, cost = account(usage, job[10])
  redis.call('XADD', event_key(id), '*', 'd', event)
  redis.call('HSET', key, 'state', state, 'finished', tostring(at), 'usage', usage, 'error', error)
  if job[15] then redis.call('HSET', key, 'worker', job[15]) end
  redis.call('HDEL', key, 'request', 'owner')
  redis.call('ZREM', prefix .. 'open', id)
  redis.call('SREM', prefix .. 'depth:' .. class_of(job[2]), id)
  redis.call('ZREM', prefix .. 'queued:' .. job[5], id)
  settle(job[5], id, job[8], tokens)
  spend({'k' .. job[5], 'o' .. job[4]}, job[11], tokens, cost, at)
  if job[9] ~= '1' then
    redis.call('EXPIRE', key, job[1])
    redis.call('EXPIRE', event_key(id), job[1])
  end
  redis.call('XADD', prefix .. 'usage', '*', 'id', id, 'state', state, 'kind', job[2], 'model', job[3],
    'organization', job[4], 'key', job[5], 'created', job[6], 'started', job[7] or '', 'finished', tostring(at),
    'usage', usage, 'error', error, 'kept', job[9] or '', 'cost', whole(cost), 'adapter', job[12] or '',
    'first', job[13] or '', 'attempts', job[14], 'worker', job[15] or '', 'parameters', job[16] or '',
    'request', job[17] == '1' and job[18] or '', 'request_id', job[19] or '')
  if job[2] == 'sync' and (job[20] or '') ~= '' then wake(job[20], id, result_to_tell(id)) end
end

-- An end without a worker's word: cancelled while queued, expired, lost. `error` is '' or an error object in JSON.
-- What earlier attempts generated is counted.
local function finalize_here(id, state, error)
  local job = redis.call('HMGET', job_key(id), 'seq', 'prompt_tokens', 'generated')
  local usage = ''
  if job[3] then
    usage = '{"prompt_tokens":' .. job[2] .. ',"completion_tokens":' .. job[3] .. ',"cached_tokens":0}'
  end
  local event = '{"s":' .. job[1] .. ',"end":"' .. state .. '","error":' .. (error ~= '' and error or 'null')
    .. ',"usage":' .. (usage ~= '' and usage or 'null') .. '}'
  finalize(id, state, event, usage, error)
end
