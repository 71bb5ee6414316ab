-- Token-bucket arithmetic: the only other copy of budget/src/bucket.rs, same names, same order, same units.
-- Pure: works on tables, touches no key. Put in front of every script.
--
-- A bucket is two numbers in a list b: its balance at index at, its remainder behind. A policy's numbers for it stand in
-- the list n from index i on: num, den, burst, keep of each priority.
--
-- Names marked <const> are replaced by their values when the scripts are loaded (Lua 5.1 has no constants, and a
-- variable would cost every function that uses it). x - x % 1 is x rounded down.
--
-- Redis makes each function of a script anew at every call, used or not, and a table costs three times as much. So there
-- are few of either.

local EXACT_MAX <const> = 9007199254740991
local TOKEN <const> = 1000000
-- A policy's numbers as they are packed, and where they stand in the list; those that every step needs come first. Units
-- follow: an id, then a bucket.
local NUMBERS_FORMAT <const> = '>Bi7i4i7i7i7i7i4i4i4i4i4i4Bi5i7i4i7i7i7i7BBi4i4i4i4i4i4i2i5i4'
local COMMON_NUMBERS_FORMAT <const> = '>Bi7i4i7i7i7i7i4i4i4i4i4i4Bi5i7i4i7'
local NUMBERS_BYTES <const> = 146
local UNIT_NUMBERS_FORMAT <const> = '>i7i7i4i7i7i7i7'
local UNIT_NUMBERS_BYTES <const> = 46
local N_LIMITED <const> = 1
local N_ADMISSION <const> = 2
local N_MAX_IN_FLIGHT <const> = 8
local N_KEEP_IN_FLIGHT <const> = 8
local N_PERMIT_TTL <const> = 12
local N_DEPOSIT <const> = 13
local N_EARN_ON_SUCCESS <const> = 14
local N_IDLE_TTL <const> = 15
local N_RETRY <const> = 16
local N_SHADOW <const> = 22
local N_RETRIES_OFF <const> = 23
local N_MAX_WAIT <const> = 24
local N_RETRY_COST <const> = 24
local N_MAX_ATTEMPTS <const> = 30
local N_RETENTION <const> = 31
local N_ABSENT_ADMISSION <const> = 32
local N_UNITS <const> = 33
local UNIT_NUMBERS <const> = 7

-- The numbers that stand in a text from a position on, as a list.
local function unpack_numbers(packed, from)
  local n = { struct.unpack(NUMBERS_FORMAT, packed, from) }
  -- The position after the last one, overwritten by the first unit or dropped.
  n[N_UNITS] = nil
  local at = N_UNITS
  for unit_from = from + NUMBERS_BYTES, #packed, UNIT_NUMBERS_BYTES do
    n[at], n[at + 1], n[at + 2], n[at + 3], n[at + 4], n[at + 5], n[at + 6] =
      struct.unpack(UNIT_NUMBERS_FORMAT, packed, unit_from)
    at = at + UNIT_NUMBERS
  end
  return n
end

-- Takes and returns balance and remainder, since these need not stand in a list.
local function refill(balance, remainder, num, den, burst, elapsed_ms)
  if num > 0 and elapsed_ms > 0 then
    -- The longest time whose refill is computed exactly; always enough to fill the bucket from its deepest debt.
    local most = (EXACT_MAX - 2 * den - num) / num
    most = most - most % 1
    if elapsed_ms > most then
      elapsed_ms = most
    end
    local total = num * elapsed_ms + remainder
    local earned = total / den
    earned = earned - earned % 1
    balance, remainder = balance + earned, total - earned * den
  end
  if balance >= burst then
    return burst, 0
  end
  return balance, remainder
end

--if leased
-- The policy's numbers where n are what leases leave of them.
local whole
--end

-- nil if the class may withdraw cost; 0 if it never can; -1 if no rate will help; else how long to wait.
local function short(b, at, n, i, priority, cost)
  local burst = n[i + 2]
  if cost > burst then
    --if leased
    -- What is too much for the part that is left beside leases is not impossible: leases end.
    if whole and cost <= whole[i + 2] then
      return -1
    end
    --end
    return 0
  end
  local keep = n[i + 2 + priority]
  if keep > burst - cost then
    keep = burst - cost
  end
  local missing = cost + keep - b[at]
  if missing <= 0 then
    return nil
  end
  local num = n[i]
  if num == 0 then
    return -1
  end
  local wait = (missing * n[i + 1] - b[at + 1] + num - 1) / num
  wait = wait - wait % 1
  return wait > 1 and wait or 1
end

local function deposit(b, at, n, i, amount)
  local room = n[i + 2] - b[at]
  if room < 0 then
    room = 0
  end
  if amount > room then
    amount = room
  end
  b[at] = b[at] + amount
  return amount
end

local function charge(b, at, n, i, amount)
  local taken = b[at] + n[i + 2]
  if taken < 0 then
    taken = 0
  end
  if taken > amount then
    taken = amount
  end
  b[at] = b[at] - taken
  return amount - taken
end

local function adopt(b, at, num, den, burst)
  local debt_max = (EXACT_MAX - 2 * (num + den)) / den
  debt_max = debt_max - debt_max % 1 - burst
  b[at], b[at + 1] = math.max(math.min(b[at], burst), -debt_max), 0
end
