-- How a ledger stands now. Changes nothing.
-- KEYS[1] ledger
-- ARGV    now_ms, or "" for the server's time
-- Returns {0} if there is no state, else {1, version number, version id, shadow, limited, admission balance, retry
-- balance, in flight, ten counters, then id and balance of each unit}.
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
  1, l[L_NUMBER], l[L_ID], n[N_SHADOW], n[N_LIMITED], l[L_ADMISSION], l[L_RETRY], in_flight,
  l[ORIGINALS_ADMITTED], l[RETRIES_ADMITTED], l[ORIGINALS_DENIED], l[RETRIES_DENIED], l[NOT_SENT], l[PERMITS_EXPIRED],
  l[DEPOSITED], l[OVERUSE], l[ACCOUNT_SIGNALS], l[WOULD_BE_DENIED],
}
for i = L_UNITS, #l, L_UNIT do
  out[#out + 1] = l[i]
  out[#out + 1] = l[i + 1]
end
return out
