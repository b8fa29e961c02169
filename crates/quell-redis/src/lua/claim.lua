-- Which due jobs of a queue are next, in the order of R30 and within the limits of R31; `start.lua`
-- starts them. With a limit of 0, only when the next one is due. `quell_core::line` has the rules.
--
-- KEYS[4..12] are leases, counts, slots, what runs of keys, the heads of the queue's lines, logs of
-- starts, memories, what expires, and what has started before; then come the lines of the lanes, and those of partitions that
-- are asked with. Asked are how many, the length of the leases, the worker, the queue, its limits, the
-- lanes by priority, the highest first, the lines of partitions that have a key here, how many lines
-- the caller wants returned that may come next, the shapes whose starts are remembered, with their
-- periods, and what was drawn for the tokens.
--
-- Answers with when the next job is due and the first lease ends, with 1 where a line without a key
-- here is next, with how many jobs were started and the id and the row of each, and with the lines
-- of partitions that come next. Where nothing is started, nothing is written.
local limit, length, worker, queue, limits, lanes, named, ahead, remembered, draw = unpack(asked)
-- The limits, false where there is none.
local WHOLE, OF_WORKER, OF_PARTITION, RATE, PERIOD, PARTITION_RATE, PARTITION_PERIOD =
  limits[1], limits[2], limits[3], limits[4], limits[5], limits[6], limits[7]
-- A lane: its name among heads, number, priority, task.
local NAME, NUMBER, PRIORITY, TASK = 1, 2, 3, 4
-- Lines that are seen at most, those that are due first, as in claim.rs; and how many at a time.
local MOST_HEADS, FIRST_HEADS, MORE_HEADS = 10000, 20, 2000
-- How many lines have their first jobs compared at most, and how many lines of full partitions the
-- caller receives, because an end may make them the first.
local MOST_LINES, MOST_FULL = 4000, 256

local lane_of, key_of = {}, {}
for number, lane in ipairs(lanes) do
  lane_of[lane[NAME]], key_of[lane[NAME]] = lane, KEYS[12 + number]
