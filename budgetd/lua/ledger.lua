-- Takes apart the ledger that read.lua or group.lua has read; advance.lua brings it to the present. Together they mirror the first half
-- of Ledger::begin in budget/src/ledger.rs. They write nothing. What comes behind finds l, the ledger, or nil if there is
-- none, and n, its numbers.
--
-- A ledger is one string: a fixed head, the cost units' buckets, and the policy's numbers as they were received.
-- Integers of seven bytes hold everything below 2^53 exactly.

local HEAD_FORMAT <const> = '>i7i7i7i7i7i4i7i4i4i7i4i7i4BBBi4i7i7i4i7i7i7i7i7i6i7i6i6B'
-- Its beginning: all that changes often.
local COMMON_HEAD_FORMAT <const> = '>i7i7i7i7i7i4i7i4i4i7i4i7i4BBBi4i7i7'
local COMMON_HEAD_BYTES <const> = 97
local HEAD_BYTES <const> = 162
local UNIT_FORMAT <const> = '>i7i7i4'
local UNIT_BYTES <const> = 18
-- Where things stand in the list.
local L_NUMBER <const> = 1
local L_ID <const> = 2
local L_CLOCK <const> = 3
local L_NOW <const> = 4
local L_ADMISSION <const> = 5
local L_RETRY <const> = 7
local L_IN_FLIGHT <const> = 9
-- End and permits of generation g stand at these + 2 * g, its size, as far as it matters, at that + g.
local L_END <const> = 8
local L_PERMITS <const> = 9
local L_NEWER <const> = 14
local L_SIZE <const> = 14
local L_QUEUED <const> = 17
local ORIGINALS_ADMITTED <const> = 18
local DEPOSITED <const> = 19
local L_QUEUE_PERMITS <const> = 20
local L_QUEUE_UNTIL <const> = 21
-- The other counters.
local RETRIES_ADMITTED <const> = 22
local ORIGINALS_DENIED <const> = 23
local RETRIES_DENIED <const> = 24
local NOT_SENT <const> = 25
local PERMITS_EXPIRED <const> = 26
local OVERUSE <const> = 27
local ACCOUNT_SIGNALS <const> = 28
local WOULD_BE_DENIED <const> = 29
local L_UNIT_COUNT <const> = 30
-- Each unit: an id, then a bucket.
local L_UNITS <const> = 31
local L_UNIT <const> = 3

local l, n, numbers_from
if stored then
  if #stored < HEAD_BYTES + NUMBERS_BYTES then
    return redis.error_reply('CORRUPT ledger cannot be read')
  end
  l = { struct.unpack(HEAD_FORMAT, stored) }
  -- The position after the last one, overwritten by the first unit or dropped.
  l[L_UNITS] = nil
  local count = l[L_UNIT_COUNT]
  numbers_from = HEAD_BYTES + count * UNIT_BYTES + 1
  local bytes = numbers_from - 1 + NUMBERS_BYTES + count * UNIT_NUMBERS_BYTES
  if #stored ~= bytes then
    --if plain
    if #stored == bytes + 1 then
      -- It lends, or did so a moment ago: for the other variant of this script.
      return { 3 }
    end
    --end
    return redis.error_reply('CORRUPT ledger cannot be read')
  end
  for i = 0, count - 1 do
    local at = L_UNITS + i * L_UNIT
    l[at], l[at + 1], l[at + 2] = struct.unpack(UNIT_FORMAT, stored, HEAD_BYTES + 1 + i * UNIT_BYTES)
  end
  if ARGV[3] and l[L_NUMBER] == tonumber(ARGV[2]) and l[L_ID] == tonumber(ARGV[3]) then
    -- The call brings the same ones, and they have not lain in a store.
    n = unpack_numbers(ARGV[5], 1)
  else
    n = unpack_numbers(stored, numbers_from)
  end
end
