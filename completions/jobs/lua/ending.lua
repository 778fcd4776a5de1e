-- How a job ends, whoever ends it.

-- The one way in which a job ends: terminal event, usage entry, expiry. The caller has checked the fence.
local function finalize(id, state, event, usage, error)
  local key = job_key(id)
  local at = now()
  local job = redis.call('HMGET', key, 'ttl', 'kind', 'model', 'organization', 'key', 'created', 'started', 'reserved',
    'kept', 'request_id')
  redis.call('XADD', event_key(id), '*', 'd', event)
  redis.call('HSET', key, 'state', state, 'finished', tostring(at), 'usage', usage, 'error', error)
  redis.call('HDEL', key, 'request', 'owner')
  redis.call('ZREM', prefix .. 'open', id)
  settle(job[5], id, job[8], usage)
  if job[9] ~= '1' then
    redis.call('EXPIRE', key, job[1])
    redis.call('EXPIRE', event_key(id), job[1])
  end
  redis.call('XADD', prefix .. 'usage', '*', 'id', id, 'state', state, 'kind', job[2], 'model', job[3],
    'organization', job[4], 'key', job[5], 'created', job[6], 'started', job[7] or '', 'finished', tostring(at),
    'usage', usage, 'error', error, 'kept', job[9] or '', 'request_id', job[10] or '')
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
