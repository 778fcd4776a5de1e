-- Claim the jobs whose turn it is. ARGV: the terms as JSON, then ids of jobs from messages. Terms:
--   worker, max_worker_failures, model
--   serial          a call with the serial of the worker's last one gets the same jobs: the first reply may have been lost
--   levels          per level, the highest first: level; room in sequences and in bytes; how many more organizations may have
--                   one job each, if the worker holds none of theirs on that level; those of which it does
-- Returns {{verdict, id} per id from a message that the worker has nothing to do for, jobs}. A verdict is one of claim()'s,
-- or `unqueued` for a job that is in no fair queue. A job is its id, followed by what claim() returns.
-- A job may exceed the room: it counts as long as something is left.
local terms = cjson.decode(ARGV[1])
local worker, model = terms.worker, terms.model
local taken_key, at = prefix .. 'taken:' .. worker, now()
local jobs, ids, turn = {}, {}, 0

-- What became of a message's job, if the worker need not keep the message. A job whose worker has died waits again.
local function outcome(id)
  local job = redis.call('HMGET', job_key(id), 'state', 'owner', 'level')
  if not job[1] then return 'gone' end
  if ended(job[1]) then return 'done' end
  if not job[3] then return 'unqueued' end
  if not redis.call('ZSCORE', prefix .. 'open', id) then return 'foreign' end -- claim() has dropped it
  if job[1] == 'running' then
    if redis.call('EXISTS', prefix .. 'worker:' .. job[2]) == 1 then return 'elsewhere' end
    fair_requeue(id)
  end
end

local function begin(id)
  local job = claim(id, worker, terms.max_worker_failures)
  if job[1] ~= 'run' then return nil end
  jobs[#jobs + 1] = {id, job}
  ids[#ids + 1] = id
  return job
end

-- Give an organization its turn. Returns whether the worker has a job of it now, and what the job takes.
local function serve(level, organization_id)
  while true do
    turn = turn + 1
    local id = fair_pop(level, model, organization_id, string.format('%.6f', at + turn / 1e6))
    if not id then return false, 0, 0 end
    local job = begin(id)
    if job then return true, tonumber(job[12]), tonumber(job[13]) end
  end
end

local function fill(room)
  local level, sequences, bytes, guests, held = unpack(room)
  local turns = prefix .. 'turns:' .. level .. ':' .. model
  local is_held = {}
  for _, organization_id in ipairs(held) do is_held[organization_id] = true end
  while sequences > 0 and bytes > 0 do
    local organization_id = redis.call('ZRANGE', turns, 0, 0)[1]
    if not organization_id then return end
    local _, more, size = serve(level, organization_id)
    sequences, bytes = sequences - more, bytes - size
    is_held[organization_id] = true
  end
  if guests <= 0 then return end
  for _, organization_id in ipairs(redis.call('ZRANGE', turns, 0, 63)) do
    if guests > 0 and not is_held[organization_id] and serve(level, organization_id) then guests = guests - 1 end
  end
end

local settled = {}
for i = 2, #ARGV do
  local verdict = outcome(ARGV[i])
  if verdict then settled[#settled + 1] = {verdict, ARGV[i]} end
end
local last = redis.call('GET', taken_key)
last = last and cjson.decode(last)
if last and last.serial == terms.serial then
  for _, id in ipairs(last.ids) do
    local job = redis.call('HMGET', job_key(id), 'state', 'owner')
    if job[1] == 'running' and job[2] == worker then begin(id) end
  end
else
  for _, room in ipairs(terms.levels) do fill(room) end
  if #ids > 0 then
    redis.call('SET', taken_key, cjson.encode({serial = terms.serial, ids = ids}), 'EX', 3600)
  end
end
return {settled, jobs}
