-- What each script of one call begins with: the time, the names, and rows of jobs.
--
-- KEYS[1] is the clock, KEYS[2] holds the version of names and settings, KEYS[3] the jobs. ARGV[1]
-- is the time as read.lua takes it, ARGV[2] the version that the caller knows, ARGV[3] what is
-- asked, in MessagePack. A script answers with the time and the result; before anything is
-- written, with `stale` where the caller must read names again, and with `general` where it must
-- take the step itself.

-- Beyond this, Lua's numbers leave whole microseconds out.
local EXACT = 4503599627370496

local STALE, GENERAL = { 'stale' }, { 'general' }
if (redis.call('HGET', KEYS[2], 'version') or '') ~= ARGV[2] then return STALE end

local clock = tonumber(redis.call('GET', KEYS[1]) or '-9007199254740992')
local now
if ARGV[1] == 'server' then
  local time = redis.call('TIME')
  now = tonumber(time[1]) * 1000000 + tonumber(time[2])
else
  now = tonumber(ARGV[1])
end
-- The store's time never goes back.
if now < clock then now = clock end
if math.abs(now) > EXACT then return GENERAL end
local now_text = string.format('%.0f', now)
local asked = cmsgpack.unpack(ARGV[3])

local function raise_clock()
  if now > clock then redis.call('SET', KEYS[1], now_text) end
end

-- What makes no jobs goes on although the memory is full: a script that has begun to write is let
-- go on. This writes nothing.
local function go_on()
  redis.call('PERSIST', KEYS[1])
end

-- The places of a job's row; `row.rs` says what they hold. The times of the window count from the
-- first trigger.
local STATE, LANE, FIRST, LAST, DUE, BOUND, REASON, TRIGGERS, SHAPE, KEY, PAYLOAD =
  1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11
local WAITS, PARTITION, ASKED, NOT_BEFORE, ATTEMPT = 12, 13, 14, 15, 16
-- The fence: a token of two parts (R21).
local STARTS, DRAW = 17, 18
local MOST_STARTS = 16777215
local WORKER, LEASE, STARTED, ENDED, OUTPUT = 19, 20, 21, 22, 23
local FAILURES, CRASHES, SUPPRESSED = 24, 25, 26
-- Whether a window is closed, and how many elements more than triggers it has (R10).
local CLOSED, SURPLUS = 29, 30
-- R42: the trace contexts of the first triggers, a line for each.
local TRACES, MOST_TRACES = 31, 16
local FIELDS = 31
-- What is not there because it is the default and at the end.
local DEFAULTS = {
  [WAITS] = false, [ATTEMPT] = 0, [STARTS] = 0, [DRAW] = 0, [FAILURES] = 0, [CRASHES] = 0, [SUPPRESSED] = 0,
  [CLOSED] = false, [SURPLUS] = 0,
}
local SCHEDULED, RUNNING, SUCCEEDED = 0, 1, 2

local NUMBERS = { FIRST, LAST, DUE, BOUND, ASKED, NOT_BEFORE, LEASE, STARTED, SURPLUS }

-- None where a number of it cannot be written back as it was, and where the row cannot be decoded:
-- the step finds out which row that is.
local function read_row(bytes)
  local is_whole, row = pcall(cmsgpack.unpack, bytes)
  if not (is_whole and type(row) == 'table' and type(row[LANE]) == 'number') then return nil end
  for place = 1, #NUMBERS do
    local number = row[NUMBERS[place]]
    if number and (number > EXACT or number < -EXACT) then return nil end
  end
  row[WAITS] = row[WAITS] or false
  row[CLOSED], row[SURPLUS] = row[CLOSED] or false, row[SURPLUS] or 0
  row[ATTEMPT], row[STARTS], row[DRAW] = row[ATTEMPT] or 0, row[STARTS] or 0, row[DRAW] or 0
  row[FAILURES], row[CRASHES], row[SUPPRESSED] = row[FAILURES] or 0, row[CRASHES] or 0, row[SUPPRESSED] or 0
  return row
end

local function write_row(row)
  local last = FIELDS
  while row[last] == nil or row[last] == DEFAULTS[last] do last = last - 1 end
  local head = last < 16 and string.char(144 + last) or string.char(220, 0, last)
  return head .. cmsgpack.pack(unpack(row, 1, last))
end

-- The start of a row of eleven fields: of a job that has not started yet, and whose other fields have
-- their defaults. Such rows are decoded only up to the key. What that and the other shortcuts over the
-- bytes of rows save stands beside each and in bench/archive/2026-11.md, 2026-11-25.
local IS_SHORT = 144 + PAYLOAD
local function is_short(bytes)
  local head, state = string.byte(bytes, 1, 2)
  return head == IS_SHORT and state == SCHEDULED
end

-- A job among those of one score: its first character encodes how many digits follow.
local LETTERS = {
  'a', 'b', 'c', 'd', 'e', 'f', 'g', 'h', 'i', 'j', 'k', 'l', 'm', 'n', 'o', 'p', 'q', 'r', 's', 't',
}
local function member(id)
  return LETTERS[#id] .. id
end

-- A command with as many arguments as there are.
local function many(command, key, arguments)
  for from = 1, #arguments, 4000 do
    redis.call(command, key, unpack(arguments, from, math.min(from + 3999, #arguments)))
  end
end

-- The rows of these jobs as they are kept, in the order of their ids; false where there is none.
local function rows_as_kept(ids)
  local rows = {}
  for from = 1, #ids, 4000 do
    local some = redis.call('HMGET', KEYS[3], unpack(ids, from, math.min(from + 3999, #ids)))
    for place = 1, #some do rows[from + place - 1] = some[place] end
  end
  return rows
end

-- What has come to nothing takes no room.
local function count(key, field, by)
  if redis.call('HINCRBY', key, field, by) == 0 then redis.call('HDEL', key, field) end
end

-- A line's head, among the heads of its queue; answers with when it is due.
local function note_head(heads, line, name)
  local head = redis.call('ZRANGE', line, 0, 0, 'WITHSCORES')
  if head[2] then
    redis.call('ZADD', heads, head[2], name)
  else
    redis.call('ZREM', heads, name)
  end
  return head[2]
end

-- When something may start in queues, to other processes and to the caller.
local function publish(channel, origin, wakes)
  for queue, due in pairs(wakes) do
    redis.call('PUBLISH', channel, origin .. ' ' .. string.format('%.0f', due) .. ' ' .. queue)
  end
end

local function append_wakes(answers, wakes)
  for queue, due in pairs(wakes) do
    answers[#answers + 1], answers[#answers + 2] = queue, string.format('%.0f', due)
  end
end
