-- A worker gives its jobs back; the next attempt continues after the last published token.
-- ARGV: worker id, 1 if the worker failed (counts as a failure), then per job: id, attempt.
local worker = ARGV[1]
for i = 3, #ARGV, 2 do
  local key = job_key(ARGV[i])
  local job = redis.call('HMGET', key, 'state', 'owner', 'attempt')
  if job[1] == 'running' and job[2] == worker and job[3] == ARGV[i + 1] then
    give_back(ARGV[i])
    redis.call('HINCRBY', key, REDIS.worker_failures, ARGV[2])
  end
end
return 1
