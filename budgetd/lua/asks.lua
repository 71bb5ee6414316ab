-- Answers all asks of a call, one after the other. Put after sync.lua.

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

-- Returns the answers, each a text.
local function answer_asks()
  local answers, names, starts, p = {}, {}, {}, ask_at + 1
  for i = 1, string.byte(ground_packed, ask_at) do
    local length
    starts[i], length, names[i] = p, struct.unpack(ASK_NAME_FORMAT, ground_packed, p)
    p = p + ASK_LENGTH_BYTES + length
    answers[i] = NOT_PERMITTED
  end
  if not lending then
    return answers
  end
  prepare_grants()
  -- The sums of shares, under no name, are read with the records.
  local last = #names
  names[last + 1] = ''
  local found = lending_wiped and {} or redis.call('HMGET', holders_key, unpack(names))
  if not shares then
    unpack_shares(found[last + 1])
  end
  local changed = false
  for i = 1, last do
    local answered, amounts = sync(starts[i], found[i])
    answers[i] = answered
    -- The next one finds levels as they are between two calls.
    if not absent and set_direct(amounts or direct(l[L_NOW])) then
      clip(lending.direct)
      changed = true
    end
  end
  if changed then
    n = within(lending.direct)
  end
  return answers
end
