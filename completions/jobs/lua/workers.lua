-- List the live workers, and forget the others.
-- Returns {id, heartbeat, milliseconds until it expires, 1 if an operator asked to drain it} per worker.
local live = {}
for _, id in ipairs(redis.call('SMEMBERS', prefix .. 'workers')) do
  local key = prefix .. 'worker:' .. id
  local beat = redis.call('GET', key)
  if beat then
    live[#live + 1] = {id, beat, redis.call('PTTL', key), redis.call('EXISTS', prefix .. 'drain:' .. id)}
  else
    redis.call('SREM', prefix .. 'workers', id)
  end
end
return live
