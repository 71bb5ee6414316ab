-- Answering asks of holders: their layout, and what full syncs and short renewals have in common. Begins the function
-- `answer_asks`, which goes on with sync.lua, as the function `make_sync`, and renewal.lua.
--
-- A byte says how many asks there are. Each is packed as ASK_FORMAT, the last report, the one counted before, and, if a lease
-- of another epoch than the ask quotes is presented, its position, value and curve. Each has its answer, a text: a byte for
-- its kind and what that needs.
--   0, generation (6 bytes), when, life of permits, then value, moved and curve   granted now, in the epoch that the ask
--      quotes: the grant as it is kept
--   1, epoch number and id, generation, position, then value, moved and curve   granted
--   2, epoch number and id of another epoch; 3, ms wait; 4 dead; 5 fenced; 6, why not leased; 7, what is invalid; 8 left
--   9 what is kept of this holder cannot be read

-- length of all that follows, holder, incarnation, sequence, nonce, epoch number and id, weight, leave, presents, and of the
-- lease that it presents: epoch number and id, generation
local ASK_FORMAT <const> = '>HBc0c16i7i7i7i7i4BBi7i7i7'
local ASK_LENGTH_BYTES <const> = 2
local GRANTED_FORMAT <const> = '>Bi7i7i7i7'
local OTHER_EPOCH_FORMAT <const> = '>Bi7i7'
local WAIT_FORMAT <const> = '>Bi7'
local GRANTED <const> = 1
local OTHER_EPOCH <const> = 2
local WAIT <const> = 3
local DEAD <const> = '\4'
local FENCED <const> = '\5'
local NOT_PERMITTED <const> = '\6\1'
local TOO_MANY_HOLDERS <const> = '\6\2'
local USAGE_BACKWARDS <const> = '\7\1'
local UNKNOWN_GENERATION <const> = '\7\2'
local LEFT <const> = '\8'
local UNREADABLE <const> = '\9'
local GRANTS_MAX <const> = 4
local INCARNATIONS_MAX <const> = 4
local HOLDERS_MAX <const> = 20000
local PROOFS_MAX <const> = 80000
-- Of all shares, what newcomers find is left.
local LEASED_OUT <const> = 9500000
-- Reports bring no counter further, so that it can go on exactly.
local REPORTED_MAX <const> = 4503599627370496
local MEASURE_MS_MIN <const> = 1000
local PART_LEAST <const> = 10000

local max, min = math.max, math.min

-- Adds what a report has more than the last one.
local function add_to(counter, more)
  if more > 0 then
    local before = l[counter]
    l[counter] = max(before, min(before + more, REPORTED_MAX))
  end
end

-- Clips levels to what is left for direct callers; nothing is refilled.
local function clip(amounts)
  if whole[N_LIMITED] == 1 then
    adopt(l, L_ADMISSION, amounts[1], 1000, amounts[2])
  else
    l[L_ADMISSION], l[L_ADMISSION + 1] = 0, 0
  end
  adopt(l, L_RETRY, whole[N_RETRY], whole[N_RETRY + 1], amounts[3])
  for at = L_UNITS, #l, L_UNIT do
    local of_unit = part_of(amounts, l[at])
    adopt(l, at + 1, of_unit and amounts[of_unit + 1] or 0, 1000, of_unit and amounts[of_unit + 2] or 0)
  end
end

-- Of the policy, which all asks of a call have in common: what may be leased, the smallest share of which each step leaves
-- what is of use, and that of the first step.
local lent, smallest, least

local function prepare()
  local t, list = lending.terms, {}
  lent, smallest = leasable(), {}
  -- The bursts of which a lease must hold a whole token (or slot) to be of use.
  if whole[N_LIMITED] == 1 then
    list[1], list[2] = lent[2], TOKEN
  end
  if whole[N_RETRY + 2] > 0 then
    list[#list + 1], list[#list + 2] = lent[3], TOKEN
  end
  if t.slots_limited then
    list[#list + 1], list[#list + 2] = lent[4], 1
  end
  for i = 5, #lent, 3 do
    list[#list + 1], list[#list + 2] = lent[i + 2], TOKEN
  end
  -- A step below a hundredth counts as one.
  for at = 1, #t.curve, 2 do
    local part, most = max(t.curve[at], PART_LEAST), 1
    for i = 1, #list, 2 do
      local held = div(list[i + 1] * PPM + part - 1, part)
      if list[i] < held then
        most = SHARE_ONE + 1
      else
        most = max(most, div(held * SHARE_ONE + list[i] - 1, list[i]))
      end
    end
    smallest[#smallest + 1] = most
  end
  least = smallest[1] or 1
end

-- The most that one unit of weight gets; nil if all demands fit.
local function level_of()
  local left, weight_left = LEASED_OUT, shares.weight
  if left - shares.demand >= weight_left then
    -- A unit of share for each unit of weight is left over. So it is before each bucket, whose average is the least of those
    -- that follow: rounding the average of what is left down never makes it less.
    return nil
  end
  for i = shares.least, shares.most do
    local sums = shares[i]
    if sums and sums[1] > 0 then
      local of_one = left > 0 and left / weight_left or 0
      of_one = of_one - of_one % 1
      if sums[2] > of_one * sums[1] then
        return of_one
      end
      left, weight_left = left - sums[2], weight_left - sums[1]
    end
  end
  return nil
end

-- Withdraws from a level what goes into a cap that grows: half of the level, or what would be clipped.
local function take(at, grown, cap)
  if grown <= 0 then
    return 0
  end
  local held = max(l[at], 0)
  local moved = min(grown, max(div(held, 2), held - cap))
  l[at] = l[at] - moved
  return moved
end
