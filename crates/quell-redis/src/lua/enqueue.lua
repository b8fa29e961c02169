-- Accepts triggers: without a debounce key, or of the common debounced kind (R6, R7, R9).
--
-- KEYS[4..7] are the newest number, the counts, what runs of keys, and the windows that wait;
-- further ones are named by their number. Asked are the ids (the one before the first, the step),
-- where hints go (channel, origin), whether all or none is to be taken, the lanes, and the items, of
-- which each may stand for several triggers of a key. Answers with four numbers for each item: the
-- job, when it is due, how many triggers it has, and whether it is new; the job is 0 where the item
-- is left to the caller. Then come the queues in which something may start earlier, and when.
local before_first, step, channel, origin, whole, lanes, items = unpack(asked)
-- A lane: heads, line, its name there, queue, field of counts, number, the newest jobs of its task.
local HEADS, LINE, NAME, QUEUE, COUNTS, NUMBER, RECENT = 1, 2, 3, 4, 5, 6, 7
-- An item: lane, kind, and by its kind: the row before and after the time, and how much later it is
-- due; or payload, partition and the moment asked for; or, for keyed ones, as the first kind, and
-- the bound as rows tell it, the window's hash, the field of what runs, how many triggers, payload,
-- partition.
local PLAIN, AT = 0, 1