end
for number, name in ipairs(named) do key_of[name] = KEYS[12 + #lanes + number] end

-- The starts that a rate counts: moments, and how many there were at each. `text` is how they were
-- written, after `over` of them that count no more.
local function log_of(text, period)
  local log, cutoff = { text = text, over = 0, count = 0 }, now - period
  for number, run in ipairs(text and cjson.decode(text) or {}) do
    if run[1] > cutoff then
      log[number - log.over] = run
      log.count = log.count + run[2]
    else
      log.over = number
    end
  end
  return log
end

-- When the rate lets the next one start.
local function free_at(log, rate, period)
  local newer = 0
  for place = #log, 1, -1 do
    newer = newer + log[place][2]
    if newer >= rate then return log[place][1] + period end
  end
  return -math.huge
end

-- What is taken of the limits of partitions. What has no partition has room.
local OPEN = { running = 0, room = math.huge, free_at = -math.huge }
local partitions = {}
local function room_of(used)
  local room = OF_PARTITION and OF_PARTITION - used.running or math.huge
  if PARTITION_RATE then
    room = math.min(room, PARTITION_RATE - used.log.count)
    used.free_at = free_at(used.log, PARTITION_RATE, PARTITION_PERIOD)
  end
  used.room = room
end

local function read_partitions(names)
  local function read(is_limited, key, before)
    if not is_limited then return {} end
    local fields = {}
    for place, name in ipairs(names) do fields[place] = before .. name end
    return redis.call('HMGET', key, unpack(fields))
  end
  local running = read(OF_PARTITION, KEYS[6], queue .. ' p ')
  local logs = read(PARTITION_RATE, KEYS[9], queue .. ' ')
  for place, name in ipairs(names) do
    local used = { running = tonumber(running[place] or 0), free_at = -math.huge }
    if PARTITION_RATE then used.log = log_of(logs[place], PARTITION_PERIOD) end
    room_of(used)
    partitions[name] = used
  end
end

-- Lines of the queue that the worker may take from, by when their first jobs are due.
local heads = {}
local function read_heads(from, count)
  local found = redis.call('ZRANGE', KEYS[8], from, from + count - 1, 'WITHSCORES')
  local part, unknown = {}, {}
  for place = 1, #found, 2 do
    local name = found[place]
    local space = string.find(name, ' ', 1, true)
    local lane = lane_of[space and string.sub(name, 1, space - 1) or name]
    if lane then
      local line = {
        name = name,
        lane = lane,
        first = tonumber(found[place + 1]),
        partition = space and string.sub(name, space + 1) or false,
        used = OPEN,
      }
      if space and (OF_PARTITION or PARTITION_RATE) and partitions[line.partition] == nil then
        partitions[line.partition] = false
        unknown[#unknown + 1] = line.partition
      end
      part[#part + 1] = line
    end
  end
  if #unknown > 0 then read_partitions(unknown) end
  for _, line in ipairs(part) do
    line.used = line.partition and partitions[line.partition] or OPEN
  end
  part.last = tonumber(found[#found])
  part.size, part.is_end = count, #found < 2 * count
  return part
end

-- Shows lines by when they are due, until there is no more, or enough.
local function walk(wanted, visit, is_enough)
  local from, number = 0, 1
  local count = heads[1] and heads[1].size or math.min(wanted + FIRST_HEADS, 2 * MORE_HEADS)
  while from < MOST_HEADS do
    count = math.min(count, MOST_HEADS - from)
    heads[number] = heads[number] or read_heads(from, count)
    local part = heads[number]
    for _, line in ipairs(part) do visit(line) end
    if part.is_end or is_enough(part.last) then return end
    from, count, number = from + count, math.min(2 * count, MORE_HEADS), number + 1
  end
end

-- R31: how many may start, as far as the queue is concerned.
local log = RATE and log_of(redis.call('HGET', KEYS[9], queue), PERIOD)
local room = limits[8] and 0 or limit
if room > 0 and (WHOLE or OF_WORKER) then
  local running = redis.call('HMGET', KEYS[6], queue, queue .. ' w ' .. worker)
  if WHOLE then room = math.min(room, WHOLE - tonumber(running[1] or 0)) end
  if OF_WORKER then room = math.min(room, OF_WORKER - tonumber(running[2] or 0)) end
end
if log then room = math.min(room, RATE - log.count) end

-- The due lines of each priority. Where there is one priority only, a line that is due after as many as
-- are wanted comes later.
local by_priority = {}
local is_one_priority = #lanes > 0 and lanes[1][PRIORITY] == lanes[#lanes][PRIORITY]
local met, last_wanted, met_before = 0, now, {}
local function note_due(line)
  if line.first > last_wanted then return end
  local priority = line.lane[PRIORITY]
  local group = by_priority[priority] or {}
  by_priority[priority] = group
  group[#group + 1] = line
  if line.used.room <= 0 then return end
  if not (line.partition and met_before[line.partition]) then met = met + 1 end
  met_before[line.partition or ''] = true
  if is_one_priority and met >= room + ahead then last_wanted = math.min(last_wanted, line.first) end
end
if room > 0 then
  walk(room + ahead, note_due, function(last) return last > last_wanted end)
end

-- The lines of one priority that may hold some of the next jobs: among those whose first jobs are
-- due at one moment, ids decide.
local function candidates(group, left)
  local found, seen, count, last = {}, {}, 0, nil
  for _, line in ipairs(group) do
    if last and line.first > last then break end
    if line.used.room > 0 then
      found[#found + 1] = line
      if not (line.partition and seen[line.partition]) then count = count + 1 end
      seen[line.partition or ''] = true
      if count >= left then last = last or line.first end
    end
  end
  return found
end

-- Goes to the next job of a line: `due`, `score` and `member` are its, none at the end.
local function advance(line, depth)
  local place, jobs = (line.place or -1) + 2, line.jobs
  if not jobs or (place > #jobs and not line.is_read) then
    local from = (line.from or 0) + #(jobs or {}) / 2
    jobs = redis.call('ZRANGE', key_of[line.name], from, from + depth - 1, 'WITHSCORES')
    line.from, line.jobs, line.is_read, place = from, jobs, #jobs < 2 * depth, 1
  end
  local score = jobs[place + 1]
  line.place, line.member, line.score, line.due = place, jobs[place], score, score and tonumber(score)
end

local function is_before(a, b)
  if a.due ~= b.due then return a.due < b.due end
  return tonumber(string.sub(a.member, 2)) < tonumber(string.sub(b.member, 2))
end

-- Moves a line down to its place in a heap, whose first line is before all others.
local function sift(heap, at)
  local line, size = heap[at], #heap
  while 2 * at <= size do
    local child = 2 * at
    if child < size and is_before(heap[child + 1], heap[child]) then child = child + 1 end
    if not is_before(heap[child], line) then break end
    heap[at], at = heap[child], child
  end
  heap[at] = line
end

-- Chooses up to `left` jobs of these lines that are due before `before`: their ids and the lines
-- that they are on.
local chosen, line_of, touched = {}, {}, {}
local function choose(lines, left, before)
  -- Of many lines, most have nothing to give.
  local depth = #lines > 4 * left and 1 or math.ceil(left / math.max(#lines, 1)) + 1
  local heap = {}
  for _, line in ipairs(lines) do
    advance(line, math.min(depth, line.used.room + 1))
    if line.due then heap[#heap + 1] = line end
  end
  for at = math.floor(#heap / 2), 1, -1 do sift(heap, at) end
  local number = #chosen
  while left > 0 and heap[1] and heap[1].due <= now and heap[1].due < before do
    local line = heap[1]
    local used, is_open = line.used, line.used.room > 0
    if is_open then
      local taken = line.taken
      if not taken then
        taken = {}
        touched[#touched + 1], line.taken, line.count = line, taken, 0
      end
      number = number + 1
      chosen[number], line_of[number] = string.sub(line.member, 2), line
      line.count = line.count + 1
      taken[line.count] = line.member
      used.room, left = used.room - 1, left - 1
      advance(line, math.max(1, math.min(left, used.room)) + 1)
    end
    if not (is_open and line.due) then
      heap[1] = heap[#heap]
      heap[#heap] = nil
    end
    if heap[2] then sift(heap, 1) end
  end
end

local priorities = {}
for number, lane in ipairs(lanes) do
  if number == 1 or lane[PRIORITY] ~= lanes[number - 1][PRIORITY] then
    priorities[#priorities + 1] = lane[PRIORITY]
  end
end

-- Lines of partitions whose keys the caller is to name when it asks again. What is due after
-- the first of those that it did not name may not be next.
local wanted, is_wanted = {}, {}
local function want(line)
  if line.partition and not is_wanted[line.name] then
    is_wanted[line.name] = true
    wanted[#wanted + 1] = line.name
  end
end
local is_cut = false
for _, priority in ipairs(priorities) do
  local left = room - #chosen
  if left <= 0 or is_cut then break end
  local all, lines, before = candidates(by_priority[priority] or {}, left), {}, math.huge
  if #all > MOST_LINES then return GENERAL end
  for _, line in ipairs(all) do
    if key_of[line.name] then
      lines[#lines + 1] = line
    else
      want(line)
      before, is_cut = math.min(before, line.first), true
    end
  end
  choose(lines, left, before)
end
is_cut = is_cut and #chosen < room

-- And of those that come after the chosen ones, with all that are due at the same moment.
do
  local count, full, last = 0, 0, nil
  for _, priority in ipairs(priorities) do
    for _, line in ipairs(by_priority[priority] or {}) do
      local is_over = #wanted >= MOST_LINES or (count >= room + ahead and line.first ~= last)
      if not is_over and line.used.room > 0 then
        want(line)
        count, last = count + 1, line.first
      elseif not is_over and OF_PARTITION and full < MOST_FULL then
        want(line)
        full = full + 1
      end
    end
  end
end

-- When something may start (R34), and the end of the first lease.
local function answer_with(started)
  local due
  walk(0, function(line)
    local is_full = OF_PARTITION and line.partition and line.used.running >= OF_PARTITION
    if line.first and not is_full then
      local at = math.max(line.first, line.used.free_at)
      if not due or at < due then due = at end
    end
  end, function(last) return due and last >= due end)
  if due and log then due = math.max(due, free_at(log, RATE, PERIOD)) end
  local expiry = redis.call('ZRANGE', KEYS[4], 0, 0, 'WITHSCORES')[2] or false
  local answer =
    { now_text, due and string.format('%.0f', due) or false, expiry, is_cut and 1 or 0, #chosen }
  for place, value in ipairs(started) do answer[5 + place] = value end
  for _, name in ipairs(wanted) do answer[#answer + 1] = name end
  return answer
end
if #chosen == 0 then return answer_with({}) end
