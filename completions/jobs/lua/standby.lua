-- A worker that loads one of several models at a time takes jobs of all of them. ARGV: the models.
-- Returns per model the most urgent level of which jobs wait, or -1, and how many wait of that level.
local LAST_LEVEL = 3

local function count_waiting(level, model)
  local turns, count = queue_keys(level, model, '', ''), 0
  for _, organization_id in ipairs(redis.call('ZRANGE', turns, 0, -1)) do
    local _, key_turns = queue_keys(level, model, organization_id, '')
    for _, api_key_id in ipairs(redis.call('ZRANGE', key_turns, 0, -1)) do
      local _, _, waiting = queue_keys(level, model, organization_id, api_key_id)
      count = count + redis.call('ZCARD', waiting)
    end
  end
  return count
end

local replies, at = {}, tostring(now())
for i, model in ipairs(ARGV) do
  redis.call('ZADD', prefix .. 'served', at, model)
  redis.call('ZADD', prefix .. 'standby', at, model)
  replies[i] = {-1, 0}
  for level = LAST_LEVEL, 0, -1 do
    local turns = queue_keys(level, model, '', '')
    if redis.call('EXISTS', turns) == 1 then replies[i] = {level, 0} end
  end
  if replies[i][1] >= 0 then replies[i][2] = count_waiting(replies[i][1], model) end
end
return replies
