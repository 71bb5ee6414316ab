-- Loading a ledger and bringing it to the present: the mirror of Ledger::new and Ledger::begin in
-- budget/src/ledger.rs. Reads keys, writes none. Put after bucket.lua.
--
-- The ledger hash has few fields, so that it keeps the compact encoding (each at most 64 bytes in ordinary use):
--   s  clock, lag of ledger time behind it, admission and retry buckets, permits, generations, queue
--   c  counters in the order of Counters::to_list
--   u  id, balance, remainder of each cost unit
--   v  version number and id, number of n fields
--   n1, n2, ...  the policy's numbers in pieces
-- Numbers are packed as integers by cmsgpack, which is exact below 2^53.

local CHUNK = 60

local function clock_ms(injected)
  if injected ~= '' then
    return tonumber(injected)
  end
  local time = redis.call('TIME')
  return time[1] * 1000 + floor(time[2] / 1000)
end

-- All values packed in a string, or nil if there are not at least `least`, all numbers.
local function unpack_numbers(packed, least)
  local ok, values = pcall(function()
    return { cmsgpack.unpack(packed) }
  end)
  if not ok or #values < least then
    return nil
  end
  for i = 1, #values do
    if type(values[i]) ~= 'number' then
      return nil
    end
  end
  return values
end

-- The numbers stored with the ledger.
local function stored_numbers(key, chunks)
  local fields = {}
  for i = 1, chunks do
    fields[i] = 'n' .. i
  end
  local pieces = redis.call('HMGET', key, unpack(fields))
  for i = 1, chunks do
    if not pieces[i] then
      return nil
    end
  end
  local ok, numbers = pcall(cmsgpack.unpack, table.concat(pieces))
  if not ok or type(numbers) ~= 'table' or #numbers < N_UNITS - 1 then
    return nil
  end
  return numbers
end

-- The ledger as stored, nil if there is none, or false if it cannot be read.
local function load_ledger(key)
  local fields = redis.call('HMGET', key, 's', 'c', 'u', 'v')
  if not fields[1] and not fields[2] and not fields[3] and not fields[4] then
    return nil
  end
  if not (fields[1] and fields[2] and fields[3] and fields[4]) then
    return false
  end
  local s = unpack_numbers(fields[1], 15)
  local c = unpack_numbers(fields[2], 10)
  local u = fields[3] == '' and {} or unpack_numbers(fields[3], 3)
  local v = unpack_numbers(fields[4], 3)
  if not (s and c and u and v) then
    return false
  end
  local units = {}
  for i = 1, #u, 3 do
    units[#units + 1] = { u[i + 1] or 0, u[i + 2] or 0, id = u[i] }
  end
  local clock = s[1]
  local now = clock - s[2]
  local function due(relative)
    return relative == 0 and 0 or now + relative
  end
  return {
    clock = clock,
    now = now,
    admission = { s[3], s[4] },
    retry = { s[5], s[6] },
    units = units,
    in_flight = s[7],
    -- End and permits of the two generations.
    ends = { due(s[8]), due(s[10]) },
    permits = { s[9], s[11] },
    newer = s[12],
    queued = s[13],
    queue_permits = s[14],
    queue_until = due(s[15]),
    counters = c,
    number = v[1],
    id = v[2],
    chunks = v[3],
  }
end

local function new_ledger(number, id, n, clock)
  local units = {}
  for i = N_UNITS, #n, UNIT_NUMBERS do
    units[#units + 1] = { 0, 0, id = n[i] }
  end
  return {
    clock = clock,
    now = clock,
    admission = { n[N_ABSENT_ADMISSION], 0 },
    retry = { 0, 0 },
    units = units,
    in_flight = 0,
    ends = { 0, 0 },
    permits = { 0, 0 },
    newer = 1,
    queued = 0,
    queue_permits = 0,
    queue_until = 0,
    counters = { 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 },
    number = number,
    id = id,
    chunks = 0,
  }
end

-- Adds what the time since the last call earns, at the numbers of the last call.
local function advance(ledger, n, clock)
  local elapsed = max(0, clock - ledger.clock)
  ledger.clock = clock
  ledger.now = ledger.now + elapsed
  if n[N_LIMITED] == 1 then
    refill(ledger.admission, n, N_ADMISSION, elapsed)
  end
  refill(ledger.retry, n, N_RETRY, elapsed)
  for i = 1, #ledger.units do
    refill(ledger.units[i], n, N_UNITS + (i - 1) * UNIT_NUMBERS + 1, elapsed)
  end
end
