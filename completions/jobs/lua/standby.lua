-- A worker that loads one of several models at a time takes jobs of all of them. ARGV: the models.
-- Returns per model the most urgent level of which jobs wait, or -1.
local LAST_LEVEL = 3
local waiting, at = {}, tostring(now())
for i, model in ipairs(ARGV) do
  redis.call('ZADD', prefix .. 'served', at, model)
  redis.call('ZADD', prefix .. 'standby', at, model)
  waiting[i] = -1
  for level = LAST_LEVEL, 0, -1 do
    if redis.call('EXISTS', prefix .. 'turns:' .. level .. ':' .. model) == 1 then waiting[i] = level end
  end
end
return waiting