-- The windows that keyed items join, by the number of the item: their jobs, what the hash says of
-- their last trigger, and their rows, where they are short as they are.
local windows, shown, timestamps = {}, {}, {}
local ids, of_item = {}, {}
for number, item in ipairs(items) do
  if item[2] ~= PLAIN and item[2] ~= AT then
    local hash = redis.call('HMGET', KEYS[item[7]], 'message_id', 'enqueue_timestamp')
    shown[number], timestamps[number] = hash[1], hash[2]
    if hash[1] then
      ids[#ids + 1] = hash[1]
      of_item[#ids] = number
    end
  end
end

-- What has started or ended is no window any more, and what is not of the common kind is left.
local function window_of(item, bytes)
  if is_short(bytes) then
    local _, _, lane, first, last, due, bound, reason, triggers, shape, key =
      cmsgpack.unpack_limit(bytes, KEY, 1)
    local is_common = lane == lanes[item[1]][NUMBER] and shape == 0 and not item[11]
      and bound == item[6] and first <= EXACT and first >= -EXACT
    if not is_common then return 'left' end
    return { SCHEDULED, lane, first, last, due, bound, reason, triggers, shape, key }, true
  end
  local row = read_row(bytes)
  if not row then return 'left' end
  if row[STATE] ~= SCHEDULED then return nil end
  local is_common = row[LANE] == lanes[item[1]][NUMBER] and row[SHAPE] == 0
    and (row[PARTITION] or false) == item[11] and row[BOUND] == item[6]
    and not row[ASKED] and not row[NOT_BEFORE]
  return is_common and row or 'left'
end

local short = {}
for place, bytes in ipairs(rows_as_kept(ids)) do
  local number = of_item[place]
  if bytes then windows[number], short[number] = window_of(items[number], bytes) end
  if windows[number] == 'left' and whole then return GENERAL end
end

local newest = tonumber(redis.call('GET', KEYS[4]) or before_first)
local first_new = newest
local packed_now = cmsgpack.pack(now)
local now_seconds = string.format('%.0f', math.floor(now / 1000000))
local rows, recent, placed, earliest, counted, moved, wakes = {}, {}, {}, {}, {}, {}, {}

local function wake(lane, due)
  local queue = lanes[lane][QUEUE]
  if not wakes[queue] or due < wakes[queue] then wakes[queue] = due end
end

local function place(lane, id, due)
  local line = placed[lane] or {}
  line[#line + 1], line[#line + 2] = string.format('%.0f', due), member(id)
  placed[lane] = line
end

local function put(id, row)
  rows[#rows + 1], rows[#rows + 2] = id, row
end

-- A new job at the end of its line; `waits` where an attempt of its key runs (R11).
local function add(lane, id, due, waits)
  counted[lane] = (counted[lane] or 0) + 1
  if waits then
    redis.call('ZADD', KEYS[7], string.format('%.0f', due), member(id))
    return
  end
  place(lane, id, due)
  if not earliest[lane] or due < earliest[lane] then earliest[lane] = due end
  wake(lane, due)
end

local function next_id()
  newest = newest + step
  return string.format('%.0f', newest)
end

-- R7. The bound is the window's own, and now is not before its last trigger.
local function join(number)
  local item, id, row = items[number], shown[number], windows[number]
  local before = row[FIRST] + row[DUE]
  local elapsed = now - row[FIRST]
  local quiet = elapsed + item[5]
  row[LAST] = elapsed
  local bound = row[BOUND]
  if bound < 0 then bound = -1000 * bound end
  if bound < quiet then
    row[DUE], row[REASON] = bound, 3
  else
    row[DUE], row[REASON] = quiet, 2
  end
  row[TRIGGERS], row[PAYLOAD] = row[TRIGGERS] + item[9], item[10]
  if short[number] then
    put(id, string.char(IS_SHORT) .. cmsgpack.pack(unpack(row, 1, PAYLOAD)))
  else
    row[ATTEMPT] = 0
    put(id, write_row(row))
  end
  if timestamps[number] ~= now_seconds then
    redis.call('HSET', KEYS[item[7]], 'enqueue_timestamp', now_seconds)
  end
  local due = row[FIRST] + row[DUE]
  if row[WAITS] then
    redis.call('ZADD', KEYS[7], string.format('%.0f', due), member(id))
  elseif due ~= before then
    place(item[1], id, due)
    moved[item[1]] = true
    if due < before then wake(item[1], due) end
  end
  return due, row[TRIGGERS]
end

-- R6
local function open(item, id, was_shown)
  local row = item[3] .. packed_now .. item[4]
  local waits = redis.call('HGET', KEYS[6], item[8])
  if waits then
    local waiting = read_row(row)
    waiting[WAITS] = true
    row = write_row(waiting)
  end
  put(id, row)
  local hash, list = KEYS[item[7]], lanes[item[1]][RECENT]
  redis.call('HSET', hash, 'message_id', id, 'executed', '0', 'enqueue_timestamp', now_seconds)
  if was_shown then redis.call('PERSIST', hash) end
  recent[list] = recent[list] or {}
  table.insert(recent[list], id)
  add(item[1], id, now + item[5], waits)
  return now + item[5]
end

local answers = { now_text }
local function answer(job, due, triggers, is_new)
  local last = #answers
  answers[last + 1], answers[last + 2] = tonumber(job), due
  answers[last + 3], answers[last + 4] = triggers, is_new
end

for number, item in ipairs(items) do
  local window = windows[number]
  if window == 'left' then
    answer(0, 0, 0, 0)
  elseif window then
    local due, triggers = join(number)
    answer(shown[number], due, triggers, 0)
  elseif item[2] == PLAIN then
    local id = next_id()
    put(id, item[3] .. packed_now .. item[4])
    add(item[1], id, now + item[5], false)
    answer(id, now + item[5], 1, 1)
  elseif item[2] == AT then
    local id, at = next_id(), item[5]
    local delayed = at > now
    local due = delayed and at or now
    local row = {
      SCHEDULED, lanes[item[1]][NUMBER], now, 0, due - now, nil, delayed and 1 or 0, 1, 0, nil,
      item[3], false, item[4] or nil, at - now,
    }
    put(id, write_row(row))
    add(item[1], id, due, false)
    answer(id, due, 1, 1)
  else
    local id = next_id()
    answer(id, open(item, id, shown[number]), item[9], 1)
  end
end
if #rows == 0 then return answers end

wrote = true
if newest ~= first_new then redis.call('SET', KEYS[4], string.format('%.0f', newest)) end
many('HSET', KEYS[3], rows)
for list, ids in pairs(recent) do
  many('LPUSH', KEYS[list], ids)
  redis.call('LTRIM', KEYS[list], 0, 999)
end
for number, line in pairs(placed) do
  local lane = lanes[number]
  many('ZADD', KEYS[lane[LINE]], line)
  if moved[number] then
    note_head(KEYS[lane[HEADS]], KEYS[lane[LINE]], lane[NAME])
  else
    redis.call('ZADD', KEYS[lane[HEADS]], 'LT', string.format('%.0f', earliest[number]), lane[NAME])
  end
end
for number, by in pairs(counted) do count(KEYS[5], lanes[number][COUNTS], by) end
tell(channel, origin, wakes)
tell_caller(answers, wakes)
raise_clock()
return answers
