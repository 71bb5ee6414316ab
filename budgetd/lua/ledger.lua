-- Loading a ledger and bringing it to the present: the mirror of Ledger::new and Ledger::begin in
-- budget/src/ledger.rs. Reads keys, writes none. Put after bucket.lua.
--
-- A ledger is one string: a fixed head, the cost units' buckets, and the policy's numbers as they were received.
-- Integers of seven bytes hold everything below 2^53 exactly.

local HEAD_FORMAT <const> = '>i7i7i7i7i7i4i7i4i4i7i4i7i4BBBi4i4i7i6i6i6i6i6i6i7i7i6i6B'
local HEAD_BYTES <const> = 157
local UNIT_FORMAT <const> = '>i7i7i4'
local UNIT_BYTES <const> = 18

local function clock_ms(injected)
  if injected ~= '' then
    return tonumber(injected)
  end
  local time = redis.call('TIME')
  local ms = time[2] / 1000
  return time[1] * 1000 + ms - ms % 1
end

-- The ledger as stored, nil if there is none, or false if it cannot be read.
local function load_ledger(key)
  local packed = redis.call('GET', key)
  if not packed then
    return nil
  end
  local bytes = #packed
  if bytes < HEAD_BYTES + NUMBERS_BYTES then
    return false
  end
  local l = { admission = { 0, 0 }, retry = { 0, 0 }, units = {}, ends = { 0, 0 }, permits = { 0, 0 },
    sizes = { 0, 0 } }
  local admission, retry, ends, permits, c, count = l.admission, l.retry, l.ends, l.permits, {}, 0
  l.number, l.id, l.clock, l.now, admission[1], admission[2], retry[1], retry[2], l.in_flight, ends[1], permits[1],
    ends[2], permits[2], l.newer, l.sizes[1], l.sizes[2], l.queued, l.queue_permits, l.queue_until, c[1], c[2],
    c[3], c[4], c[5], c[6], c[7], c[8], c[9], c[10], count = struct.unpack(HEAD_FORMAT, packed)
  l.counters = c
  if bytes ~= HEAD_BYTES + NUMBERS_BYTES + count * (UNIT_BYTES + UNIT_NUMBERS_BYTES) then
    return false
  end
  local from = HEAD_BYTES + 1
  for i = 1, count do
    local id, balance, remainder = struct.unpack(UNIT_FORMAT, packed, from)
    l.units[i] = { balance, remainder, id = id }
    from = from + UNIT_BYTES
  end
  -- The numbers it was last decided with.
  l.numbers = string.sub(packed, from)
  return l
end

local function new_ledger(number, id, packed, n, clock)
  local units = {}
  for i = N_UNITS, #n, UNIT_NUMBERS do
    units[#units + 1] = { 0, 0, id = n[i] }
  end
  return {
    number = number,
    id = id,
    clock = clock,
    now = clock,
    admission = { n[N_ABSENT_ADMISSION], 0 },
    retry = { 0, 0 },
    units = units,
    in_flight = 0,
    -- End, permits and size (as far as it matters) of the two generations, and which of them is the newer.
    ends = { 0, 0 },
    permits = { 0, 0 },
    sizes = { 0, 0 },
    newer = 1,
    queued = 0,
    queue_permits = 0,
    queue_until = 0,
    counters = { 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 },
    numbers = packed,
    fresh = true,
  }
end

-- Adds what the time since the last call earns, at the numbers of the last call.
local function advance(ledger, n, clock)
  local elapsed = clock - ledger.clock
  if elapsed < 0 then
    elapsed = 0
  end
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
