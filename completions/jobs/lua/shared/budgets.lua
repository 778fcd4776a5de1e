-- Budgets of API keys and organizations per day and month (UTC): tokens, and money in billionths.
--
-- spent:<scope> counts the use of a scope with a budget: k<key> or o<organization>. For running jobs, it holds (reserves)
-- the most that they can use. When a job ends, its actual use counts as spent, on the day of its end. If the hash is
-- missing, the web tier seeds it from SQL.

local SPENT_KEPT = 40 * 86400 -- seconds since the scope's last job ended; a month's sum must outlive the month
local SPENT = {'day', 'month', 'day_tokens', 'month_tokens', 'day_cost', 'month_cost', 'held_tokens', 'held_cost'}

local function whole(number) return string.format('%.0f', number) end

-- The number of the day and of the month since 1970. Redis has no calendar.
local function periods(at)
  local day = math.floor(at / 86400)
  local z = day + 719468 -- days since the 1st of March of the year 0: leap days come last
  local era = math.floor(z / 146097)
  local doe = z - era * 146097
  local yoe = math.floor((doe - math.floor(doe / 1460) + math.floor(doe / 36524) - math.floor(doe / 146096)) / 365)
  local doy = doe - (365 * yoe + math.floor(yoe / 4) - math.floor(yoe / 100))
  local march = math.floor((5 * doy + 2) / 153)
  return day, (yoe + era * 400 - 1970) * 12 + march + 2
end

-- What a scope has spent in this day and month, and what it holds; nil if it is not seeded.
local function spent_by(scope, day, month)
  local stored = redis.call('HMGET', prefix .. 'spent:' .. scope, unpack(SPENT))
  if not stored[1] then return nil end
  local spent = {}
  for i, name in ipairs(SPENT) do spent[name] = tonumber(stored[i] or 0) end
  if spent.day ~= day then spent.day, spent.day_tokens, spent.day_cost = day, 0, 0 end
  if spent.month ~= month then spent.month, spent.month_tokens, spent.month_cost = month, 0, 0 end
  return spent
end

local function write_spent(scope, spent)
  local fields = {}
  for _, name in ipairs(SPENT) do
    fields[#fields + 1] = name
    fields[#fields + 1] = whole(math.max(0, spent[name]))
  end
  redis.call('HSET', prefix .. 'spent:' .. scope, unpack(fields))
end

local function keep_spent(scope) redis.call('EXPIRE', prefix .. 'spent:' .. scope, SPENT_KEPT) end

-- Whether `tokens` and `cost` still fit. `budgets` holds, per scope, the daily and monthly tokens and the daily
-- and monthly cost; negative means no budget. Returns 'ok' and what `hold` writes; or the scope, the name of the budget
-- that is reached, and how much of it is spent and held; or the scope and 'unseeded'.
local function within_budgets(scopes, budgets, tokens, cost, at)
  local day, month = periods(at)
  local found = {}
  for i, scope in ipairs(scopes) do
    local budget = budgets[i]
    if math.max(unpack(budget)) >= 0 then
      local spent = spent_by(scope, day, month)
      if not spent then return scope, 'unseeded', 0 end
      local used = {
        spent.day_tokens + spent.held_tokens, spent.month_tokens + spent.held_tokens,
        spent.day_cost + spent.held_cost, spent.month_cost + spent.held_cost,
      }
      for j, name in ipairs({'daily_tokens', 'monthly_tokens', 'daily_cost', 'monthly_cost'}) do
        if budget[j] >= 0 and used[j] + (j < 3 and tokens or cost) > budget[j] then return scope, name, used[j] end
      end
      found[scope] = spent
    end
  end
  return 'ok', found
end

-- Hold tokens and cost for a job. Returns the field `held` of its record, or nil: scopes, tokens, cost.
local function hold(found, tokens, cost)
  local scopes = {}
  for scope, spent in pairs(found) do
    spent.held_tokens, spent.held_cost = spent.held_tokens + tokens, spent.held_cost + cost
    write_spent(scope, spent)
    scopes[#scopes + 1] = scope
  end
  return #scopes > 0 and cjson.encode({scopes, tokens, cost}) or nil
end

-- End a job: release what it held, and count what it used as spent. Most scopes have no budget.
local function spend(scopes, held, tokens, cost, at)
  if redis.call('EXISTS', prefix .. 'spent:' .. scopes[1], prefix .. 'spent:' .. scopes[2]) == 0 then return end
  local day, month = periods(at)
  local holds, of_scope = held and cjson.decode(held) or {{}, 0, 0}, {}
  for _, scope in ipairs(holds[1]) do of_scope[scope] = true end
  for _, scope in ipairs(scopes) do
    local spent = spent_by(scope, day, month)
    if spent then
      if of_scope[scope] then
        spent.held_tokens, spent.held_cost = spent.held_tokens - holds[2], spent.held_cost - holds[3]
      end
      spent.day_tokens, spent.month_tokens = spent.day_tokens + tokens, spent.month_tokens + tokens
      spent.day_cost, spent.month_cost = spent.day_cost + cost, spent.month_cost + cost
      write_spent(scope, spent)
      keep_spent(scope)
    end
  end
end
