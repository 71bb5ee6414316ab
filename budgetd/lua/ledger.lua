-- One ledger: taking apart what is stored, bringing it to the present, and putting it together again. The mirror of
-- Ledger::begin in budget/src/ledger.rs. Put after formats.lua. Its layout is declared in layout/records.rs.

-- The ledger at hand: its head and units as a list, nil if there is none; the numbers in force, and the policy's numbers where
-- those in force are what leases leave of them; the numbers as they are stored, and parts of it that nothing here reads.
local l, n, whole, packed_numbers, room
-- How lending stands, nil where a ledger does not lend; and what lend.lua has for such ledgers.
local lending, pay_debt
-- Since the last call, whoever made it.
local quiet = 0

local function corrupt(what)
  error({ err = 'CORRUPT ' .. what .. ' cannot be read' })
end

-- The time of this call. given: now_ms, or '' for the server's time.
local function read_clock(given)
  if given ~= '' then
    return tonumber(given)
  end
  local time = redis.call('TIME')
  local ms = time[2] / 1000
  return time[1] * 1000 + ms - ms % 1
end

-- The numbers that stand in a text from a position on, as a list.
local function unpack_numbers(packed, from)
  local numbers = { struct.unpack(NUMBERS_FORMAT, packed, from) }
  -- The position after the last one, overwritten by the first unit or dropped.
  numbers[N_UNITS] = nil
  local at = N_UNITS
  for unit_from = from + NUMBERS_BYTES, #packed, UNIT_NUMBERS_BYTES do
    numbers[at], numbers[at + 1], numbers[at + 2], numbers[at + 3], numbers[at + 4], numbers[at + 5], numbers[at + 6] =
      struct.unpack(UNIT_NUMBERS_FORMAT, packed, unit_from)
    at = at + UNIT_NUMBERS
  end
  return numbers
end

-- Takes apart a ledger. given, given_number, given_id: the numbers of the call and their version, or nil.
local function read_ledger(stored, given, given_number, given_id)
  l, n, whole, packed_numbers, room = nil, nil, nil, nil, ''
  if not stored then
    return
  end
  local at
  if format_of(stored, 'ledger') == 1 then
    if #stored < HEAD_1_BYTES + NUMBERS_BYTES then
      corrupt('ledger')
    end
    l, at = head_from_1(stored)
  else
    if #stored < HEAD_BYTES + NUMBERS_BYTES then
      corrupt('ledger')
    end
    l = { struct.unpack(HEAD_FORMAT, stored) }
    at = HEAD_BYTES + 1
  end
  local count, parts = l[L_UNIT_COUNT], l[L_PARTS]
  local numbers_at = at + count * UNIT_BYTES
  local ends = numbers_at + NUMBERS_BYTES + count * UNIT_NUMBERS_BYTES
  if at == HEAD_BYTES + 1 then
    l[L_QUEUED], l[L_QUEUE_PERMITS], l[L_QUEUE_UNTIL] = 0, 0, 0
    local room_at = ends
    if parts % (2 * PART_QUEUE) >= PART_QUEUE and #stored >= ends + QUEUE_BYTES - 1 then
      l[L_QUEUED], l[L_QUEUE_PERMITS], l[L_QUEUE_UNTIL], room_at = struct.unpack(QUEUE_FORMAT, stored, ends)
    end
    room = parts >= LEDGER_ROOM_FROM and string.sub(stored, room_at) or ''
    if #stored ~= room_at - 1 + #room then
      corrupt('ledger')
    end
  elseif #stored ~= ends - 1 + parts % 2 then
    corrupt('ledger')
  end
  for i = L_UNITS, L_UNITS + (count - 1) * L_UNIT, L_UNIT do
    l[i], l[i + 1], l[i + 2], at = struct.unpack(UNIT_FORMAT, stored, at)
  end
  packed_numbers = string.sub(stored, numbers_at, ends - 1)
  if given and l[L_NUMBER] == given_number and l[L_ID] == given_id then
    -- The call brings the same ones, and they have not lain in a store.
    packed_numbers = given
  end
  n = unpack_numbers(packed_numbers, 1)
end

