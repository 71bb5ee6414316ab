-- Token-bucket arithmetic: the only other copy of budget/src/bucket.rs, same names, same order, same units. Touches no key.
--
-- A bucket is two numbers in a list b: its balance at index at, its remainder behind. A policy's numbers for it stand in
-- the list n from index i on: num, den, burst, keep of each priority.
--
-- In all scripts: upper-case names are constants of layout/constants.rs, put in when a script is made (Lua 5.1 has no
-- constants, and a variable would cost every function that uses it). x - x % 1 is x rounded down. Redis makes each function
-- of a script anew at every call, so there are few, and what they have in common are variables of the script.

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

-- nil if the class may withdraw cost; 0 if it never can; -1 if no rate will help; else how long to wait.
-- whole: the policy's numbers where n are what leases leave of them, or nil.
local function short(b, at, n, i, priority, cost, whole)
  local burst = n[i + 2]
  if cost > burst then
    -- What is too much for the part that is left beside leases is not impossible: leases end.
    return whole and cost <= whole[i + 2] and -1 or 0
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

-- Returns what found room.
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

-- Takes an amount even into debt, at most one burst of it. Returns what is beyond.
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

-- Clips a bucket to other numbers.
local function adopt(b, at, num, den, burst)
  local debt_max = (EXACT_MAX - 2 * (num + den)) / den
  debt_max = math.max(debt_max - debt_max % 1 - burst, 0)
  b[at], b[at + 1] = math.max(math.min(b[at], burst), -debt_max), 0
end
