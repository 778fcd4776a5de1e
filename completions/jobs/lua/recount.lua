-- Add up again the bytes of open jobs. The sums differ from their jobs' numbers if a record was lost or deleted by hand.
-- Returns how many sums were wrong.
local sums, wrong = {}, 0
for _, id in ipairs(redis.call('ZRANGE', prefix .. 'open', 0, -1)) do
  local job = redis.call('HMGET', job_key(id), 'bytes', 'kind', REDIS.api_key_id, REDIS.organization_id)
  local size = tonumber(job[1] or 0)
  if size and size > 0 and job[2] and job[3] and job[4] then
    for _, scope in ipairs(byte_scopes(job[2], job[3], job[4])) do sums[scope] = (sums[scope] or 0) + size end
  end
end
local stored = redis.call('HGETALL', prefix .. 'bytes')
for i = 1, #stored, 2 do
  local sum = sums[stored[i]]
  if (sum or 0) ~= tonumber(stored[i + 1]) then wrong = wrong + 1 end
  if not sum then redis.call('HDEL', prefix .. 'bytes', stored[i]) end
end
for scope, sum in pairs(sums) do
  if redis.call('HSET', prefix .. 'bytes', scope, string.format('%.0f', sum)) == 1 then wrong = wrong + 1 end
end
return wrong
