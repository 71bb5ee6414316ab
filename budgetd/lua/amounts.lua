-- Amounts and curves, as leases have them: the mirror of parts of budget/src/lease.rs. Pure, but for the curves that a call
-- has met. Formats and limits are named at the head of lending.lua.
--
-- Amounts are a list: rate, burst, retry burst, slots, then for each unit its id, rate and burst. They are values: a list is
-- not changed once others may have it. Curves are a list: part and duration of each step.

-- x / y rounded down, exact below 2^53; 0 by 0.
local function div(x, y)
  if y == 0 then
    return 0
  end
  local q = x / y
  return q - q % 1
end

-- amount * numerator / denominator rounded down, exact as units.rs says. No denominator is 0.
local function scale(amount, numerator, denominator)
  local whole_part = amount / denominator
  whole_part = whole_part - whole_part % 1
  local part = (amount - whole_part * denominator) * numerator / denominator
  return whole_part * numerator + (part - part % 1)
end

local function plus(a, b)
  return a + b
end

local function minus(a, b)
  return a - b
end

-- What is left, never below 0.
local function less(a, b)
  return a > b and a - b or 0
end

-- Where a unit stands in amounts, or nil.
local function part_of(a, unit)
  for i = 5, #a, 3 do
    if a[i] == unit then
      return i
    end
  end
  return nil
end

local ZERO = { 0, 0, 0, 0 }

-- Each amount joined by f with its peer. Units of a decide which there are.
local function zip(a, b, f)
  local out = { f(a[1], b[1]), f(a[2], b[2]), f(a[3], b[3]), f(a[4], b[4]) }
  for i = 5, #a, 3 do
    local at = part_of(b, a[i])
    out[i], out[i + 1], out[i + 2] = a[i], f(a[i + 1], at and b[at + 1] or 0), f(a[i + 2], at and b[at + 2] or 0)
  end
  return out
end

-- The same over the units of both, for sums and maxima: what only b has is taken as it is.
local function join(a, b, f)
  local out = zip(a, b, f)
  for i = 5, #b, 3 do
    if not part_of(a, b[i]) then
      local at = #out
      out[at + 1], out[at + 2], out[at + 3] = b[i], b[i + 1], b[i + 2]
    end
  end
  return out
end

local function scaled(a, numerator, denominator)
  if numerator == denominator then
    return a
  end
  local out = {
    scale(a[1], numerator, denominator), scale(a[2], numerator, denominator), scale(a[3], numerator, denominator),
    scale(a[4], numerator, denominator),
  }
  for i = 5, #a, 3 do
    out[i], out[i + 1], out[i + 2] = a[i], scale(a[i + 1], numerator, denominator), scale(a[i + 2], numerator, denominator)
  end
  return out
end

local function pack_amounts(a)
  local packed = struct.pack(AMOUNTS_FORMAT, a[1], a[2], a[3], a[4], a[5] and (#a - 4) / 3 or 0)
  for i = 5, #a, 3 do
    packed = packed .. struct.pack(UNIT_AMOUNTS_FORMAT, a[i], a[i + 1], a[i + 2])
  end
  return packed
end

-- Amounts that stand in a text from a position on, and the position behind them.
local function unpack_amounts(packed, p)
  local rate, burst, retry, slots, count, a
  rate, burst, retry, slots, count, p = struct.unpack(AMOUNTS_FORMAT, packed, p)
  a = { rate, burst, retry, slots }
  for i = 5, 4 + 3 * count, 3 do
    a[i], a[i + 1], a[i + 2], p = struct.unpack(UNIT_AMOUNTS_FORMAT, packed, p)
  end
  return a, p
end

-- Most curves of a call are equal: each by its text, and the text of each.
local curves = {}

local function unpack_curve(packed, p)
  local count = string.byte(packed, p)
  local ends = p + STEP_BYTES * count
  local text = string.sub(packed, p, ends)
  local curve = curves[text]
  if not curve then
    curve, p = {}, p + 1
    for i = 1, 2 * count, 2 do
      curve[i], curve[i + 1], p = struct.unpack(STEP_FORMAT, packed, p)
    end
    curves[text], curves[curve] = curve, text
  end
  return curve, ends + 1
end

local function total_ms(curve)
  local total = 0
  for i = 2, #curve, 2 do
    total = total + curve[i]
  end
  return total
end

-- What a policy says of leases.
local function unpack_terms(packed, p)
  local some, limited, sheddable, default, critical, part, widest, longest, margin, overlap, step_max, curve
  some, limited, sheddable, default, critical, part, widest, longest, margin, overlap, step_max, p =
    struct.unpack(TERMS_FORMAT, packed, p)
  curve, p = unpack_curve(packed, p)
  return {
    some = some == 1, slots_limited = limited == 1, priority = { sheddable, default, critical }, part = part,
    widest = widest, longest = longest, margin = margin, overlap = overlap, step_max = step_max, curve = curve,
  }, p
end
