-- Reads ledger and clock, once in every script about a ledger. Put after bucket.lua.
-- KEYS[1] ledger     ARGV[1] now_ms, or "" for the server's time

local stored = redis.call('GET', KEYS[1])
local clock
if ARGV[1] ~= '' then
  clock = tonumber(ARGV[1])
else
  local time = redis.call('TIME')
  local ms = time[2] / 1000
  clock = time[1] * 1000 + ms - ms % 1
end
--if leased
-- A ledger that lends has one byte more.
local leased_mark = stored and (#stored - HEAD_BYTES - NUMBERS_BYTES) % (UNIT_BYTES + UNIT_NUMBERS_BYTES) == 1
if leased_mark then
  stored = string.sub(stored, 1, -2)
end
--end
