-- The last write of the worker that owns a job: what it gained last, if that is not stored yet, and its end.
-- ARGV: id, worker id, attempt, state, event, usage, error, sequence number of the event; then as in publish.lua sequence number
-- of the event with what it gained, number of choices in it, number of tokens in it, seconds since its first tokens were
-- generated, event ('' for none).
-- Returns 1. Returns 0 if the job has ended or is no longer this worker's, or if it completed or gained
-- something but an event is missing.
local id, gained = ARGV[1], ARGV[13]
local job = redis.call('HMGET', job_key(id), 'state', 'owner', 'attempt', REDIS.sequence_number, 'generated')
if job[1] ~= 'running' or job[2] ~= ARGV[2] or job[3] ~= ARGV[3] then return 0 end
local stored = tonumber(job[4])
if gained ~= '' and store(id, tonumber(ARGV[9]), ARGV[10], ARGV[11], gained, stored, tonumber(job[5] or 0), ARGV[12]) then
  stored = stored + ARGV[10]
end
if tonumber(ARGV[8]) > stored and (ARGV[4] == 'completed' or gained ~= '') then
  give_back(id) -- as in publish.lua
  return 0
end
finalize(id, ARGV[4], ARGV[5], ARGV[6], ARGV[7])
return 1
