-- Start counting what a scope spends, from what it has spent so far according to SQL and the usage stream.
-- ARGV: scope, id of the last counted entry of the usage stream, day, month, tokens of the day and the month, cost of the
-- day and the month.
-- Returns 1, or 0 if a job or a period has ended meanwhile, so that the caller must count again. A scope that was seeded
-- meanwhile is not changed.
local scope, day, month = ARGV[1], periods(now())
if redis.call('EXISTS', prefix .. 'spent:' .. scope) == 1 then return 1 end
if day ~= tonumber(ARGV[3]) or month ~= tonumber(ARGV[4]) or last_ended() ~= ARGV[2] then return 0 end
local spent = {day = day, month = month, held_tokens = 0, held_cost = 0}
spent.day_tokens, spent.month_tokens = tonumber(ARGV[5]), tonumber(ARGV[6])
spent.day_cost, spent.month_cost = tonumber(ARGV[7]), tonumber(ARGV[8])
write_spent(scope, spent)
keep_spent(scope)
return 1
