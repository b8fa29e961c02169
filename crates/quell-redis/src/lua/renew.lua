-- Extends leases that still hold (R21).
--
-- KEYS[4] are the leases. Asked are the length from now on, and the jobs with both parts of their
-- tokens. Answers
-- with the new end for each, or with nothing where the lease is lost.
local length, held = unpack(asked)
local ends = string.format('%.0f', now + length)
local answers, rows, leases = { now_text }, {}, {}
for number, lease in ipairs(held) do
  local id, starts, draw = lease[1], lease[2], lease[3]
  local bytes = redis.call('HGET', KEYS[3], id)
  local row = bytes and cmsgpack.unpack(bytes)
  local holds = row and row[STATE] == RUNNING and row[STARTS] == starts
    and row[DRAW] == draw and row[LEASE] and now < row[LEASE]
  answers[number + 1] = holds and ends or false
  if holds then
    row = read_row(bytes)
    if not row then return GENERAL end
    row[LEASE] = now + length
    rows[#rows + 1], rows[#rows + 2] = id, write_row(row)
    leases[#leases + 1], leases[#leases + 2] = ends, member(id)
  end
end
if #rows == 0 then return answers end
go_on()
wrote = true
many('HSET', KEYS[3], rows)
many('ZADD', KEYS[4], leases)
raise_clock()
return answers
