-- The last write of the worker that owns a job. ARGV: id, worker id, attempt, state, event, usage, error, sequence number
-- of the event.
-- Returns 1. Returns 0 if the job has ended or is no longer this worker's, or if it completed but an event is missing.
local id = ARGV[1]
local job = redis.call('HMGET', job_key(id), 'state', 'owner', 'attempt', REDIS.sequence_number)
if job[1] ~= 'running' or job[2] ~= ARGV[2] or job[3] ~= ARGV[3] then return 0 end
if ARGV[4] == 'completed' and tonumber(ARGV[8]) > tonumber(job[4]) then
  give_back(id) -- as in publish.lua
  return 0
end
finalize(id, ARGV[4], ARGV[5], ARGV[6], ARGV[7])
return 1
