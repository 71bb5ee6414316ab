-- Shows holders of leases. Changes nothing. Put after record.lua and show.lua.
-- KEYS[1] ledger     KEYS[2] lending     KEYS[3] holders
-- ARGV[1] now_ms, or "" for the server's time     ARGV[2...] names of holders
-- Returns for each that is known: name, incarnation, weight, demand, generation, expires_in, revoked, value, charged, and the
-- latest report, the last three packed.

show_ledger(KEYS[1], KEYS[2], ARGV[1])
if not l or l[L_PARTS] % 2 ~= PART_LENDS then
  return {}
end
local out, found = {}, redis.call('HMGET', KEYS[3], unpack(ARGV, 2))
for i = 1, #found do
  local record = found[i] and unpack_record(found[i])
  local life = record and record.lives[#record.lives]
  if life then
    local grant, at, now_ms = life.grants[#life.grants], #out, l[L_NOW]
    out[at + 1], out[at + 2], out[at + 3], out[at + 4] = ARGV[i + 1], life.incarnation, record.weight, record.demand
    out[at + 5] = grant and grant.generation or 0
    out[at + 6] = grant and math.max(0, grant.granted + total_ms(grant.curve) - now_ms) or 0
    out[at + 7] = record.revoked > now_ms and 1 or 0
    out[at + 8] = pack_amounts(grant and grant.value or ZERO)
    out[at + 9] = pack_amounts(record_charge(record))
    out[at + 10] = life.report
  end
end
return out
