-- Publish what jobs gained: append their events, and return which of them must stop.
-- ARGV: worker id, 1 if these are all of its jobs with a reader and what it has shown of them, then per job: id, attempt,
-- sequence number of the event, number of choices in it, number of tokens in it, seconds since its first tokens were generated,
-- event ('' to ask only).
-- Returns per job 0 to go on, 1 to cancel it (by its client, or its web process has gone), 2 to drop it (it is no longer
-- this worker's), 3 to go on without its reader, which has gone.
local worker = ARGV[1]
local replies = {}
local leases = {}
local must_stop = false

local function gone(web)
  if leases[web] == nil then leases[web] = redis.call('EXISTS', prefix .. 'web:' .. web) end
  return leases[web] == 0
end

for i = 3, #ARGV, 7 do
  local id, attempt, sequence_number, event = ARGV[i], ARGV[i + 1], tonumber(ARGV[i + 2]), ARGV[i + 6]
  local job = redis.call('HMGET', job_key(id), 'state', 'owner', 'attempt', REDIS.cancelling, 'web', REDIS.sequence_number,
    'generated', 'reader')
  local reply = 0
  if job[1] ~= 'running' or job[2] ~= worker or job[3] ~= attempt then
    reply = 2
  else
    local stored = tonumber(job[6])
    if event ~= '' then -- if it is not the next, the worker is repeating it
      store(id, sequence_number, ARGV[i + 3], ARGV[i + 4], event, stored, tonumber(job[7] or 0), ARGV[i + 5])
    end
    if job[4] or (job[5] ~= '' and gone(job[5])) then
      cancelled_by(id, 'web')
      reply = 1
    elseif job[8] and gone(job[8]) then
      reply = 3
    end
    if event ~= '' and sequence_number > stored then
      give_back(id) -- Redis was restored without the last events; another attempt makes them again
      reply = 2
    end
  end
  must_stop = must_stop or reply == 1 or reply == 2
  replies[#replies + 1] = reply
end
if must_stop then
  call_attention(worker) -- it may show a line of such a job in this round trip
elseif ARGV[2] == '1' then
  redis.call('DEL', prefix .. 'shown:' .. worker, prefix .. 'attention:' .. worker)
end
return replies
