-- Starts due jobs of a queue that has no limits, in the order of R30.
--
-- KEYS[4..8] are leases, counts, slots, what runs of keys, and the heads of the queue's lines;
-- further ones are lines, by their number. Asked are how many, the length of the leases, the worker,
-- the queue, the fields of its slots, the lanes by priority, the highest first, and the shapes whose
-- starts are remembered. Answers with when the next job is due and the first lease ends, and with
-- the id and the row of each job that was started. Where nothing is due, nothing is written.
local limit, length, worker, queue, slots, lanes, remembered = unpack(asked)
-- A lane: its name among heads, its number, line, priority, task.
local NAME, NUMBER, LINE, PRIORITY, TASK = 1, 2, 3, 4, 5
local MOST_HEADS = 200

-- When the first job of each line is due. Those of partitions have lines of their own, whose keys
-- the caller does not know.
local heads = redis.call('ZRANGE', KEYS[8], 0, MOST_HEADS - 1, 'WITHSCORES')
if #heads == 2 * MOST_HEADS then return GENERAL end
local firsts, known = {}, {}
for _, lane in ipairs(lanes) do known[lane[NAME]] = true end
for place = 1, #heads, 2 do
  local name = heads[place]
  firsts[name] = heads[place + 1]
  local of_partition = string.match(name, '^(%d+) ')
  if of_partition and known[of_partition] then return GENERAL end
end

-- The lines of one priority that may hold some of the next jobs: once as many as are wanted are
-- there, whoever is first elsewhere comes later.
local function candidates(from, to, left)
  local due = {}
  for number = from, to do
    local first = tonumber(firsts[lanes[number][NAME]])
    if first and first <= now then due[#due + 1] = { first, number } end
  end
  table.sort(due, function(a, b) return a[1] < b[1] or (a[1] == b[1] and a[2] < b[2]) end)
  while #due > left and due[#due][1] > due[left][1] do due[#due] = nil end
  return due
end

local chosen = {}
local from = 1
while from <= #lanes and #chosen < limit do
  local to = from
  while lanes[to + 1] and lanes[to + 1][PRIORITY] == lanes[from][PRIORITY] do to = to + 1 end
  local left, places = limit - #chosen, {}
  local lines = candidates(from, to, left)
  for _, candidate in ipairs(lines) do
    local number = candidate[2]
    local found = redis.call('ZRANGEBYSCORE', KEYS[lanes[number][LINE]], '-inf', now_text,
      'WITHSCORES', 'LIMIT', 0, left)
    for place = 1, #found, 2 do
      local id = string.sub(found[place], 2)
      places[#places + 1] = { tonumber(found[place + 1]), tonumber(id), number, id, found[place] }
    end
  end
  -- One line is in order.
  if #lines > 1 then
    table.sort(places, function(a, b) return a[1] < b[1] or (a[1] == b[1] and a[2] < b[2]) end)
  end
  for place = 1, math.min(left, #places) do chosen[#chosen + 1] = places[place] end
  from = to + 1
end

-- When the next of these lines is due, and the end of the first lease.
local function answer_with(started)
  local next_due = false
  for _, lane in ipairs(lanes) do
    local first = firsts[lane[NAME]]
    if first and (not next_due or tonumber(first) < tonumber(next_due)) then next_due = first end
  end
  local lapse = redis.call('ZRANGE', KEYS[4], 0, 0, 'WITHSCORES')[2] or false
  return { now_text, next_due, lapse, unpack(started) }
end
if #chosen == 0 then return answer_with({}) end

local ids = {}
for number, place in ipairs(chosen) do ids[number] = place[4] end
local read = rows_as_kept(ids)
local is_remembered = {}
for _, shape in ipairs(remembered) do is_remembered[shape] = true end
-- Whether a job is one that this script may start.
local function is_common(lane, shape, place)
  return lane == lanes[place[3]][NUMBER] and not is_remembered[shape]
end
-- Rows as they are to be, or none where more than their end changes; and keys.
local rows, short, key_of = {}, {}, {}
for number, place in ipairs(chosen) do
  local bytes = read[number]
  if not bytes then return GENERAL end
  if is_short(bytes) then
    local _, _, lane, _, _, _, _, _, _, shape, key = cmsgpack.unpack_limit(bytes, KEY, 1)
    if not is_common(lane, shape, place) then return GENERAL end
    short[number], key_of[number] = bytes, key
  else
    local row = read_row(bytes)
    local may_start = row and row[STATE] == SCHEDULED and not row[WAITS] and not row[PARTITION]
      and is_common(row[LANE], row[SHAPE], place)
    if not may_start then return GENERAL end
    rows[number], key_of[number] = row, row[KEY]
  end
end

go_on()
wrote = true
local until_text = string.format('%.0f', now + length)
local started, written, leases, gone, by_task = {}, {}, {}, {}, {}
-- What follows the first fields of a job that starts for the first time.
local first_start = cmsgpack.pack(false, nil, nil, nil, 1, 1, worker, now + length, now)
local first_head = string.char(220, 0, STARTED, RUNNING)
for number, place in ipairs(chosen) do
  local lane, id, key, bytes = place[3], place[4], key_of[number], short[number]
  if bytes then
    bytes = first_head .. string.sub(bytes, 3) .. first_start
  else
    local row = rows[number]
    row[STATE], row[STARTS], row[ATTEMPT] = RUNNING, row[STARTS] + 1, row[ATTEMPT] + 1
    row[WORKER], row[STARTED], row[LEASE] = worker, now, now + length
    bytes = write_row(row)
  end
  started[#started + 1], started[#started + 2] = id, bytes
  written[#written + 1], written[#written + 2] = id, bytes
  leases[#leases + 1], leases[#leases + 2] = until_text, place[5]
  local members = gone[lane] or {}
  members[#members + 1], gone[lane] = place[5], members
  local task = lanes[lane][TASK]
  by_task[task] = (by_task[task] or 0) + 1
  if key then
    local field = task .. ' ' .. key
    local others = redis.call('HGET', KEYS[7], field)
    redis.call('HSET', KEYS[7], field, others and others .. ' ' .. id or id)
  end
end
many('HSET', KEYS[3], written)
many('ZADD', KEYS[4], leases)
for number, members in pairs(gone) do
  local lane = lanes[number]
  many('ZREM', KEYS[lane[LINE]], members)
  firsts[lane[NAME]] = note_head(KEYS[8], KEYS[lane[LINE]], lane[NAME])
end
for task, by in pairs(by_task) do
  count(KEYS[5], queue .. ' ' .. task .. ' ' .. SCHEDULED, -by)
  count(KEYS[5], queue .. ' ' .. task .. ' ' .. RUNNING, by)
end
for _, slot in ipairs(slots) do count(KEYS[6], slot, #chosen) end
raise_clock()
return answer_with(started)
