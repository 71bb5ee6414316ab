-- How a ledger stands now. Changes nothing.
-- KEYS[1] ledger
-- ARGV    now_ms, or "" for the server's time
-- Returns {0} if there is no state, else {1, version number, version id, shadow, limited, admission balance, retry
-- balance, in flight, ten counters, then id and balance of each unit}.
local ledger = load_ledger(KEYS[1])
if ledger == nil then
  return { 0 }
end
if not ledger then
  return redis.error_reply('CORRUPT ledger cannot be read')
end
local n = unpack_numbers(ledger.numbers)
advance(ledger, n, clock_ms(ARGV[1]))
local in_flight = ledger.in_flight
for g = 1, 2 do
  if ledger.ends[g] ~= 0 and ledger.ends[g] <= ledger.now then
    in_flight = in_flight - ledger.permits[g]
  end
end
local out = {
  1, ledger.number, ledger.id, n[N_SHADOW], n[N_LIMITED], ledger.admission[1], ledger.retry[1], in_flight,
  unpack(ledger.counters),
}
for i = 1, #ledger.units do
  out[#out + 1] = ledger.units[i].id
  out[#out + 1] = ledger.units[i][1]
end
return out
