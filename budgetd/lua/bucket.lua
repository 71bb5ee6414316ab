-- Token-bucket arithmetic: the only other copy of budget/src/bucket.rs, same names, same order, same units.
-- Pure: works on tables, touches no key. Put in front of every script.
--
-- A bucket is {balance_micros, remainder}. Its numbers stand in the list n of budget::policy::Numbers::to_list from
-- index i on: num, den, burst, elapsed_ms_max, debt_max, keep of each priority.

local EXACT_MAX = 9007199254740991
local TOKEN = 1000000
local floor, min, max = math.floor, math.min, math.max

-- Where things stand in the list of numbers.
local N_SHADOW, N_RETRIES_OFF, N_LIMITED, N_ADMISSION = 1, 2, 3, 4
local N_MAX_IN_FLIGHT, N_KEEP_IN_FLIGHT, N_PERMIT_TTL, N_MAX_WAIT = 12, 12, 16, 17
local N_RETRY, N_DEPOSIT, N_EARN_ON_SUCCESS, N_RETRY_COST = 18, 26, 27, 27
local N_MAX_ATTEMPTS, N_RETENTION, N_ABSENT_ADMISSION, N_IDLE_TTL, N_UNITS = 33, 34, 35, 36, 37
-- A unit's id, then its bucket's numbers.
local UNIT_NUMBERS = 9

local function refill(b, n, i, elapsed_ms)
  local num = n[i]
  if num > 0 and elapsed_ms > 0 then
    local den = n[i + 1]
    local total = num * min(elapsed_ms, n[i + 3]) + b[2]
    local earned = floor(total / den)
    b[2] = total - earned * den
    b[1] = b[1] + earned
  end
  local burst = n[i + 2]
  if b[1] >= burst then
    b[1], b[2] = burst, 0
  end
end

-- nil if the class may withdraw cost; 0 if it never can; -1 if no rate will help; else how long to wait.
local function short(b, n, i, priority, cost)
  local burst = n[i + 2]
  if cost > burst then
    return 0
  end
  local missing = cost + min(n[i + 4 + priority], burst - cost) - b[1]
  if missing <= 0 then
    return nil
  end
  local num = n[i]
  if num == 0 then
    return -1
  end
  return max(1, floor((missing * n[i + 1] - b[2] + num - 1) / num))
end

local function deposit(b, n, i, amount)
  local added = min(amount, max(0, n[i + 2] - b[1]))
  b[1] = b[1] + added
  return added
end

local function charge(b, n, i, amount)
  local taken = min(amount, max(0, b[1] + n[i + 2]))
  b[1] = b[1] - taken
  return amount - taken
end

local function adopt(b, n, i)
  b[2] = 0
  b[1] = max(min(b[1], n[i + 2]), -n[i + 4])
end

-- A unit's place in the list of numbers, or nil.
local function unit_at(n, id)
  for i = N_UNITS, #n, UNIT_NUMBERS do
    if n[i] == id then
      return i
    end
  end
  return nil
end
