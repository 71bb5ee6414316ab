-- How a ledger stands now. Changes nothing. Put after lending.lua.
-- KEYS[1] ledger     KEYS[2] lending
-- ARGV[1] now_ms, or "" for the server's time
-- Returns {0} if there is no state, else {1, version number, version id, shadow, limited, admission balance, retry
-- balance, in flight, ten counters, 1 if it lends, and if so: epoch's number and id, holders, until nothing is unknown, until
-- anything is given, clock debt, what is charged and what is unknown, both packed; then id and balance of each unit}.

show_ledger(KEYS[1], KEYS[2], ARGV[1])
if not l then
  return { 0 }
end
local in_flight = l[L_IN_FLIGHT]
for g = 1, 2 do
  local ends = l[L_END + 2 * g]
  if ends ~= 0 and ends <= l[L_NOW] then
    in_flight = in_flight - l[L_PERMITS + 2 * g]
  end
end
local out = {
  1, l[L_NUMBER], l[L_ID], n[N_SHADOW], n[N_LIMITED], l[L_ADMISSION], l[L_RETRY], math.max(0, in_flight),
  l[L_ORIGINALS_ADMITTED], l[L_RETRIES_ADMITTED], l[L_ORIGINALS_DENIED], l[L_RETRIES_DENIED], l[L_NOT_SENT],
  l[L_PERMITS_EXPIRED], l[L_DEPOSITED], l[L_OVERUSE], l[L_ACCOUNT_SIGNALS], l[L_WOULD_BE_DENIED], lending and 1 or 0,
}
if lending then
  local now, at = l[L_NOW], #out
  out[at + 1], out[at + 2], out[at + 3] = lending.number, lending.id, lending.holders
  out[at + 4], out[at + 5] = less(lending.quarantine, now), less(lending.wait, now)
  out[at + 6], out[at + 7], out[at + 8] = shown_debt, pack_amounts(lending.charged), pack_amounts(unknown(now))
end
for i = L_UNITS, #l, L_UNIT do
  out[#out + 1] = l[i]
  out[#out + 1] = l[i + 1]
end
return out
