-- Accepts triggers: without a debounce key, or of the common debounced kind (R6, R7, R9).
--
-- KEYS[4..7] are the newest number, the counts, what runs of keys, and the windows that wait;
-- further ones are named by their number. Asked are the ids (the one before the first, the step),
-- where hints go (channel, origin), whether all or none is to be taken, whether rows are answered, the
-- lanes, and the items:
-- each may mean several triggers of a key. Answers with four numbers for each item: the
-- job, when it is due, how many triggers it has, and whether it is new; the job is 0 where the item
-- is left to the caller. Where rows are answered, each but of those that are left is followed by its row. Then come the queues in which something may start earlier, and when.
local before_first, step, channel, origin, whole, with_rows, lanes, items = unpack(asked)
-- A lane: heads, line, its name there, queue, task, number, the newest jobs of the task, partition.
local HEADS, LINE, NAME, QUEUE, TASK, NUMBER, RECENT, OF_PARTITION = 1, 2, 3, 4, 5, 6, 7, 8
-- An item: lane, kind, and by its kind: payload, the delay asked for, or the moment, and traces; or, for
-- keyed ones, key, payload, how much later it is due, the bound as rows have it, the window's hash, how
-- many triggers, and traces: text, or false. Items come one after the other, each of this number of values.
local PLAIN, AT, KEYED = 0, 1, 2
local WIDTH = { [PLAIN] = 5, [AT] = 5, [KEYED] = 9 }

