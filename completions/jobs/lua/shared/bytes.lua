-- Bytes of open jobs: their requests and contexts. Redis holds them until a job has ended.
--
-- The hash `bytes` has a sum per scope: `k<key>`, `o<organization>`, a class, `all`. Lines of batches count towards
-- `b<organization>` instead of the first two: Quire decides when to send them, so they must not displace the
-- organization's own requests. A job's own number is in its record, so recount.lua can add up the sums again.

local function byte_scopes(kind, key, organization)
  if kind == 'batch' then return {'b' .. organization, 'batch', 'all'} end
  return {'k' .. key, 'o' .. organization, class_of(kind), 'all'}
end

local function read_bytes(scopes)
  local sums = redis.call('HMGET', prefix .. 'bytes', unpack(scopes))
  for i = 1, #scopes do sums[i] = tonumber(sums[i] or 0) end
  return sums
end

-- The first scope that has no room for `size` more bytes, and what it holds; nil if there is none. `most` has the bound of
-- each scope. A key or an organization that holds nothing may always send one job.
local function full_scope(scopes, sums, most, size)
  for i = 1, #scopes do
    local is_own = i <= #scopes - 2
    if sums[i] + size > most[i] and (sums[i] > 0 or not is_own) then return scopes[i], sums[i] end
  end
end

local function add_bytes(scopes, sums, size)
  local fields = {}
  for i = 1, #scopes do
    fields[2 * i - 1], fields[2 * i] = scopes[i], sums[i] + size
  end
  redis.call('HSET', prefix .. 'bytes', unpack(fields))
end

local function free_bytes(scopes, size) add_bytes(scopes, read_bytes(scopes), -size) end
