-- What a worker has shown of its jobs and not stored yet, and how a job is taken from it.
--
--   shown:<worker>      lines that were shown since the worker last stored everything
--   attention:<worker>  a job was taken from it or cancelled: it shows nothing more before it has asked about all of them
--
-- What a client has seen is never computed again: drafts might divide the tokens into other events, whose numbers are the
-- cursors of clients. So whoever takes a job from a worker first stores what that has shown.

local TAKEOVER_KEPT = 86400 -- seconds; longer than a job waits for another worker

local function call_attention(worker) redis.call('SET', prefix .. 'attention:' .. worker, 1, 'EX', TAKEOVER_KEPT) end

-- Store what a job gained in a step; `since` is how many seconds ago its first tokens were generated. Returns whether that
-- was the next.
local function store(id, first, count, tokens, event, stored, generated, since)
  if first ~= stored then return false end
  local key = job_key(id)
  redis.call('XADD', event_key(id), '*', 'd', event)
  redis.call('HSET', key, REDIS.sequence_number, first + count, 'generated', generated + tokens)
  if generated == 0 and tonumber(tokens) > 0 then redis.call('HSETNX', key, 'first', tostring(now() - since)) end
  return true
end

-- Store what a worker has shown of a job of its own.
local function store_shown(worker, id)
  local job = redis.call('HMGET', job_key(id), 'attempt', REDIS.sequence_number, 'generated')
  if not (job[1] and job[2]) then return end -- it is no job's record
  local stored, generated = tonumber(job[2]), tonumber(job[3] or 0)
  local head = '["' .. id .. '",' .. job[1] .. ','
  for _, lines in ipairs(redis.call('LRANGE', prefix .. 'shown:' .. worker, 0, -1)) do
    for line in string.gmatch(lines, '[^\n]+') do
      if string.sub(line, 1, #head) == head then
        local first, count, tokens, gains = string.match(line, '^(%d+),(%d+),(%d+),(.*)%]$', #head + 1)
        local event = '{"s":' .. first .. ',"c":[' .. gains .. ']}'
        if store(id, tonumber(first), count, tokens, event, stored, generated, 0) then
          stored, generated = stored + count, generated + tokens
        end
      end
    end
  end
end

-- Prepare to take a job from a worker that may not know: store what it has shown, and stop it from showing more.
local function take_from(worker, id)
  store_shown(worker, id)
  call_attention(worker)
end
