-- Show web processes what their streams gained in a step of a worker, before it is stored in the jobs' own streams.
-- ARGV: worker id, then per web process: id, lines (jobs/events.py).
-- Returns 0; or 1 if the worker must store every step from now on, since a worker of a version that would take its jobs
-- without what it has shown is alive; or 2 if nothing was shown: first, the worker must ask about all of its jobs.
local worker = ARGV[1]
local modes = redis.call('MGET', prefix .. 'attention:' .. worker, prefix .. 'storing')
if modes[1] then return 2 end
local lines = {}
for i = 3, #ARGV, 2 do lines[#lines + 1] = ARGV[i] end
local shown = prefix .. 'shown:' .. worker
if redis.call('RPUSH', shown, unpack(lines)) == #lines then redis.call('EXPIRE', shown, TAKEOVER_KEPT) end
for i = 2, #ARGV, 2 do show_lines(ARGV[i], ARGV[i + 1]) end
return modes[2] and 1 or 0
