-- Begin to count what a scope spends, with what SQL and the usage stream say it has spent so far.
-- ARGV: scope, id of the last entry of the usage stream that was counted, day, month, tokens of the day and the month,
-- cost of the day and the month. Returns 1; 0 when a job ended meanwhile or a period did, so that all is to be counted
-- again. A scope that has been seeded meanwhile stays as it is.
local scope, day, month = ARGV[1], periods(now())
if redis.call('EXISTS', prefix .. 'spent:' .. scope) == 1 then return 1 end
if day ~= tonumber(ARGV[3]) or month ~= tonumber(ARGV[4]) or last_ended() ~= ARGV[2] then return 0 end
local spent = {day = day, month = month, held_tokens = 0, held_cost = 0}
spent.day_tokens, spent.month_tokens = tonumber(ARGV[5]), tonumber(ARGV[6])
spent.day_cost, spent.month_cost = tonumber(ARGV[7]), tonumber(ARGV[8])
write_spent(scope, spent)
keep_spent(scope)
return 1
