-- Publish one engine step: append the events of many jobs, and return which of them must stop.
-- ARGV: worker id, then per job: id, attempt, sequence number of the event, number of choices in it, number of tokens in
-- it, event ('' to ask only).
-- Returns per job 0 to go on, 1 to cancel it (by its client, or its web process has gone), 2 to drop it (it is no longer
-- this worker's).
local worker = ARGV[1]
local replies = {}
local leases = {}

local function gone(web)
  if leases[web] == nil then leases[web] = redis.call('EXISTS', prefix .. 'web:' .. web) end
  return leases[web] == 0
end

for i = 2, #ARGV, 6 do
  local id, attempt, sequence_number, count = ARGV[i], ARGV[i + 1], tonumber(ARGV[i + 2]), tonumber(ARGV[i + 3])
  local tokens, event = ARGV[i + 4], ARGV[i + 5]
  local key = job_key(id)
  local job = redis.call('HMGET', key, 'state', 'owner', 'attempt', REDIS.cancelling, 'web', REDIS.sequence_number,
    'generated')
  local reply = 0
  if job[1] ~= 'running' or job[2] ~= worker or job[3] ~= attempt then
    reply = 2
  else
    if event ~= '' and sequence_number == tonumber(job[6]) then -- otherwise the worker is repeating it
      redis.call('XADD', event_key(id), '*', 'd', event)
      local generated = tonumber(job[7] or 0)
      redis.call('HSET', key, REDIS.sequence_number, sequence_number + count, 'generated', generated + tokens)
      if generated == 0 and tonumber(tokens) > 0 then redis.call('HSETNX', key, 'first', tostring(now())) end
    end
    if job[4] or (job[5] ~= '' and gone(job[5])) then
      cancelled_by(id, 'web')
      reply = 1
    end
  end
  if reply < 2 and event ~= '' and sequence_number > tonumber(job[6]) then
    give_back(id) -- Redis was restored without the last events; another attempt makes them again
    reply = 2
  end
  replies[#replies + 1] = reply
end
return replies