-- A ledger that starts, with nothing in it.
local function new_ledger(given, number, id, clock)
  n, packed_numbers, room = unpack_numbers(given, 1), given, ''
  local count = (#n - N_UNITS + 1) / UNIT_NUMBERS
  l = { FORMAT_MARK, 0, number, id, clock, clock, n[N_ABSENT_ADMISSION] }
  for i = L_ADMISSION_REST, L_UNITS - 1 do
    l[i] = 0
  end
  l[L_NEWER], l[L_UNIT_COUNT] = 1, count
  for i = 0, count - 1 do
    local at = L_UNITS + i * L_UNIT
    l[at], l[at + 1], l[at + 2] = n[N_UNITS + i * UNIT_NUMBERS], 0, 0
  end
end

-- Brings the ledger to the present, at the numbers of its last call.
local function advance(clock)
  local elapsed = clock - l[L_CLOCK]
  if elapsed < 0 then
    elapsed = 0
  end
  quiet = elapsed
  if lending then
    elapsed = pay_debt(elapsed)
  end
  l[L_CLOCK], l[L_NOW] = clock, l[L_NOW] + elapsed
  if n[N_LIMITED] == 1 then
    l[L_ADMISSION], l[L_ADMISSION + 1] =
      refill(l[L_ADMISSION], l[L_ADMISSION + 1], n[N_ADMISSION], n[N_ADMISSION + 1], n[N_ADMISSION + 2], elapsed)
  end
  l[L_RETRY], l[L_RETRY + 1] = refill(l[L_RETRY], l[L_RETRY + 1], n[N_RETRY], n[N_RETRY + 1], n[N_RETRY + 2], elapsed)
  for i = 0, l[L_UNIT_COUNT] - 1 do
    local at, i_n = L_UNITS + i * L_UNIT + 1, N_UNITS + i * UNIT_NUMBERS + 1
    l[at], l[at + 1] = refill(l[at], l[at + 1], n[i_n], n[i_n + 1], n[i_n + 2], elapsed)
  end
end

-- The places of a unit in ledger and numbers, or nil.
local function find_unit(id)
  local i = N_UNITS + 1
  for at = L_UNITS, #l, L_UNIT do
    if l[at] == id then
      return at + 1, i
    end
    i = i + UNIT_NUMBERS
  end
  return nil
end

-- Computes with the numbers n from now on: clips, never refills.
local function fit()
  if n[N_LIMITED] == 1 then
    adopt(l, L_ADMISSION, n[N_ADMISSION], n[N_ADMISSION + 1], n[N_ADMISSION + 2])
  else
    l[L_ADMISSION], l[L_ADMISSION + 1] = 0, 0
  end
  adopt(l, L_RETRY, n[N_RETRY], n[N_RETRY + 1], n[N_RETRY + 2])
  local new = { unpack(l, 1, L_UNITS - 1) }
  for i = N_UNITS, #n, UNIT_NUMBERS do
    local at, old = #new + 1, find_unit(n[i])
    new[at], new[at + 1], new[at + 2] = n[i], old and l[old] or 0, 0
    adopt(new, at + 1, n[i + 1], n[i + 2], n[i + 3])
  end
  l = new
  l[L_UNIT_COUNT] = (#n - N_UNITS + 1) / UNIT_NUMBERS
end

local function bump(counter, amount)
  local sum = l[counter] + amount
  l[counter] = sum > EXACT_MAX and EXACT_MAX or sum
end

-- The format to write in: the one that a call names, but none older than the ledger has.
local function format_to_write(named)
  return math.max(named, l[L_FORMAT] - FORMAT_MARK)
end

local function pack_ledger(format)
  local units = ''
  for i = L_UNITS, #l, L_UNIT do
    units = units .. struct.pack(UNIT_FORMAT, l[i], l[i + 1], l[i + 2])
  end
  if format == 1 then
    return head_to_1(l) .. units .. packed_numbers .. (lending and '1' or '')
  end
  local queue = l[L_QUEUED] > 0 and struct.pack(QUEUE_FORMAT, l[L_QUEUED], l[L_QUEUE_PERMITS], l[L_QUEUE_UNTIL]) or ''
  local parts = l[L_PARTS]
  l[L_FORMAT] = FORMAT_BYTE
  l[L_PARTS] = parts - parts % LEDGER_ROOM_FROM + (lending and PART_LENDS or 0) + (queue ~= '' and PART_QUEUE or 0)
  return struct.pack(HEAD_FORMAT, unpack(l, 1, L_HEAD_FIELDS)) .. units .. packed_numbers .. queue .. room
end
