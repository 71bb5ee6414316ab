-- What is stored in format 1 as it is in the newest format, and back. All other files know the newest format only. This file
-- goes when the release that wrote format 1 may no longer run beside this one. Put after bucket.lua.

-- A variable is found faster than a global.
local KEYS, ARGV, redis, struct, string = KEYS, ARGV, redis, struct, string

-- The format of a stored value; an error if it is a newer one than this release reads.
local function format_of(stored, what)
  local first = string.byte(stored) or 0
  if first < FORMAT_MARK then
    return 1
  end
  local format = first - FORMAT_MARK
  if format < 1 or format > FORMATS_MAX then
    error({ err = 'CORRUPT ' .. what .. ' cannot be read' })
  elseif format > FORMAT_NEWEST then
    error({ err = 'NEWER ' .. what .. ' of format ' .. format .. ', this release reads formats up to ' .. FORMAT_NEWEST })
  end
  return format
end

-- Returns the ledger's head as a list, and where its units begin. A ledger that lends has one byte more.
local function head_from_1(stored)
  local head = { struct.unpack(HEAD_1_FORMAT, stored) }
  local units = head[#head - 1]
  local queued, queue_permits, queue_until = head[17], head[20], head[21]
  local lends = (#stored - HEAD_1_BYTES - NUMBERS_BYTES) % (UNIT_BYTES + UNIT_NUMBERS_BYTES) == 1
  local l = { FORMAT_MARK + 1, (lends and PART_LENDS or 0) + (queued > 0 and PART_QUEUE or 0), unpack(head, 1, 16) }
  for i = 18, 29 do
    if i ~= 20 and i ~= 21 then
      l[#l + 1] = head[i]
    end
  end
  l[L_UNIT_COUNT], l[L_QUEUED], l[L_QUEUE_PERMITS], l[L_QUEUE_UNTIL] = units, queued, queue_permits, queue_until
  return l, HEAD_1_BYTES + 1
end

local function head_to_1(l)
  local head = { unpack(l, L_NUMBER, L_HEAD_FIELDS) }
  table.insert(head, 17, l[L_QUEUED])
  table.insert(head, 20, l[L_QUEUE_PERMITS])
  table.insert(head, 21, l[L_QUEUE_UNTIL])
  return struct.pack(HEAD_1_FORMAT, unpack(head))
end

-- An open reservation. Its cause is not known, and its number only beside details.
local function record_from_1(stored)
  local detail, number, costs_at = '', 0, RECORD_1_BYTES + 1
  if #stored > RECORD_1_BYTES then
    local start, operation
    start, operation, number, costs_at = struct.unpack(DETAIL_1_FORMAT, stored, costs_at)
    if start ~= 0 or operation ~= 0 then
      detail = struct.pack(DETAIL_FORMAT, start, operation, 0)
    end
  end
  local expires, permit, admission, deposited, retry_cost, earn, would_be = struct.unpack(RECORD_1_FORMAT, stored)
  return struct.pack(RECORD_FORMAT, FORMAT_BYTE, detail ~= '' and PART_DETAIL or 0, expires, permit, admission, deposited,
    retry_cost, earn, would_be, number, 0) .. detail .. string.sub(stored, costs_at)
end

local function record_to_1(stored)
  local _, parts, expires, permit, admission, deposited, retry_cost, earn, would_be, number, _, at =
    struct.unpack(RECORD_FORMAT, stored)
  local start, operation = 0, 0
  if parts % 2 == PART_DETAIL then
    start, operation, _, at = struct.unpack(DETAIL_FORMAT, stored, at)
  end
  local packed = struct.pack(RECORD_1_FORMAT, expires, permit, admission, deposited, retry_cost, earn, would_be)
  if start == 0 and operation == 0 and at > #stored then
    return packed
  end
  return packed .. struct.pack(DETAIL_1_FORMAT, start, operation, number) .. string.sub(stored, at)
end

-- Between the same fields and its texts an operation of format 1 does not say which life of its id it is.
local function operation_from_1(stored)
  return string.char(FORMAT_BYTE) .. string.sub(stored, 1, OPERATION_1_BYTES) .. '\0\0\0\0'
    .. string.sub(stored, OPERATION_1_BYTES + 1)
end

local function operation_to_1(stored)
  return string.sub(stored, 2, OPERATION_1_BYTES + 1) .. string.sub(stored, OPERATION_1_BYTES + 6)
end

-- How lending stands. What format 1 does not have: when ledger time was last compared with a host's clock, and when a host was
-- last replaced.
local function lending_from_1(stored)
  return string.char(FORMAT_BYTE) .. string.sub(stored, 1, LENDING_1_BYTES) .. string.rep('\0', LENDING_BYTES - LENDING_1_BYTES - 1)
    .. string.sub(stored, LENDING_1_BYTES + 1)
end

local function lending_to_1(stored)
  return string.sub(stored, 2, LENDING_1_BYTES + 1) .. string.sub(stored, LENDING_BYTES + 1)
end

-- A record of a holder, or sums of shares: only the byte of the format is new.
local function mark(stored, what)
  return format_of(stored, what) == 1 and string.char(FORMAT_BYTE) .. stored or stored
end

local function unmark(stored)
  return string.sub(stored, 2)
end