-- The windows that keyed items join, by where the item is: their jobs, what the hash says of their last
-- trigger, and their rows as they are kept.
local shown, timestamps, kept = {}, {}, {}
local ids, of_item = {}, {}
do
  local at = 1
  while at <= #items do
    local kind = items[at + 1]
    if kind == KEYED then
      local hash = redis.call('HMGET', KEYS[items[at + 6]], 'message_id', 'enqueue_timestamp')
      shown[at], timestamps[at] = hash[1], hash[2]
      if hash[1] then
        ids[#ids + 1] = hash[1]
        of_item[#ids] = at
      end
    end
    at = at + WIDTH[kind]
  end
end
for place, bytes in ipairs(rows_as_kept(ids)) do kept[of_item[place]] = bytes end

local newest = tonumber(redis.call('GET', KEYS[4]) or before_first)
local first_new = newest
local now_seconds = string.format('%.0f', math.floor(now / 1000000))
local recent, placed, earliest, counted, moved, wakes = {}, {}, {}, {}, {}, {}
-- The hashes of windows that were joined and opened, what was opened before, and windows that wait.
local joined, opened, shown_again, waiting = {}, {}, {}, {}
local rows, written = {}, 0
local answers, answered = { now_text }, 1

local function wake(lane, due)
  local queue = lanes[lane][QUEUE]
  if not wakes[queue] or due < wakes[queue] then wakes[queue] = due end
end

local function place(lane, id, due)
  local line = placed[lane]
  if not line then
    line = { size = 0 }
    placed[lane] = line
  end
  local size = line.size
  line[size + 1], line[size + 2], line.size = due, member(id), size + 2
end

local function put(id, row)
  rows[written + 1], rows[written + 2], written = id, row, written + 2
end

local function answer(job, due, triggers, is_new)
  answers[answered + 1], answers[answered + 2] = tonumber(job), due
  answers[answered + 3], answers[answered + 4] = triggers, is_new
  answered = answered + 4
  -- The row that was put last is its own.
  if with_rows and job ~= 0 then answers[answered + 1], answered = rows[written], answered + 1 end
end

-- A new job at the end of its line; `waits` where an attempt of its key runs (R11).
local function add(lane, id, due, waits)
  counted[lane] = (counted[lane] or 0) + 1
  if waits then
    waiting[#waiting + 1], waiting[#waiting + 2] = due, member(id)
    return
  end
  place(lane, id, due)
  if not earliest[lane] or due < earliest[lane] then
    earliest[lane] = due
    wake(lane, due)
  end
end

local function next_id()
  newest = newest + step
  return string.format('%.0f', newest)
end

-- R7. The bound is the window's own, counted from its first trigger as all is here, and now is not
-- before its last trigger. Answers with when it is due, and for which reason.
local function later(elapsed, delay, bound)
  if bound < 0 then bound = -1000 * bound end
  if bound < elapsed + delay then return bound, 3 end
  return elapsed + delay, 2
end

-- R42: the contexts of a window with those of later triggers, as far as there is room.
local function with_later(traces, later)
  if not (traces and later) then return traces or later or nil end
  local kept, last = 0, nil
  for context in string.gmatch(traces, '[^\n]+') do kept, last = kept + 1, context end
  for context in string.gmatch(later, '[^\n]+') do
    if kept == MOST_TRACES then break end
    -- One that is the same as that before it is not kept twice.
    if context ~= last then
      traces, kept, last = traces .. '\n' .. context, kept + 1, context
    end
  end
  return traces
end

-- The row of a job with traces, which has all fields.
local function traced_row(lane, first, due, bound, reason, triggers, key, payload, waits, asked, traces)
  local row = {
    SCHEDULED, lane[NUMBER], first, 0, due, bound, reason, triggers, 0, key, payload, waits,
    lane[OF_PARTITION] or nil, asked,
  }
  for place, value in pairs(DEFAULTS) do row[place] = row[place] or value end
  row[TRACES] = traces
  return write_row(row)
end

-- The row of a window.
local function row_of(lane, first, last, due, bound, reason, triggers, key, payload, waits)
  local partition = lane[OF_PARTITION]
  local fields, rest = PAYLOAD, ''
  if partition then
    fields, rest = PARTITION, cmsgpack.pack(waits, partition)
  elseif waits then
    fields, rest = WAITS, cmsgpack.pack(waits)
  end
  return string.char(144 + fields)
    .. cmsgpack.pack(SCHEDULED, lane[NUMBER], first, last, due, bound, reason, triggers, 0, key, payload)
    .. rest
end

-- Joins a window that has nothing but what this trigger, too, would write: its row is not
-- decoded as a whole, which would take a trigger 1.2 to 1.5 times the server's processor time. Answers
-- whether it is such a one.
local function join_alike(at, bytes)
  local lane, bound = lanes[items[at]], items[at + 5]
  if lane[OF_PARTITION] or items[at + 8] or not is_short(bytes) then return false end
  local _, _, number, first, _, was_due, was_bound, _, triggers, shape, key =
    cmsgpack.unpack_limit(bytes, KEY, 1)
  local is_alike = number == lane[NUMBER] and was_bound == bound and shape == 0
    and first <= EXACT and first >= -EXACT
  if not is_alike then return false end
  local id, elapsed = shown[at], now - first
  local due, reason = later(elapsed, items[at + 4], bound)
  triggers = triggers + items[at + 7]
  put(id, row_of(lane, first, elapsed, due, bound, reason, triggers, key, items[at + 3], false))
  return true, id, first, due, was_due, triggers, false
end

-- What has started or ended is no window any more, and what is not of the common kind is left.
local is_left = false
local function join_other(at, bytes)
  local row = read_row(bytes)
  if row and row[STATE] ~= SCHEDULED then return false end
  local lane = lanes[items[at]]
  local is_common = row and row[LANE] == lane[NUMBER] and row[SHAPE] == 0
    and (row[PARTITION] or false) == lane[OF_PARTITION] and row[BOUND] == items[at + 5]
    and not row[ASKED] and not row[NOT_BEFORE] and not row[CLOSED] and row[SURPLUS] == 0
    -- R41: the caller moves it among those that have started before.
    and not (row[PARTITION] and row[STARTS] > 0)
  if not is_common then
    is_left = true
    answer(0, 0, 0, 0)
    return true
  end
  local id, elapsed, was_due = shown[at], now - row[FIRST], row[DUE]
  row[LAST] = elapsed
  row[DUE], row[REASON] = later(elapsed, items[at + 4], row[BOUND])
  row[TRIGGERS], row[PAYLOAD] = row[TRIGGERS] + items[at + 7], items[at + 3]
  row[TRACES] = with_later(row[TRACES], items[at + 8])
  row[ATTEMPT] = 0
  put(id, write_row(row))
  return true, id, row[FIRST], row[DUE], was_due, row[TRIGGERS], row[WAITS]
end

local function join(at, bytes)
  local is_window, id, first, due, was_due, triggers, waits = join_alike(at, bytes)
  if not is_window then
    is_window, id, first, due, was_due, triggers, waits = join_other(at, bytes)
  end
  if not id then return is_window end
  if timestamps[at] ~= now_seconds then joined[#joined + 1] = KEYS[items[at + 6]] end
  local lane, moment = items[at], first + due
  if waits then
    waiting[#waiting + 1], waiting[#waiting + 2] = moment, member(id)
  elseif due ~= was_due then
    place(lane, id, moment)
    moved[lane] = true
    if due < was_due then wake(lane, moment) end
  end
  answer(id, moment, triggers, 0)
  return true
end

-- R6
local function open(at)
  local id, hash, number, bound = next_id(), KEYS[items[at + 6]], items[at], items[at + 5]
  local lane, key, due, reason = lanes[number], items[at + 2], later(0, items[at + 4], bound)
  local waits = redis.call('HGET', KEYS[6], lane[TASK] .. ' ' .. key) and true or false
  local triggers, payload, traces = items[at + 7], items[at + 3], items[at + 8]
  if traces then
    put(id, traced_row(lane, now, due, bound, reason, triggers, key, payload, waits, nil, traces))
  else
    put(id, row_of(lane, now, 0, due, bound, reason, triggers, key, payload, waits))
  end
  opened[#opened + 1], opened[#opened + 2] = hash, id
  if shown[at] then shown_again[#shown_again + 1] = hash end
  local list = lane[RECENT]
  recent[list] = recent[list] or {}
  table.insert(recent[list], id)
  add(number, id, now + due, waits)
  answer(id, now + due, items[at + 7], 1)
end

-- Rows of jobs without a key around their payloads. Those of one lane and one delay differ in nothing
-- else.
local last_number, last_asked, delay, before, rest
local function around(number, asked)
  if number == last_number and asked == last_asked then return end
  last_number, last_asked, delay = number, asked, asked and math.max(asked, 0) or 0
  local lane = lanes[number]
  local partition, fields = lane[OF_PARTITION] or nil, PAYLOAD
  rest = ''
  if asked then
    fields, rest = ASKED, cmsgpack.pack(false, partition, asked)
  elseif partition then
    fields, rest = PARTITION, cmsgpack.pack(false, partition)
  end
  before = string.char(144 + fields)
    .. cmsgpack.pack(SCHEDULED, lane[NUMBER], now, 0, delay, nil, delay > 0 and 1 or 0, 1, 0, nil)
end

local function plain(at)
  local number, id, asked = items[at], next_id(), items[at + 3]
  if items[at + 1] == AT then asked = asked - now end
  around(number, asked)
  local payload, traces = items[at + 2], items[at + 4]
  if traces then
    local reason = delay > 0 and 1 or 0
    put(id, traced_row(
      lanes[number], now, delay, nil, reason, 1, nil, payload, false, asked or nil, traces))
  else
    put(id, before .. cmsgpack.pack(payload) .. rest)
  end
  add(number, id, now + delay, false)
  answer(id, now + delay, 1, 1)
end

local at = 1
while at <= #items do
  local kind = items[at + 1]
  if kind ~= KEYED then
    plain(at)
  elseif not (kept[at] and join(at, kept[at])) then
    open(at)
  end
  if whole and is_left then return GENERAL end
  at = at + WIDTH[kind]
end
if written == 0 then return answers end

wrote = true
if newest ~= first_new then redis.call('SET', KEYS[4], string.format('%.0f', newest)) end
many('HSET', KEYS[3], rows)
for _, hash in ipairs(joined) do redis.call('HSET', hash, 'enqueue_timestamp', now_seconds) end
for number = 1, #opened, 2 do
  redis.call('HSET', opened[number], 'message_id', opened[number + 1],
    'executed', '0', 'enqueue_timestamp', now_seconds)
end
for _, hash in ipairs(shown_again) do redis.call('PERSIST', hash) end
many('ZADD', KEYS[7], waiting)
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
for number, by in pairs(counted) do
  local lane = lanes[number]
  count(KEYS[5], lane[QUEUE] .. ' ' .. lane[TASK] .. ' ' .. SCHEDULED, by)
end
publish(channel, origin, wakes)
append_wakes(answers, wakes)
raise_clock()
return answers
